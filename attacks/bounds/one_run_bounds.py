"""Lower bounds on epsilon that hold whatever the canaries of one run do to each other.

    Mahloujifar, Melis, Chaudhuri. Auditing f-differential privacy in one run. ICML 2025,
        arXiv:2410.22235. Algorithm 3.
    Steinke, Nasr, Jagielski. Privacy auditing with one (1) training run. NeurIPS 2023,
        arXiv:2305.08846. Corollary 5.4.

    m fair coins, the r canaries of largest |log-likelihood ratio| guessed, v of them right
    f-DP        h = t (r - v) / m,  s = t v / m                           (t = 1 - confidence)
                for i = v - 1 ... 0:
                    h' = max(h, fbar^-1(s));  s = s + i / (r - i) (h' - h);  h = h'
                reject if h + s > r / m                      fbar = 1 - f, f the trade-off curve
    pure        P(v or more right) <= b + 2 m delta a,       B ~ Binomial(r, 1 / (1 + e^-epsilon))
                b = P(B >= v),  a = max over i of P(v > B >= v - i) / i

| symbol | name here | unit |
|---|---|---|
| m, r, v | canaries, made, right | - |
| t | 1 - confidence | probability |
| fbar^-1(s) | inverse(s), f(1 - s) as f is symmetric | probability |
| f | Gaussian: Phi(-Phi^-1(a) - mu); sampled: `trade_off` at a scale of the noise | - |

Abstaining is part of both theorems as long as r is fixed in advance: here a tenth of the canaries,
or 100 if that is more. The price of assuming nothing about independence is a looser bound.

Where we differ from the papers: errors of the two kinds are not weighed against each other, r is
not searched for, and sampled rounds are read on their own curve rather than on a Gaussian's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...privacy.accounting.gaussian import epsilon_from_mu
from ...privacy.accounting.request import check_delta
from ...privacy.accounting.search import smallest_safe
from ...privacy.accounting.trade_off import GaussianCurve, TradeOff, trade_off
from ...privacy.errors import within
from .lower_bounds import (
    Guesses,
    LowerBound,
    check_confidence,
    errors_at_zero,
    ideal,
    surest,
    total_error,
)
from .mechanism import (
    Claim,
    Family,
    at_scale,
    attained_in_place,
    declared_mu,
    family,
    least_epsilon_at,
    smallest_scale,
)

SHARE = 0.1  # of the canaries that are guessed; near the best for epsilon 1 to 8
_LEAST_GUESSES = 100
_MOST_EPSILON = 64.0
_MOST_MU = 64.0
_MOST_NOISE = 1e6  # 1 / mu, beyond which nothing is told from nothing
_MOST_SCALE = 1e4
_CURVE_STEPS = 20_000  # in which a sampled curve is read
_TOLERANCE = 1e-4  # relative, on a scale of the noise or on mu
_ONE_RUN = (
    "Assumes fair assignments and {r} guesses of {m} canaries, their number fixed in advance; "
    "canaries may disturb each other"
)


def one_run_f_dp(
    guesses: Guesses, *, claim: Claim, delta: float, confidence: float, made: int | None = None
) -> LowerBound:
    """Bound epsilon by the largest curve of the claim's family that one run rejects.

    Args:
        guesses: (m,) scores and coins.
        claim: the declared mechanism; only its family matters, not its amount of noise.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.
        made: how many of the surest are guessed, fixed before the scores; `guesses_made` of them
            by default.

    Returns:
        The bound; 0 where no curve is rejected. Where the claim gives no curve that is proven
        (sampled rounds without noise), or all of its curves are rejected, the epsilon of
        `one_run_pure`.

    Raises:
        ValueError: delta or confidence is out of range.

    Source: Mahloujifar et al. 2024, Algorithm 3 with two candidates.

    >>> coins = np.arange(5000) % 2 == 0
    >>> scores = np.where(coins, 1.0, -1.0)
    >>> scores[:88] *= -1.0  # of the 500 guesses that are made
    >>> found = one_run_f_dp(
    ...     Guesses(scores=scores, included=coins),
    ...     claim=Claim(rounds={(1.39, 1.0): 1}), delta=1e-5, confidence=0.95,
    ... )
    >>> round(found.epsilon, 2), found.guesses, found.errors
    (1.9, 500, 88)
    """
    kind = family(claim)
    bound, right = _counted(
        guesses, delta=delta, confidence=confidence, name="one-run f-DP", made=made
    )
    counts = {"canaries": bound.canaries, "made": bound.guesses, "right": right}
    if kind is Family.GAUSSIAN:
        mu = _largest_mu(**counts, risk=1.0 - confidence)
        scale = declared_mu(claim) / mu if mu > 0.0 else math.inf
        epsilon = epsilon_from_mu(mu, delta)
        words = f"{bound.assumptions}; the adversary's view of all rounds is Gaussian."
    else:
        sampled = kind is Family.SAMPLED
        scale = _smallest_scale(claim, **counts, risk=1.0 - confidence) if sampled else 0.0
        if scale == 0.0:
            pure = one_run_pure(guesses, delta=delta, confidence=confidence, made=made)
            return replace(pure, name=bound.name)
        epsilon = least_epsilon_at(claim, scale, delta)
        words = f"{bound.assumptions}; rounds are sampled and composed as declared."
    return replace(bound, epsilon=epsilon, noise_scale=scale, assumptions=words)


def one_run_pure(
    guesses: Guesses,
    *,
    claim: Claim | None = None,
    delta: float,
    confidence: float,
    made: int | None = None,
) -> LowerBound:
    """Bound epsilon by the largest (epsilon, delta) that one run rejects, whatever the mechanism.

    Args:
        guesses: (m,) scores and coins.
        claim: not used: the theorem holds for every mechanism.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.
        made: as in `one_run_f_dp`.

    Returns:
        The bound; 0 where no epsilon is rejected.

    Raises:
        ValueError: delta or confidence is out of range.

    Source: Steinke et al. 2023, Corollary 5.4.
    """
    del claim
    bound, right = _counted(
        guesses, delta=delta, confidence=confidence, name="one-run pure", made=made
    )
    epsilon = largest_rejected_epsilon(
        canaries=bound.canaries, made=bound.guesses, right=right, delta=delta, risk=1.0 - confidence
    )
    return replace(bound, epsilon=epsilon, assumptions=f"{bound.assumptions}.")


def guesses_made(canaries: int) -> int:
    """How many canaries are guessed, fixed by their number alone."""
    return min(canaries, max(_LEAST_GUESSES, round(SHARE * canaries)))


@lru_cache(maxsize=4096)
def largest_rejected_epsilon(
    *, canaries: int, made: int, right: int, delta: float, risk: float
) -> float:
    """Largest epsilon under which so many right guesses have probability below `risk`."""

    def rejected(epsilon: float) -> bool:
        return _probability(canaries, made, right, epsilon=epsilon, delta=delta) < risk

    if right == 0 or not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _MOST_EPSILON and rejected(high):
        low, high = high, 2.0 * high
    # What is rejected at an epsilon is rejected at every smaller one, as DP at that implies this.
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _probability(canaries: int, made: int, right: int, *, epsilon: float, delta: float) -> float:
    """Upper bound on P(at least `right` right guesses) under (epsilon, delta)-DP."""
    from scipy.stats import binom

    chance = 1.0 / (1.0 + math.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), made, chance))  # (right,)
    steepest = float((below / np.arange(1, right + 1)).max())
    tail = float(binom.sf(right - 1, made, chance))
    return tail + 2.0 * canaries * delta * steepest


@lru_cache(maxsize=4096)
def _largest_mu(*, canaries: int, made: int, right: int, risk: float) -> float:
    from scipy.special import ndtr, ndtri

    counts = {"canaries": canaries, "made": made, "right": right}

    def over(curve: GaussianCurve) -> float:
        return _excess(lambda s: float(ndtr(ndtri(s) - curve.mu)), **counts, risk=risk)

    return 0.0 if right == 0 else largest_mu(over)


@lru_cache(maxsize=4096)
def _smallest_scale(claim: Claim, *, canaries: int, made: int, right: int, risk: float) -> float:
    if right == 0:
        return math.inf
    counts = {"canaries": canaries, "made": made, "right": right}
    # Steps below the curve, fine where the sums begin.
    grid = np.concatenate([[0.0], np.geomspace(risk * right / canaries, 1.0, _CURVE_STEPS)])
    steps = grid.tolist()

    def over(curve: TradeOff) -> float:
        lows = curve.false_negative_rates(1.0 - grid).tolist()
        return _excess(lambda s: lows[bisect_right(steps, s) - 1], **counts, risk=risk)

    return smallest_rejected(claim, over)


def smallest_rejected(
    claim: Claim, over: Callable[[TradeOff], float], *, tails: bool = True
) -> float:
    """Smallest scale of a sampled claim's noise for which `over` is above 0.

    It is infinite if none is, and 0 if all are that can be resolved; `tails` as of `trade_off`.
    """
    lowest, most = math.log(2.0 * smallest_scale(claim)), math.log(_MOST_SCALE)
    if over(GaussianCurve(mu=0.0)) <= 0.0:  # even what releases nothing at all
        return math.inf

    def excess_at(x: float) -> float:
        scaled = at_scale(claim, math.exp(x))
        return -over(trade_off(scaled.rounds, adjacency=scaled.adjacency, tails=tails))

    below: list[bool] = []  # whether no scale that can be resolved is left, once it is asked

    def excess(x: float) -> float:
        if x <= lowest:
            below.append(excess_at(lowest) <= 0.0)
            return 1.0
        return -1.0 if x >= most or any(below) else excess_at(x)

    found = smallest_safe(excess, max(0.0, lowest), step=0.25, tolerance=_TOLERANCE)
    if any(below) or found < lowest + 2.0 * _TOLERANCE:
        return 0.0
    return math.exp(found) if found < most - 2.0 * _TOLERANCE else math.inf


def largest_mu(over: Callable[[GaussianCurve], float]) -> float:
    """Largest mu of a Gaussian for which `over` is above 0, of those up to 64; 0 if none is."""
    if over(GaussianCurve(mu=0.0)) <= 0.0:
        return 0.0
    lowest, most = -math.log(_MOST_MU), math.log(_MOST_NOISE)

    def excess(x: float) -> float:  # of x = -log mu
        if not lowest < x < most:
            return 1.0 if x <= lowest else -1.0
        return -over(GaussianCurve(mu=math.exp(-x)))

    found = smallest_safe(excess, 0.0, step=0.1, tolerance=_TOLERANCE)
    return math.exp(-found) if found < most - 2.0 * _TOLERANCE else 0.0


def _excess(
    inverse: Callable[[float], float], *, canaries: int, made: int, right: int, risk: float
) -> float:
    """What Algorithm 3 compares, h + s - r / m; a curve is rejected where it is above 0."""
    h, s = risk * (made - right) / canaries, risk * right / canaries
    for i in range(right - 1, -1, -1):
        raised = max(h, inverse(s))
        s = min(s + i / (made - i) * (raised - h), 1.0)
        h = raised
    return h + s - made / canaries - 1e-12


def _counted(
    guesses: Guesses, *, delta: float, confidence: float, name: str, made: int | None
) -> tuple[LowerBound, int]:
    """A bound of 0 with the counts filled in, and how many guesses are right."""
    check_delta(delta)
    check_confidence(confidence)
    canaries = guesses.scores.size
    count = guesses_made(canaries) if made is None else made
    within("made", count, f"[1, {canaries}]", ", the canaries")
    chosen = surest(guesses, count)
    errors = errors_at_zero(guesses, among=chosen)
    bound = LowerBound(
        name=name,
        epsilon=0.0,
        delta=delta,
        confidence=confidence,
        canaries=canaries,
        guesses=chosen.size,
        false_alarms=errors.false_alarms,
        misses=errors.misses,
        threshold=float(np.abs(guesses.scores[chosen[-1]])),
        noise_scale=None,
        assumptions=_ONE_RUN.format(r=chosen.size, m=canaries),
    )
    return bound, bound.guesses - bound.errors


# A lower bound on epsilon that counts a right guess of the surest canaries three times.


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
        known = _tail_of_gaussian if isinstance(curve, GaussianCurve) else tail
        return math.log(risk / known(curve, canaries, won))

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


def _deltas(curve: TradeOff) -> Array:
    return np.array([curve.mean_delta(float(loss)) for loss in _LOSSES])


# Looks at several risks, and at other numbers of right guesses, begin with the same curves.
_tail_of_gaussian: Callable[..., float] = lru_cache(maxsize=4096)(tail)
_deltas_of_gaussian: Callable[..., Array] = lru_cache(maxsize=512)(_deltas)


def _least_errors(curve: TradeOff, shares: Array) -> tuple[Array, Array]:
    """(K,) e(u) of these shares, and how sure the guess at each is."""
    deltas = (_deltas_of_gaussian if isinstance(curve, GaussianCurve) else _deltas)(curve)
    slopes = 1.0 / (1.0 + np.exp(_LOSSES))
    lines = slopes * (shares[:, None] - deltas)  # (K, losses)
    found, surest_of_several = np.maximum(lines.max(axis=1), 0.0), slopes[lines.argmax(axis=1)]
    return found, np.where(found > 0.0, 1.0 - surest_of_several, 1.0)
