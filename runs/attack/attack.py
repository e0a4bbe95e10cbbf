"""Attack a run: intercepted rounds re-enacted with planted public records, scored in four rows.

An attack that was interrupted goes on where it stopped: what is known of a point is written once
the point is done, and a folder of attacks without attack.json is gone on with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...attacks.interception.replay import Trial, trace_of
from ...attacks.problem.problem import home_of
from ...attacks.scoring.conclusion import conclusion
from ...attacks.scoring.evaluation import Row, attack_images, score_each
from ...attacks.scoring.lineup_bound import LineupBound, lineup_bound
from ...attacks.scoring.metrics import CONVENTIONS, Scores, bootstrap_interval
from ...attacks.scoring.reconstruction_bound import (
    ReconstructionBound,
    count_rebuilt,
    proven_mu,
    reconstruction_bound,
)
from ...privacy.errors import InputError
from ..errors import ContradictedProof
from ..evidence.schema import AllowedByProof, Attack, AttackRow, Lineup, Means, Scenario
from ..folder import folder as run_folder
from ..folder.records import header_of
from ..folder.released import read_released
from ..folder.sums import check_sums, forget_sums, write_sums
from ..run_file.build import Built, build
from ..run_file.device import find_device
from ..run_file.run_file import RunFile, load_run_file
from ..stop import Stop
from .gallery import save_gallery
from .planted import Public, plant
from .points import Point, check_attack, points_of, preset_of, trial_of

PLANTED = "public test records, planted as the victim's batch of re-enacted rounds"

Progress = Callable[[int, int, str], None]


def attack_run(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    device: str | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Attack:
    """Attack the intercepted rounds of a run folder.

    Args:
        folder: a run folder of `overhear train`; one whose attack was interrupted goes on.
        overrides: "attack.key=value", in place of keys of [attack] of its run file.
        device: where to compute, as `find_device` reads it; that of the run file by default.
            Rounds, which need float64, run on the CPU where the device has none.
        progress: called with (done, total, what).
        stop: asked to stop, the attack ends at once; points that are done are kept.

    Returns:
        What is written to attacks/attack.json.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was attacked already.
        ValueError: there is nothing that the attack can be mounted on; nothing is written then.
        ContradictedProof: more was rebuilt than the proof allows; everything is written before.
        Interrupted: it was asked to stop.
    """
    stop = stop or Stop()
    # What is attacked, and what the proof says of it: all that can be refused, before any work.
    stray = [text for text in overrides if not text.startswith("attack.")]
    if stray:
        raise InputError(f"set {stray[0]}: of a run that is over, [attack] alone can be changed")
    if (folder / run_folder.ATTACK).exists():
        raise FileExistsError(
            f"{folder / run_folder.ATTACK} exists; attack another run, or move "
            f"{run_folder.ATTACKS} away"
        )
    check_sums(folder)
    config = load_run_file(run_folder.require(folder, run_folder.RUN), overrides, of_folder=True)
    if (place := folder / run_folder.ATTACKS).exists() and not place.is_dir():
        raise InputError(f"{place} is no folder, where an attack is written; move it away")
    run_folder.require(folder, run_folder.LEDGER)
    header = header_of(read_released(folder))
    search = find_device(config.training.device if device is None else device)
    built = build(config, device=home_of(search))
    check_attack(folder, config, built=built)
    aims = _aims(folder, config, built, multiplier=header.noise_multiplier)
    public = plant(built.data, config.attack.images, seed=config.training.seed)
    # The public records, shown once for all points.
    shown = built.data.pixels(public.images).clamp(0, 1)
    with stop.held():
        forget_sums(folder, f"{run_folder.ATTACKS}/")  # of an unfinished attack
        (folder / run_folder.ATTACKS).mkdir(exist_ok=True)
        originals = save_pictures(folder, "original", shown)
    planted = _Planted(public=public, shown=shown, originals=originals, device=search)
    # Every point, whose entry is kept as soon as it is known; then all of them as one file.
    tick = _Ticks(total=len(aims) * _groups(config, planted), progress=progress)
    done = sum((folder / aim.point.file).exists() for aim in aims)
    if done and overrides:
        raise InputError(
            f"{done} points of an attack that was interrupted are kept in "
            f"{folder / run_folder.ATTACKS}, whose keys nobody kept; give no key of [attack] to go "
            "on with it, or remove the folder"
        )
    stop.note(_goes_on(folder, done, len(aims)))
    found = []
    for aim in aims:
        kept = folder / aim.point.file
        if kept.exists():
            found.append(_kept(kept))
            tick.skip(_groups(config, planted))
            continue
        entry = _attacked(folder, config, built, aim, planted, tick=tick, tests=len(aims))
        with stop.held():
            found.append(entry())
            found[-1].write(kept)
            done += 1
            stop.note(_goes_on(folder, done, len(aims)))
    stop.finish()
    result = Attack(
        version=1, device=str(search), exact_device=str(home_of(search)), scenarios=found
    )
    result.write(folder / run_folder.ATTACK)
    for aim in aims:
        (folder / aim.point.file).unlink(missing_ok=True)
    write_sums(folder)
    exceeded = [s.bound.sentence for s in found if s.bound.exceeded]
    if exceeded:
        raise ContradictedProof("; ".join(exceeded))
    return result


def _goes_on(folder: Path, done: int, points: int) -> str:
    return (
        f"{done} of {points} points of the attack are kept in {folder / run_folder.ATTACKS}; given "
        "again, it goes on with the others"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Aim:
    """A point, the rounds that are re-enacted for it, and mu of what they release."""

    point: Point
    trial: Trial
    proven: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planted:
    """The public records, and where they are searched for."""

    public: Public
    shown: Tensor  # (N, channels, height, width) pixels
    originals: Sequence[str]  # paths of their pictures
    device: torch.device


class _Ticks:
    """Counts what is done, over all points."""

    def __init__(self, *, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self, text: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total, text)

    def skip(self, count: int) -> None:
        """Count what an earlier process did."""
        self._done += count


def _groups(config: RunFile, planted: _Planted) -> int:
    """Searches of a point: one for each protection and group of records planted together."""
    return 3 * -(-len(planted.shown) // config.attack.batch)


def _aims(folder: Path, config: RunFile, built: Built, *, multiplier: float) -> list[_Aim]:
    """Every point with its trial; points of one round and victim share it."""
    trials: dict[tuple[int, int], tuple[Trial, float]] = {}
    found = []
    for point in points_of(config):
        key = (point.round, point.victim)
        if key not in trials:
            trial = trial_of(
                folder,
                config,
                built=built,
                round=point.round,
                victim=point.victim,
                multiplier=multiplier,
            )
            trials[key] = trial, proven_mu(trial, trace_of(trial))
        trial, proven = trials[key]
        found.append(_Aim(point=point, trial=trial, proven=proven))
    return found


def _kept(path: Path) -> Scenario:
    return Scenario.read(
        path,
        refusal=lambda at, what: (
            f"{path} cannot be read at {at or 'its start'}: {what}; remove it, and the point is "
            "attacked again"
        ),
    )


def _attacked(
    folder: Path,
    config: RunFile,
    built: Built,
    aim: _Aim,
    planted: _Planted,
    *,
    tick: _Ticks,
    tests: int,
) -> Callable[[], Scenario]:
    """Attack one point; what is returned writes its pictures, and is its entry.

    Args:
        folder: of the run; its folder of attacks must exist.
        config: the run file.
        built: its objects.
        aim: what is attacked.
        planted: with what.
        tick: called with words after each search.
        tests: how many bounds are tested at once.
    """
    public, batch = planted.public, config.attack.batch
    rows = attack_images(
        aim.trial,
        built.data,
        scenario=aim.point.scenario,
        preset=preset_of(config, aim.point.preset),
        images=public.images,
        labels=public.labels,
        prior_image=public.prior,
        generator=torch.Generator().manual_seed(config.training.seed),
        batch=batch,
        candidates=public.candidates,
        decoys=public.decoys,
        device=planted.device,
        progress=tick,
    )
    lineups = len(rows[-1].lineups)
    # The run's own messages are the last row; the proof speaks of one record of each group.
    errors = rows[-1].scores.mse
    bound = reconstruction_bound(
        mu=aim.proven,
        threshold=public.threshold,
        hits=count_rebuilt(errors, threshold=public.threshold, batch=batch),
        images=len(errors[::batch]),
        prior_hit_rate=public.guessed,
        guesses=batch,
        tests=tests * (1 + lineups),
    )
    ranked = [
        lineup_bound(mu=aim.proven, size=size, ranks=found, tests=tests * (1 + lineups))
        for size, found in rows[-1].lineups.items()
    ]
    return partial(_entry, folder, aim, planted, rows=rows, bound=bound, ranked=ranked, batch=batch)


def _entry(
    folder: Path,
    aim: _Aim,
    planted: _Planted,
    *,
    rows: Sequence[Row],
    bound: ReconstructionBound,
    ranked: Sequence[LineupBound],
    batch: int,
) -> Scenario:
    """The entry of a point: the four rows and what the proof allows."""
    point, trial = aim.point, aim.trial
    gallery = f"{run_folder.ATTACKS}/gallery-{point.name}.png"
    (folder / gallery).unlink(missing_ok=True)  # of a point that was interrupted
    save_gallery(
        folder / gallery,
        [("original", planted.shown), *((row.name, row.images) for row in rows)],
        captions=[[], *([f"{value:.1f} dB" for value in row.scores.psnr] for row in rows)],
    )
    return Scenario(
        scenario=str(point.scenario),
        adversary=trial.parsed_adversary().name,
        round=point.round,
        model_owner=trial.model_owner if point.scenario == "cross-gradient" else point.victim,
        victim=point.victim,
        preset=point.preset,
        batch=batch,
        together=trial.together,
        rows=[
            _row(folder, point.name, row, planted.shown, ranked if row is rows[-1] else ())
            for row in rows
        ],
        originals=list(planted.originals),
        gallery=gallery,
        records=PLANTED,
        conclusion=_words(rows, planted.public),
        bound=_allowed(bound, ranked),
    )


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
    said = conclusion(
        rows,
        threshold=public.threshold,
        guessed=public.guessed,
        near=public.near,
        guessed_label=public.guessed_label,
    )
    return f"{said} {rows[-1].spectral}".strip()


def _allowed(bound: ReconstructionBound, ranked: Sequence[LineupBound]) -> AllowedByProof:
    """Both kinds of success in one sentence; either may contradict the proof."""
    return AllowedByProof(
        mu=bound.mu,
        threshold=bound.threshold,
        prior_hit_rate=bound.prior_hit_rate,
        most=bound.bound,
        rebuilt=bound.hits,
        images=bound.images,
        guesses=bound.guesses,
        confidence=bound.confidence,
        exceeded=bound.exceeded or any(one.limit.exceeded for one in ranked),
        sentence=" ".join([bound.sentence(), *(one.sentence() for one in ranked)]),
    )


def _row(
    folder: Path, name: str, row: Row, originals: Tensor, ranked: Sequence[LineupBound]
) -> AttackRow:
    s = row.scores
    limits = {one.size: one.limit for one in ranked}
    return AttackRow(
        name=row.name,
        mse=list(s.mse),
        psnr=list(s.psnr),
        ssim=list(s.ssim),
        mean=means(s),
        interval={"mse": bootstrap_interval(s.mse), "psnr": bootstrap_interval(s.psnr)},
        conventions={
            key: means(score_each(originals, row.images, convention=convention))
            for key, convention in CONVENTIONS.items()
        },
        stage=list(row.stages),
        noise_std=row.noise_std,
        intercepts=row.intercepts,
        labels=list(row.labels),
        right_labels=row.right_labels,
        candidates=row.candidates,
        power=list(row.power),
        lineups=[
            Lineup(
                of=size,
                ranks=list(found),
                first=sum(rank == 1 for rank in found),
                most=limits[size].bound if size in limits else None,
                exceeded=size in limits and limits[size].exceeded,
            )
            for size, found in row.lineups.items()
        ],
        spectral=row.spectral,
        unused=list(row.unused),
        images=save_pictures(folder, f"{name}-{row.name.replace(' ', '-')}", row.images),
    )


def means(scores: Scores) -> Means:
    """The means of scores of several images."""
    return Means(mse=scores.mean_mse, psnr=scores.mean_psnr, ssim=scores.mean_ssim)
