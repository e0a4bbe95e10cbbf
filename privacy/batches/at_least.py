"""How much shuffled batches give away at least, with gradients that point as they like.

    Chua et al. How private are DP-SGD implementations? ICML 2024, arXiv:2403.17673: a pair of data
        sets on which shuffling is told by the largest batch sum.

All other records add -1 to a sum, and the one that is meant adds 1; its batch stands 2 above the
other batches of its epoch, 1 where its values are nothing, and 0 where it is replaced by another
-1. Event: in at least m of E epochs a sum exceeds c.

    p = 1 - Phi((c - 2) / z) Phi(c / z)^(b - 1)
    q = 1 - Phi((c - 1) / z) Phi(c / z)^(b - 1)     or 1 - Phi(c / z)^b where it is replaced
    epsilon >= log((P(Bin(E, p) >= m) - delta) / P(Bin(E, q) >= m))

| symbol | name here | unit |
|---|---|---|
| z | noise_multiplier | noise std / joint sensitivity |
| b | batches | of an epoch |
| E | epochs | whole ones |

Any c and m give a true lower bound. With the order known to the adversary, more is told than this.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .._validate import check_real
from ..errors import InputError

Array = NDArray[np.float64]
_MOST_COUNTS = 200  # values of m that are tried


def least_epsilon_of_shuffled(
    noise_multiplier: float,
    *,
    batches: int,
    epochs: int,
    delta: float,
    replace: bool = False,
    share: float = 1.0,
) -> float:
    """Return a lower bound on epsilon of freshly shuffled epochs, for worst-case gradients.

    Args:
        noise_multiplier: noise std / joint sensitivity, above 0.
        batches: of an epoch, at least 1.
        epochs: E, whole ones; none tell nothing.
        delta: strictly between 0 and 1.
        replace: whether the record is replaced by another one, or else none of its values is there.
        share: of the records of an order that are in a batch, in (0, 1].

    Returns:
        epsilon in nats, from 0.

    Raises:
        ValueError: a value is outside its range.

    >>> found = least_epsilon_of_shuffled(1.0, batches=100, epochs=10, delta=1e-5)
    >>> round(found, 3)
    7.061
    """
    for name, value in (("noise_multiplier", noise_multiplier), ("share", share)):
        check_real(name, value)
    if not 0.0 < noise_multiplier < math.inf or not 0.0 < share <= 1.0:
        raise InputError(
            f"noise_multiplier={noise_multiplier} must be above 0 and finite, and share={share} in "
            "(0, 1]"
        )
    if batches < 1 or epochs < 0 or not 0.0 < delta < 1.0:
        raise InputError(
            f"batches={batches} must be at least 1, epochs={epochs} at least 0, and delta={delta} "
            "strictly between 0 and 1"
        )
    if epochs == 0:
        return 0.0
    counts = np.unique(np.geomspace(1, epochs, _MOST_COUNTS).round()).astype(np.int64)
    if epochs <= _MOST_COUNTS:
        counts = np.arange(1, epochs + 1)
    z = noise_multiplier

    def bounds(c: Array) -> Array:
        """(c, m) of each threshold and count."""
        p, q = _probabilities(c, z, batches, replace=replace, share=share)
        return _bounds(p[:, None], q[:, None], counts[None, :], epochs, delta)

    low, high = -6.0 * z, 2.0 + z * (8.0 + math.sqrt(2.0 * math.log(batches + 1.0)))
    best = 0.0
    for _ in range(6):  # a finer grid around the best threshold
        grid = np.linspace(low, high, 65)
        found = bounds(grid)
        at = int(found.max(axis=1).argmax())
        best = max(best, float(found.max()))
        low, high = float(grid[max(at - 2, 0)]), float(grid[min(at + 2, 64)])
    return best


def _probabilities(
    c: Array, z: float, batches: int, *, replace: bool, share: float
) -> tuple[Array, Array]:
    """P(a sum of one epoch exceeds c) with the record and without."""
    from scipy.special import log_ndtr

    others = (batches - 1) * log_ndtr(c / z)
    absent = -np.expm1(others + log_ndtr(c / z))
    there = -np.expm1(others + log_ndtr((c - 2.0) / z))
    blank = absent if replace else -np.expm1(others + log_ndtr((c - 1.0) / z))
    return share * there + (1.0 - share) * absent, share * blank + (1.0 - share) * absent


def _bounds(p: Array, q: Array, m: NDArray[np.int64], epochs: int, delta: float) -> Array:
    from scipy.stats import binom

    hits, alarms = binom.sf(m - 1, epochs, p), binom.sf(m - 1, epochs, q)
    usable = (hits > delta) & (alarms > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(hits - delta, 1e-300)) - np.log(alarms)
    return np.where(usable, found, 0.0)
