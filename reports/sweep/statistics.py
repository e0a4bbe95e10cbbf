"""Means over seeds, their standard errors, and differences of rows that share seeds.

Seeds are shared by all rows of a sweep, and a seed decides the partition and the first model. So
two rows are compared seed by seed: with d the differences over n common seeds,

    interval = mean(d) +- t(n - 1, .975) s(d) / sqrt(n)        (Student's t, 95 %)

which holds for normal differences; a single seed has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over seeds.

    Attributes:
        value: the mean; NaN of no values.
        error: its standard error; NaN of fewer than two.
        count: n, how many values.
    """

    value: float
    error: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What one row has more than another, over the seeds that both have.

    Attributes:
        mean: of the differences.
        low, high: a 95 % interval; infinite of a single seed.
        count: n, how many seeds.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def mean_of(values: Sequence[float]) -> Mean:
    """The mean and its standard error."""
    count = len(values)
    if not count:
        return Mean(value=math.nan, error=math.nan, count=0)
    mean = float(np.mean(values))
    spreads = count > 1 and math.isfinite(mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(count) if spreads else math.nan
    return Mean(value=mean, error=error, count=count)


def over_seeds(counts: Iterable[int]) -> str:
    """What means are over, by how many seeds each has.

    >>> over_seeds([3, 2]), over_seeds([1])
    ('mean and standard error over n = 2 to 3 seeds', 'one seed, no standard error')
    """
    every = sorted(set(counts))
    if every == [1]:
        return "one seed, no standard error"
    seeds = " to ".join(dict.fromkeys((str(every[0]), str(every[-1]))))
    return f"mean and standard error over n = {seeds} seeds"


def difference_of(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """What one has more than the other, by seed; None without a common seed.

    Args:
        one: values by seed.
        other: likewise.
    """
    from scipy.stats import t

    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    over = np.array([one[seed] - other[seed] for seed in seeds])
    count, mean = len(over), float(over.mean())
    if abs(mean) <= 4 * np.finfo(float).eps * max(abs(one[seed]) for seed in seeds):
        mean = 0.0  # what rounding leaves of equal means
    if count == 1:
        return Difference(mean=mean, low=-math.inf, high=math.inf, count=1)
    half = float(t.ppf((1 + _LEVEL) / 2, count - 1)) * float(over.std(ddof=1)) / math.sqrt(count)
    return Difference(mean=mean, low=mean - half, high=mean + half, count=count)
