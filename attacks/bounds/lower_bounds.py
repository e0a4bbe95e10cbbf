"""Lower bounds on epsilon from how often canaries are guessed wrong at one threshold.

    Clopper, Pearson. The use of confidence or fiducial limits. Biometrika 26 (1934): u.
    Nasr et al. Tight auditing of differentially private machine learning. USENIX Security 2023,
        arXiv:2302.07956: error rates are read on the mechanism's own curve.

    e errors of m canaries with fair coins, "in" where the log-likelihood ratio is above 0
    total error   P(error) <= u(e, m)                      at `confidence`
                  TV >= 1 - 2 u
    epsilon       of the weakest mechanism of the claim's family with that TV

| symbol | name here | unit |
|---|---|---|
| e, m | errors, canaries | - |
| u | upper_limit | probability |
| TV | leaked | probability |

With fair coins P(error) = (FPR + FNR) / 2 >= (1 - TV) / 2 for any guesser. The
limits take the errors of different canaries for independent, which they are where canaries are
orthogonal and the noise is Gaussian and white among them.

Where we differ from the papers: one limit on all errors in place of two on their kinds, which
wastes half of the confidence; and the threshold is fixed in advance, never searched for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.accounting.request import check_delta
from ...privacy.errors import InputError, InputTypeError, within
from .mechanism import (
    Claim,
    Family,
    attained_in_place,
    family,
    least_epsilon,
    noise_scale,
    total_variation,
)

# The scores of an audit's canaries, their coins, and how many of them a threshold gets wrong.

_UNFAIR = 1e-9  # probability below which the coins are not taken for fair


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Guesses:
    """One score and one coin a canary.

    Attributes:
        scores: (m,) log-likelihood ratio of "in" against "out" in nats; may be infinite.
        included: (m,) whether the coin put the canary in; for "replace-one", +u rather than -u.

    Raises:
        ValueError: the shapes differ, there is no canary, a score is not a number, or so few or
            so many canaries are in that the coins were not fair.
        TypeError: included does not hold truth values.
    """

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Refuse what is no audit, and keep copies that nobody writes to."""
        scores = np.array(self.scores, dtype=np.float64)
        included = np.array(self.included)
        if included.dtype != np.bool_:
            raise InputTypeError(
                f"included has dtype {included.dtype} and must be bool, one a coin"
            )
        if scores.ndim != 1 or scores.shape != included.shape or scores.size == 0:
            raise InputError(
                f"scores of shape {scores.shape} and included of shape {included.shape} must both "
                "be (m,) with at least one canary"
            )
        if (bad := int(np.isnan(scores).sum())) > 0:
            raise InputError(
                f"{bad} of {scores.size} scores are not numbers; they must be finite or infinite. "
                "Correct the run: a canary that is left out breaks the count"
            )
        _check_coins(int(included.sum()), scores.size)
        for name, values in (("scores", scores), ("included", included)):
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    @classmethod
    def joined(cls, parts: Sequence[Guesses]) -> Guesses:
        """The canaries of several games, one after another."""
        return cls(
            scores=np.concatenate([one.scores for one in parts]),
            included=np.concatenate([one.included for one in parts]),
        )


class Errors(NamedTuple):
    """What a threshold gets wrong, and of how many."""

    false_alarms: int  # "in" said of a canary that is out
    misses: int  # "out" said of a canary that is in
    out: int
    inside: int


def errors_at_zero(guesses: Guesses, *, among: NDArray[np.intp] | None = None) -> Errors:
    """Count errors of "in" above ratio 0 and "out" below; a ratio of 0 is an error either way.

    Guessed are all of the canaries, or those at the indices `among`.
    """
    chosen = slice(None) if among is None else among
    scores, included = guesses.scores[chosen], guesses.included[chosen]
    return Errors(
        false_alarms=int((~included & (scores >= 0.0)).sum()),
        misses=int((included & (scores <= 0.0)).sum()),
        out=int((~included).sum()),
        inside=int(included.sum()),
    )


def surest(guesses: Guesses, count: int) -> NDArray[np.intp]:
    """Indices of the `count` canaries whose ratio is farthest from 0, ties in the order given.

    Only scores decide, never coins.
    """
    return np.argsort(-np.abs(guesses.scores), kind="stable")[:count]


def _check_coins(heads: int, canaries: int) -> None:
    from scipy.stats import binom

    rarer = min(heads, canaries - heads)
    if 2.0 * float(binom.cdf(rarer, canaries, 0.5)) < _UNFAIR:
        raise InputError(
            f"included holds {heads} of {canaries} canaries; a fair assignment does that with "
            "probability "
            f"below {_UNFAIR:g}. Toss each coin with probability 1/2, apart from all else"
        )


def best_threshold(scores: NDArray[np.float64], included: NDArray[np.bool_]) -> float:
    """Where the fewest of these canaries are guessed wrong; the one nearest to 0 of several.

    Args:
        scores: (m,) log-likelihood ratios.
        included: (m,) coins.

    Returns:
        0, or a place between two finite scores.
    """
    values = np.unique(scores[np.isfinite(scores)])
    tried = np.concatenate([[0.0], 0.5 * values[:-1] + 0.5 * values[1:]])
    tried = tried[np.argsort(np.abs(tried), kind="stable")]
    outside, inside = np.sort(scores[~included]), np.sort(scores[included])
    wrong = outside.size - np.searchsorted(outside, tried, side="left")
    wrong = wrong + np.searchsorted(inside, tried, side="right")
    return float(tried[np.argmin(wrong)])


_FAMILIES = {
    Family.GAUSSIAN: "the adversary's view of all rounds is Gaussian, of whatever strength",
    Family.SAMPLED: "rounds are sampled and composed as declared, their noise all at one scale",
    Family.ANY: "nothing of the mechanism, as the declared one has no noise",
}
_ALIKE = (
    "fair assignments, one threshold (ratio 0) fixed in advance, errors of canaries independent"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LowerBound:
    """What an audit measured: at this confidence, epsilon is at least so much.

    Attributes:
        name: the estimator.
        epsilon: in nats, >= 0 and finite: m canaries never show more than about 2 log m.
        delta: strictly between 0 and 1.
        confidence: probability, over coins and noise, that the bound is not above the truth.
        canaries: how many coins were tossed.
        guesses: on how many of them a guess was made.
        false_alarms: guesses of "in" that are wrong.
        misses: guesses of "out" that are wrong.
        threshold: guesses are made where the log-likelihood ratio is at least so far from 0, in
            nats; for losses, the loss below which "in" is guessed.
        noise_scale: largest multiple of the declared noise that is not rejected; below 1
            contradicts the claim. None where the estimator does not choose among scales.
        assumptions: what must hold, as one sentence.

    Raises:
        ValueError: a value is outside its range.
    """

    name: str
    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    false_alarms: int
    misses: int
    threshold: float
    noise_scale: float | None
    assumptions: str

    def __post_init__(self) -> None:
        """Refuse what no audit can have found."""
        check_delta(self.delta)
        check_confidence(self.confidence)
        within("epsilon", self.epsilon, "[0, inf)", ", in nats")
        within("guesses", self.guesses, f"[1, {self.canaries}]", ", canaries")
        if min(self.false_alarms, self.misses) < 0 or self.errors > self.guesses:
            raise InputError(
                f"false_alarms={self.false_alarms} and misses={self.misses} must be at least 0 and "
                f"together at most {self.guesses}, the guesses"
            )
        if self.noise_scale is not None and not self.noise_scale >= 0.0:
            raise InputError(f"noise_scale={self.noise_scale} must be at least 0")

    @property
    def errors(self) -> int:
        """Wrong guesses of both kinds."""
        return self.false_alarms + self.misses

    @property
    def strength(self) -> tuple[float, float]:
        """Larger for the stronger of two bounds: by epsilon, then by the noise that is left."""
        return self.epsilon, -math.inf if self.noise_scale is None else -self.noise_scale

    def exceeds(self, epsilon: float) -> bool:
        """Whether more leaked than a claim of epsilon allows; infinite claims allow everything.

        Where the claim's noise is rejected it did, too: of several contributions under replace-one
        the bound is that of one, so that it may be below the claim although the noise is not as
        declared.
        """
        rejected = self.noise_scale is not None and self.noise_scale < 1.0
        return math.isfinite(epsilon) and (self.epsilon > epsilon or rejected)


def total_error(guesses: Guesses, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """Bound epsilon from the number of errors at ratio 0: one limit at the full confidence.

    Args:
        guesses: (m,) scores and coins.
        claim: the declared mechanism; only its family matters, not its amount of noise.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.

    Returns:
        The bound; 0 where no noise is rejected.

    Raises:
        ValueError: delta or confidence is out of range.

    Source: Clopper and Pearson 1934; TV of the mechanism's own curve.

    >>> coins = np.arange(5000) % 2 == 0
    >>> scores = np.where(coins, 1.0, -1.0)
    >>> scores[:1800] *= -1.0
    >>> one = Claim(rounds={(1.39, 1.0): 1})  # epsilon 3.0 at delta 1e-5
    >>> bound = total_error(
    ...     Guesses(scores=scores, included=coins), claim=one, delta=1e-5, confidence=0.95
    ... )
    >>> round(bound.epsilon, 2), bound.errors
    (2.71, 1800)
    """
    errors = errors_at_zero(guesses)
    return from_total(errors, claim=claim, delta=delta, confidence=confidence)


def from_total(errors: Errors, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """`total_error` from counts."""
    wrong = errors.false_alarms + errors.misses
    leaked = 1.0 - 2.0 * upper_limit(wrong, errors.out + errors.inside, confidence)
    canaries = errors.out + errors.inside
    return LowerBound(
        name="total error",
        epsilon=least_epsilon(claim, leaked, delta),
        delta=delta,
        confidence=confidence,
        canaries=canaries,
        guesses=canaries,
        false_alarms=errors.false_alarms,
        misses=errors.misses,
        threshold=0.0,
        noise_scale=noise_scale(claim, leaked),
        assumptions=f"Assumes {_ALIKE}, and that {_FAMILIES[family(claim)]}.",
    )


def ideal(claim: Claim, *, canaries: int, delta: float, confidence: float) -> float:
    """Return the `total_error` bound at the number of errors that the best test expects.

    Args:
        claim: the declared mechanism, taken to be exactly true.
        canaries: how many, at least 1.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.

    Returns:
        epsilon in nats: what a sound audit of this size shows in the middle. A single audit of
        5,000 canaries is within about 30 % of it at epsilon 1, 10 % at 3 and 5 % at 8.

    Raises:
        ValueError: a value is outside its range.
    """
    within("canaries", canaries, "[1, inf)")
    errors = 0.5 * canaries * (1.0 - total_variation(attained_in_place(claim)))
    leaked = 1.0 - 2.0 * upper_limit(errors, canaries, confidence)
    return least_epsilon(claim, leaked, delta)


def upper_limit(errors: float, trials: int, confidence: float) -> float:
    """Clopper-Pearson one-sided upper limit of a rate, rounded up; 1 without trials."""
    from scipy.stats import beta

    check_confidence(confidence)
    if errors >= trials:
        return 1.0
    limit = float(beta.isf(1.0 - confidence, errors + 1.0, trials - errors))
    return min(1.0, limit * (1.0 + 1e-9))


def check_confidence(value: float) -> None:
    """Strictly between 0 and 1."""
    within("confidence", value, "(0, 1)", "0.95 is usual")


# How much an audit can show, before it is played: whether it is worth its name.

LEAST_SHARE = 0.1  # of a proven epsilon; what could show less at best measures nothing
SEEN_IN = 0.95  # of audits, what `seen_from` says is seen
_MOST = 10**9
_STEPS = 12  # of the search for what must leak, to a four thousandth of what does


def canaries_for(claim: Claim, *, epsilon: float, delta: float, confidence: float) -> int | None:
    """Return how many canaries a perfect audit takes to show an epsilon of a claim, about.

    Args:
        epsilon: to be shown, less than that of the claim, in nats.

    Returns:
        A number with two digits, rounded up, so that `ideal` of so many is at least epsilon; None
        if a billion do not show it.

    Raises:
        ValueError: epsilon is not above 0, or delta or confidence is out of range.

    >>> claim = Claim(rounds={(1.390594, 1.0): 1})  # epsilon 3.0 at delta 1e-5
    >>> canaries_for(claim, epsilon=0.3, delta=1e-5, confidence=0.95)
    53
    """
    within("epsilon", epsilon, "(0, inf]", ", such as a tenth of the proven one")
    true = total_variation(attained_in_place(claim))
    low, high = 0.0, true
    for _ in range(_STEPS):  # what leaks of the weakest mechanism that shows epsilon
        middle = 0.5 * (low + high)
        enough = least_epsilon(claim, middle, delta) >= epsilon
        low, high = (low, middle) if enough else (middle, high)

    def shows(canaries: int) -> bool:
        errors = 0.5 * canaries * (1.0 - true)
        return 1.0 - 2.0 * upper_limit(errors, canaries, confidence) >= high

    many = 1
    while not shows(many):
        many *= 2
        if many > _MOST:
            return None
    few = many // 2
    while many - few > 1:
        middle_count = (few + many) // 2
        few, many = (few, middle_count) if shows(middle_count) else (middle_count, many)
    digits = 10 ** max(0, len(str(many)) - 2)
    return -(-many // digits) * digits


def seen_from(claim: Claim, *, canaries: int, delta: float, confidence: float) -> float | None:
    """Return the least true epsilon whose bound exceeds a claim in 95 of 100 perfect audits.

    Args:
        claim: the declared mechanism.
        confidence: of the bound, strictly between 0 and 1.

    Returns:
        epsilon in nats, of the weakest mechanism of the claim's family that is seen so often by its
        errors at ratio 0; None if no leak of the family is, or too few canaries are guessed.

    Raises:
        ValueError: a value is out of range.

    >>> claim = Claim(rounds={(1.0, 1.0): 1})  # mu 1, epsilon 4.38 at delta 1e-5
    >>> for canaries in (10, 300, 1200):
    ...     found = seen_from(claim, canaries=canaries, delta=1e-5, confidence=0.95)
    ...     print(canaries, round(found, 2))
    10 34.37
    300 7.12
    1200 5.71
    """
    from scipy.stats import beta

    allowed = total_variation(attained_in_place(claim))

    def exceeds(errors: int) -> bool:
        return 1.0 - 2.0 * upper_limit(errors, canaries, confidence) > allowed

    if not exceeds(0):
        return None
    few, many = 0, canaries
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if exceeds(middle) else (few, middle)
    # As often as this an error may come, and at most so many still come in 95 of 100 audits.
    rate = float(beta.isf(SEEN_IN, few + 1.0, canaries - few))
    return least_epsilon(claim, 1.0 - 2.0 * rate, delta)
