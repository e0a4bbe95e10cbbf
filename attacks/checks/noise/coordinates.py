"""Whether the coordinates of one vector are independent standard normals.

Of u with D coordinates

    |{i : |u_i| < t}|                              binomial, D draws, P(|z| < t)
    sum over disjoint pairs (u_i +- u_(i+l))^2 / 2   chi-square, one degree a pair

exactly, for every t and every lag l. Noise that repeats itself within a message, whose differences
hold no noise at all, shows at its lag; noise of another shape (two values, a truncated tail) in the
counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from ....training.noise_tests.laws import binomial, two_sided
from ...watching.result import Finding

_WITHIN = (0.05, 0.5, 1.0, 1.5, 2.0, 3.0)
_ROWS_AT_ONCE = 64
_FEW = 8  # coordinates of which no lag and no count says anything


def note_coordinates(found: Finding, values: NDArray[np.float64], names: list[str]) -> None:
    """Note the tests of every row.

    Args:
        found: where they are noted.
        values: (n, D) rows of unit variance.
        names: (n,) of the rows.
    """
    if values.shape[1] < _FEW:
        return
    for start in range(0, len(values), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        _note_rows(found, values[rows], names[rows])


def _note_rows(found: Finding, values: NDArray[np.float64], names: list[str]) -> None:
    width = values.shape[1]

    def note(p: NDArray[np.float64], what: str) -> None:
        found.worst(p, lambda at: f"{what} {names[at]}")

    for lag in _lags(width):
        first = np.flatnonzero(np.arange(width - lag) // lag % 2 == 0)
        a, b = values[:, first], values[:, first + lag]
        for sign in (1.0, -1.0):
            squares = np.square(a + sign * b).sum(axis=1) / 2.0
            note(two_sided(squares, len(first)), f"coordinates {lag} apart in")
    for limit in _WITHIN:
        counts = (np.abs(values) < limit).sum(axis=1)
        chance = float(erf(limit / np.sqrt(2.0)))
        note(binomial(counts, width, chance), f"how many are within {limit:g} in")


def _lags(width: int) -> list[int]:
    """Powers of two, and a half, a third and a quarter of the row."""
    found = {2**k for k in range(width.bit_length()) if 2**k <= width // 2}
    return sorted(found | {width // part for part in (2, 3, 4)})
