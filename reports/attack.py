"""Attack a run: intercepted rounds re-enacted with planted public records, scored in four rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attacks.evaluation import SCENARIOS, Row, Trial, attack_images, conclusion
from ..attacks.metrics import blind_guess
from ..attacks.presets import PRESETS, Preset
from ..privacy.ledger import read_ledger
from ..training.data import Dataset
from . import folder as run_folder
from .build import Built, build
from .config import RunFile, load_run_file
from .run import snapshot_round

Progress = Callable[[int, int, str], None]

PLANTED = "public test records, planted one at a time as the victim's batch of a re-enacted round"


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
    images, labels, prior = _planted(built.data, config.attack.images)
    points = list(
        itertools.product(
            config.attack.rounds or (),
            config.intercept.victims or (0,),
            SCENARIOS[config.algorithm.name],
            config.attack.presets,
        )
    )
    total = len(points) * 3 * len(images)
    done = 0

    def tick(text: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, text)

    (folder / run_folder.ATTACKS).mkdir()
    originals = _save(folder, "original", built.data.pixels(images).clamp(0, 1))
    found = []
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
            images=images,
            labels=labels,
            prior_image=prior,
            generator=torch.Generator().manual_seed(config.training.seed),
            progress=tick,
        )
        name = f"round{number}-agent{victim}-{scenario}-{preset}"
        found.append(
            {
                "scenario": str(scenario),
                "round": number,
                "model_owner": trial.model_owner if scenario == "cross-gradient" else victim,
                "victim": victim,
                "preset": preset,
                "rows": [_row(folder, name, row) for row in rows],
                "originals": originals,
                "records": PLANTED,
                "conclusion": conclusion(rows),
            }
        )
    result = {"schema": 1, "scenarios": found}
    run_folder.write_json(folder / run_folder.ATTACK, result)
    run_folder.write_sums(folder)
    finite: dict[str, Any] = run_folder.finite(result)
    return finite


def _preset(name: str, *, restarts: int | None) -> Preset:
    """The named preset, with the run file's number of starts."""
    preset = PRESETS[name]
    return preset if restarts is None else replace(preset, starts=restarts)


def _check(config: RunFile, built: Built) -> None:
    if config.algorithm.name not in SCENARIOS:
        raise ValueError(f"no attack is known for algorithm {config.algorithm.name!r}")
    if not built.data.image:
        raise ValueError(f"data {built.data.name!r} holds no images to rebuild")
    if built.setting.graph.agents < 2:
        raise ValueError("agents=1: nothing crosses a link, so nothing can be intercepted")


def _planted(data: Dataset, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first public test record of each class in turn, and the mean of the other ones."""
    seen: dict[int, int] = {}
    rank = []
    for label in data.test_targets.tolist():
        rank.append(seen.get(label, 0))
        seen[label] = rank[-1] + 1
    order = sorted(range(len(rank)), key=lambda i: (rank[i], int(data.test_targets[i])))[:count]
    if len(order) < count:
        raise ValueError(f"images={count} is more than the {len(order)} public test records")
    at = torch.tensor(order)
    others = torch.ones(len(rank), dtype=torch.bool)
    others[at] = False
    return data.test_inputs[at], data.test_targets[at], blind_guess(data.test_inputs[others])


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
    return Trial(
        setting=built.setting,
        algorithm=config.algorithm.name,
        form=built.form,
        settings=built.settings,
        learning_rate=built.learning_rate,
        clip_norm=built.clip_norm,
        noise_std=built.noise_std(multiplier),
        batch_size=built.batch_size,
        snapshot=load_file(run_folder.require(folder, name)),
        snapshot_round=start,
        round=round,
        rounds=config.training.rounds,
        victim=victim,
        model_owner=owner,
    )


def _row(folder: Path, name: str, row: Row) -> dict[str, Any]:
    s = row.scores
    return {
        "name": row.name,
        "mse": list(s.mse),
        "psnr": list(s.psnr),
        "ssim": list(s.ssim),
        "mean": {"mse": s.mean_mse, "psnr": s.mean_psnr, "ssim": s.mean_ssim},
        "stage": list(row.stages),
        "images": _save(folder, f"{name}-{row.name.replace(' ', '-')}", row.images),
    }


def _save(folder: Path, name: str, images: Tensor) -> list[str]:
    """Write (N, channels, height, width) pixels as PNG files; their paths within the run."""
    from PIL import Image

    paths: Sequence[str] = [f"{run_folder.ATTACKS}/{name}-{i}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        levels = (image.permute(1, 2, 0) * 255.0).round().to(torch.uint8).numpy()
        Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(folder / path)
    return list(paths)
