"""How strong the noise and a canary really are, read from scores without looking at the coins.

A score that takes the declared noise for true is the best test of a sound engine and a poor one of
a faulty engine: at half the noise the bound of sampled rounds falls. So a host's canaries in a
round are first asked, all together, which gain g and noise k their statistics s came with,

    s ~ (1 - p) N(0, k^2 v) + p N(g v, k^2 v),   p: the chance of a fair coin and the batch

and scored by the likelihood ratio at (g, k) where this explains them better by `SURE` nats:

    ratio = log(1 - q + q exp((g s - g^2 v / 2) / k^2))

Nothing of this costs confidence. The choice depends on scores alone, so that, given all scores,
coins are still independent, and each guess is wrong at least as often as the best guesser's. The
number of errors is then at least a binomial count at the best guesser's rate, whatever was chosen.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.participation import group

Array = NDArray[np.float64]

SURE = 8.0  # nats by which others must explain the scores better than what is declared


class Strength(NamedTuple):
    """What a canary adds and how much noise there is, as multiples of what is declared."""

    gain: float
    noise: float

    def exponent(self, s: Array, v: Array) -> Array:
        """Log-likelihood ratio of "in this batch" against "not", (n,) nats."""
        return (self.gain * s - 0.5 * self.gain**2 * v) / self.noise**2


DECLARED = Strength(1.0, 1.0)
_FIRST = (Strength(1.0, 0.8), Strength(1.0, 0.5), Strength(2.0, 1.0), Strength(8.0, 1.0))
_ALL = [
    Strength(g, k)
    for g, k in product((0.5, 1.0, 1.4, 2.0, 4.0, 8.0, 20.0), (1.2, 1.0, 0.8, 0.65, 0.5, 0.35, 0.2))
]


def likeliest(s: Array, v: Array, *, q: float, replace: bool, together: int = 1) -> Strength:
    """The gain and noise of a grid that explain (n,) statistics best; what is declared if in doubt.

    Args:
        s: W^T of what was seen, (n,), with the canary's own part in it.
        v: its variance, and its mean with the canary, (n,).
        q: chance that a record that is there takes part.
        replace: whether the game is +u against -u.
        together: how many records of one person a canary is.
    """
    told = np.isfinite(s) & (v > 0)
    if not told.any():
        return DECLARED
    s, v = s[told], v[told]

    def explained(one: Strength) -> float:
        return _explained(one, s, v, q=q, replace=replace, together=together)

    declared = explained(DECLARED)
    if all(explained(one) < declared + 1.0 for one in _FIRST):
        return DECLARED
    found = {one: explained(one) for one in _ALL}
    best = max(found, key=lambda one: found[one])
    return best if found[best] > declared + SURE else DECLARED


def _explained(
    one: Strength, s: Array, v: Array, *, q: float, replace: bool, together: int
) -> float:
    """Log-likelihood of the statistics, but for what all strengths share."""
    there = log_moved(one, s, v, q=q, together=together)
    other = log_moved(one, -s, v, q=q, together=together) if replace else np.zeros_like(s)
    mixed = np.logaddexp(there, other) - math.log(2.0)
    alone = -0.5 * s**2 / v / one.noise**2 - math.log(one.noise)
    return float((mixed + alone).sum())


def log_ratio(
    strength: Strength, s: Array, v: Array, *, q: float, replace: bool, together: int = 1
) -> Array:
    """(n,) log-likelihood ratios of "there" against "not there", or of +u against -u, in nats.

    The arguments are those of `log_moved`; `replace` is the game of +u against -u.
    """
    moved = log_moved(strength, s, v, q=q, together=together)
    return moved - log_moved(strength, -s, v, q=q, together=together) if replace else moved


def decided(shown: Array, whole: Array, *, q: float, replace: bool, together: int = 1) -> Array:
    """(n,) ratios where the noise cancels: shown is the whole canary, its opposite, or nothing.

    Both `shown` and `whole` are (K, n): what is seen without noise, and what canaries add to it.
    """
    at = np.abs(whole).argmax(axis=0), np.arange(whole.shape[1])
    share = np.divide(shown[at], whole[at], out=np.full(len(at[1]), math.nan), where=whole[at] != 0)
    out = np.full(len(share), together * math.log1p(-q) if q < 1 else -math.inf)
    if replace:
        out = np.where(share < -0.5, -math.inf, 0.0)
    return np.where(np.isnan(share), 0.0, np.where(share > 0.5, math.inf, out))


def log_moved(strength: Strength, s: Array, v: Array, *, q: float, together: int = 1) -> Array:
    """(n,) log-likelihood ratios of canaries that are there, of each record by a coin of its own.

    The log of the sum over j of p_j exp(j s - j^2 v / 2), p_j the chance that j of `together`
    records take part.

    Args:
        strength: what they add, and how much noise there is.
        s: of one record, with what they add in it.
        v: of one record.
        q: chance of each record to take part.
        together: how many records of one person a canary is.

    >>> s, v = np.array([1.0]), np.array([2.0])
    >>> log_moved(DECLARED, s, v, q=0.5, together=2).round(4).tolist()
    [-0.2436]
    >>> log_moved(DECLARED, s, v, q=1.0, together=2).tolist()
    [-2.0]
    """
    if together == 1:
        return log_mixture(strength.exponent(s, v), q)
    moves = group(together, q)
    parts = [
        math.log(p) + strength.exponent(j * s, j**2 * v)
        for j, p in zip(moves.multiples, moves.probabilities, strict=True)
    ]
    return np.asarray(np.logaddexp.reduce(parts))


def log_mixture(exponent: Array, q: float) -> Array:
    """log(1 - q + q exp(exponent)), without overflow."""
    if q >= 1:
        return exponent
    if q <= 0:
        return np.zeros_like(exponent)
    return np.logaddexp(math.log1p(-q), math.log(q) + exponent)
