"""What the proof allows an adversary who guesses members, and whether guesses say more.

    true-positive rate at a rate a of false positives    at most 1 - f(a)
    f    the trade-off curve of what is proven for holders of the final models
         (Dong, Roth, Su 2022), or where no curve is proven that of (epsilon, delta) alone
         (Kairouz, Oh, Viswanath 2015): the least of 1, e^epsilon a + delta and
         1 - e^-epsilon (1 - delta - a)

That is the mean over records. One model answers for all records, whose guesses therefore depend on
each other, so that rates and their intervals alone contradict nothing. What does is the number of
right guesses in games in which a fair coin of its own decides about each record: of these a theorem
holds however records disturb each other (`attacks.bounds.one_run_bounds`). References are no part
of a game: what is guessed is a function of the game's final models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...privacy.accounting.trade_off import TradeOff, trade_off
from ..bounds.lower_bounds import Guesses, errors_at_zero, surest
from ..bounds.mechanism import Claim
from ..bounds.one_run_bounds import guesses_made, one_run_f_dp
from .roc import Rate

FALSE_ALARM = 1e-6  # probability that games of a sound run contradict its proof, over all guessers
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenLimit:
    """What is proven for holders of the final models.

    Attributes:
        claim: as a mechanism.
        epsilon: at `delta`, finite.
        delta: in (0, 1).

    >>> one = ProvenLimit(claim=Claim(rounds={(1.0, 1.0): 1}), epsilon=4.38, delta=1e-5)
    >>> round(one.true_positive_rate(0.01), 4)
    0.0924
    """

    claim: Claim
    epsilon: float
    delta: float

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest that is allowed at a rate of false positives in [0, 1]."""
        of_pair = allowed_by_pair(self.epsilon, self.delta, false_positive_rate)
        curve = _curve(self.claim)
        if curve is None:
            return of_pair
        misses = float(curve.false_negative_rates([false_positive_rate])[0])
        return min(of_pair, 1.0 - misses)


def _curve(claim: Claim) -> TradeOff | None:
    """The curve of a mechanism; None where none is proven for it."""
    return trade_off(claim.rounds, adjacency=claim.adjacency)


def allowed_by_pair(epsilon: float, delta: float, rate: float) -> float:
    """Largest true-positive rate that (epsilon, delta) allows at a rate of false positives.

    >>> round(allowed_by_pair(1.0, 1e-5, 0.01), 4)
    0.0272
    """
    if epsilon > 700.0:
        return 1.0
    steep = math.exp(epsilon) * rate + delta
    return min(1.0, steep, 1.0 - math.exp(-epsilon) * (1.0 - delta - rate))


def exceeds(rate: Rate, limit: ProvenLimit, *, tests: int) -> bool:
    """Whether a rate lies above the limit by more than chance, were records independent.

    Args:
        rate: that was found.
        tests: how many rates are looked at; all together err with probability `FALSE_ALARM`.
    """
    confidence = 1.0 - FALSE_ALARM / tests
    _, low, _ = rate.true_positive_rate(confidence=confidence)
    most = rate.most_false_positives(confidence=confidence)
    return low > limit.true_positive_rate(most)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What games say of epsilon.

    Attributes:
        guesser: (model, attack) that was right most often.
        epsilon: lower bound at `confidence`, corrected for the number of guessers.
        confidence: of it.
        right, made, coins: right guesses, of so many, of so many records in all games.
        contradicted: whether the bound at a risk of `FALSE_ALARM` exceeds what is proven.
    """

    guesser: tuple[str, str]
    epsilon: float
    confidence: float
    right: int
    made: int
    coins: int
    contradicted: bool


def measure(
    scores: Mapping[tuple[str, str], Array],
    included: NDArray[np.bool_],
    limit: ProvenLimit,
    *,
    confidence: float = 0.95,
) -> Measured:
    """Bound epsilon from below by the guesses of games, and hold it against the proof.

    Each score guesses twice: that those of highest score are in; and that half as many of highest
    score are in, and as many of lowest score out. How many, their number alone decides.

    Args:
        scores: (C,) of every guesser, over all games.
        included: (C,) the coins.
        confidence: of the bound that is reported.

    Raises:
        ValueError: coins that were not fair.

    >>> coins = np.arange(4000) % 2 == 0
    >>> limit = ProvenLimit(claim=Claim(rounds={(3.73, 1.0): 1}), epsilon=1.0, delta=1e-5)
    >>> found = measure({("average", "all-seeing"): coins.astype(float)}, coins, limit)
    >>> found.right, found.contradicted
    (400, True)
    """
    found: list[tuple[int, tuple[str, str], Guesses]] = []
    for guesser, values in scores.items():
        order = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
        for shifted in (order + 1.0, order - 0.5 * (len(order) - 1)):
            guesses = Guesses(scores=shifted, included=included)
            chosen = surest(guesses, guesses_made(len(order)))
            errors = errors_at_zero(guesses, among=chosen)
            found.append((chosen.size - errors.false_alarms - errors.misses, guesser, guesses))
    right, guesser, guesses = max(found, key=lambda one: one[0])
    risk = (1.0 - confidence) / len(found)
    bound = one_run_f_dp(guesses, claim=limit.claim, delta=limit.delta, confidence=1.0 - risk)
    certain = bound
    if bound.epsilon > limit.epsilon:
        certain = one_run_f_dp(
            guesses,
            claim=limit.claim,
            delta=limit.delta,
            confidence=1.0 - FALSE_ALARM / len(found),
        )
    return Measured(
        guesser=guesser,
        epsilon=bound.epsilon,
        confidence=confidence,
        right=right,
        made=bound.guesses,
        coins=bound.canaries,
        contradicted=certain.epsilon > limit.epsilon,
    )
