"""Run every point of a sweep that has not ended yet: tuning first, then what is reported."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...privacy.errors import InputError, Progress
from ...privacy.files import check_links, lock, make_folder, write_durably
from ..stop import Stop
from . import results as sweep_results
from .engine import Engine, Task, digest_of
from .results import write_result
from .sweep_file import (
    SWEEP,
    Choice,
    Point,
    SweepFile,
    Tried,
    check_points,
    config_of,
    file_text,
    points_of,
    settings_words,
    shown,
    tried_of,
)

_Row = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What a sweep came to.

    Attributes:
        results: every run that ended, failed ones too.
        ran: how many of them ended by this call.
        left: how many of those that were meant have not ended.
    """

    out: Path
    results: list[sweep_results.PointResult]
    ran: int
    left: int

    @property
    def failed(self) -> list[sweep_results.PointResult]:
        """Those that failed."""
        return [result for result in self.results if result.state == "failed"]


@dataclass(kw_only=True, slots=True)
class _Work:
    """A sweep while it runs."""

    out: Path
    base: Mapping[str, object]
    engine: Engine
    retry: bool
    progress: Progress | None
    total: int
    stop: Stop
    done: int = 0
    ran: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


def run_sweep(
    sweep: SweepFile,
    base: Mapping[str, object],
    out: Path,
    *,
    only: sweep_results.Part = (),
    engine: Engine | None = None,
    retry: bool = False,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Swept:
    """Run what has not ended; a run that was cut off goes on from its newest checkpoint.

    Args:
        base: the tables of its run file, as `read_sweep_file` returns them.
        out: its folder; may hold a part of the same sweep, or of one with fewer seeds or values.
        only: the runs that are meant; the others are left for another call.
        engine: where runs are computed; by default on all cores of this machine.
        retry: whether runs that failed are tried again.
        progress: called with (done, total, what) after each run.
        stop: asked to stop, it ends; what is done is kept.

    Raises:
        FileExistsError: the folder holds something else, or another sweep.
        ValueError: a key, value or setting that no run can have.
        Interrupted: it was asked to stop.
    """
    stop = stop or Stop()
    stop.note("nothing was written")
    # The runs that are known before any tuning, and settings that no run can have.
    _check_base(sweep, base)
    tried = tried_of(sweep)
    tuning, reported = sweep_results.points_meant(sweep, only)
    first = tuning or reported
    refused = check_points(base, first)
    _check_share(sweep, base, [one for one in tuning if shown(one) not in refused])
    _check_folder(out)
    work = _Work(
        out=out,
        base=base,
        engine=engine or Engine(),
        retry=retry,
        progress=progress,
        total=len(tuning) + len(reported),
        stop=stop,
        refused=refused,
    )
    for name in (sweep_results.POINTS, sweep_results.RESULTS, sweep_results.LOCKS):
        make_folder(out / name)
    # One process at a time; what stands in the folder is of the same sweep.
    with _sole(out):
        before = points_of(sweep, _kept_choices(sweep, base, out, tried))
        _check_same(out, base, [*(point for one in tried for point in one.points), *before])
        write_durably(out / SWEEP, file_text(sweep, base).encode())
        sweep_results.write_index(out, sweep_results.read_results(out))
        stop.note("the same command goes on with the runs that have not ended")
        # Tuning first, then all runs at the settings chosen.
        _run(work, tuning)
        tuned = _tuned(sweep, base, out, tried)
        _, points = sweep_results.points_meant(sweep, only, tuned)
        chosen = [one for one in points if sweep.tune is None or _row_of(one) in tuned]
        for one in points:
            if one not in chosen:
                _note(work, sweep_results.PointResult.failed(one, _UNTUNED))
        _run(work, chosen)
        stop.finish()
        results = sweep_results.read_results(out)
        sweep_results.write_index(out, results)
    return Swept(out=out, results=results, ran=work.ran, left=work.total - work.done)


def _check_base(sweep: SweepFile, base: Mapping[str, object]) -> None:
    """Refuse reported runs that would be measured on the records that values are chosen on."""
    data = base.get("data")
    if sweep.tune is not None and isinstance(data, Mapping) and data.get("validation") is not None:
        raise InputError(
            f"[data] validation={data['validation']!r} of the run file would measure the reported "
            "runs on records that [tune] chooses on; leave it out, and say [tune] validation"
        )


def _check_share(sweep: SweepFile, base: Mapping[str, object], tuning: Sequence[Point]) -> None:
    """Refuse a share for tuning that keeps no record, or all, where all runs have the same data.

    The data are read for it only where a set of ordinary size could be too small for the share.
    """
    if sweep.tune is None or _ORDINARY <= sweep.tune.validation <= 1 - _ORDINARY:
        return
    share, keys = sweep.tune.validation, (*sweep.grid, *sweep.tune.keys)
    if not tuning or any(key.startswith("data.") for key in keys):
        return
    count = len(config_of(base, tuning[0]).data.read().targets)
    if not 0 < round(share * count) < count:
        raise InputError(
            f"[tune] validation={share:g} keeps {round(share * count)} of the {count} training "
            "records, so that nothing is left to choose on or to train on; give a share from "
            f"{1 / count:.2g} to {1 - 1 / count:.6g}, such as 0.2"
        )


_ORDINARY = 1e-3
_UNTUNED = "no value of [tune] could be trained with it; its runs of tuning say why"


def _row_of(point: Point) -> _Row:
    return tuple(point.settings.values())


def _run(work: _Work, points: Sequence[Point]) -> None:
    """Run those that have not ended; what becomes of each is on the disk when this returns."""
    # What has ended counts, what no run can have is noted, and the rest is a task.
    tasks = []
    for point in points:
        point_result = sweep_results.read_result(work.out, point.name)
        if (
            point_result is not None
            and (point_result.state == "done" or not work.retry)
            and point_result.has(point)
        ):
            work.done += 1
        elif (why := work.refused.get(shown(point))) is not None:
            _note(work, sweep_results.PointResult.failed(point, why))
        else:
            tasks.append(
                Task(
                    out=work.out,
                    base=work.base,
                    point=point,
                    devices=work.engine.devices,
                    path=tuple(entry for entry in sys.path if entry),
                )
            )
    if not tasks:
        return
    for task, why in work.engine.run(tasks, lambda result: _ended(work, result)):
        _note(work, sweep_results.PointResult.failed(task.point, why))


def _note(work: _Work, result: sweep_results.PointResult) -> None:
    write_result(work.out, result)
    _ended(work, result)


def _ended(work: _Work, result: sweep_results.PointResult) -> None:
    work.done += 1
    work.ran += 1
    sweep_results.append_to_index(work.out, result)
    if work.progress is not None:
        words = settings_words(result.settings)
        state = "" if result.state == "done" else " failed"
        work.progress(work.done, work.total, f"{words}, seed {result.seed}{state}")
    work.stop.go_on()


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the sweep")
    check_links(out)
    if (out / SWEEP).exists() or not out.is_dir():
        return
    held = sorted(path.name for path in out.iterdir() if path.name not in _OURS)
    if held:
        raise FileExistsError(
            f"{out} holds {held[0]} and no sweep; choose another folder for the sweep"
        )


_OURS = (sweep_results.POINTS, sweep_results.RESULTS, sweep_results.LOCKS)


def _check_same(out: Path, base: Mapping[str, object], points: Sequence[Point]) -> None:
    """Refuse a folder with runs of another sweep; one may grow by seeds and values.

    Args:
        points: of the sweep, all of them, with what was chosen for them before.
    """
    if not (out / SWEEP).is_file():
        return
    by_name = {point.name: point for point in points}
    for point_result in sweep_results.read_results(out):
        point = by_name.get(point_result.name)
        if point is None:
            _refuse_other(out, f"holds {point_result.name}, which is no run of this one")
        elif point_result.run_file and digest_of(config_of(base, point)) != point_result.run_file:
            _refuse_other(out, f"holds {point_result.name} with other keys of its run file")


def _refuse_other(out: Path, what: str) -> None:
    raise FileExistsError(
        f"{out} is of another sweep: it {what}; a sweep may grow by seeds and values, and anything "
        "else needs a new folder"
    )


@contextmanager
def _sole(out: Path) -> Iterator[None]:
    """Keep a second command away from the folder."""
    with (out / sweep_results.LOCKS / ".sweep").open("a") as file:
        if not lock(file.fileno()):
            raise InputError(f"another process runs the sweep in {out}; wait until it ends")
        yield


def _tuned(
    sweep: SweepFile, base: Mapping[str, object], out: Path, tried: Sequence[Tried]
) -> dict[_Row, Mapping[str, Choice]]:
    """The choice for each row; one that was made stays, whatever is tried again later."""
    if sweep.tune is None:
        return {}
    found = _kept_choices(sweep, base, out, tried)
    rows = {tuple(one.row.values()): one.row for one in tried}
    for name, row in rows.items():
        best = _best(out, [one for one in tried if one.row == row]) if name not in found else None
        if best is not None:
            found[name] = best.chosen
    sweep_results.write_tuned(
        out, [(rows[n], {k: c.shown for k, c in of.items()}) for n, of in found.items()]
    )
    return found


def _kept_choices(
    sweep: SweepFile, base: Mapping[str, object], out: Path, tried: Sequence[Tried]
) -> dict[_Row, Mapping[str, Choice]]:
    """The choices that were made before and are still tried.

    What tuned.jsonl lacks, because it was removed, is read off the runs that were made with it.
    """
    before = {tuple(row.values()): chosen for row, chosen in sweep_results.read_tuned(out)}
    found = {
        name: one.chosen
        for one in tried
        if before.get(name := tuple(one.row.values()))
        == {key: choice.shown for key, choice in one.chosen.items()}
    }
    if sweep.tune is None:
        return found
    held: dict[_Row, sweep_results.PointResult] = {}
    for point in points_of(sweep, {}):
        kept = None if _row_of(point) in found else sweep_results.read_result(out, point.name)
        if kept is not None and kept.run_file:
            held[_row_of(point)] = kept
    for one in tried:
        if (kept := held.get(name := tuple(one.row.values()))) is None or name in found:
            continue
        made = next(p for p in points_of(sweep, {name: one.chosen}) if p.name == kept.name)
        if digest_of(config_of(base, made)) == kept.run_file:
            found[name] = one.chosen
    return found


def _best(out: Path, values: Sequence[Tried]) -> Tried | None:
    """What did best on the validation records in the mean; the first of several that did."""
    best, top = None, -math.inf
    for value in values:
        results = [sweep_results.read_result(out, point.name) for point in value.points]
        goals = [
            goal_of(result) for result in results if result is not None and result.state == "done"
        ]
        if len(goals) < len(results):
            continue
        mean = sum(goals) / len(goals)
        if mean > top:
            best, top = value, mean
    return best


def goal_of(result: sweep_results.PointResult) -> float:
    """What tuning makes large: the mean model's accuracy, or less its error where there is none."""
    metrics = result.metrics
    if metrics is None:
        return -math.inf
    goal = metrics.consensus_accuracy
    if goal is None:
        goal = -math.inf if metrics.consensus_rmse is None else -metrics.consensus_rmse
    return -math.inf if math.isnan(goal) or math.isnan(metrics.consensus_loss) else goal
