"""What a comparison of kinds of noise says in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from ...privacy.formats.codec import Count, Delta, NotNegative
from ...privacy.noise.design import Kind
from ..described import Described
from ..numbers import figure

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
