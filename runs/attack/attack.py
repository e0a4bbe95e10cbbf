"""Attack a run: intercepted rounds re-enacted with planted public records, scored in four rows.

A run may be attacked any number of times, each time into a folder of its own. An attack that was
interrupted goes on where it stopped: what is known of a point is written once the point is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ...attacks.interception.replay import ReplayedRun, trace_of
from ...attacks.problem.objective import preset_of
from ...attacks.problem.problem import home_of
from ...attacks.scoring.columns import with_columns
from ...attacks.scoring.evaluation import attack_images
from ...attacks.scoring.reconstruction_bound import (
    count_rebuilt,
    lineup_bound,
    proven_mu,
    reconstruction_bound,
)
from ...privacy._validate import Progress
from ...privacy.errors import InputError
from ..audit.evidence_schema import Attack, Scenario
from ..cost import Cost, Expect
from ..errors import ContradictedProof
from ..folder import folder as run_folder
from ..folder.folder import check_sums
from ..folder.records import header_of
from ..folder.released import read_released
from ..run_file.build import Built, build
from ..run_file.run_file import ForeignFolder, RunFile
from ..run_file.tables import find_device
from ..stop import Stop, tell
from .planted import plant, with_prior
from .points import check_attack, points_of, trial_of
from .prior_records import own_denoiser
from .scenario import (
    Aim,
    Place,
    Planted,
    alone,
    asked_of,
    check_unrepeated,
    entry_of,
    find_place,
    finished_attack,
    reopen,
    save_pictures,
)

_EARLY, _LATE = 0.5, 1.5  # times as long as was told: beyond, it is told again
_SURE_S = 1.0  # after so many seconds the time of a step is known well enough


def attack_run(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    name: str | None = None,
    device: str | None = None,
    convention: str | None = None,
    progress: Progress | None = None,
    expect: Expect | None = None,
    stop: Stop | None = None,
) -> Attack:
    """Attack the intercepted rounds of a run folder.

    Args:
        folder: a run folder of `overhear train`; one whose attack was interrupted goes on.
        overrides: "attack.key=value", in place of keys of [attack] of its run file.
        name: of the attack's folder below attacks/; by default as `find_place` names it.
        device: where to compute, as `find_device` reads it; that of the run file by default.
            Rounds, which need float64, run on the CPU where the device has none.
        convention: that scores will be shown by; of images alone.
        progress: called with (done, total, what).
        expect: called with what the searches will take, once some steps of the first were timed,
            and again where whole ones take far longer.
        stop: asked to stop, the attack ends at once; points that are done are kept.

    Returns:
        What is written to attack.json of its folder.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was attacked in this way already.
        ValueError: there is nothing that the attack can be mounted on, or another process attacks
            the run; nothing is written then.
        ContradictedProof: more was rebuilt than the proof allows; everything is written before.
        Interrupted: it was asked to stop.
    """
    with alone(folder):
        return _attack_run(
            folder,
            overrides,
            name=name,
            device=device,
            convention=convention,
            ticks=(progress, expect),
            stop=stop or Stop(),
        )


def _attack_run(
    folder: Path,
    overrides: Sequence[str],
    *,
    name: str | None,
    device: str | None,
    convention: str | None,
    ticks: tuple[Progress | None, Expect | None],
    stop: Stop,
) -> Attack:
    """Attack a run that no other process attacks."""
    # What is attacked, and what the proof says of it: all that can be refused, before any work.
    stray = [text for text in overrides if not text.startswith("attack.")]
    if stray:
        raise InputError(f"set {stray[0]}: of a run that is over, [attack] alone can be changed")
    opened = ForeignFolder(folder)
    reopen(folder)
    if name is None and not overrides:
        check_unrepeated(folder)
    check_sums(folder)
    run_folder.require(folder, run_folder.RUN)
    config, of_run_file = (opened.run_file(o) for o in (overrides, ()))
    own = own_denoiser(config.attack.denoiser, folder=folder, notice=tell)
    asked, of_run = asked_of(config), asked_of(of_run_file)
    place = find_place(folder, asked, of_run=of_run, name=name)
    run_folder.require(folder, run_folder.LEDGER)
    header = header_of(read_released(folder))
    search = find_device(config.training.device if device is None else device)
    built = build(config, device=home_of(search))
    check_attack(folder, config, built=built)
    if convention is not None and not built.data.image:
        raise InputError(
            f"convention={convention!r} scales the pixels of images, and {built.data.name!r} holds "
            "rows of a table; leave it out"
        )
    aims = _aims(folder, config, built, multiplier=header.noise_multiplier)
    data = built.data if built.data.image else with_columns(built.data)
    public = plant(data, config.attack.images, seed=config.training.seed)
    public = with_prior(public, data, config)
    # The public records, shown once for all points.
    shown = data.pixels(public.images).clamp(0, 1)
    with stop.held():
        place.begin(asked)
        originals = [] if data.columns else save_pictures(place, "original", shown)
    planted = Planted(
        data=data,
        public=public,
        shown=shown,
        originals=originals,
        device=search,
        denoiser=own.denoiser,
    )
    # Every point, whose entry is kept as soon as it is known; then all of them as one file.
    tick = _Ticks(total=len(aims) * _groups(config, planted), progress=ticks[0], expect=ticks[1])
    done = sum(place.point(aim.point).exists() for aim in aims)
    stop.note(_goes_on(place, done, len(aims)))
    # With the k-th attack k^-2 of the risk is spent: on all of them together 1.65 times the first.
    tests = len(aims) * (1 + len(run_folder.attack_files(folder))) ** 2
    found = []
    for aim in aims:
        if (kept := place.read(aim.point)) is not None:
            found.append(kept)
            tick.skip(_groups(config, planted))
            continue
        entry = _attacked(place, config, aim, planted, tick=tick, tests=tests)
        with stop.held():
            found.append(entry())
            found[-1].write(place.point(aim.point))
            done += 1
            stop.note(_goes_on(place, done, len(aims)))
    stop.finish()
    result = Attack(
        version=1,
        device=str(search),
        exact_device=str(home_of(search)),
        sources=own.files,
        scenarios=found,
    )
    if place.name:
        result = result.model_copy(update={"name": place.name})
    place.finish(result)
    exceeded = [s.bound.sentence for s in found if s.bound.exceeded]
    if exceeded:
        raise ContradictedProof("; ".join(exceeded))
    return result


def attack_as_asked(folder: Path, overrides: Sequence[str] = ()) -> Attack | None:
    """The finished attack on a run that was asked the same; None where there is none.

    The overrides are those of `attack_run`.

    Raises:
        ValueError: it cannot be read.
    """
    opened = ForeignFolder(folder)
    config, of_run_file = (opened.run_file(o) for o in (overrides, ()))
    own_denoiser(config.attack.denoiser, folder=folder)
    asked, of_run = asked_of(config), asked_of(of_run_file)
    return finished_attack(folder, asked, of_run=of_run)


def _goes_on(place: Place, done: int, points: int) -> str:
    return (
        f"{done} of {points} points of the attack are kept in {place.path}; given again, it goes "
        "on with the others"
    )


class _Ticks:
    """Counts what is done, over all points."""

    def __init__(
        self, *, total: int, progress: Progress | None, expect: Expect | None = None
    ) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._expect, self._first = expect, (0, 0.0)
        self._begun, self._own, self._end = time.monotonic(), 0, 0.0

    def __call__(self, text: str) -> None:
        self._done += 1
        self._own += 1
        self._first = 0, 0.0
        # What follows the steps of a search, such as searches that check it, shows in whole ones.
        now, left = time.monotonic(), self._total - self._done
        whole = (now - self._begun) / self._own * left
        share = (now + whole - self._begun) / (self._end - self._begun) if self._end else 1.0
        if not _EARLY <= share <= _LATE:
            self._tell(now, whole, left, "")
        if self._progress is not None:
            self._progress(self._done, self._total, text)

    def within(self, step: int, steps: int, _words: str = "") -> None:
        """Time the steps of a search, until it is known what all of them will take."""
        if self._end:
            return
        now, (first, begun) = time.monotonic(), self._first
        if not first or step <= first:  # the first step holds what comes before the search
            self._first = step, now
        elif now - begun > _SURE_S:
            left = self._total - self._done
            seconds = (now - begun) / (step - first) * steps * left
            self._tell(now, seconds, left, ", less if some end early")

    def _tell(self, now: float, seconds: float, left: int, more: str) -> None:
        self._end = now + seconds
        searches = "a search" if left == 1 else f"{left} searches"
        if self._expect is not None:
            self._expect(Cost(seconds, self._total, f"{searches}{more}"))

    def skip(self, count: int) -> None:
        """Count what an earlier process did."""
        self._done += count


def _groups(config: RunFile, planted: Planted) -> int:
    """Searches of a point: one for each protection and group of records planted together."""
    return 3 * -(-len(planted.shown) // config.attack.batch)


def _aims(folder: Path, config: RunFile, built: Built, *, multiplier: float) -> list[Aim]:
    """Every point with its trial; points of one round and victim share it."""
    trials: dict[tuple[int, int], tuple[ReplayedRun, float]] = {}
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
        found.append(Aim(point=point, trial=trial, proven=proven))
    return found


def _attacked(
    place: Place, config: RunFile, aim: Aim, planted: Planted, *, tick: _Ticks, tests: int
) -> Callable[[], Scenario]:
    """Attack one point; what is returned writes its pictures, and is its entry.

    After each search `tick` is called with words; `tests` bounds are tested at once.
    """
    # The planted records under every protection, by one preset at one point.
    public, batch = planted.public, config.attack.batch
    rows = attack_images(
        aim.trial,
        planted.data,
        scenario=aim.point.scenario,
        preset=preset_of(aim.point.preset, config.attack.restarts),
        images=public.images,
        labels=public.labels,
        prior_image=public.prior,
        generator=torch.Generator().manual_seed(config.training.seed),
        batch=batch,
        candidates=public.candidates,
        decoys=public.decoys,
        denoiser=planted.denoiser,
        device=planted.device,
        progress=tick,
        within=tick.within,
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
    if planted.data.columns:
        bound = replace(bound, records="records", error="error")
    # Every size of lineup is one more test.
    ranked = [
        lineup_bound(mu=aim.proven, size=size, ranks=found, tests=tests * (1 + lineups))
        for size, found in rows[-1].lineups.items()
    ]
    return partial(
        entry_of, place, aim, planted, rows=rows, bound=bound, ranked=ranked, batch=batch
    )
