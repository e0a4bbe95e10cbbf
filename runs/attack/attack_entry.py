"""One point's entry in attack.json, with its pictures: the four rows and what the proof allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...attacks.interception.replay import Trial
from ...attacks.scoring.conclusion import conclusion
from ...attacks.scoring.evaluation import Row, score_each
from ...attacks.scoring.metrics import CONVENTIONS, Scores, bootstrap_interval
from ...attacks.scoring.reconstruction_bound import ReconstructionBound
from ..folder import folder as run_folder
from .gallery import save_gallery
from .planted import Public
from .points import Point

__all__ = ["PLANTED", "entry_of", "save_pictures"]

PLANTED = "public test records, planted as the victim's batch of re-enacted rounds"


def entry_of(
    folder: Path,
    point: Point,
    *,
    trial: Trial,
    rows: Sequence[Row],
    bound: ReconstructionBound,
    batch: int,
    public: Public,
    shown: Tensor,
    originals: Sequence[str],
) -> dict[str, Any]:
    """The entry of a point; its pictures are written.

    Args:
        folder: of the run; its folder of attacks must exist.
        point: what was attacked.
        trial: as it was attacked.
        rows: as `attack_images` returns them.
        bound: what the proof allows of the last row.
        batch: how many records were planted at once.
        public: what was planted, and what guessing does.
        shown: (N, channels, height, width) true pixels in [0, 1].
        originals: paths of their pictures within the run.
    """
    gallery = f"{run_folder.ATTACKS}/gallery-{point.name}.png"
    (folder / gallery).unlink(missing_ok=True)  # of a point that was interrupted
    save_gallery(
        folder / gallery,
        [("original", shown), *((row.name, row.images) for row in rows)],
        captions=[[], *([f"{value:.1f} dB" for value in row.scores.psnr] for row in rows)],
    )
    entry: dict[str, Any] = run_folder.finite(
        {
            "scenario": str(point.scenario),
            "adversary": trial.parsed_adversary().name,
            "round": point.round,
            "model_owner": trial.model_owner
            if point.scenario == "cross-gradient"
            else point.victim,
            "victim": point.victim,
            "preset": point.preset,
            "batch": batch,
            "together": trial.together,
            "rows": [_row(folder, point.name, row, shown) for row in rows],
            "originals": list(originals),
            "gallery": gallery,
            "records": PLANTED,
            "conclusion": _words(rows, public),
            "bound": _said(bound),
        }
    )
    return entry


def save_pictures(folder: Path, name: str, images: Tensor) -> list[str]:
    """Write (N, channels, height, width) pixels as PNG files; their paths within the run."""
    from PIL import Image

    paths = [f"{run_folder.ATTACKS}/{name}-{i}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        levels = (image.permute(1, 2, 0) * 255.0).round().to(torch.uint8).numpy()
        Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(folder / path)
    return paths


def _words(rows: Sequence[Row], public: Public) -> str:
    """The conclusion, and whether the gradient stands out of the noise at all."""
    said = conclusion(rows, threshold=public.threshold, guessed=public.guessed)
    return f"{said} {rows[-1].spectral}".strip()


def _said(bound: ReconstructionBound) -> dict[str, Any]:
    return {
        "mu": bound.mu,
        "threshold": bound.threshold,
        "prior_hit_rate": bound.prior_hit_rate,
        "most": bound.bound,
        "rebuilt": bound.hits,
        "images": bound.images,
        "guesses": bound.guesses,
        "confidence": bound.confidence,
        "exceeded": bound.exceeded,
        "sentence": bound.sentence(),
    }


def _row(folder: Path, name: str, row: Row, originals: Tensor) -> dict[str, Any]:
    conventions = {
        key: _means(score_each(originals, row.images, convention=convention))
        for key, convention in CONVENTIONS.items()
    }
    s = row.scores
    return {
        "name": row.name,
        "mse": list(s.mse),
        "psnr": list(s.psnr),
        "ssim": list(s.ssim),
        "mean": _means(s),
        "interval": {
            "mse": bootstrap_interval(s.mse),
            "psnr": bootstrap_interval(s.psnr),
        },
        "conventions": conventions,
        "stage": list(row.stages),
        "noise_std": row.noise_std,
        "intercepts": row.intercepts,
        "labels": list(row.labels),
        "spectral": row.spectral,
        "unused": list(row.unused),
        "images": save_pictures(folder, f"{name}-{row.name.replace(' ', '-')}", row.images),
    }


def _means(scores: Scores) -> dict[str, float]:
    return {"mse": scores.mean_mse, "psnr": scores.mean_psnr, "ssim": scores.mean_ssim}
