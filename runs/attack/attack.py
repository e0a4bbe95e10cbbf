"""Attack a run: intercepted rounds re-enacted with planted public records, scored in four rows.

An attack that was interrupted goes on where it stopped: what is known of a point is written once
the point is done, and a folder of attacks without attack.json is gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...attacks.interception.replay import trace_of
from ...attacks.scoring.evaluation import attack_images
from ...attacks.scoring.reconstruction_bound import count_rebuilt, proven_mu, reconstruction_bound
from ...privacy.ledger import read_ledger
from ..errors import ContradictedProof
from ..folder import folder as run_folder
from ..run_file.build import build
from ..run_file.run_file import load_run_file
from .attack_entry import entry_of, save_pictures
from .planted import plant
from .points import check_attack, points_of, preset_of, trial_of

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
