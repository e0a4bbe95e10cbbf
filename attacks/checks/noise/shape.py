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
from scipy.special import erfc, log1p, ndtr, ndtri

from ....training.noise_tests.laws import binomial
from ...watching.result import Finding

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
