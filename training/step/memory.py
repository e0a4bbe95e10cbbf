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

It is linear, so the trace reads it as it reads any sum of values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from torch import Tensor

from ...privacy.errors import InputError, InputTypeError
from .values import Agents


def check_memory(fresh: object, past: object, kind: type, row: tuple[float, ...]) -> None:
    """Refuse what is no round's noise, no history, or no row of a strategy over it.

    Args:
        past: noise of the rounds before.
        kind: what both hold.
        row: as `numbers_of` gives it.

    Raises:
        ValueError: a row that is empty, longer than the history allows, or not finite, or whose
            first number is not above 0.
        TypeError: a history that is no tuple of values, or noise of another holder.
    """
    if type(past) is not tuple or not all(isinstance(one, kind) for one in past):
        raise InputTypeError(
            "round.remembered needs past, a field of the state that is a tuple of Agents; begin it "
            "in init as (0.0 * x,) * length"
        )
    if not isinstance(fresh, kind):
        raise InputTypeError(
            f"round.remembered of {type(fresh).__name__}: noise is remembered by the agents, so "
            "fresh is round.noise of a value of Agents"
        )
    if not 1 <= len(row) <= len(past) + 1:
        raise InputError(
            f"row has {len(row)} numbers, and must have from 1 to {len(past) + 1}: the "
            f"diagonal and one for each of the {len(past)} rounds that past remembers"
        )
    if not all(map(math.isfinite, row)) or not row[0] > 0:
        raise InputError(
            f"row={row[:4]!r:.60} must be finite numbers that begin with one above 0, the "
            "diagonal of a lower triangular strategy"
        )


def remembered(fresh: Agents, past: Sequence[Agents], *, row: Sequence[float]) -> Agents:
    """The noise of a round."""
    noise = fresh
    for back, weight in enumerate(row[1:]):
        if weight != 0:
            noise = noise - weight * past[back]
    return noise / row[0]


def numbers_of(row: object) -> tuple[float, ...]:
    """A row of a public table as plain numbers.

    Raises:
        TypeError: it is none.
    """
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
    return tuple(float(one) for one in listed)
