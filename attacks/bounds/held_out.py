"""A threshold that a fifth of the canaries set and the others are guessed by; and the headline.

The score takes the declared noise for true. Where the engine's noise is another, or a record counts
more than it may, the ratio 0 is not the best threshold, and a bound at 0 can even fall where more
leaks. A threshold that is set on canaries of its own is as good as one that is fixed in advance:
given it, the errors of the others are independent and none is less likely than the best guesser's.

    tau        fewest errors among every fifth canary
    held out   P(error at tau) <= u(errors of the others)         risk SHARE * (1 - confidence)
    headline   max(total error at ratio 0, held out)              the rest of the risk

Both hold together by the union bound (C. E. Bonferroni 1936). The share is small because it takes
from the bound of a sound run, which sits at ratio 0, and a fault that moves the threshold is large:
at one twentieth the first bound is at 95.25 % in place of 95 %, which costs .4 % of epsilon at
epsilon 1 and 5,000 canaries, and less above.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .guesses import Errors, Guesses, best_threshold
from .lower_bounds import LowerBound, check_confidence, from_total, total_error
from .mechanism import Claim

__all__ = ["SHARE", "headline", "held_out"]

SHARE = 0.05  # of the risk that the held-out threshold has in the headline
EVERY = 5  # one canary of so many sets the threshold


def headline(guesses: Guesses, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """Return the larger of `total_error` and `held_out`, at one confidence for both.

    Args:
        guesses: (m,) scores and coins.
        claim: the declared mechanism; only its family matters.
        delta: strictly between 0 and 1.
        confidence: that neither is above the truth, strictly between 0 and 1.

    Raises:
        ValueError: delta or confidence is out of range.

    >>> coins = np.arange(5000) % 2 == 0
    >>> scores = np.where(coins, 1.0, -1.0) - 4.0  # every guess at ratio 0 is "out"
    >>> found = headline(
    ...     Guesses(scores=scores, included=coins),
    ...     claim=Claim(rounds={(1.39, 1.0): 1}), delta=1e-5, confidence=0.95,
    ... )
    >>> found.name, found.threshold, round(found.epsilon, 1)
    ('held-out threshold', -4.0, 42.2)
    """
    check_confidence(confidence)
    risk = 1.0 - confidence
    fixed = total_error(guesses, claim=claim, delta=delta, confidence=1.0 - (1.0 - SHARE) * risk)
    other = held_out(guesses, claim=claim, delta=delta, confidence=1.0 - SHARE * risk)
    best = max(fixed, other, key=_strength)
    return replace(best, confidence=confidence)


def held_out(guesses: Guesses, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """Bound epsilon at a threshold that every fifth canary sets, by the errors of the others.

    Args:
        guesses: (m,) scores and coins.
        claim: as in `total_error`.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.

    Returns:
        The bound; 0 where no noise is rejected. Of fewer than ten canaries the threshold is 0.

    Raises:
        ValueError: delta or confidence is out of range.

    >>> coins = np.arange(5000) % 2 == 0
    >>> scores = np.where(coins, 1.0, -1.0) + 3.0
    >>> scores[:1800] = 6.0 - scores[:1800]  # 1,800 are wrong on either side of 3
    >>> found = held_out(
    ...     Guesses(scores=scores, included=coins),
    ...     claim=Claim(rounds={(1.39, 1.0): 1}), delta=1e-5, confidence=0.95,
    ... )
    >>> found.guesses, found.errors, round(found.epsilon, 2)
    (4000, 1440, 2.67)
    """
    scores, included = guesses.scores, guesses.included
    few = scores.size < 2 * EVERY
    setting = np.zeros(scores.size, dtype=bool)
    setting[::EVERY] = not few
    threshold = best_threshold(scores[setting], included[setting])
    rest_in, rest = included[~setting], scores[~setting]
    errors = Errors(
        false_alarms=int((~rest_in & (rest >= threshold)).sum()),
        misses=int((rest_in & (rest < threshold)).sum()),
        out=int((~rest_in).sum()),
        inside=int(rest_in.sum()),
    )
    found = from_total(errors, claim=claim, delta=delta, confidence=confidence)
    kept = f"a threshold that {int(setting.sum())} other canaries set"
    return replace(
        found,
        name="held-out threshold",
        canaries=scores.size,
        threshold=threshold,
        assumptions=found.assumptions.replace("one threshold (ratio 0) fixed in advance", kept),
    )


def _strength(bound: LowerBound) -> tuple[float, float]:
    scale = bound.noise_scale
    return bound.epsilon, -math.inf if scale is None else -scale
