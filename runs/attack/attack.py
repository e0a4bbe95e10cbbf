"""Attack a run: intercepted rounds re-enacted with planted public records, scored in four rows.

An attack that was interrupted goes on where it stopped: what is known of a point is written once
the point is done, and a folder of attacks without attack.json is gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...attacks.interception.replay import Trial, trace_of
from ...attacks.scoring.bootstrap import bootstrap_interval
from ...attacks.scoring.conclusion import conclusion
from ...attacks.scoring.evaluation import Row, attack_images, score_each
from ...attacks.scoring.metrics import CONVENTIONS, Scores
from ...attacks.scoring.proof import proven_mu
from ...attacks.scoring.reconstruction_bound import (
    ReconstructionBound,
    count_rebuilt,
    reconstruction_bound,
)
from ...privacy.ledger import read_ledger
from ..errors import ContradictedProof
from ..folder import folder as run_folder
from ..run_file.build import build
from ..run_file.run_file import load_run_file
from .gallery import save_gallery
from .planted import Public, plant
from .points import Point, check_attack, points_of, preset_of, trial_of

PLANTED = "public test records, planted as the victim's batch of re-enacted rounds"

Progress = Callable[[int, int, str], None]


def attack_run(folder: Path, *, progress: Progress | None = None) -> dict[str, Any]:
    """Attack the intercepted rounds of a run folder.

    Args:
        folder: a run folder of `overhear train`; one whose attack was interrupted goes on.
        progress: called with (done, total, what).

    Returns:
        The object that is written to attacks/attack.json.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was attacked already.
        ValueError: there is nothing that the attack can be mounted on; nothing is written then.
        ContradictedProof: more was rebuilt than the proof allows; everything is written before.
    """
    config = load_run_file(run_folder.require(folder, run_folder.RUN))
    run_folder.check_sums(folder)
    header = read_ledger(run_folder.require(folder, run_folder.LEDGER)).header
    if (folder / run_folder.ATTACK).exists():
        raise FileExistsError(
            f"{folder / run_folder.ATTACK} exists; attack another run, or move "
            f"{run_folder.ATTACKS} away"
        )
    built = build(config)
    check_attack(folder, config, built=built)
    public, batch = plant(built.data, config.attack.images), config.attack.batch
    points = points_of(config)
    where = {
        (p.round, p.victim): trial_of(
            folder,
            config,
            built=built,
            round=p.round,
            victim=p.victim,
            multiplier=header["noise_multiplier"],
        )
        for p in points
    }
    proven = {key: proven_mu(trial, trace_of(trial)) for key, trial in where.items()}
    a_point = 3 * -(-len(public.images) // batch)  # protections, groups
    total, done = len(points) * a_point, 0

    def tick(text: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, text)

    run_folder.forget_sums(folder, f"{run_folder.ATTACKS}/")  # of an unfinished attack
    (folder / run_folder.ATTACKS).mkdir(exist_ok=True)
    shown = built.data.pixels(public.images).clamp(0, 1)
    originals = save_pictures(folder, "original", shown)
    found = list[dict[str, Any]]()
    for point in points:
        kept = folder / point.file
        if kept.exists():
            found.append(json.loads(kept.read_text(encoding="utf-8")))
            done += a_point
            continue
        key = (point.round, point.victim)
        rows = attack_images(
            where[key],
            built.data,
            scenario=point.scenario,
            preset=preset_of(config, point.preset),
            images=public.images,
            labels=public.labels,
            prior_image=public.prior,
            generator=torch.Generator().manual_seed(config.training.seed),
            batch=batch,
            progress=tick,
        )
        errors = rows[-1].scores.mse
        bound = reconstruction_bound(
            mu=proven[key],
            threshold=public.threshold,
            hits=count_rebuilt(errors, threshold=public.threshold, batch=batch),
            images=len(errors[::batch]),
            prior_hit_rate=public.guessed,
            guesses=batch,
            tests=len(points),
        )
        found.append(
            entry_of(
                folder,
                point,
                trial=where[key],
                rows=rows,
                bound=bound,
                batch=batch,
                public=public,
                shown=shown,
                originals=originals,
            )
        )
        run_folder.write_json(kept, found[-1])
    result = {"schema": 1, "scenarios": found}
    run_folder.write_json(folder / run_folder.ATTACK, result)
    for point in points:
        (folder / point.file).unlink(missing_ok=True)
    run_folder.write_sums(folder)
    exceeded = [s["bound"]["sentence"] for s in found if s["bound"]["exceeded"]]
    if exceeded:
        raise ContradictedProof("; ".join(exceeded))
    return result


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
            "adversary": trial.onlooker().name,
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
