"""A lower bound from the tail: how much likelier a strong sign of the record is with it.

    P(ratio > t | in) <= e^epsilon P(ratio > t | out) + delta

for every (epsilon, delta) mechanism and every threshold t that is fixed in advance. Where a record
is seldom sampled, the errors at ratio 0 are nearly those of guessing, and a tail says more: at a
log ratio of 1 to 1.5 for an epsilon near 1.
"""

import math

from overhear.attacks.bounds.lower_bounds import Guesses, LowerBound, check_confidence, upper_limit
from overhear.privacy.accounting.request import check_delta
from overhear.privacy.errors import InputError

__all__ = ["tail"]


def tail(guesses: Guesses, *, threshold: float, delta: float, confidence: float) -> LowerBound:
    """Bound epsilon by two Clopper-Pearson limits at one threshold.

    Args:
        guesses: (m,) scores and coins.
        threshold: "in" is guessed above it; a log-likelihood ratio, chosen before the scores are
            seen.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1; each limit has half of the risk.

    Raises:
        ValueError: a value is outside its range.
    """
    check_delta(delta)
    check_confidence(confidence)
    if not math.isfinite(threshold):
        raise InputError(f"threshold={threshold} must be a number, such as 1.25")
    said, inside = guesses.scores > threshold, guesses.included
    hits, alarms = int((said & inside).sum()), int((said & ~inside).sum())
    each = 0.5 + 0.5 * confidence
    present, absent = int(inside.sum()), int((~inside).sum())
    most = upper_limit(alarms, absent, each)
    least = 1.0 - upper_limit(present - hits, present, each)
    odds = (least - delta) / most
    return LowerBound(
        name="tail",
        epsilon=max(0.0, math.log(odds)) if odds > 0 else 0.0,
        delta=delta,
        confidence=confidence,
        canaries=len(said),
        guesses=len(said),
        false_alarms=alarms,
        misses=present - hits,
        threshold=threshold,
        noise_scale=None,
        assumptions=(
            "fair assignments are not needed; one threshold fixed in advance, errors of canaries "
            "independent; nothing of the mechanism"
        ),
    )
