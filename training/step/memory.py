"""Noise that remembers: a round's noise, less what earlier rounds added and this one takes back.

    H. B. McMahan et al. "(Amplified) Banded Matrix Factorization", NeurIPS 2023, arXiv 2306.08153:
        the noise of all rounds together is C^-1 Z, for a lower triangular strategy C.

Solved row by row, C n = z is

    n_t = (z_t - sum_{j >= 1} C[t, t-j] n_{t-j}) / C[t, t]

| symbol | name here | shape      | meaning                                            |
|--------|-----------|------------|----------------------------------------------------|
| z_t    | fresh     | (A, D)     | noise that this round makes                        |
| n_t-j  | past      | j x (A, D) | noise that the rounds before added, latest first   |
| C[t]   | row       | (1 + p,)   | of the strategy, from its diagonal backwards       |

Only handles are added and scaled, so the trace reads what it does as it reads any other step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from torch import Tensor

from ...privacy.errors import InputError, InputTypeError
from .handles import Agents

__all__ = ["remembered"]


def remembered(
    fresh: Agents, past: tuple[Agents, ...], row: Sequence[float] | Tensor
) -> tuple[Agents, tuple[Agents, ...]]:
    """The noise of a round, and the history that the next one begins with; see `Round.remembered`.

    Raises:
        ValueError: a row that is empty, longer than the history allows, or not finite, or whose
            first number is not above 0.
        TypeError: a history that is no tuple of values, or a row of what is no number.
    """
    if type(past) is not tuple or not all(isinstance(one, Agents) for one in past):
        raise InputTypeError(
            "round.remembered needs past, a field of the state that is a tuple of Agents; begin it "
            "in init as (0.0 * x,) * length"
        )
    if not isinstance(fresh, Agents):
        raise InputTypeError(
            f"round.remembered of {type(fresh).__name__}: noise is remembered by the agents, so "
            "fresh is round.noise of a value of Agents"
        )
    numbers = _numbers(row)
    if not 1 <= len(numbers) <= len(past) + 1:
        raise InputError(
            f"row has {len(numbers)} numbers, and must have from 1 to {len(past) + 1}: the "
            f"diagonal and one for each of the {len(past)} rounds that past remembers"
        )
    if not all(map(math.isfinite, numbers)) or not numbers[0] > 0:
        raise InputError(
            f"row={numbers[:4]!r:.60} must be finite numbers that begin with one above 0, the "
            "diagonal of a lower triangular strategy"
        )
    noise = fresh
    for back, weight in enumerate(numbers[1:]):
        if weight != 0:
            noise = noise - weight * past[back]
    noise = noise / numbers[0]
    return noise, (noise, *past)[: len(past)]


def _numbers(row: Sequence[float] | Tensor) -> list[float]:
    """A row of a public table as plain numbers."""
    if isinstance(row, Tensor | np.ndarray):
        listed = row.tolist()
    elif isinstance(row, tuple | list):
        listed = list(row)
    else:
        raise InputTypeError(f"row of {type(row).__name__} must be a list of numbers, or a tensor")
    if not isinstance(listed, list) or any(
        isinstance(one, bool) or not isinstance(one, Real | np.number) for one in listed
    ):
        raise InputTypeError("row must be a list of numbers: one row of a strategy, not a table")
    return [float(one) for one in listed]
