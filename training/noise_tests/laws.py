"""Tail probabilities of what sound noise gives: exact, or bounded from above.

Floating-point noise is standard normal up to rounding. Two constants bound what that changes: a
value is off by at most `RESOLUTION`, and equals a given number with probability at most `ATOM`
(a float32 sampler has about 2^-24 a number, 2^-23 at zero; a product is rounded once more).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ATOM", "RESOLUTION", "at_least", "at_most", "beyond", "smaller", "squares"]

RESOLUTION = 2.0**-20
ATOM = 2.0**-20
_SUMMED = 1e-5  # relative error that a sum of float32 squares may have


def squares(total: ArrayLike, count: ArrayLike) -> NDArray[np.float64]:
    """Two-sided p of sums of squares of independent standard normal numbers.

    Args:
        total: sums.
        count: how many numbers each sum has, at least 1.

    Returns:
        p of each, 0 where a sum is no number; 1 where it is within 5 deviations and above a
        twentieth of its mean, since of thousands next to none is worth the exact figure.

    >>> [f"{p:.1e}" for p in squares([650.0, 325.0], 650)]  # half the variance is not chance
    ['1.0e+00', '4.8e-29']
    """
    from scipy.special import gammaincc

    sums, n = np.broadcast_arrays(np.asarray(total, dtype=float), np.asarray(count, dtype=float))
    usual = (np.abs(sums - n) < 5 * np.sqrt(2 * n)) & (sums > 0.05 * n)
    p = np.ones(sums.shape)
    if not usual.all():
        x, n = sums[~usual], n[~usual]
        above = gammaincc(n / 2, np.maximum(x, 0.0) * (1 - _SUMMED) / 2)
        two_sided = np.minimum(1.0, 2 * np.minimum(smaller(x, n), above))
        p[~usual] = np.where(np.isfinite(x), two_sided, 0.0)
    return p


def smaller(total: ArrayLike, count: ArrayLike) -> NDArray[np.float64]:
    """P that a sum of squares of standard normal numbers is at most so large.

    A bound, too, where something is added to the numbers that is independent of them.
    """
    from scipy.special import gammainc

    sums, n = np.asarray(total, dtype=float), np.asarray(count, dtype=float)
    norm = np.sqrt(np.maximum(sums, 0.0) * (1 + _SUMMED)) + np.sqrt(n) * RESOLUTION
    return np.where(np.isnan(sums), 0.0, gammainc(n / 2, norm**2 / 2))


def at_least(found: ArrayLike, count: ArrayLike, p: ArrayLike) -> NDArray[np.float64]:
    """P that of so many independent trials at least `found` succeed, each with probability p.

    >>> f"{float(at_least(10, 650, ATOM)):.1e}"  # ten zeros among 650 numbers
    '2.2e-39'
    """
    from scipy.special import betainc

    k, n = np.asarray(found, dtype=float), np.asarray(count, dtype=float)
    tail = betainc(np.maximum(k, 1.0), np.maximum(n - k + 1, 1e-9), p)
    return np.where(k <= 0, 1.0, tail)


def at_most(found: ArrayLike, count: ArrayLike, p: ArrayLike) -> NDArray[np.float64]:
    """P that of so many independent trials at most `found` succeed."""
    from scipy.special import betainc

    k, n = np.asarray(found, dtype=float), np.asarray(count, dtype=float)
    tail = betainc(np.maximum(n - k, 1e-9), k + 1, 1 - np.asarray(p))
    return np.where(k >= n, 1.0, tail)


def beyond(threshold: ArrayLike) -> NDArray[np.float64]:
    """P that a standard normal number is larger than a threshold, on either side.

    >>> round(float(beyond(3.0)), 6)
    0.0027
    """
    from scipy.special import ndtr

    return np.asarray(2 * ndtr(-np.asarray(threshold, dtype=float)))
