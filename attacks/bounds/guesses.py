"""The scores of an audit's canaries, their coins, and how many of them a threshold gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError, InputTypeError

__all__ = ["Errors", "Guesses", "best_threshold", "errors_at_zero", "surest"]

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

    >>> Guesses(scores=np.array([0.3, -1.0]), included=np.array([True, False])).scores.size
    2
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

    Args:
        guesses: (m,) scores and coins.
        among: indices of the canaries that are guessed; all of them by default.

    >>> scores = np.array([0.3, -1.0, 0.0])
    >>> errors_at_zero(Guesses(scores=scores, included=np.array([True, True, False])))
    Errors(false_alarms=1, misses=1, out=1, inside=2)
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

    >>> coins = np.array([True, False, True])
    >>> surest(Guesses(scores=np.array([0.3, -1.0, 0.5]), included=coins), 2).tolist()
    [1, 2]
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

    >>> best_threshold(np.array([-1.0, 2.0, 3.0, 5.0]), np.array([False, False, True, True]))
    2.5
    """
    values = np.unique(scores[np.isfinite(scores)])
    tried = np.concatenate([[0.0], 0.5 * values[:-1] + 0.5 * values[1:]])
    tried = tried[np.argsort(np.abs(tried), kind="stable")]
    outside, inside = np.sort(scores[~included]), np.sort(scores[included])
    wrong = outside.size - np.searchsorted(outside, tried, side="left")
    wrong = wrong + np.searchsorted(inside, tried, side="right")
    return float(tried[np.argmin(wrong)])
