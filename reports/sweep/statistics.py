"""Means over seeds and over images, their errors, and differences of rows that share seeds.

Seeds are shared by all rows of a sweep, and a seed decides the partition and the first model. So
two rows are compared seed by seed: with d the differences over n common seeds,

    interval = mean(d) +- t(n - 1, .975) s(d) / sqrt(n)        (Student's t, 95 %)

which holds for normal differences; a single seed has no interval.

A run is attacked in several scenarios, of rounds, messages and adversaries, and all of them look
for the same planted images. So an image of a seed counts once, with its mean over scenarios, and

    interval = bootstrap of the mean over the images of all seeds (95 %)

of which `attacks.scoring.metrics.bootstrap_interval` says how sure it is of few images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...runs.audit.evidence import read_attack
from ...runs.audit.evidence_schema import Scenario
from ...runs.sweep.results import POINTS, PointResult

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


SCORES: Mapping[str, str] = {"mse": "MSE", "psnr": "PSNR, dB", "ssim": "SSIM"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OverImages:
    """A score of the run's own messages, over images.

    Attributes:
        mean: over images.
        low, high: a 95 % interval; NaN of a single image.
        count: n, images over all seeds.
    """

    mean: float
    low: float
    high: float
    count: int


def mean_score(out: Path, one: PointResult, score: str) -> float | None:
    """The mean score of a run's own messages, over what was attacked; None of no attack."""
    own = own_attack(out, one)
    if not own:
        return None
    scores = [getattr(scenario.rows[-1].mean, score) for scenario in own]
    return float(sum(scores) / len(scores))


def over_images(out: Path, results: Sequence[PointResult]) -> dict[str, OverImages]:
    """By name of a score its mean over the images of all runs; without those of no number.

    Records that are no images have no SSIM.
    """
    every: dict[str, list[float]] = {score: [] for score in SCORES}
    for result in results:
        own = own_attack(out, result)
        for score, found in every.items():
            rows = [getattr(scenario.rows[-1], score) for scenario in own]
            for image in range(max(map(len, rows), default=0)):
                of_image = [float(row[image]) for row in rows if image < len(row)]
                found.append(sum(of_image) / len(of_image))
    return {
        score: _summed(values)
        for score, values in every.items()
        if values and not any(map(math.isnan, values))
    }


def _summed(values: Sequence[float]) -> OverImages:
    from ...attacks.scoring.metrics import bootstrap_interval  # which takes torch

    low, high = bootstrap_interval(values)
    return OverImages(mean=sum(values) / len(values), low=low, high=high, count=len(values))


def own_attack(out: Path, one: PointResult) -> list[Scenario]:
    """Of the sweep's own attack: one that somebody added to a run would be in no other's mean."""
    if one.state != "done" or not one.attacked:
        return []
    found = read_attack(out / POINTS / one.name)
    return [] if found is None else [of for of in found.scenarios if not of.attack]
