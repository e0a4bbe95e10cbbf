"""A second opinion on an epsilon: what dp-accounting says of the same rounds, from both sides.

    optimistic <= epsilon <= pessimistic       of the truth, says dp-accounting
    ours >= optimistic                         or ours is too small
    ours / pessimistic                         1 where both are sharp

An optimistic estimate is loose where rounds are many: each loses half an interval of the grid.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..participation import Event, as_events
from .estimates import Unanswered, epsilon_estimate

__all__ = ["SecondOpinion", "library", "second_opinion"]

_ABOVE, _BELOW = 0.5, 0.25  # seconds that an estimate from above, and from below, may take
_ROUNDING = 1e-9  # relative; what two ways to add the same floats may differ by
AGREES_WITHIN = 1e-2  # of ours, that a pessimistic estimate may lie above it


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondOpinion:
    """What dp-accounting says of the rounds that an epsilon is of.

    Attributes:
        by: the library and its version.
        ours: the epsilon that it is asked about, in nats.
        optimistic: its lower bound; None where it has none.
        pessimistic: its upper bound; None where it has none.
        intervals: of the grids of both, in nats.
        because: why there is no bracket; empty where there is one.

    Raises:
        ValueError: a bracket with a reason why it is absent, or neither.
    """

    by: str
    ours: float
    optimistic: float | None = None
    pessimistic: float | None = None
    intervals: tuple[float, float] | None = None
    because: str = ""

    def __post_init__(self) -> None:
        """Check that there is a bracket or a reason."""
        if (self.optimistic is None) != bool(self.because):
            raise InputError("a second opinion has either a bracket or a reason why it is absent")

    @property
    def ratio(self) -> float | None:
        """Ours / pessimistic; None without a bracket, 1 where both are 0."""
        if self.pessimistic is None:
            return None
        if self.pessimistic == self.ours:
            return 1.0
        return self.ours / self.pessimistic if self.pessimistic > 0.0 else math.inf

    @property
    def contradicts(self) -> bool:
        """Whether its lower bound lies above ours: one of the two is wrong."""
        return self.optimistic is not None and self.ours < self.optimistic * (1.0 - _ROUNDING)

    @property
    def confirms(self) -> bool:
        """Whether ours is no smaller than its lower bound, nor much smaller than its upper one."""
        if self.pessimistic is None or self.contradicts:
            return False
        return self.pessimistic <= self.ours * (1.0 + AGREES_WITHIN) + 1e-6


def second_opinion(
    rounds: Mapping[tuple[float, float], int] | Mapping[Event, int],
    *,
    ours: float,
    delta: float,
    adjacency: str = "add-or-remove-one",
) -> SecondOpinion:
    """Return what dp-accounting says of `rounds`, whose epsilon is `ours`.

    Args:
        rounds: how often each (noise multiplier, sampling rate), or each `Event`, occurs.
        ours: epsilon of them, in nats.
        delta: strictly between 0 and 1.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".

    Returns:
        A bracket, or the reason why there is none. The same rounds are asked about once; the
        interval of its grid is chosen so that a second is rarely passed.

    >>> found = second_opinion({(1.0, 0.01): 1000}, ours=1.8283, delta=1e-5)
    >>> found.confirms, round(found.pessimistic, 3), round(found.ratio, 3)
    (True, 1.828, 1.0)
    """
    by = library()
    if math.isinf(ours):
        return SecondOpinion(by=by, ours=ours, because="there is no finite figure to hold it to")
    kinds = tuple(sorted(as_events(rounds).items()))
    bounds = _bracket(kinds, delta, str(adjacency))
    if isinstance(bounds, str):
        return SecondOpinion(by=by, ours=ours, because=bounds)
    low, high, intervals = bounds
    return SecondOpinion(by=by, ours=ours, optimistic=low, pessimistic=high, intervals=intervals)


@functools.cache
def library() -> str:
    """The name and the version of the library."""
    return f"dp-accounting {importlib.metadata.version('dp-accounting')}"


@functools.lru_cache(maxsize=512)
def _bracket(
    rounds: tuple[tuple[Event, int], ...], delta: float, adjacency: str
) -> tuple[float, float, tuple[float, float]] | str:
    asked = dict(rounds)
    how: dict[str, Any] = {"delta": delta, "adjacency": adjacency}
    try:
        high = epsilon_estimate(asked, **how, seconds=_ABOVE)
        low = epsilon_estimate(asked, **how, seconds=_BELOW, pessimistic=False, near=high.figure)
    except Unanswered as refused:
        return str(refused)
    return low.figure, high.figure, (low.interval, high.interval)
