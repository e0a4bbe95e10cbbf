"""What `overhear plan` and `overhear design` print with `--format json`, as types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ...privacy.formats.codec import Count, Delta, NotNegative
from ...privacy.guarantee import Guarantee, WrittenStatus
from ...privacy.noise.design import Kind
from ...privacy.target import Target
from ..described import Described
from ..numbers import figure

_ESTIMATE = (
    "estimate (heuristic, never a guarantee): what the recipient sees, as if no one else's "
    "gradients depended on the record; other agents' data can be such that it learns up to the "
    "closed figure"
)


class Recipient(Described):
    """What final models, or one agent, tell of a record of the agent that is asked about."""

    name: str
    hops: Count | None
    """A message's way from the agent that is asked about; null of final models, and of an agent
    that it never reaches."""
    closed: NotNegative
    """Epsilon as plans have it, whatever other agents compute and add."""
    closed_status: WrittenStatus
    estimate: NotNegative | None
    """The smaller one of `closed` and epsilon as if nobody else's gradients depended on the record:
    heuristic. Null where that takes too long."""
    steered: NotNegative | None
    """Proven epsilon where every step is 1-Lipschitz, of an agent that is given no final models
    but its own; null where it is refused."""
    with_final_models: NotNegative | None
    """The same of one that is given all final models."""
    refused: str | None
    """Why it is."""


class Recipients(Described):
    """Who learns how much of one record of one agent."""

    victim: Count
    delta: Delta
    rows: list[Recipient]
    rests_on: str | None
    """What steered figures rest on; null where there are none."""
    refused: str | None
    """Why there are none; null where there are."""

    def sentences(self) -> list[str]:
        """What the figures mean, and on what they rest."""
        said = [_ESTIMATE]
        if self.rests_on is not None:
            said.append(f"steered: {self.rests_on}")
        if self.refused is not None:
            said.append(f"no steered figure: {self.refused}")
        worst = "The worst agent for a record is its own neighbour, who gains nothing by distance."
        return [*said, worst]


class SecondOpinion(Described):
    """What another library says of the same releases; no figure of ours but the one it is held to.

    Without a bracket `because` says why.
    """

    by: str
    """The library and its version."""
    epsilon: NotNegative
    """Ours, which it is held to."""
    optimistic: NotNegative | None
    """Its lower bound on epsilon."""
    pessimistic: NotNegative | None
    """Its upper bound on epsilon."""
    ratio: NotNegative | None
    """Ours / its upper bound."""
    verdict: Literal["confirmed", "contradicted", "not confirmed", "none"]
    """Contradicted: its lower bound lies above ours. Not confirmed: its upper bound lies more than
    1 % above ours. None: there is no bracket."""
    because: str


class PublishedBound(Described):
    """What the algorithm's paper claims; no figure of ours."""

    paper: str
    statement: str
    epsilon: NotNegative
    delta: Delta
    caveats: list[str]


class Participation(Described):
    """Who takes part in which round, by a list that is public and fixed before the run."""

    told: str
    """Where the list is from."""
    rounds: Count
    by_agent: list[Count]
    """In how many rounds each agent takes part."""
    patterns: Count
    """How many different sets of agents take part in a round."""
    digest: str
    """SHA-256 of the list, for which alone the figures hold."""
    words: str


class Missing(Described):
    """How many agents may be missing from any round, which nobody knew when noise was made."""

    at_most: Count
    """For every set of so many agents, or fewer, the figures hold in every round."""
    agents: Count
    words: str


class Planned(Described):
    """The object of `overhear plan --format json`."""

    version: Annotated[Literal[1], Field(alias="schema")]
    noise_multiplier: NotNegative
    target: Target
    adversaries: list[Guarantee]
    """Worst first."""
    published_bound: PublishedBound | None
    warnings: list[str]
    second_opinion: dict[str, SecondOpinion] | None = None
    """By adversary; where asked for."""
    victims: dict[str, list[NotNegative | None]] | None = None
    """By adversary epsilon of every agent's records, null for members of it; where asked for."""
    participation: Participation | None = None
    """Where the run file has a list of who takes part; else everybody does, in every round."""
    missing: Missing | None = None
    """Where agents may be missing that no list has."""
    joined_within: Count | None = None
    """Where graphs take turns: how many rounds, any in a row, join all agents both ways (B)."""


# What a comparison of kinds of noise says in sentences.


# What `overhear design --format json` prints, as types.


class Row(Described):
    """One kind of noise at the epsilon of the run."""

    kind: str
    """Along what noise is correlated."""
    memory: bool
    """Whether noise of a round is partly taken back later."""
    coefficients: Count
    """Of the strategy over time of each eigenspace; 1 has no memory."""
    groups: Count
    """Groups of records that take turns; 1 is plain Poisson."""
    rate: Annotated[float, Field(ge=0, le=1)]
    """At which a record is drawn in its turn."""
    amplified: bool
    """Whether the secret draw counts for epsilon; else a record is taken to be in every turn."""
    own_sampling: bool
    """Whether these are the batches of the run file."""
    noise_multiplier: NotNegative
    """Noise on a sum of clipped gradients / clip norm, at which the target is met."""
    joint_sensitivity: NotNegative
    """Of a turn, or of the run where it is one release, at noise multiplier 1."""
    noise: NotNegative
    """Root mean square of the noise in the models, in clip norms of a sum, over agents, rounds and
    coordinates; times the largest learning rate and clip norm over batch size it is that of the
    run."""
    energy: NotNegative
    """Its square at noise multiplier 1, of a record that takes all of its turns where that is what
    is accounted for, and of one turn where rounds are composed."""
    less_energy: NotNegative
    """How many times less squared noise than independent noise under the run's own sampling."""
    gap: NotNegative | None
    """How far, relatively, the squared noise is from a proven lower bound; null where none is."""
    bound_of: str | None
    """Of what noise the lower bound is one."""
    outsider: NotNegative
    """Epsilon against who knows no noise."""
    one_agent: NotNegative
    """Epsilon against the single agent that knows most. Memory made of pair secrets is not
    amplified for one that does not hear all links, so this can exceed that of all others."""
    all_others: NotNegative
    """Epsilon against all agents but the victim together."""
    undone_by: str
    """Who can subtract the noise, or a part of it."""
    algorithm: str
    """That trains with it."""
    settings: dict[str, str | int | float]
    """Hyper-parameters of that algorithm."""

    @property
    def meets(self) -> bool:
        """Whether some noise of the kind meets the target."""
        return math.isfinite(self.noise)


class Compared(Described):
    """Kinds of noise at one epsilon, least noise first."""

    version: Count
    epsilon: NotNegative
    delta: Delta
    adversary: str
    rounds: Count
    sampling_rate: Annotated[float, Field(ge=0, le=1)]
    rows: list[Row]
    advice: list[str]


_ALIKE = 5e-3  # relative difference of noise that nobody trains differently for


def undone_by(kind: Kind) -> str:
    """Who can subtract noise of a kind, or a part of it.

    >>> undone_by(Kind.JOINT)
    'any agent: one common seed makes all of it'
    """
    if kind.common_seed:
        return "any agent: one common seed makes all of it"
    if kind is Kind.PAIRS:
        return "neighbours in part: each knows the secrets of its links"
    return "no one but the agent that makes it"


def advice(rows: Sequence[Row], *, groups: int, epsilon: float) -> list[str]:
    """What to use, and why memory is or is not worth it.

    Args:
        rows: least noise first.
        groups: of records that take turns in the run; 1 is plain Poisson.
        epsilon: that all of them meet.
    """
    # Ways that can be used, with memory and without, least noise first.
    usable = [row for row in rows if math.isfinite(row.noise)]
    fresh = [row for row in usable if not row.memory]
    memory = [row for row in usable if row.memory]
    said = []
    best = usable[0]
    # The best under the run's own batches, and the best of all.
    own = [row for row in usable if row.own_sampling]
    if own:
        said.append(f"Least noise under the run's own batches: {_named(own[0])}.")
    if best not in own:
        said.append(f"Least noise of all: {_named(best)}.")
    if groups == 1 and memory and not any(row.own_sampling for row in memory):
        said.append(
            "Poisson batches may draw a record in every round, and then noise that is independent "
            "in time is best: memory needs records that take turns."
        )
    if memory and fresh:
        alike = math.isclose(fresh[0].noise, memory[0].noise, rel_tol=_ALIKE)
        ahead = fresh[0].noise <= memory[0].noise and not alike
        said.append(
            f"At epsilon {figure(epsilon)} memory "
            + ("changes little: " if alike else "loses: " if ahead else "pays: ")
            + f"{figure(memory[0].noise, 4)} with it, {figure(fresh[0].noise, 4)} without"
            + (", since it gives up most of what sampling adds." if ahead else ".")
        )
    # Noise from a common seed is no noise to who knows the seed.
    seeds = [row for row in usable if math.isinf(row.one_agent)]
    if best in seeds:
        kept = next((row for row in own if row not in seeds), None)
        said.append(
            f"Noise {best.kind} is made from one common seed: any agent that is curious can remove "
            "it (epsilon infinite)"
            + (f"; the best that no single agent removes is {_named(kept)}." if kept else ".")
        )
    return said


def _named(row: Row) -> str:
    gain = figure(row.less_energy)
    turns = "" if row.groups == 1 or row.own_sampling else f" with {row.groups} groups in turn"
    return (
        f"{row.kind}{turns}, {figure(row.noise, 4)}, {gain} times less noise energy than "
        "independent noise"
        if row.kind != Kind.INDEPENDENT
        else f"{row.kind}, {figure(row.noise, 4)}"
    )
