"""What attacks/attack.json and audit.json hold, as types.

Keys may be added, so that readers must ignore those that they do not know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..described import Adjacency, Count, Delta, Described, Fraction, NotNegative, Score, Status

__all__ = [
    "AllowedByProof",
    "Assumption",
    "Attack",
    "AttackRow",
    "Audit",
    "AuditCheck",
    "AuditVerdict",
    "AuditedAdversary",
    "AuditedMessage",
    "EarlierAudit",
    "Estimator",
    "Means",
    "Measured",
    "RowVerdict",
    "Scenario",
    "SecondLook",
]

RowVerdict = Literal["consistent", "suspicious", "contradicted", "nothing proven", "not measured"]
AuditVerdict = Literal[
    "consistent", "suspicious", "contradicted", "failed checks", "nothing proven"
]


class Means(Described):
    """Mean scores of reconstructions."""

    mse: Score
    psnr: Score
    ssim: Score


class AttackRow(Described):
    """What is attacked, and how well it was rebuilt."""

    name: str
    """blind guess, no defence, clipping only, or defended: the run's own messages."""
    mse: list[Score]
    psnr: list[Score]
    ssim: list[Score]
    mean: Means
    interval: dict[str, tuple[Score, Score]] = {}
    """Of the means, by bootstrap."""
    conventions: dict[str, Means] = {}
    """Mean scores as other papers scale images."""
    stage: list[str] = []
    """What made each reconstruction."""
    noise_std: Score | None = None
    """On each coordinate of what was attacked."""
    intercepts: Count = 0
    """Messages that were used."""
    labels: list[int] = []
    """That the attack took the records to have; below 0 where it found none."""
    spectral: str = ""
    unused: list[str] = []
    """What of the victim the attack does not use."""
    images: list[str] = []
    """Paths within the run."""


class AllowedByProof(Described):
    """What was rebuilt, beside what the proof allows."""

    mu: NotNegative | None = None
    """Of the attacked messages together."""
    threshold: Score | None = None
    """MSE at which an image counts as rebuilt."""
    prior_hit_rate: Fraction | None = None
    """Of guessing alone, at most."""
    most: Fraction
    """Largest expected fraction that the proof allows."""
    rebuilt: Count
    images: Count
    guesses: Count = 1
    confidence: Fraction | None = None
    exceeded: bool
    """More was rebuilt than the proof allows."""
    sentence: str


class Scenario(Described):
    """One attack on one intercepted round."""

    scenario: str
    adversary: str
    round: Count
    model_owner: Count
    victim: Count
    preset: str
    batch: Count = 1
    """Records that were planted together."""
    together: Count = 1
    """Rounds in which they take part."""
    rows: list[AttackRow]
    originals: list[str] = []
    gallery: str | None = None
    records: str = ""
    """Whose records are pictured."""
    conclusion: str
    bound: AllowedByProof


class Attack(Described):
    """The object of attacks/attack.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    scenarios: list[Scenario]


class Estimator(Described):
    """A lower bound on epsilon by one method."""

    name: str
    epsilon: NotNegative
    assumptions: str


class SecondLook(Described):
    """A bound with fresh canaries, after one that exceeded the proof."""

    epsilon: NotNegative
    confidence: Fraction
    noise_scale: NotNegative | None = None


class AuditedMessage(Described):
    """What canaries measured of one kind of message alone."""

    message: str
    agent: Count
    proven_epsilon: NotNegative
    measured_epsilon: NotNegative
    canaries: Count


class AuditedAdversary(Described):
    """What canaries measured of one adversary."""

    name: str
    proven_epsilon: NotNegative
    status: Status
    measured_epsilon: NotNegative | None
    """Lower bound on the true epsilon, at the audit's confidence; null if not measured."""
    ideal_epsilon: NotNegative | None
    """What a perfect attack would measure with as many canaries."""
    ratio: NotNegative | None = None
    """Measured / proven."""
    canaries: Count
    threshold: Score | None = None
    """On the score, fixed in advance."""
    false_alarms: Count | None = None
    misses: Count | None = None
    verdict: RowVerdict
    estimators: list[Estimator]
    noise_scale: NotNegative | None = None
    """Largest multiple of the declared noise that is not rejected; below 1 contradicts it."""
    again: SecondLook | None = None
    messages: list[AuditedMessage] = []
    messages_again: list[AuditedMessage] = []
    words: str


class AuditCheck(Described):
    """A check of the implementation that needs no canary."""

    name: str
    passed: bool
    p: Fraction | None
    tests: Count
    words: str


class EarlierAudit(Described):
    """What an audit of the same run found before."""

    file: str
    canaries: Count
    rounds: Count
    verdict: AuditVerdict


class Audit(Described):
    """The object of audit.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    canaries: Count
    runs: Count | None = None
    rounds: Count | None = None
    """That were run with canaries; null or absent: all."""
    planned_rounds: Count | None = None
    hosts: list[Count] = []
    """Agents that held canaries."""
    victim: Count | None = None
    """The agent whose records alone were at risk; null: the worst agents'."""
    game: str = ""
    """What a canary's coin decides."""
    confidence: Annotated[float, Field(gt=0, lt=1)]
    delta: Delta
    unit: Literal["record"] = "record"
    adjacency: Adjacency
    noise_multiplier: NotNegative | None = None
    verdict: AuditVerdict
    adversaries: list[AuditedAdversary]
    checks: list[AuditCheck]
    run_file: str = ""
    """SHA-256 of the run file that was audited."""
    earlier: list[EarlierAudit] = []
    """Audits of the same run before this one."""


class Measured(Described):
    """What a page says of an audited adversary: three digits, rounded down."""

    epsilon: NotNegative | None
    ideal: NotNegative | None
    messages: list[NotNegative | None]
    """Of each message alone, in the order of the audit."""


class Assumption(Described):
    """What the figures rest on."""

    name: str
    text: str
    status: Literal["verified", "assumed", "gap"]
    how: str
    """How it was verified, or why it was not."""
