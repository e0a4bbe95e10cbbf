"""Pooled values have the shape of a normal distribution, far into its tails.

Of N independent values

    how many are below t                binomial, N draws, Phi(t)
    how many are beyond t either way    binomial, N draws, 2 Phi(-t)
    the largest of all is x             at least with probability <= 2 N Phi(-x), at most with
                                        (1 - 2 Phi(-x))^N

for 63 quantiles and every half deviation up to 6. Values that are cut off beyond t are missed where
fewer than about 25 of N are expected there: a cut at 4 deviations is found in 400,000 values, one
at 4.5 in 4 million, one at 5 not below 45 million.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc, log1p, ndtr, ndtri

from ...training.noise_tests.laws import binomial, two_sided
from .result import Finding

_QUANTILES = np.arange(1, 64) / 64.0
_BEYOND = np.arange(0.5, 6.01, 0.5)
_FEW = 64  # values of which no shape is asked


def note_shape(found: Finding, values: NDArray[np.float64], what: str) -> None:
    """Note the counts of all values, and the largest.

    Args:
        found: where they are noted.
        values: independent, of unit variance; any shape.
        what: the values in words, as in "the noise of every message model".
    """
    N = values.size
    if N < _FEW:
        return
    flat = values.ravel()
    size = np.abs(flat)
    limits = ndtri(_QUANTILES)
    below = np.searchsorted(limits, flat, side="right")
    counts = np.cumsum(np.bincount(below, minlength=len(limits) + 1))[:-1]
    found.worst(
        binomial(counts, N, ndtr(limits)),
        lambda at: (
            f"{counts[at]:,} of {N:,} values of {what} are below {limits[at]:.3g} "
            f"deviations, where {N * float(ndtr(limits[at])):,.4g} are expected"
        ),
    )
    chance = erfc(_BEYOND / math.sqrt(2.0))
    beyond = np.array([int((size > t).sum()) for t in _BEYOND])
    found.worst(
        binomial(beyond, N, chance),
        lambda at: (
            f"{beyond[at]:,} of {N:,} values of {what} are beyond {_BEYOND[at]:g} "
            f"deviations, where {N * chance[at]:,.4g} are expected"
        ),
    )
    largest = float(size.max())
    tail = float(erfc(largest / math.sqrt(2.0)))
    p_of = 2.0 * min(1.0, N * tail, math.exp(N * float(log1p(-min(tail, 1.0 - 1e-16)))))
    words = f"the largest of {N:,} values of {what} is {largest:.4g} deviations"
    found.note(min(1.0, p_of), what=words)


# Whether the coordinates of one vector are independent standard normals.
#
# Of u with D coordinates
#
#     |{i : |u_i| < t}|                              binomial, D draws, P(|z| < t)
#     sum over disjoint pairs (u_i +- u_(i+l))^2 / 2   chi-square, one degree a pair
#
# exactly, for every t and every lag l. Noise that repeats itself within a message, whose
# differences hold no noise at all, shows at its lag; noise of another shape (two values, a
# truncated tail) in the counts.

_WITHIN = (0.05, 0.5, 1.0, 1.5, 2.0, 3.0)
_ROWS_AT_ONCE = 64
_FEW_COORDINATES = 8  # coordinates of which no lag and no count says anything


def note_coordinates(found: Finding, values: NDArray[np.float64], names: list[str]) -> None:
    """Note the tests of every row.

    Args:
        found: where they are noted.
        values: (n, D) rows of unit variance.
        names: (n,) of the rows.
    """
    if values.shape[1] < _FEW_COORDINATES:
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
