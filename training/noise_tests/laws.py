"""Tail probabilities of what sound noise gives: exact, or bounded from above.

Floating-point noise is standard normal up to rounding. Two constants bound what that changes: a
value is off by at most `RESOLUTION`, and equals a given number with probability at most `ATOM`
(a float32 sampler has about 2^-24 a number, 2^-23 at zero; a product is rounded once more).

Of thousands of figures next to none is worth an incomplete gamma or beta function. Chernoff's bound
exp(-h) tells which, by a logarithm: up to h = 15 a figure counts as 1, which fails nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESOLUTION = 2.0**-20
ATOM = 2.0**-20
_SUMMED = 1e-5  # relative error that a sum of float32 squares may have
_USUAL = 15.0  # -log of Chernoff's bound, up to which a figure is not worth the exact one


def squares(total: ArrayLike, count: ArrayLike) -> NDArray[np.float64]:
    """Two-sided p of sums of squares of independent standard normal numbers.

    Args:
        total: sums.
        count: how many numbers each sum has, at least 1.

    Returns:
        p of each, 0 where a sum is no number; 1 where Chernoff's bound says no less than 3e-7.

    >>> [f"{p:.1e}" for p in squares([650.0, 325.0], 650)]  # half the variance is not chance
    ['1.0e+00', '4.8e-29']
    """
    sums, n = np.asarray(total, dtype=float), np.asarray(count, dtype=float)
    with np.errstate(all="ignore"):
        mean = sums / n
        unusual = ~(n * (mean - 1 - np.log(mean)) < 2 * _USUAL)  # no number is not usual either
    p = np.ones(unusual.shape)
    if unusual.any():
        from scipy.special import gammaincc

        x, n = (np.broadcast_to(a, p.shape)[unusual] for a in (sums, n))
        above = gammaincc(n / 2, np.maximum(x, 0.0) * (1 - _SUMMED) / 2)
        two_sided = np.minimum(1.0, 2 * np.minimum(smaller(x, n), above))
        p[unusual] = np.where(np.isfinite(x), two_sided, 0.0)
    return p


def normal(score: ArrayLike) -> NDArray[np.float64]:
    """Two-sided p of standard normal numbers, 1 below five deviations, 0 of what is no number.

    >>> [f"{p:.1e}" for p in normal([-12.0, 3.0])]
    ['3.6e-33', '1.0e+00']
    """
    size = np.abs(np.asarray(score, dtype=float))
    usual = size < 5
    p = np.ones(size.shape)
    if not usual.all():
        unusual = ~usual
        p[unusual] = np.where(np.isnan(size[unusual]), 0.0, beyond(size[unusual]))
    return p


def counts(found: ArrayLike, of: ArrayLike, p: ArrayLike) -> NDArray[np.float64]:
    """Two-sided p of how many of so many trials succeed, 1 where Chernoff's bound says >= 3e-7.

    >>> [f"{p:.1e}" for p in counts([2, 10], 2410, 6.3e-5)]  # beyond 4 deviations
    ['1.0e+00', '3.1e-15']
    """
    k, n, share = (np.asarray(a, dtype=float) for a in (found, of, p))
    mean = n * share
    off = np.abs(k - mean)
    if (off * off < 25 * mean * (1 - share)).all():
        return np.ones(off.shape)
    with np.errstate(all="ignore"):
        least = 1e-300
        some, rest = np.maximum(k / n, least), np.maximum(1 - k / n, least)
        exponent = n * (some * np.log(some / share) + rest * np.log(rest / (1 - share)))
        unusual = ~(exponent < _USUAL)
    tails = np.ones(unusual.shape)
    if unusual.any():
        k, n, share = (np.broadcast_to(a, tails.shape)[unusual] for a in (k, n, share))
        tails[unusual] = binomial(k, n, share)
    return tails


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
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, tail))


def at_most(found: ArrayLike, count: ArrayLike, p: ArrayLike) -> NDArray[np.float64]:
    """P that of so many independent trials at most `found` succeed."""
    from scipy.special import betaincc

    k, n = np.asarray(found, dtype=float), np.asarray(count, dtype=float)
    tail = betaincc(k + 1, np.maximum(n - k, 1e-9), p)
    return np.where(k >= n, 1.0, tail)


def beyond(threshold: ArrayLike) -> NDArray[np.float64]:
    """P that a standard normal number is larger than a threshold, on either side.

    >>> round(float(beyond(3.0)), 6)
    0.0027
    """
    from scipy.special import ndtr

    return np.asarray(2 * ndtr(-np.asarray(threshold, dtype=float)))


def two_sided(squares: ArrayLike, degrees: ArrayLike) -> NDArray[np.float64]:
    """P of chi-square sums, in either direction: exact, where `squares` allows for rounding.

    >>> float(two_sided(250.0, 1000)) < 1e-90
    True
    """
    from scipy.special import chdtr, chdtrc

    below, above = chdtr(degrees, squares), chdtrc(degrees, squares)
    return np.asarray(np.minimum(2.0 * np.minimum(below, above), 1.0))


def binomial(counts: ArrayLike, draws: ArrayLike, chance: ArrayLike) -> NDArray[np.float64]:
    """P of binomial counts, in either direction.

    >>> round(float(binomial(0, 10, 0.5)), 6)
    0.001953
    """
    below, above = at_most(counts, draws, chance), at_least(counts, draws, chance)
    return np.asarray(np.minimum(2.0 * np.minimum(below, above), 1.0))


def quadratic(deviations: ArrayLike, squared_norm: ArrayLike) -> NDArray[np.float64]:
    """Bound on P(|z^T A z - tr A| >= deviation), in either direction.

    Args:
        deviations: |z^T A z - tr A|.
        squared_norm: the squared Frobenius norm of A, whose operator norm is at most 1.

    Source: B. Laurent, P. Massart. Adaptive estimation of a quadratic functional by model
        selection. Annals of Statistics 28 (2000), lemma 1: P(z^T A z - tr A >= 2 F sqrt(x) + 2 x)
        <= exp(-x), F = |A|_F.

    >>> round(float(quadratic(100.0, 100.0)), 6)
    3e-06
    """
    frobenius = np.sqrt(squared_norm)
    root = (np.sqrt(np.square(frobenius) + 2.0 * np.asarray(deviations)) - frobenius) / 2.0
    return np.asarray(np.minimum(2.0 * np.exp(-np.square(root)), 1.0))


def many(counts: ArrayLike, mean: ArrayLike) -> NDArray[np.float64]:
    """P that a Poisson count of at most this mean is as large.

    >>> round(float(many(3, 0.1)), 6)
    0.000155
    """
    from scipy.special import gammainc

    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray(np.where(counts > 0, gammainc(np.maximum(counts, 1.0), mean), 1.0))


def least(p: NDArray[np.float64]) -> tuple[int, float]:
    """Where the smallest is, and the smallest.

    >>> least(np.array([0.5, 0.25]))
    (1, 0.25)
    """
    at = int(np.argmin(p))
    return at, float(p[at])


def chernoff(
    cumulants: Sequence[tuple[int, NDArray[Any], NDArray[Any]]], total: float, sign: float
) -> float:
    """Logarithm of a bound on P(sum >= total), or <= with sign -1; at most 0.

    Args:
        cumulants: how many counts are alike, the logarithms of their weights, their deviations.
        total: the sum that was seen.
        sign: of s.
    """
    from scipy.optimize import minimize_scalar

    # All sums in one pass: where each begins, and which values are of it.
    sizes = np.array([len(w) for _, w, _ in cumulants])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    counts = np.array([n for n, _, _ in cumulants])
    weights, deviations = (np.concatenate([cumulant[i] for cumulant in cumulants]) for i in (1, 2))

    def exponent(log_s: float) -> float:
        s = sign * math.exp(log_s)
        terms = weights + s * deviations
        most = np.maximum.reduceat(terms, starts)
        sums = np.add.reduceat(np.exp(terms - most.repeat(sizes)), starts)
        return float(counts @ (most + np.log(sums))) - s * total

    best = minimize_scalar(exponent, bounds=(-14.0, 0.0 if sign > 0 else 9.0), method="bounded")
    return min(0.0, float(best.fun))
