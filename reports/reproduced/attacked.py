"""Lines of a sweep whose runs are attacked: each scenario, without a defence and as it was sent.

Beside them stand scores of the same records that take no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...attacks.scoring.metrics import ORDINARY, conventions_for, mse, psnr, ssim, unattacked
from ...privacy.formats.pictures import opened_picture
from ...runs.sweep.results import POINTS, PointResult
from ..sweep.attacked import own_attack
from ..sweep.cells import ROWS, attack_name
from ..sweep.statistics import Mean, mean_of

_SCORES = ("mse", "psnr", "ssim")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackedLine:
    """What was attacked in one way.

    Attributes:
        name: "no defence" or "defended", the scenario, and of several presets which.
        scores: mse, psnr and ssim by seed, each the mean over images and attacked rounds.
    """

    name: str
    scores: Mapping[str, Mapping[int, float]]


def attacked_lines(
    out: Path, results: Sequence[PointResult], *, convention: str = ""
) -> list[AttackedLine]:
    """The lines of the runs of one setting.

    Args:
        results: of its runs, which differ in their seed alone.
        convention: scale of the scores, as of `Entry`.
    """
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    held = [(result, one) for result in results for one in own_attack(out, result)]
    presets = list(dict.fromkeys(scenario.preset for _, scenario in held))
    for result, scenario in held:
        for row in scenario.rows:
            if row.name not in ROWS:
                continue
            name = attack_name(row.name, scenario.scenario, scenario.preset, presets)
            scores = found.setdefault(name, {})
            means = row.conventions.get(convention, row.mean)
            for score in _SCORES:
                values = scores.setdefault(score, {}).setdefault(result.seed, [])
                values.append(getattr(means, score))
    return [
        AttackedLine(
            name=name,
            scores={
                score: {seed: sum(values) / len(values) for seed, values in by_seed.items()}
                for score, by_seed in scores.items()
            },
        )
        for name, scores in sorted(found.items(), key=lambda item: item[0].startswith(ROWS[1]))
    ]


def unattacked_scores(
    out: Path, results: Sequence[PointResult], *, convention: str = ""
) -> dict[str, dict[str, Mean]]:
    """Scores of the attacked records that take no attack: by guess and score, over seeds.

    Args:
        results: of the runs of one setting; those of another have the same records.
        convention: scale of the scores, as of `Entry`.
    """
    found: dict[str, dict[str, list[float]]] = {}
    by_seed = {of.seed: (of, one) for of in results for one in own_attack(out, of)}
    for result, scenario in by_seed.values():
        if not scenario.originals:
            continue
        folder = out / POINTS / result.name
        truth = torch.stack([_pixels(folder / path) for path in scenario.originals])
        scale = conventions_for(truth.shape[1]).get(convention, ORDINARY)
        generator = torch.Generator().manual_seed(result.seed)
        blind = scenario.rows[0].conventions.get(convention, scenario.rows[0].mean)
        each = {"mean image": {score: getattr(blind, score) for score in _SCORES}}
        for name, guess in unattacked(truth, generator=generator).items():
            pairs = list(zip(truth, guess, strict=True))
            each[name] = {
                score.__name__: sum(score(a, b, convention=scale) for a, b in pairs) / len(pairs)
                for score in (mse, psnr, ssim)
            }
        for name, scores in each.items():
            for score, value in scores.items():
                found.setdefault(name, {}).setdefault(score, []).append(value)
    return {
        name: {score: mean_of(values) for score, values in scores.items()}
        for name, scores in found.items()
    }


def _pixels(path: Path) -> Tensor:
    """(channels, height, width) pixels of a picture, in [0, 1]."""
    with opened_picture(path) as picture:
        levels = torch.from_numpy(np.array(picture, dtype=np.float64) / 255.0)
    return levels[None] if levels.ndim == 2 else levels.permute(2, 0, 1)
