"""What a reproduction takes, from one timed round of each of its settings.

A setting is a combination of data, network, graph, agents and algorithm; heterogeneity, epsilon and
hyper-parameters change no price. Where a table has several numbers of agents, its largest one is
timed and stands for the others, so a price is an upper one. Building and planning a run are timed
once; evaluations, attacks and files come on top.

    hours = sum over settings: runs * (seconds to begin + rounds * seconds of a round) / 3600

`prices.json` holds those of every entry, measured by `benchmarks/reproduction_prices.py`.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ...privacy.errors import InputError
from ...runs.run_file.run_file import RunFile
from ...runs.sweep.sweep_file import SweepFile, checked, config_of, points_of, tried_of
from .paper_result import SCALES, Entry, ScaleName
from .verdicts import check_data, placed

if TYPE_CHECKING:
    import torch

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
        ValueError: the entry lacks an ingredient, or has no runs.
    """
    check_runnable(entry)
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


def check_runnable(entry: Entry) -> None:
    """Refuse an entry that lacks an ingredient."""
    if entry.lacks:
        raise InputError(f"{entry.name} cannot be run: {entry.lacks}")


Timed = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Of building and planning a run, and of a round of it.

    Attributes:
        begin, round: in seconds.
        device: "CPU" or "GPU".
    """

    begin: float
    round: float
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEstimate:
    """What an entry takes at a scale.

    Attributes:
        runs: how many, those of tuning too.
        hours: of one core, or of the device.
        device: "CPU" or "GPU".
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


def runs_of(entry: Entry, name: ScaleName) -> int:
    """Runs of an entry at a scale, those of tuning too; 0 of a closed form or one that lacks."""
    if entry.closed is not None or entry.lacks:
        return 0
    sweep, _ = sweep_of(entry, name)
    tuning = sum(len(one.points) for one in tried_of(sweep))
    return len(list(sweep.rows())) * len(sweep.seed_list()) + tuning


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
    runs = runs_of(entry, name)
    if held is None or held["runs"] != runs:
        return None
    return RunEstimate(runs=runs, hours=float(str(held["hours"])), device=str(held["device"]))


def price_of(
    entry: Entry,
    name: ScaleName,
    *,
    timed: Timed | None = None,
    seconds_of: Callable[[RunFile], Seconds] | None = None,
) -> RunEstimate:
    """Time a round of each setting of an entry.

    Args:
        entry: with data that are at hand.
        timed: called with (done, total, what) after each setting.
        seconds_of: times a run file; by default `round_seconds`.

    Raises:
        FileNotFoundError: data are not at hand.
        ValueError: no setting of it can be run.
    """
    check_data(entry.name, entry.scales[name])
    counts, configs = _settings(entry, name)
    hours, device = 0.0, "CPU"
    for number, (key, config) in enumerate(configs.items(), 1):
        found = (seconds_of or round_seconds)(config)
        device = found.device
        hours += counts[key] * (found.begin + config.training.rounds * found.round) / 3600
        if timed is not None:
            timed(number, len(configs), ", ".join(key))
    return RunEstimate(runs=sum(counts.values()), hours=hours, device=device)


def _settings(
    entry: Entry, name: ScaleName
) -> tuple[dict[tuple[str, ...], int], dict[tuple[str, ...], RunFile]]:
    """How many runs each setting has, and its run file with the most agents."""
    counts: dict[tuple[str, ...], int] = {}
    configs: dict[tuple[str, ...], RunFile] = {}
    for config in _rows(entry, name):
        key = (config.data.name, config.model.name, config.graph.name, config.algorithm.name)
        counts[key] = counts.get(key, 0) + 1
        if key not in configs or configs[key].data.agents < config.data.agents:
            configs[key] = config
    rows = sum(counts.values())
    runs = runs_of(entry, name)
    return {key: count * runs // rows for key, count in counts.items()}, configs


def _rows(entry: Entry, name: ScaleName) -> Iterator[RunFile]:
    sweep, base = sweep_of(entry, name)
    one = sweep.model_copy(update={"seeds": 1})
    for point in points_of(one, {}):
        yield config_of(base, point)


def round_seconds(config: RunFile) -> Seconds:
    """Build a run and time its second round.

    A first round may read every record, as a variance-reduced gradient begins; what it takes more
    than the second counts once, with the building. One of two minutes stands for all.
    On a CPU these are seconds of processing, which other programs do not lengthen.
    """
    from ...runs.folder.run import engine_of, plan_session
    from ...training.engine.transcript import Transcript

    began = time.process_time()
    session = plan_session(config, Path())
    engine = engine_of(session, layout=config.training.layout, transcript=Transcript([], agents=[]))
    begin = time.process_time() - began
    device = session.built.setting.device
    first = a_round = _round(engine, device)
    if first < _LONG:
        a_round = min(first, _round(engine, device))
    return Seconds(
        begin=begin + first - a_round,
        round=a_round,
        device="GPU" if device.type == "cuda" else "CPU",
    )


_LONG = 120.0  # seconds, after which another round would make pricing itself dear


def _round(engine: Engine, device: torch.device) -> float:
    """Seconds of a round: of processing on a CPU, by the clock on a GPU."""
    if device.type != "cuda":
        began = time.process_time()
        engine.advance()
        return time.process_time() - began
    import torch

    torch.cuda.synchronize(device)
    began = time.perf_counter()
    engine.advance()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began
