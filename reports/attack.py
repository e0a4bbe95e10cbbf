"""Attack a run: intercepted rounds re-enacted with planted public records, scored in four rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attacks.bootstrap import bootstrap_interval
from ..attacks.conclusion import conclusion
from ..attacks.evaluation import Row, attack_images, score_each
from ..attacks.metrics import CONVENTIONS, Scores
from ..attacks.presets import PRESETS, Preset
from ..attacks.proof import proven_mu
from ..attacks.reconstruction_bound import (
    ReconstructionBound,
    count_rebuilt,
    reconstruction_bound,
)
from ..attacks.scenarios import Scenario, scenarios_of
from ..attacks.trial import Trial, trace_of
from ..privacy.ledger import read_ledger
from . import folder as run_folder
from .build import Built, build
from .config import RunFile, load_run_file
from .faults import ContradictedProof
from .gallery import save_gallery
from .planted import Public, plant
from .run import snapshot_round

Progress = Callable[[int, int, str], None]

PLANTED = "public test records, planted as the victim's batch of re-enacted rounds"


def attack_run(folder: Path, *, progress: Progress | None = None) -> dict[str, Any]:
    """Attack the intercepted rounds of a run folder.

    Args:
        folder: a run folder of `overhear train`.
        progress: called with (done, total, what).

    Returns:
        The object that is written to attacks/attack.json.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was attacked already.
        ValueError: there is nothing that the attack can be mounted on.
        ContradictedProof: more was rebuilt than the proof allows; everything is written before.
    """
    config = load_run_file(run_folder.require(folder, run_folder.RUN))
    run_folder.check_sums(folder)
    header = read_ledger(run_folder.require(folder, run_folder.LEDGER)).header
    if (folder / run_folder.ATTACKS).exists():
        raise FileExistsError(
            f"{folder / run_folder.ATTACKS} exists; attack another run, or move it away"
        )
    built = build(config)
    _check(config, built)
    _check_intercepted(folder, config)
    public = plant(built.data, config.attack.images)
    asked = tuple(map(Scenario, config.attack.scenarios))
    points = list(
        itertools.product(
            config.attack.rounds or (),
            config.intercept.victims or (0,),
            asked or scenarios_of(config.algorithm.name),
            config.attack.presets,
        )
    )
    groups = -(-len(public.images) // config.attack.batch)
    total, done = len(points) * 3 * groups, 0

    def tick(text: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, text)

    (folder / run_folder.ATTACKS).mkdir()
    shown = built.data.pixels(public.images).clamp(0, 1)
    originals = _save(folder, "original", shown)
    found, exceeded = list[dict[str, Any]](), list[str]()
    for number, victim, scenario, preset in points:
        trial = _trial(
            folder,
            built,
            config,
            round=number,
            victim=victim,
            multiplier=header["noise_multiplier"],
        )
        rows = attack_images(
            trial,
            built.data,
            scenario=scenario,
            preset=_preset(preset, restarts=config.attack.restarts),
            images=public.images,
            labels=public.labels,
            prior_image=public.prior,
            generator=torch.Generator().manual_seed(config.training.seed),
            batch=config.attack.batch,
            progress=tick,
        )
        bound = _bound(trial, rows[-1].scores, public)
        if bound.exceeded:
            exceeded.append(bound.sentence())
        name = f"round{number}-agent{victim}-{scenario}-{preset}"
        _gallery(folder, name, shown, rows)
        found.append(
            {
                "scenario": str(scenario),
                "adversary": trial.onlooker().name,
                "round": number,
                "model_owner": trial.model_owner if scenario == "cross-gradient" else victim,
                "victim": victim,
                "preset": preset,
                "batch": config.attack.batch,
                "together": config.attack.together,
                "rows": [_row(folder, name, row, shown) for row in rows],
                "originals": originals,
                "gallery": _gallery_name(name),
                "records": PLANTED,
                "conclusion": _words(rows, public),
                "bound": _said(bound),
            }
        )
    result = {"schema": 1, "scenarios": found}
    run_folder.write_json(folder / run_folder.ATTACK, result)
    run_folder.write_sums(folder)
    if exceeded:
        raise ContradictedProof("; ".join(exceeded))
    finite: dict[str, Any] = run_folder.finite(result)
    return finite


def _preset(name: str, *, restarts: int | None) -> Preset:
    """The named preset, with the run file's number of starts."""
    preset = PRESETS[name]
    return preset if restarts is None else replace(preset, starts=restarts)


def _check(config: RunFile, built: Built) -> None:
    if not built.data.image:
        raise ValueError(f"data {built.data.name!r} holds no images to rebuild")
    if built.setting.graph.agents < 2:
        raise ValueError("agents=1: nothing crosses a link, so nothing can be intercepted")
    if not config.attack.rounds:
        raise ValueError("[attack] rounds is empty, so there is nothing to attack; name a round")
    possible = tuple(map(str, scenarios_of(config.algorithm.name)))
    for name in config.attack.scenarios:
        if name not in possible:
            raise ValueError(
                f"[attack] scenarios: {name!r} is not to be had from {config.algorithm.name!r}; "
                f"it has: {', '.join(possible)}"
            )


def _check_intercepted(folder: Path, config: RunFile) -> None:
    """Refuse to attack rounds of which the run kept no message."""
    for number in config.attack.rounds or ():
        path = folder / run_folder.TRANSCRIPT / f"round-{number:06d}.safetensors"
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: the transcript is empty for round {number}, so there is "
                "nothing to attack; name it in [intercept] rounds and train again"
            )


def _trial(
    folder: Path,
    built: Built,
    config: RunFile,
    *,
    round: int,
    victim: int,
    multiplier: float,
) -> Trial:
    from safetensors.torch import load_file

    owner = next(j for j in built.setting.graph.neighbours(victim) if j != victim)
    start = snapshot_round(round)
    name = f"{run_folder.CHECKPOINTS}/round-{start:06d}.safetensors"
    adversary = config.attack.adversary
    if config.graph.links == "encrypted" and adversary == "eavesdropper":
        adversary = "final-models"  # all that an outsider can read
    return Trial(
        setting=built.setting,
        algorithm=config.algorithm.name,
        form=built.form,
        settings=built.settings,
        learning_rate=built.learning_rate,
        clip_norm=built.clip_norm,
        noise_std=built.noise_std(multiplier),
        batch_size=built.batch_size,
        records_per_agent=len(built.data.targets) / built.setting.graph.agents,
        snapshot=load_file(run_folder.require(folder, name)) if start else None,
        snapshot_round=start,
        round=round,
        rounds=config.training.rounds,
        victim=victim,
        model_owner=owner,
        together=config.attack.together,
        adversary=adversary,
    )


def _bound(trial: Trial, defended: Scores, public: Public) -> ReconstructionBound:
    """What the proof allows of the defended row; a batch protects each of its records as one."""
    return reconstruction_bound(
        mu=proven_mu(trial, trace_of(trial)),
        threshold=public.threshold,
        hits=count_rebuilt(defended.mse, threshold=public.threshold),
        images=len(defended.mse),
        prior_hit_rate=public.guessed,
    )


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
        "images": _save(folder, f"{name}-{row.name.replace(' ', '-')}", row.images),
    }


def _means(scores: Scores) -> dict[str, float]:
    return {"mse": scores.mean_mse, "psnr": scores.mean_psnr, "ssim": scores.mean_ssim}


def _gallery_name(name: str) -> str:
    return f"{run_folder.ATTACKS}/gallery-{name}.png"


def _gallery(folder: Path, name: str, originals: Tensor, rows: Sequence[Row]) -> None:
    """One picture a scenario, for those who look."""
    save_gallery(
        folder / _gallery_name(name),
        [("original", originals), *((row.name, row.images) for row in rows)],
        captions=[[], *([f"{value:.1f} dB" for value in row.scores.psnr] for row in rows)],
    )


def _save(folder: Path, name: str, images: Tensor) -> list[str]:
    """Write (N, channels, height, width) pixels as PNG files; their paths within the run."""
    from PIL import Image

    paths: Sequence[str] = [f"{run_folder.ATTACKS}/{name}-{i}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        levels = (image.permute(1, 2, 0) * 255.0).round().to(torch.uint8).numpy()
        Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(folder / path)
    return list(paths)
