"""How much an audit can show, before it is played: whether it is worth its name."""

from __future__ import annotations

from ...privacy._validate import within
from .lower_bounds import upper_limit
from .mechanism import Claim, attained_in_place, least_epsilon, total_variation

__all__ = ["LEAST_SHARE", "SEEN_IN", "canaries_for", "seen_from"]

LEAST_SHARE = 0.1  # of a proven epsilon; what could show less at best measures nothing
SEEN_IN = 0.95  # of audits, what `seen_from` says is seen
_MOST = 10**9
_STEPS = 12  # of the search for what must leak, to a four thousandth of what does


def canaries_for(claim: Claim, *, epsilon: float, delta: float, confidence: float) -> int | None:
    """Return how many canaries a perfect audit takes to show an epsilon of a claim, about.

    Args:
        claim: the declared mechanism, taken to be exactly true.
        epsilon: to be shown, less than that of the claim, in nats.
        delta: strictly between 0 and 1.
        confidence: strictly between 0 and 1.

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
        canaries: how many, at least 1.
        delta: strictly between 0 and 1.
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
