"""Lower bounds on epsilon from how often canaries are guessed wrong at one threshold.

    Clopper, Pearson. The use of confidence or fiducial limits. Biometrika 26 (1934): u.
    Nasr et al. Tight auditing of differentially private machine learning. USENIX Security 2023,
        arXiv:2302.07956: error rates are read on the mechanism's own curve.

    e errors of m canaries with fair coins, "in" where the log-likelihood ratio is above 0
    total error   P(error) <= u(e, m)                      at `confidence`
                  TV >= 1 - 2 u
    two-sided     FPR <= u_0, FNR <= u_1    each at (1 + confidence) / 2
                  TV >= 1 - u_0 - u_1,   at rate 1 mu >= Phi^-1(1 - u_0) + Phi^-1(1 - u_1)
    epsilon       of the weakest mechanism of the claim's family with that TV or mu

| symbol | name here | unit |
|---|---|---|
| e, m | errors, canaries | - |
| u, u_0, u_1 | upper_limit | probability |
| TV | leaked | probability |

With fair coins P(error) = (FPR + FNR) / 2 >= (1 - TV) / 2 for any guesser. The
limits take the errors of different canaries for independent, which they are where canaries are
orthogonal and the noise is Gaussian and white among them.

Where we differ from the papers: one limit on all errors in place of two on their kinds, which
wastes half of the confidence; and the threshold is fixed in advance, never searched for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...privacy._validate import within
from ...privacy.accounting.gaussian import epsilon_from_mu
from ...privacy.accounting.request import check_delta
from ...privacy.errors import InputError
from .guesses import Errors, Guesses, errors_at_zero
from .mechanism import (
    Claim,
    Family,
    attained_in_place,
    family,
    least_epsilon,
    noise_scale,
    total_variation,
)

__all__ = [
    "Guesses",
    "LowerBound",
    "check_confidence",
    "from_errors",
    "from_total",
    "ideal",
    "total_error",
    "two_sided",
    "upper_limit",
]

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

    >>> import numpy as np
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
    canaries = errors.out + errors.inside
    wrong = errors.false_alarms + errors.misses
    leaked = 1.0 - 2.0 * upper_limit(wrong, canaries, confidence)
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


def two_sided(guesses: Guesses, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """Bound epsilon from false positives and false negatives at ratio 0, each limited on its own.

    More conservative than `total_error`, and does without the coins being fair.

    Args:
        guesses: (m,) scores and coins.
        claim: as in `total_error`.
        delta: strictly between 0 and 1.
        confidence: of both limits together, strictly between 0 and 1.

    Returns:
        The bound; 0 where no noise is rejected, or all canaries are in, or all are out.

    Raises:
        ValueError: delta or confidence is out of range.

    Source: Nasr et al. 2023, section 4, at a threshold fixed in advance.

    >>> import numpy as np
    >>> coins = np.arange(5000) % 2 == 0
    >>> scores = np.where(coins, 1.0, -1.0)
    >>> scores[:1800] *= -1.0
    >>> bound = two_sided(
    ...     Guesses(scores=scores, included=coins),
    ...     claim=Claim(rounds={(1.39, 1.0): 1}), delta=1e-5, confidence=0.95,
    ... )
    >>> round(bound.epsilon, 2)
    2.52
    """
    return from_errors(errors_at_zero(guesses), claim=claim, delta=delta, confidence=confidence)


def from_errors(errors: Errors, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """`two_sided` from counts."""
    check_confidence(confidence)
    check_delta(delta)
    each = 0.5 + 0.5 * confidence
    alarms = upper_limit(errors.false_alarms, errors.out, each)
    missed = upper_limit(errors.misses, errors.inside, each)
    leaked = 1.0 - alarms - missed
    if family(claim) is Family.GAUSSIAN:
        mu = _mu_between(alarms, missed)
        epsilon = epsilon_from_mu(mu, delta)
        # The TV of that mu, for the scale; a point off the middle of the curve says more than TV.
        leaked = max(leaked, _total_variation_of(mu))
    else:
        epsilon = least_epsilon(claim, leaked, delta)
    canaries = errors.out + errors.inside
    return LowerBound(
        name="two-sided",
        epsilon=epsilon,
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

    >>> claim = Claim(rounds={(1.390594, 1.0): 1})  # epsilon 3.0 at delta 1e-5
    >>> round(ideal(claim, canaries=5000, delta=1e-5, confidence=0.95), 2)
    2.72
    """
    within("canaries", canaries, "[1, inf)")
    errors = 0.5 * canaries * (1.0 - total_variation(attained_in_place(claim)))
    leaked = 1.0 - 2.0 * upper_limit(errors, canaries, confidence)
    return least_epsilon(claim, leaked, delta)


def upper_limit(errors: float, trials: int, confidence: float) -> float:
    """Clopper-Pearson one-sided upper limit of a rate, rounded up; 1 without trials.

    >>> round(upper_limit(0, 100, 0.95), 6)  # 1 - .05^(1/100)
    0.029513
    """
    from scipy.stats import beta

    check_confidence(confidence)
    if errors >= trials:
        return 1.0
    limit = float(beta.isf(1.0 - confidence, errors + 1.0, trials - errors))
    return min(1.0, limit * (1.0 + 1e-9))


def check_confidence(value: float) -> None:
    """Strictly between 0 and 1."""
    within("confidence", value, "(0, 1)", "0.95 is usual")


def _mu_between(alarms: float, missed: float) -> float:
    """Largest mu rejected by these limits on both error rates, at least 0."""
    from scipy.special import ndtri

    if alarms >= 1.0 or missed >= 1.0:
        return 0.0
    return max(0.0, -float(ndtri(alarms) + ndtri(missed))) * (1.0 - 1e-10)


def _total_variation_of(mu: float) -> float:
    from scipy.special import ndtr

    return 2.0 * float(ndtr(0.5 * mu)) - 1.0
