"""What a comparison of kinds of noise says in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...privacy.noise.design.kinds import Kind
from ..numbers import figure
from .schema import Row

__all__ = ["advice", "undone_by"]

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
    usable = [row for row in rows if math.isfinite(row.noise)]
    fresh = [row for row in usable if not row.memory]
    memory = [row for row in usable if row.memory]
    said = []
    best = usable[0]
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
