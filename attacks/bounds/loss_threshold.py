"""The audit that sees the final models alone: is the loss of a candidate record low?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from ...privacy._validate import within
from .lower_bounds import Guesses, LowerBound, total_error
from .mechanism import Claim

_ASSUMPTIONS = (
    "Sees the final models alone; about 0 on small convex models. Assumes fair assignments, a loss "
    "threshold that is fixed without them, and errors of canaries that are independent."
)


def loss_canaries(
    losses: ArrayLike,
    included: ArrayLike,
    *,
    threshold: float,
    claim: Claim,
    delta: float,
    confidence: float,
) -> LowerBound:
    """Bound epsilon from the losses of candidate records under the final model.

    Args:
        losses: (m,) loss of each candidate, in nats or any unit; may be infinite. For
            "replace-one", the loss of candidate +u less that of -u.
        included: (m,) bool, whether the coin put the candidate in.
        threshold: "in" is said of losses below it, in the same unit; fixed without the coins, for
            instance the median loss of records that are held out for this, or 0 for differences.
        claim: what is proven for who sees the final models; its family is what is chosen among.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.

    Returns:
        The bound by the machinery of `total_error`, usually far below the proof: it says how
        little a loss shows, not how little the messages do.

    Raises:
        ValueError: threshold is not finite, shapes differ, a loss is not a number, or delta or
            confidence is out of range.
        TypeError: included does not hold truth values.

    >>> coins = np.arange(2000) % 2 == 0
    >>> losses = np.where(coins, 0.2, 0.9)
    >>> losses[:700] = 1.1 - losses[:700]  # 700 are guessed wrong
    >>> found = loss_canaries(
    ...     losses, coins, threshold=0.5,
    ...     claim=Claim(rounds={(1.39, 1.0): 1}), delta=1e-5, confidence=0.95,
    ... )
    >>> round(found.epsilon, 2), found.errors
    (2.79, 700)
    """
    within("threshold", threshold, "(-inf, inf)", "the median loss of held-out records is usual")
    scores = threshold - np.asarray(losses, dtype=np.float64)
    guesses = Guesses(scores=scores, included=np.asarray(included))
    lower_bound = total_error(guesses, claim=claim, delta=delta, confidence=confidence)
    return replace(
        lower_bound, name="loss canaries", threshold=float(threshold), assumptions=_ASSUMPTIONS
    )
