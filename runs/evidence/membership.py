"""What membership.json holds, as types, and how it is read.

Keys may be added, so that readers must ignore those that they do not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import JsonSchemaValue

from ...privacy.formats.codec import Count, Delta, Fraction, NotNegative, Score, schema_of
from ...privacy.guarantee import WrittenStatus
from ..described import Described
from ..folder import folder as run_folder
from .evidence import read_evidence

__all__ = [
    "EarlierMembership",
    "ExposedRecord",
    "GuessedGames",
    "Membership",
    "MembershipAgent",
    "MembershipCurve",
    "MembershipPart",
    "MembershipRate",
    "MembershipRow",
    "MembershipVerdict",
    "membership_schema",
    "read_membership",
]

MembershipVerdict = Literal[
    "within the proof", "suspicious", "contradicted", "nothing proven", "no games"
]


class MembershipRate(Described):
    """Members that a threshold finds at a rate of false positives."""

    asked: Fraction
    """Largest rate of false positives."""
    needed: Count
    """Non-members without which the rate cannot be measured."""
    true_positive_rate: Fraction | None
    """Null where there are fewer."""
    low: Fraction | None
    """Clopper-Pearson limits of the true-positive rate, at the confidence of the file."""
    high: Fraction | None
    allowed: Fraction | None
    """By the proof at this rate of false positives; null where nothing is proven."""


class MembershipRow(Described):
    """One attack on one model."""

    model: str
    """average, owner (of each record), or agent K."""
    attack: str
    auc: Fraction
    auc_error: NotNegative
    """Standard error."""
    rates: list[MembershipRate]
    above_limit: bool | None
    """Whether a rate lies above what is proven by more than chance would put there; null where
    nothing is proven."""


class MembershipAgent(Described):
    """How one agent's model tells members from others, by the attack that is named first."""

    agent: Count
    auc: Fraction
    auc_error: NotNegative


class MembershipCurve(Described):
    """Pairs of false- and true-positive rate."""

    model: str
    attack: str
    points: list[tuple[Fraction, Fraction]]


class MembershipPart(Described):
    """All attacks on the run itself, or on the games."""

    members: Count
    others: Count
    rows: list[MembershipRow]
    agents: list[MembershipAgent]
    """Empty of a large network."""
    curves: list[MembershipCurve]


class GuessedGames(Described):
    """What right guesses in the games say of epsilon."""

    model: str
    attack: str
    """That was right most often."""
    right: Count
    guesses: Count
    coins: Count
    epsilon: NotNegative
    """Lower bound at the confidence of the file, corrected for the number of guessers."""


class ExposedRecord(Described):
    """A training record that an attack is surest of."""

    record: Count
    """Its place in the training part of the data set."""
    agent: Count
    score: Score
    """Log-likelihood ratio in nats."""


class EarlierMembership(Described):
    """What an earlier one of the same run found."""

    file: str
    references: Count
    games: Count
    verdict: MembershipVerdict


class Membership(Described):
    """The object of membership.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    references: Count
    games: Count
    records: Count
    """At stake: half of the training set, half held out."""
    rounds: Count
    noise_multiplier: NotNegative
    confidence: Annotated[float, Field(gt=0, lt=1)]
    delta: Delta
    adversary: Literal["final-models"] = "final-models"
    proven_epsilon: NotNegative | None
    """Of holders of the final models, for the worst agent; null where nothing is proven."""
    status: WrittenStatus
    because: str
    """Why nothing is proven; empty where something is."""
    limit: list[tuple[Fraction, Fraction]]
    """Pairs of false-positive rate and the largest true-positive rate that the proof allows."""
    run: MembershipPart
    """Records that the run was trained on, against held-out ones: an attack."""
    played: MembershipPart | None
    """Games in which coins decide: what a proof is held against."""
    guessed: GuessedGames | None
    verdict: MembershipVerdict
    words: str
    exposed: list[ExposedRecord] = Field(default_factory=list)
    """Only where it was asked for: it names people."""
    run_file: str = ""
    """SHA-256 of the run file."""
    earlier: list[EarlierMembership] = Field(default_factory=list)


def read_membership(folder: Path) -> Membership | None:
    """The membership.json of a run folder, None where there is none.

    Raises:
        ValueError: it is none that can be read; evidence that is there is never left out.
    """
    path = folder / run_folder.MEMBERSHIP
    return read_evidence(path, Membership, "overhear membership DIR")


def membership_schema() -> JsonSchemaValue:
    """JSON Schema (2020-12) of membership.json.

    >>> membership_schema()["properties"]["schema"]["const"]
    1
    """
    return schema_of(Membership, "membership.json of overhear, version 1")
