"""How well scores tell members from others: AUC, and true-positive rates at small rates of error.

A rate of false positives that the number of non-members cannot resolve is not measured: of n of
them a threshold leaves 0 or at least 1 / n. Intervals are those of Clopper and Pearson, as if
records were independent; those of one run are not quite, since one model answers for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...privacy._validate import within
from ...privacy.errors import InputError

Array = NDArray[np.float64]
_MOST_POINTS = 80  # of a curve that is drawn


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
