"""How well the attacks of a sweep rebuilt records: means over images, with their intervals.

A run is attacked in several scenarios, of rounds, messages and adversaries, and all of them look
for the same planted images. So an image of a seed counts once, with its mean over scenarios, and

    interval = bootstrap of the mean over the images of all seeds (95 %)

of which `attacks.scoring.metrics.bootstrap_interval` says how sure it is of few images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...attacks.scoring.metrics import bootstrap_interval
from ...runs.audit.evidence import read_attack
from ...runs.audit.evidence_schema import Scenario
from ...runs.sweep.results import POINTS, PointResult

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

    Args:
        results: the runs of a line.
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
    low, high = bootstrap_interval(values)
    return OverImages(mean=sum(values) / len(values), low=low, high=high, count=len(values))


def own_attack(out: Path, one: PointResult) -> list[Scenario]:
    """Of the sweep's own attack: one that somebody added to a run would be in no other's mean."""
    if one.state != "done" or not one.attacked:
        return []
    found = read_attack(out / POINTS / one.name)
    return [] if found is None else [of for of in found.scenarios if not of.attack]
