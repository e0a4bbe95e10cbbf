"""Attack a run: intercepted rounds re-enacted with planted public records, scored in four rows.

A run may be attacked any number of times, each time into a folder of its own. An attack that was
interrupted goes on where it stopped: what is known of a point is written once the point is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
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
from ...privacy.errors import InputError, Progress
from ..audit.evidence_schema import Attack, AttackRow, Scenario
from ..described import Described
from ..errors import ContradictedProof, sentence
from ..folder import folder as run_folder
from ..folder.folder import check_sums
from ..folder.records import header_of
from ..folder.released import read_released
from ..folder.run import train_run
from ..numbers import Cost, Expect
from ..plan.sweep import combinations_of
from ..run_file.build import Built, build
from ..run_file.run_file import ForeignFolder, RunFile, load_run_file
from ..run_file.tables import find_device
from ..stop import Stop, naming, tell
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


# Train and attack every combination of the values that `--sweep` gives to keys of a run file.


class AttackedCombination(Described):
    """One combination of swept values, and its attack or why there is none."""

    swept: dict[str, str]
    """The text of the value of each swept key."""
    folder: str
    """Of its run, within that of the sweep."""
    refused: str | None
    """The reason why it cannot be run."""
    algorithm: str = ""
    """By its name; empty where the run file is refused."""
    scenarios: list[Scenario]
    """Of its attacks/attack.json."""


def attack_sweep(
    run: Path,
    out: Path,
    *,
    sweeps: Sequence[str] = (),
    overrides: Sequence[str] = (),
    device: str | None = None,
    progress: Progress | None = None,
    expect: Expect | None = None,
    stop: Stop | None = None,
) -> list[AttackedCombination]:
    """Train and attack every combination; the last sweep varies fastest.

    Args:
        out: folder that gets a run folder for each combination; may hold those of this sweep.
        sweeps: "table.key=a,b,c", one for each key.
        overrides: "table.key=value", the same in all combinations.
        device: where the attacks compute, as of `attack_run`; training goes by the run file.
        progress: called with (done, total, what) within each training and each attack.
        expect: called with what each attack will take, as of `attack_run`.
        stop: asked to stop, it ends; what is done of combinations is kept.

    Returns:
        An entry for each combination, refused or not.

    Raises:
        FileNotFoundError: no such run file.
        FileExistsError: a folder holds another run than that of the combination.
        ValueError: a sweep that cannot be read, or every combination is refused.
        Interrupted: it was asked to stop.
    """
    if device is not None:
        find_device(device)  # before anything is trained
    found, stop = [], stop or Stop()
    for number, (shown, every) in enumerate(combinations_of(run, sweeps, overrides=overrides)):
        folder = out / f"{number:02d}"
        stop.go_on()
        stop.note(f"{number} combinations are done; the same command goes on with the others")
        refused: str | None = None
        scenarios: list[Scenario] = []
        # A refused combination keeps its reason, and the others go on.
        algorithm = ""
        try:
            config = load_run_file(run, every)
            algorithm = config.algorithm.name
            attacked = _attacked_run(
                config, folder, device=device, progress=progress, expect=expect, stop=stop
            )
            scenarios = attacked.scenarios
        except InputError as error:
            refused = " ".join(sentence(error).removeprefix(f"{run}: ").split())
        found.append(
            AttackedCombination(
                swept=shown,
                folder=folder.name,
                refused=refused,
                algorithm=algorithm,
                scenarios=scenarios,
            )
        )
    if all(one.refused is not None for one in found):
        raise InputError(
            f"none of the {len(found)} combinations can be attacked; the first: {found[0].refused}"
        )
    return found


def _attacked_run(
    config: RunFile,
    folder: Path,
    *,
    device: str | None,
    progress: Progress | None,
    expect: Expect | None,
    stop: Stop,
) -> Attack:
    """The attack of one combination, from its folder as far as that goes."""
    # A folder of another run, of this attack, or of a run that was cut off.
    kept = folder / run_folder.RUN
    if kept.exists() and ForeignFolder(folder).run_file() != config:
        raise FileExistsError(
            f"{folder} holds a run of another run file; give a new folder to --out"
        )
    if kept.exists() and (attack := attack_as_asked(folder)) is not None:
        check_sums(folder)
        return attack
    if folder.exists() and not run_folder.is_finished(folder):
        raise FileExistsError(
            f"{folder} holds a run that did not finish, with a ledger of what it released; "
            f"`overhear train {kept} --out {folder} --resume` continues it, then repeat this "
            "command"
        )
    # A run that is not there is trained first.
    if not folder.exists():
        command = f"`overhear train {kept} --out {folder} --resume`, then this command again"
        with naming(command, run_file=kept):
            train_run(
                config,
                folder,
                progress=None
                if progress is None
                else lambda at, rounds, *_: progress(at, rounds, "" if at % 50 else "training"),
                stop=stop,
            )
        stop.go_on()
    try:
        return attack_run(folder, device=device, progress=progress, expect=expect, stop=stop)
    except ContradictedProof:  # told of when every combination is done
        if (attack := attack_as_asked(folder)) is None:
            raise
        return attack


def contradictions(found: Sequence[AttackedCombination]) -> list[str]:
    """A sentence for each attack that rebuilt more than the proof allows, fresh or kept.

    The argument is what `attack_sweep` returns.
    """
    told = []
    for attacked_combination in found:
        what = ", ".join(f"{key}={value}" for key, value in attacked_combination.swept.items())
        for scenario in attacked_combination.scenarios:
            if scenario.bound.exceeded:
                said = scenario.bound.sentence
                told.append(f"{what}: {said}" if what else said)
    return told


def attack_sweep_rows(
    found: Sequence[AttackedCombination], *, convention: str | None = None
) -> Iterator[dict[str, str]]:
    """Rows of a table of scores: head -> text.

    Args:
        found: as `attack_sweep` returns it.
        convention: by default there is one row for each scenario of each combination, with mean
            PSNRs. "dpdl" gives one row for each protection of each scenario, called as in that
            paper (ND-CG, ND-MM, DPDL-CG, DPDL-MM) where the algorithm is its own, with means and
            95 % intervals of MSE, PSNR and SSIM as that paper scales images.
    """
    for attacked_combination in found:
        for scenario in attacked_combination.scenarios:
            if convention is None:
                yield _means_row(attacked_combination, scenario)
            else:
                yield from _scaled_rows(attacked_combination, scenario, convention)
        if attacked_combination.refused is not None:
            yield {
                **attacked_combination.swept,
                "scenario": f"refused: {attacked_combination.refused}",
            }


def _means_row(one: AttackedCombination, scenario: Scenario) -> dict[str, str]:
    row = dict(one.swept)
    row |= {"round": str(scenario.round), "scenario": scenario.scenario, "attack": scenario.preset}
    for of in scenario.rows:
        row[of.name] = f"error {of.mean.mse:.3g}" if of.columns else f"{of.mean.psnr:.1f} dB"
    return row | {_ALLOWED: _allowed(scenario)}


_ALLOWED = "rebuilt, proof allows"
_SCENARIOS = {"cross-gradient": "CG", "momentum": "MM"}
_PROTECTIONS = {"no defence": "ND", "clipping only": "clipped", "defended": "DPDL"}


def _allowed(scenario: Scenario) -> str:
    bound = scenario.bound
    return f"{bound.rebuilt}/{bound.images}, {bound.most:.0%}"


def _scaled_rows(
    one: AttackedCombination, scenario: Scenario, convention: str
) -> Iterator[dict[str, str]]:
    for of in scenario.rows:
        name = f"{of.name}, {scenario.scenario}"
        if one.algorithm == "dpdl" and scenario.scenario in _SCENARIOS:
            protection = _PROTECTIONS.get(of.name, of.name)
            name = f"{protection}-{_SCENARIOS[scenario.scenario]}"
        if of.name == scenario.rows[0].name:
            if scenario is not one.scenarios[0]:
                continue  # the blind guess is the same for all
            name = of.name
        defended = of is scenario.rows[-1]
        yield {
            **one.swept,
            "round": str(scenario.round),
            "scenario": name,
            **_scores(of, convention),
            "labels": "" if of.right_labels is None else f"{of.right_labels}/{len(of.mse)}",
            _ALLOWED: _allowed(scenario) if defended else "",
        }


def _scores(row: AttackRow, convention: str) -> dict[str, str]:
    """MSE, PSNR and SSIM with their intervals; of a table its error."""
    if row.columns:
        return {"error": f"{row.mean.mse:.3g}"}
    told = row.conventions[convention]
    means = {"mse": told.mse, "psnr": told.psnr, "ssim": told.ssim}
    texts = {}
    for name, mean in means.items():
        digits = _DIGITS[name]
        known = told.interval.get(name)
        span = "" if known is None else f" ({known[0]:.{digits}f} to {known[1]:.{digits}f})"
        texts[name.upper()] = f"{mean:.{digits}f}{span}"
    return texts


_DIGITS = {"mse": 3, "psnr": 1, "ssim": 2}
