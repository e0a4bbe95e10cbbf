"""What a step may give to an operation besides values: numbers, tables of mixing, agents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from ...privacy.errors import InputError, InputTypeError
from ..step.values import SERVER

__all__ = [
    "checked_clip_norm",
    "checked_factor",
    "checked_knowers",
    "checked_number",
    "makers_of",
]


def checked_number(name: str, value: object, *, least: float, most: float, remedy: str) -> float:
    """A finite real number in [least, most].

    Raises:
        TypeError: no number.
        ValueError: not finite, or out of range.

    >>> checked_number("std", 2, least=0.0, most=math.inf, remedy="")
    2.0
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputTypeError(f"{name}={value!r} must be a number; {remedy}")
    number = float(value)
    if not (math.isfinite(number) and least <= number <= most):
        bound = f"of at least {least:g}" if math.isinf(most) else f"in [{least:g}, {most:g}]"
        raise InputError(f"{name}={value!r} must be a finite number {bound}; {remedy}")
    return number


def checked_clip_norm(value: object) -> float | None:
    """A positive finite number, or None.

    Raises:
        TypeError: neither a number nor None.
        ValueError: a number that bounds nothing, or leaves nothing.
    """
    if value is None:
        return None
    remedy = "clip_norm is positive, or None where nothing is clipped"
    number = checked_number("clip_norm", value, least=0.0, most=math.inf, remedy=remedy)
    if number == 0.0:
        raise InputError(f"clip_norm={value!r} must be above 0; {remedy}")
    return number


def checked_factor(factor: Tensor, *, rows: int) -> np.ndarray:
    """(rows, sources) float64, how much of each source is in each row.

    Raises:
        TypeError: no tensor.
        ValueError: another shape, or entries that are not finite.
    """
    if not isinstance(factor, Tensor):
        raise InputTypeError(f"factor of {type(factor).__name__} must be a tensor (rows, sources)")
    mixing: np.ndarray = factor.detach().cpu().double().numpy()
    if mixing.ndim != 2 or len(mixing) != rows:
        raise InputError(f"factor of shape {mixing.shape} must be ({rows}, sources)")
    if not np.isfinite(mixing).all():
        raise InputError("factor holds entries that are not finite; noise is mixed by numbers")
    return mixing


def checked_knowers(
    known_to: Sequence[Any], *, sources: int, agents: int
) -> Sequence[frozenset[int]]:
    """The agents that know each source.

    Raises:
        TypeError: what is no set of agents.
        ValueError: agents that do not exist, or another number of sets than of sources.
    """
    if isinstance(known_to, str) or not isinstance(known_to, Sequence):
        raise InputTypeError(
            f"known_to of {type(known_to).__name__} must be a list of sets of agents, one a source"
        )
    if len(known_to) != sources:
        raise InputError(
            f"known_to names knowers of {len(known_to)} sources, but there are {sources}; give "
            "one set of agents for each"
        )
    for knowers in set(map(_as_set, known_to)):
        for agent in knowers:
            if isinstance(agent, bool) or not isinstance(agent, int | np.integer):
                raise InputTypeError(f"known_to: {agent!r} is no number of an agent")
            if not 0 <= agent < agents:
                raise InputError(f"known_to: agent {agent} must lie in 0..{agents - 1}")
    return [_as_set(knowers) for knowers in known_to]


def makers_of(holders: np.ndarray, mixing: np.ndarray | None) -> Sequence[frozenset[int]]:
    """The agents that make each source, where nobody else is said to know it.

    Args:
        holders: (rows,) who holds each row that noise enters.
        mixing: (rows, sources); None where each row has a source of its own.
    """
    if mixing is None:
        alone = {holder: frozenset({holder}) - {SERVER} for holder in set(holders.tolist())}
        return [alone[holder] for holder in holders.tolist()]
    makers = (holders[np.flatnonzero(column)].tolist() for column in mixing.T)
    return [frozenset(of) - {SERVER} for of in makers]


def _as_set(knowers: Any) -> frozenset[Any]:
    if isinstance(knowers, frozenset):
        return knowers
    if isinstance(knowers, set | list | tuple):
        return frozenset(knowers)
    raise InputTypeError(f"known_to: {knowers!r} must be a set of agents")
