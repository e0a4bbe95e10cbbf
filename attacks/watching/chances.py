"""Probabilities that a test of noise needs, each exact or an upper bound.

chi-square sums           exact, in either direction
binomial counts           exact, in either direction
quadratic forms z^T A z   of standard normal z, symmetric A of operator norm at most 1 and
                          |A|_F = F: P(z^T A z - tr A >= 2 F sqrt(x) + 2 x) <= exp(-x)
                          (Laurent and Massart, "Adaptive estimation of a quadratic functional
                          by model selection", Annals of Statistics 28, 2000, lemma 1)
Poisson counts            exact above
sums over counts          Chernoff's bound, from their exact moment generating functions
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtr, chdtrc, gammainc


def two_sided(squares: ArrayLike, degrees: ArrayLike) -> NDArray[np.float64]:
    """P of chi-square sums, in either direction.

    >>> float(two_sided(250.0, 1000)) < 1e-90
    True
    """
    below, above = chdtr(degrees, squares), chdtrc(degrees, squares)
    return np.asarray(np.minimum(2.0 * np.minimum(below, above), 1.0))


def binomial(counts: ArrayLike, draws: ArrayLike, chance: ArrayLike) -> NDArray[np.float64]:
    """P of binomial counts, in either direction.

    >>> round(float(binomial(0, 10, 0.5)), 6)
    0.001953
    """
    from scipy.stats import binom

    counts = np.asarray(counts)
    below, above = binom.cdf(counts, draws, chance), binom.sf(counts - 1, draws, chance)
    return np.asarray(np.minimum(2.0 * np.minimum(below, above), 1.0))


def quadratic(deviations: ArrayLike, squared_norm: ArrayLike) -> NDArray[np.float64]:
    """Bound on P(|z^T A z - tr A| >= deviation), in either direction.

    Args:
        deviations: |z^T A z - tr A|.
        squared_norm: the squared Frobenius norm of A, whose operator norm is at most 1.

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
    cumulants: Sequence[tuple[int, NDArray[Any], NDArray[Any]]],
    total: float,
    sign: float,
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
    weights, deviations = (np.concatenate([one[i] for one in cumulants]) for i in (1, 2))

    def exponent(log_s: float) -> float:
        s = sign * math.exp(log_s)
        terms = weights + s * deviations
        most = np.maximum.reduceat(terms, starts)
        sums = np.add.reduceat(np.exp(terms - most.repeat(sizes)), starts)
        return float(counts @ (most + np.log(sums))) - s * total

    best = minimize_scalar(exponent, bounds=(-14.0, 0.0 if sign > 0 else 9.0), method="bounded")
    return min(0.0, float(best.fun))
