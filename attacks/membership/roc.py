"""How well scores tell members from others: AUC, and true-positive rates at small rates of error.

A rate of false positives that the number of non-members cannot resolve is not measured: of n of
them a threshold leaves 0 or at least 1 / n. Intervals are those of Clopper and Pearson, as if
records were independent; those of one run are not quite, since one model answers for all of them.

What the proof allows an adversary who guesses members, and whether guesses say more.

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

from ...privacy.accounting.trade_off import trade_off
from ...privacy.errors import InputError, within
from ..bounds.lower_bounds import Guesses, errors_at_zero, surest
from ..bounds.mechanism import Claim
from ..bounds.one_run_bounds import guesses_made, one_run_f_dp

Array = NDArray[np.float64]
ATTACKED = ("owner", "LiRA online")  # the guesser that is named first, whatever the others find
_MOST_POINTS = 80  # of a curve that is drawn


def recognised(attack: str, auc: float, error: float) -> str:
    """One sentence on who could be recognised, how often, against guessing.

    Args:
        attack: its name, as a subject.
        auc: probability that it scores a member above a non-member.
        error: its standard error.
    """
    low, high = max(0.0, auc - 1.96 * error), min(1.0, auc + 1.96 * error)
    told = "and guessing 50 times" if low > 0.5 else "which is no more than guessing"
    return (
        f"Of two records, of which one was trained on, {attack} picks that one {100 * auc:.0f} "
        f"times in 100 ({100 * low:.0f} to {100 * high:.0f}), {told}"
    )


def interval(count: int, trials: int, *, confidence: float) -> tuple[float, float]:
    """Two-sided limits of a probability, of which each is wrong with half of the risk.

    Source: Clopper and Pearson, Biometrika 26 (1934).

    Args:
        count: successes.
        trials: of so many, at least 1.
        confidence: strictly between 0 and 1.

    >>> low, high = interval(0, 100, confidence=0.95)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    from scipy.stats import beta

    half = 0.5 * (1.0 - confidence)
    low = 0.0 if count == 0 else float(beta.ppf(half, count, trials - count + 1))
    high = 1.0 if count == trials else float(beta.isf(half, count + 1, trials - count))
    return low, high


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """What the threshold of one rate of false positives finds.

    Attributes:
        asked: largest rate of false positives.
        hits, members: members that are found, of so many.
        alarms, others: non-members that are taken for members, of so many.
    """

    asked: float
    hits: int
    members: int
    alarms: int
    others: int

    @property
    def needed(self) -> int:
        """Non-members without which the rate cannot be measured.

        >>> Rate(asked=0.001, hits=0, members=9, alarms=0, others=500).needed
        1000
        """
        return math.ceil(1.0 / self.asked - 1e-9)

    @property
    def measured(self) -> bool:
        """Whether there are so many."""
        return self.others >= self.needed

    def true_positive_rate(self, *, confidence: float) -> tuple[float, float, float]:
        """The rate and its limits."""
        low, high = interval(self.hits, self.members, confidence=confidence)
        return self.hits / self.members, low, high

    def most_false_positives(self, *, confidence: float) -> float:
        """Upper limit of the rate of false positives that the threshold really has."""
        return interval(self.alarms, self.others, confidence=confidence)[1]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Roc:
    """The curve of one attack.

    Attributes:
        thresholds: (P,) distinct scores, falling.
        alarms, hits: (P,) non-members and members that score at least so much.
        others, members: how many there are.
        auc: probability that a member scores above a non-member, ties counted half.
        auc_error: its standard error, as if records were independent (DeLong et al. 1988).
    """

    thresholds: Array
    alarms: NDArray[np.int64]
    hits: NDArray[np.int64]
    others: int
    members: int
    auc: float
    auc_error: float

    def at(self, rate: float) -> Rate:
        """The most members that are found with a share of at most `rate` of false positives.

        Args:
            rate: in (0, 1].

        >>> scores = np.array([3.0, 2.0, 1.0, 0.0])
        >>> found = roc(scores, np.array([True, True, False, False])).at(0.5)
        >>> found.hits, found.alarms
        (2, 1)
        """
        within("rate", rate, "(0, 1]", "it is one of false positives")
        kept = np.flatnonzero(self.alarms <= math.floor(rate * self.others + 1e-9))
        last = int(kept[-1]) if kept.size else -1
        return Rate(
            asked=rate,
            hits=0 if last < 0 else int(self.hits[last]),
            members=self.members,
            alarms=0 if last < 0 else int(self.alarms[last]),
            others=self.others,
        )

    def points(self) -> list[tuple[float, float]]:
        """(FPR, TPR) along the curve, evenly on a log scale, ending at (1, 1)."""
        first = 1.0 / self.others
        rates = np.geomspace(first, 1.0, _MOST_POINTS) if self.others > 1 else np.ones(1)
        counts = np.unique(np.floor(rates * self.others + 1e-9).astype(np.int64))
        places = np.searchsorted(self.alarms, counts, side="right") - 1
        found = np.where(places < 0, 0, self.hits[np.maximum(places, 0)]) / self.members
        return [(float(a / self.others), float(t)) for a, t in zip(counts, found, strict=True)]


def roc(scores: Array, included: NDArray[np.bool_]) -> Roc:
    """The curve of an attack.

    Args:
        scores: (C,) higher for members; none undefined.
        included: (C,) who is one.

    Raises:
        ValueError: shapes that differ, a score that is no number, or nobody in or out.

    >>> found = roc(np.array([2.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False]))
    >>> found.auc
    0.875
    """
    if scores.ndim != 1 or scores.shape != included.shape:
        raise InputError(f"scores {scores.shape} and included {included.shape} must be (C,) each")
    if np.isnan(scores).any():
        raise InputError("scores holds values that are no numbers; correct the attack")
    members, others = int(included.sum()), int((~included).sum())
    if not members or not others:
        raise InputError(
            f"{members} members and {others} others: one of each is needed at the least"
        )
    thresholds, place = np.unique(-scores, return_inverse=True)
    hits = np.bincount(place[included], minlength=len(thresholds))
    alarms = np.bincount(place[~included], minlength=len(thresholds))
    # Of each member the share of others below it, and of each other that of members above it.
    below = 1.0 - (np.cumsum(alarms) - 0.5 * alarms) / others
    above = (np.cumsum(hits) - 0.5 * hits) / members
    auc = float(below @ hits / members)
    spread = _variance(below, hits) / members + _variance(above, alarms) / others
    return Roc(
        thresholds=-thresholds,
        alarms=np.cumsum(alarms),
        hits=np.cumsum(hits),
        others=others,
        members=members,
        auc=auc,
        auc_error=math.sqrt(spread),
    )


def _variance(values: Array, counts: NDArray[np.int64]) -> float:
    """Of values that occur so often."""
    many = int(counts.sum())
    mean = float(values @ counts) / many
    return float(((values - mean) ** 2) @ counts) / max(many - 1, 1)


FALSE_ALARM = 1e-6  # probability that games of a sound run contradict its proof, over all guessers


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
        curve = trade_off(self.claim.rounds, adjacency=self.claim.adjacency)
        if curve is None:  # none is proven for the mechanism
            return of_pair
        misses = float(curve.false_negative_rates([false_positive_rate])[0])
        return min(of_pair, 1.0 - misses)


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

    All tests of rates together err with probability `FALSE_ALARM`.
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
    # Every score guesses in two ways, and the best of all guesses pays for their number.
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
    # A contradiction of the proof needs a far smaller risk.
    certain = bound
    if bound.epsilon > limit.epsilon:
        certain = one_run_f_dp(
            guesses, claim=limit.claim, delta=limit.delta, confidence=1.0 - FALSE_ALARM / len(found)
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
