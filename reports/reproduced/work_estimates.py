"""What a reproduction takes, from a timed run of each of its settings.

A setting is a combination of data, network, graph, agents and algorithm; heterogeneity, epsilon and
hyper-parameters change no price. Where a table has several numbers of agents, the largest one that
is asked for is timed and stands for the others.

    seconds = starts of processes + sum over runs: building and planning
              + rounds * a round + evaluations * an evaluation + its attack

Building and planning take less where a process has planned the same row before. Files come on top.

`prices.json` holds those of every entry, measured by `benchmarks/reproduction_prices.py`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from joblib import cpu_count

from ...privacy.errors import InputError
from ...runs.run_file.run_file import RunFile
from ...runs.sweep.results import Part, points_meant
from ...runs.sweep.sweep_file import SweepFile, checked, config_of
from .paper_result import SCALES, Entry, ScaleName, cells_of
from .verdicts import check_data, placed

if TYPE_CHECKING:
    import torch

    from ...runs.folder.run import Session
    from ...training.engine.engine import Engine


# An entry's sweep at a scale, and which entries have one.


def scale_named(name: str) -> ScaleName:
    """A scale by its name.

    Raises:
        ValueError: there is no such scale.
    """
    for one in SCALES:
        if one == name:
            return one
    raise InputError(f"scale={name!r} must be one of {', '.join(SCALES)}")


def sweep_of(entry: Entry, name: ScaleName) -> tuple[SweepFile, dict[str, object]]:
    """The sweep file of an entry at a scale, and the tables of its run file.

    Raises:
        ValueError: its tables are no sweep.
    """
    scale = placed(entry.scales[name])
    base: dict[str, object] = dict(scale.base)
    values: dict[str, object] = {
        "base": base,
        "grid": dict(scale.grid),
        "seeds": scale.seeds,
        "also": {"attack": scale.attack},
    }
    if scale.tune:
        values["tune"] = dict(scale.tune)
    return checked(values, where=entry.name), base


def part_of(entry: Entry, name: ScaleName, cells: Sequence[str], seeds: int | None) -> Part:
    """The runs that are asked for, as `run_sweep` takes them; [] of all.

    Raises:
        ValueError: the entry does not have them at this scale, or is a closed form.
    """
    if entry.closed is not None and (cells or seeds is not None):
        raise InputError(f"{entry.name} is a closed form, which takes seconds; leave out its parts")
    return [] if entry.closed is not None else cells_of(entry, name).chosen(cells, seeds)


Timed = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Of the parts of a run.

    Attributes:
        first: building and planning of the first run of a process.
        row, again: of the first run of another row, and of another seed of a row.
        round, evaluation: of one.
        attack: of all searches on a run that is attacked.
        device: "CPU" or "GPU".
    """

    first: float
    row: float
    again: float
    round: float
    evaluation: float = 0.0
    attack: float = 0.0
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEstimate:
    """What an entry takes at a scale.

    Attributes:
        runs: how many, those of tuning too.
        hours: of one core, or of the device.
    """

    runs: int
    hours: float
    device: str

    def words(self) -> str:
        """The hours with their unit, in two digits."""
        if self.hours < 1 / 60:
            return f"{3600 * self.hours:.2g} s {self.device}"
        if self.hours < 1:
            return f"{60 * self.hours:.2g} min {self.device}"
        return f"{float(f'{self.hours:.2g}'):g} h {self.device}"


def runs_of(entry: Entry, name: ScaleName, only: Part = ()) -> int:
    """Runs of an entry at a scale, those of tuning too; 0 of a closed form."""
    if entry.closed is not None:
        return 0
    sweep, _ = sweep_of(entry, name)
    tuning, reported = points_meant(sweep, only)
    return len(tuning) + len(reported)


@functools.cache
def _stored() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    path = resources.files("overhear.reports.reproduced").joinpath("prices.json")
    found: Mapping[str, Mapping[str, Mapping[str, object]]] = json.loads(
        path.read_text(encoding="utf-8")
    )
    return found


def stored_price(entry: Entry, name: ScaleName) -> RunEstimate | None:
    """The price that was measured once; None where none was, or the sweep is another one since."""
    held = _stored().get(entry.name, {}).get(name)
    if held is None or held["sweep"] != digest_of(entry, name):
        return None
    return RunEstimate(
        runs=runs_of(entry, name), hours=float(str(held["hours"])), device=str(held["device"])
    )


def digest_of(entry: Entry, name: ScaleName) -> str:
    """What tells the sweep of an entry at a scale from another one."""
    scale = entry.scales[name]
    told = repr((scale.base, scale.grid, scale.seeds, scale.tune, scale.attack))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def price_of(
    entry: Entry,
    name: ScaleName,
    *,
    only: Part = (),
    jobs: int | None = None,
    timed: Timed | None = None,
    seconds_of: Callable[[Sequence[RunFile], bool], Seconds] | None = None,
) -> RunEstimate:
    """Time a run of each setting of an entry, in its parts.

    Args:
        entry: with data that are at hand.
        only: the runs that are meant, as of `run_sweep`.
        jobs: processes that will run them; by default one for each core.
        timed: called with (done, total, what) after each setting.
        seconds_of: times a run file; by default `run_seconds`.

    Raises:
        FileNotFoundError: data are not at hand.
        ValueError: no setting of it can be run.
    """
    check_data(entry.name, entry.scales[name])
    settings = _settings(entry, name, only)
    runs = sum(map(len, settings.values()))
    jobs = min(jobs or cpu_count(), runs)
    # Several processes are as many beside the one that asks for them, and each plans for itself.
    seconds, device = (jobs + 1 if jobs > 1 else 1) * _start_seconds(), "CPU"
    for number, (key, of) in enumerate(settings.items(), 1):
        rows = {row: config for config, (row, _) in of}
        largest = sorted(rows.values(), key=lambda config: -config.data.agents)
        found = (seconds_of or run_seconds)(largest[:2], any(attacked for _, (_, attacked) in of))
        device = found.device
        first, new = min(jobs, len(of)), min(jobs * len(rows), len(of))
        seconds += first * found.first + (new - first) * found.row + (len(of) - new) * found.again
        for config, (_, attacked) in of:
            rounds, every = config.training.rounds, config.training.evaluate_every
            seconds += rounds * found.round + (1 + -(-rounds // every)) * found.evaluation
            seconds += found.attack if attacked else 0.0
        if timed is not None:
            timed(number, len(settings), ", ".join(key))
    return RunEstimate(runs=runs, hours=seconds / 3600, device=device)


_Run = tuple[RunFile, tuple[str, bool]]
"""A run file, the row that it is of, and whether it is attacked."""


def _settings(entry: Entry, name: ScaleName, only: Part) -> dict[tuple[str, ...], list[_Run]]:
    """The runs of each setting, those of tuning too; read once for all seeds of a row."""
    sweep, base = sweep_of(entry, name)
    found: dict[tuple[str, ...], list[_Run]] = {}
    held: dict[str, RunFile] = {}
    for points in points_meant(sweep, only):
        for point in points:
            row = ", ".join(point.settings[key] for key in sweep.grid)
            if row not in held:
                held[row] = config_of(base, point)
            config = held[row]
            key = (config.data.name, config.model.name, config.graph.name, config.algorithm.name)
            found.setdefault(key, []).append((config, (row, point.attack)))
    return found


def run_seconds(rows: Sequence[RunFile], attacked: bool = False) -> Seconds:
    """Time the parts of a run.

    A first round may read every record, as a variance-reduced gradient begins; what it takes more
    than the second counts once, with the building. One of two minutes stands for all, and so do a
    building of one and an agent's part of an evaluation of two.
    On a CPU these are seconds of processing, which other programs do not lengthen.

    Args:
        rows: the run that is timed, and one of another row, if there is one, that is only built.
    """
    from ...runs.folder.run import TestedNoise, engine_of, plan_session
    from ...training.engine.transcript import Transcript

    def build(config: RunFile) -> tuple[Session, Engine, float]:
        began, layout = time.process_time(), config.training.layout
        session = plan_session(config, Path())
        noise = TestedNoise(session.built, session.plan, ranks=1)
        transcript = Transcript([], agents=[])
        engine = engine_of(session, layout=layout, transcript=transcript, noise=noise)
        return session, engine, time.process_time() - began

    training = rows[0].training.model_copy(update={"seed": rows[0].training.seed + 1})
    session, engine, begin = build(rows[0])
    again = row = begin
    if begin < _LONG / 2:
        again = build(rows[0].model_copy(update={"training": training}))[2]
        row = build(rows[1])[2] if len(rows) > 1 else begin
    device = session.built.setting.device
    first = a_round = _seconds(engine.advance, device)
    if first < _LONG:
        a_round = min(first, _seconds(engine.advance, device))
    models = engine.models()
    evaluation = _seconds(lambda: session.built.measured(models[:1], round=2), device) * len(models)
    if evaluation < _LONG:
        evaluation = _seconds(lambda: session.built.measured(models, round=2), device)
    return Seconds(
        first=begin + first - a_round,
        row=row + first - a_round,
        again=again + first - a_round,
        round=a_round,
        evaluation=evaluation,
        attack=_attack_seconds(rows[0], device) if attacked else 0.0,
        device="GPU" if device.type == "cuda" else "CPU",
    )


_LONG = 120.0  # seconds of a round, after which another would make pricing itself dear


def _attack_seconds(config: RunFile, device: torch.device) -> float:
    """Of an attack: of one group of records at the second round, as often as it has groups."""
    from ...runs.attack.attack import attack_run
    from ...runs.attack.points import points_of
    from ...runs.folder.run import train_run

    asked, at = config.attack, min(2, config.training.rounds)
    training = {"rounds": at, "evaluate_every": at, "checkpoint_every": at}
    attack = {"rounds": (at,), "images": min(asked.images, asked.batch)}
    short = config.model_copy(
        update={
            "training": config.training.model_copy(update=training),
            "intercept": config.intercept.model_copy(update={"rounds": (at,)}),
            "attack": asked.model_copy(update=attack),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        train_run(short, Path(folder) / "run")
        seconds = _seconds(lambda: attack_run(Path(folder) / "run"), device)
    groups = -(-asked.images // asked.batch)
    return seconds * groups * len(points_of(config)) / len(points_of(short))


@functools.cache
def _start_seconds() -> float:
    """Of processing, of a process that loads what a run needs."""
    began = os.times()
    subprocess.run([sys.executable, "-c", "import overhear.runs.sweep.engine"], check=True)
    ended = os.times()
    return sum(ended[2:4]) - sum(began[2:4])


def _seconds(does: Callable[[], object], device: torch.device) -> float:
    """Of processing on a CPU, by the clock on a GPU."""
    if device.type != "cuda":
        began = time.process_time()
        does()
        return time.process_time() - began
    import torch

    torch.cuda.synchronize(device)
    began = time.perf_counter()
    does()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began
