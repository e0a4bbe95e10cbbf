"""A lower bound on epsilon that counts a right guess of the surest canaries three times.

    Dong, Roth, Su. Gaussian differential privacy. J. R. Statist. Soc. B 84 (2022),
        arXiv:1905.02383, theorem 2.10: what is f-DP is computed from a pair whose curve is f.
    Agrawal et al. Let's ask Gauss. arXiv:2606.12733, and Xiang et al. Tight privacy audit in one
        run. arXiv:2509.08704: the mean of scores and their order tell more than counts.

    m fair coins; guess i is "in" where its score is above 0; the r = m // 3 canaries whose scores
    are farthest from 0 are the surest, whoever breaks ties
    T      3 times the right guesses of the surest, and once those of the others
    e(u)   max over x of (u - delta(x)) / (1 + e^x)       least error among the surest share u
    U      the (r + 1)-th smallest of m uniform numbers   Beta(r + 1, m - r)
    P(T >= t) <= E P(3 B_r(1 - e(U) / U) + B_1(q(U)) + B_{m-r-1}(1 - (e(1) - e(U)) / (1 - U)) >= t)
    rejected    every mechanism of the claim's family for which this is below the risk

| symbol | name here | unit |
|---|---|---|
| t | won | - |
| x, delta(x) | _LOSSES, TradeOff.mean_delta, of both orders | nats, probability |
| B_n(p) | binomial of n and p; the three are independent given U | - |
| q(u) | 1 - e'(u), how sure the guess at u is | probability |

**Assumed.** Coins are fair and each is tossed by itself. Of each canary there is a view that is
independent, with its coin, of those of the others, and has a trade-off curve of at least f between
"in" and "out"; scores are computed of all views together, without the coins. Nothing is assumed of
how they are distributed: only their signs and their order are used, and who breaks ties does not
know the coins. That is more than `total_error` asks, whose errors alone are independent: scores
that share a scale which tells who is right do not meet it, nor do the losses of one model.

**Proof.** (0) Of each canary a fair coin, which all see, turns round what is called "in" and "out",
and the sign of its score. T is as before; f is symmetric now, even where that of sampled rounds is
not, and its delta is the mean of both orders'. (1) Lines lie under f: f(a) >= 1 - delta(x) - e^x a,
and its mirror image. Their largest, g, is a trade-off curve, convex, symmetric and below f. So by
theorem 2.10 each score is computed, with randomness of its own, from an observation z_i whose pair
has curve g; the z_i are independent.
(2) Of the pair of g, guess the likelier side, and order by how sure that is. The region of the
surest u has false-positive rate a on each side, with a + 1 - g(a) = u, and is wrong with
probability a. Solved for a, the lines give e(u).
(3) Given all z, coins are independent, and anybody guesses the i-th right with probability at most
q_i >= 1/2, which guessing the likelier side attains; T grows with each right guess. Let two
canaries have weights a > b and probabilities p > q. If a goes with p, both are right, and both are
wrong, as often as if a goes with q; but a alone is right with probability p (1 - q) in place of
q (1 - p), and b alone the other way round. So T is stochastically larger. Exchanges of neighbours
sort any order: T is largest where the surest by q_i count three times. An auditor sees less than z.
(4) Let U be the share at which the (r + 1)-th surest z lies. Given U, the r before it are
independent and lie before U, those after it after U, and they are right with the probabilities
above in the mean. All three fall in U, so that the lower end of a cell of U stands for the cell.
(5) What more noise shows is computed from what less noise shows, so that P(T >= t) falls with the
noise: rejected is all noise from a scale on. The true scale is among it with probability at most
the risk, and else epsilon is at least that of the scale that is found, which was tried itself.

Where we differ from the papers: no central limit is taken, no deviation is estimated, and the
weights are fixed. Of Gaussian views the signs alone hold 2 / pi of what scores tell of a weak
mechanism, four classes of them .88 (Max 1960).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...privacy.accounting.gaussian import epsilon_from_mu
from ...privacy.accounting.trade_off import TradeOff, trade_off
from .lower_bounds import Guesses, LowerBound, errors_at_zero, ideal, surest, total_error
from .mechanism import Claim, Family, attained_in_place, declared_mu, family, least_epsilon_at
from .one_run_bounds import largest_mu, smallest_rejected

_WEIGHT = 3  # of the surest against the others; 1.510 / .453 are the means of four classes
_PART = 3  # of all canaries one in so many is among the surest
_LOSSES = np.concatenate([8.0 * np.linspace(0.0, 1.0, 49) ** 2, np.geomspace(8.5, 120.0, 16)])[::-1]
_CELLS = np.linspace(-7.0, 7.0, 57)  # of U, in standard deviations
_REACH = 6.0  # square roots of r that B_r strays by with probability below 2e-31
_STEPS = 32  # of B_r in a square root of r, where there are so many
_ROUNDING = 1.0 + 1e-9
_KINDS = 8  # of sampled rounds that differ; each takes half a second

Array = NDArray[np.float64]


def ranked(guesses: Guesses, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """Bound epsilon from the right guesses at ratio 0, where the surest count three times.

    Args:
        guesses: (m,) scores and coins; the order of equal scores tells nothing.
        claim: the declared mechanism; only its family matters, not its amount of noise.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.

    Returns:
        The bound; 0 where no noise is rejected. Of sampled rounds without noise or of more than
        `_KINDS` kinds, or where all noise that can be resolved is rejected, that of `total_error`.

    Raises:
        ValueError: delta or confidence is out of range.

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(1000) < 0.5
    >>> guesses = Guesses(scores=rng.normal(size=1000) + coins - 0.5, included=coins)
    >>> how = {"claim": Claim(rounds={(1.0, 1.0): 1}), "delta": 1e-5, "confidence": 0.95}
    >>> round(total_error(guesses, **how).epsilon, 2), round(ranked(guesses, **how).epsilon, 2)
    (3.21, 3.52)
    """
    counted = total_error(guesses, claim=claim, delta=delta, confidence=confidence)
    if not _has_order(claim, counted.canaries):
        return counted
    top = counted.canaries // _PART
    wrong = errors_at_zero(guesses, among=surest(guesses, top))
    won = counted.canaries - counted.errors + (_WEIGHT - 1) * (top - sum(wrong[:2]))
    scale, epsilon = _rejected(claim, counted.canaries, won, delta=delta, risk=1.0 - confidence)
    if scale == 0.0:
        return counted
    return replace(
        counted,
        name="ranked",
        epsilon=epsilon,
        noise_scale=scale,
        assumptions=counted.assumptions.replace("errors of canaries", "views of canaries"),
    )


def ideal_ranked(claim: Claim, *, canaries: int, delta: float, confidence: float) -> float:
    """The `ranked` bound, in nats, of as many right guesses as the best attack expects."""
    if not _has_order(claim, canaries):
        return ideal(claim, canaries=canaries, delta=delta, confidence=confidence)
    curve = trade_off((attained := attained_in_place(claim)).rounds, adjacency=attained.adjacency)
    top = canaries // _PART
    wrong, _ = _least_errors(curve, np.array([top / canaries, 1.0]))
    won = math.floor(canaries * (1.0 - wrong[1]) + (_WEIGHT - 1) * (top - canaries * wrong[0]))
    return _rejected(claim, canaries, won, delta=delta, risk=1.0 - confidence)[1]


def _has_order(claim: Claim, canaries: int) -> bool:
    """Whether the order of guesses is read, by which some are surest."""
    kind = family(claim)
    if kind is Family.ANY or (kind is Family.SAMPLED and len(claim.events) > _KINDS):
        return False
    return 0.0 < declared_mu(claim) < math.inf and canaries >= _PART


@lru_cache(maxsize=4096)
def _rejected(
    claim: Claim, canaries: int, won: int, *, delta: float, risk: float
) -> tuple[float, float]:
    """The smallest scale of the noise that is rejected, and epsilon there; 0 if all are."""

    def over(curve: TradeOff) -> float:
        return math.log(risk / tail(curve, canaries, won))

    if family(claim) is Family.GAUSSIAN:
        mu = largest_mu(over)
        return declared_mu(claim) / mu if mu > 0.0 else math.inf, epsilon_from_mu(mu, delta)
    scale = smallest_rejected(claim, over, tails=False)
    return scale, 0.0 if scale == 0.0 else least_epsilon_at(claim, scale, delta)


def tail(curve: TradeOff, canaries: int, won: int) -> float:
    """Upper bound of P(T >= won), above 0, under a mechanism with this curve."""
    from scipy.special import ndtr
    from scipy.stats import beta, binom

    top = canaries // _PART
    levels = ndtr(_CELLS)
    shares = np.concatenate([[0.0], beta.ppf(levels, top + 1, canaries - top)])  # lower ends
    weights = np.diff(np.concatenate([[0.0], levels, [1.0]]))
    wrong, sure = _least_errors(curve, np.concatenate([shares, [1.0]]))
    first = 1.0 - np.divide(wrong[:-1], shares, out=np.zeros_like(shares), where=shares > 0.0)
    others = 1.0 - (wrong[-1] - wrong[:-1]) / (1.0 - shares)
    # The surest, in steps that are taken for their upper ends; the one at U; the others.
    step = 1 + int(math.sqrt(top) / _STEPS)
    reach = math.ceil(_REACH * math.sqrt(top) / step) + 1
    right = np.rint(top * first)[:, None] + step * np.arange(-reach, reach + 1)
    chances = np.diff(binom.cdf(right, top, first[:, None]), axis=1)
    needed = won - _WEIGHT * right[:, 1:]
    rest, at = canaries - top - 1, sure[:-1, None]
    above = at * binom.sf(needed - 2, rest, others[:, None])
    above += (1.0 - at) * binom.sf(needed - 1, rest, others[:, None])
    missing = 2.0 * math.exp(-2.0 * _REACH**2)  # Hoeffding 1963
    return min(1.0, float((chances * above).sum(axis=1) @ weights) * _ROUNDING + missing)


def _least_errors(curve: TradeOff, shares: Array) -> tuple[Array, Array]:
    """(K,) e(u) of these shares, and how sure the guess at each is."""
    deltas = np.array([curve.mean_delta(float(loss)) for loss in _LOSSES])
    slopes = 1.0 / (1.0 + np.exp(_LOSSES))
    lines = slopes * (shares[:, None] - deltas)  # (K, losses)
    steepest = lines.argmax(axis=1)  # the surest of several
    found = np.maximum(lines.max(axis=1), 0.0)
    return found, np.where(found > 0.0, 1.0 - slopes[steepest], 1.0)
