"""A person's ledger: what each run released about one person, and what all of them cost together.

    {"schema": "person-1", "chain": ...}
    {"run": ..., "adjacency": ..., "delta": ..., "target": ..., "views": {...}, "chain": ...}

A line is a run; its views are the rounds as each adversary sees them, as an accountant takes them
(`Event`). Each line carries the digest of all of the file before it, so a line that was changed,
moved or cut off is found. It has no key: who rewrites every line, or takes the last ones away, is
not found out.

A ledger outlives the version that wrote it. A line whose digest is right, and that says what this
version cannot read, is a run without a finite bound. So is a lottery of which the other side is
missing, as it was in the first lines that were ever written.

Composition needs that noise and batches of the runs were drawn apart, and that the numbers of every
run were fixed before the first one released anything, or did not depend on what was released: a
later run's data may. One adversary holds the views of all runs.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..accounting.accountant import composed_epsilon
from ..accounting.request import Adjacency, check_count, check_delta, check_rounds
from ..errors import InputError, check_real
from ..files import read_bounded
from ..participation import Event, ParticipationPattern, Reach
from .chained_file import LONGEST_HEADER, Chain, ChainedFile, damaged, parsed

SCHEMA = "person-1"  # raised with every change of a line (tests/test_formats.py)
_SCHEMAS = re.compile(r"person-\d{1,9}")
_USUAL_DELTA = 1e-5
_LARGEST = 256 << 20  # bytes
_MOST_RUNS = 10_000
_RUN_KEYS = ("run", "label", "whose", "adjacency", "delta", "target", "counted", "views")
_VIEW_KEYS = {"status", "events"}
_EVENT_KEYS = {"noise_multiplier", "multiples", "probabilities", "reach", "coin", "otherwise"}
_COUNTED = ("planned", "released")
_STATUSES = ("proven", "heuristic", "no protection", "cannot be expressed")


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonView:
    """What one adversary saw of one run.

    Attributes:
        status: what is known of its figure: "proven", "heuristic", "no protection" or "cannot be
            expressed"; epsilon of the last two is infinite.
        events: how often each kind of round occurs; empty where nothing is released.
    """

    status: str
    events: Mapping[Event, int]

    @property
    def is_finite(self) -> bool:
        """Whether its events bound anything."""
        return self.status in ("proven", "heuristic")


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonRun:
    """One run, as a line of a person's ledger has it.

    Attributes:
        run: what tells the run from others, also from others of the same run file.
        label: what the run is called; for the reader.
        whose: which records of the person it is about, in words.
        delta: of the run's own epsilon.
        target: the adversary that the run file names.
        counted: "planned", or "released" where rounds were released more often than planned.
        views: by adversary; none of a run that cannot be read.
        unread: why its line cannot be read by this version; epsilon is infinite then.
    """

    run: str
    label: str
    whose: str
    adjacency: Adjacency
    delta: float
    target: str
    counted: str
    views: Mapping[str, PersonView]
    unread: str = ""

    def entry(self) -> dict[str, Any]:
        """The line without its digest."""
        views = {
            name: {
                "status": view.status,
                "events": [{**_written(e), "count": n} for e, n in view.events.items()],
            }
            for name, view in self.views.items()
        }
        return {key: getattr(self, key) for key in _RUN_KEYS} | {"views": views}


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonLedger:
    """All runs of a person's ledger.

    Attributes:
        runs: in the order of the lines.
        schema: the name of its format.
    """

    path: Path
    runs: Sequence[PersonRun]
    schema: str = SCHEMA

    @staticmethod
    def add(path: Path, run: PersonRun) -> None:
        """Append a run; the file begins with the first one.

        Raises:
            ValueError: the ledger names the run, is damaged, or is none.
            LedgerInUse: another process appends to it.
            OSError: the system refuses.
        """
        if path.exists():
            held = ChainedFile.reopen(path)  # before it is read: nobody else adds meanwhile
        else:
            again = f"{path} was made by another process meanwhile; add the run once more"
            held = ChainedFile(path, {"schema": SCHEMA}, exists=again)
        try:
            _check_lacks(read_person_ledger(path), run)
            held.append(run.entry(), most=LONGEST_HEADER)
        finally:
            held.close()


def _check_lacks(known: PersonLedger, run: PersonRun) -> None:
    """Refuse to add a run that a ledger names, or to one of another schema."""
    if known.schema != SCHEMA:
        raise InputError(
            f"{known.path} is of schema {known.schema}, which another version of overhear wrote, "
            f"and this one writes {SCHEMA}: add the run with that version, or begin a new "
            "ledger beside it; `overhear person` adds up several"
        )
    for at, one in enumerate(known.runs, start=2):
        if one.run == run.run:
            raise InputError(
                f"{known.path} names the run of {run.label} in line {at} ({one.label}), and a "
                "run is counted once; if more was released since, begin a new ledger"
            )


def read_person_ledger(path: Path) -> PersonLedger:
    """Read and check a person's ledger.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: a line was changed, moved or cut off.
    """
    text = read_bounded(path, _LARGEST)
    chain, runs, schema = Chain(), list[PersonRun](), SCHEMA
    # Each line carries the digest of the lines before it, so that none is changed or moved.
    for at, line in enumerate(io.BytesIO(text), start=1):
        body = chain.body(line, path=path, at=at)
        if body is None:
            raise damaged(path, at, "it is cut off or carries no digest")
        found = parsed(body, path=path, at=at)
        chain.add(line)
        if at == 1:
            schema = str(found.get("schema"))
            if found.keys() != {"schema"} or not _SCHEMAS.fullmatch(schema):
                raise InputError(
                    f'{path} is no person\'s ledger: its first line must be {{"schema": '
                    f'"{SCHEMA}"}}; make one with overhear person {path} --add DIR'
                )
            continue
        if len(runs) >= _MOST_RUNS:
            raise InputError(f"{path} has more than {_MOST_RUNS} runs, and no more are added up")
        # A run that cannot be read stays in the ledger, and has no bound.
        try:
            runs.append(_run(found, schema))
        except (InputError, TypeError, ValueError) as error:
            runs.append(_unread(found, path, at, str(error).rstrip(".")))
    if not text:
        raise InputError(f"{path} is empty; a person's ledger begins with a line of its own")
    # A run counts once.
    seen: dict[str, int] = {}
    for at, run in enumerate(runs, start=2):
        if (first := seen.setdefault(run.run, at)) != at:
            raise damaged(path, at, f"it is the run of line {first} again")
    return PersonLedger(path=path, runs=tuple(runs), schema=schema)


def compose(runs: Sequence[PersonRun], adversary: str, *, delta: float | None = None) -> float:
    """Epsilon of one person over several runs, against one adversary who holds all their views.

    Args:
        runs: each once.
        adversary: a name that every run has a view for.
        delta: of the total; the smallest of the runs' by default.

    Returns:
        Nats; infinite where a view has no finite bound, or a run cannot be read.

    Raises:
        ValueError: no runs, one that is there twice or has no such view, adjacencies that differ,
            or a delta that is none.
    """
    if not runs:
        raise InputError("no run is given, and a person's total needs 1 or more")
    for one, other in pairwise(sorted(runs, key=lambda run: run.run)):
        if one.run == other.run:
            raise InputError(
                f"the run of {one.label} is given twice, as {other.label}; name it once"
            )
    if delta is not None:
        check_delta(delta)
    # A run that cannot be read may have cost anything.
    if any(run.unread for run in runs):
        return math.inf
    of = {run.adjacency: run.label for run in runs}
    if len(of) > 1:
        each = ", ".join(f"{label}: {adjacency}" for adjacency, label in of.items())
        raise InputError(
            f"adjacency differs ({each}), and what neighbouring data sets are must be one for a "
            "total; give the runs of one adjacency"
        )
    for run in runs:
        if adversary not in run.views:
            raise InputError(
                f"adversary {adversary!r} is not accounted for in {run.label}, only "
                f"{', '.join(run.views)}; give a name that every run has, such as the one that "
                "sees most, or name it in [privacy] adversaries of that run"
            )
    # One adversary holds all views, so that their events compose.
    least = min(run.delta for run in runs) if delta is None else delta
    check_delta(least)
    together: Counter[Event] = Counter()
    for run in runs:
        if not run.views[adversary].is_finite:
            return math.inf
        together.update(run.views[adversary].events)
    if not together:
        return 0.0
    return composed_epsilon(together, delta=least, adjacency=next(iter(of)))


def _written(event: Event) -> dict[str, Any]:
    other = event.otherwise
    return {
        "noise_multiplier": event.noise_multiplier,
        "multiples": list(event.moves.multiples),
        "probabilities": list(event.moves.probabilities),
        "reach": event.reach.value,
        "coin": event.coin,
        "otherwise": None if other is None else _written(other),
    }


def _run(found: Mapping[str, Any], schema: str) -> PersonRun:
    """A run from its line, in a ledger of some schema.

    Raises:
        ValueError: what no run has.
        TypeError: a figure that is none.
    """
    if schema != SCHEMA:
        raise InputError(f"it is of schema {schema}, and this version reads {SCHEMA}")
    _check_keys(found, {*_RUN_KEYS}, "a run")
    for key in ("run", "label", "whose", "target"):
        if not isinstance(found[key], str) or not found[key]:
            raise InputError(f"{key}={_shown(found[key])} must be words")
    check_delta(found["delta"])
    if found["counted"] not in _COUNTED:
        raise InputError(f"counted={_shown(found['counted'])} must be one of {', '.join(_COUNTED)}")
    if not isinstance(found["adjacency"], str):
        raise InputError(f"adjacency={_shown(found['adjacency'])} must be words")
    adjacency = Adjacency(found["adjacency"])
    views = found["views"]
    if not isinstance(views, Mapping) or not views:
        raise InputError("views must be an object with a view for each adversary")
    read = {name: _view(view, adjacency) for name, view in views.items()}
    return PersonRun(
        **{**found, "adjacency": adjacency, "delta": float(found["delta"]), "views": read}
    )


def _unread(found: Mapping[str, Any], path: Path, at: int, why: str) -> PersonRun:
    """A run of which a line says too little; what the line has of it is for the reader alone."""

    def words(key: str, default: str) -> str:
        said = found.get(key)
        return said if isinstance(said, str) and said else default

    try:
        check_delta(delta := found.get("delta", _USUAL_DELTA))
        adjacency = Adjacency(found.get("adjacency", Adjacency.ADD_OR_REMOVE_ONE))
    except (InputError, TypeError, ValueError):
        delta, adjacency = _USUAL_DELTA, Adjacency.ADD_OR_REMOVE_ONE
    return PersonRun(
        run=words("run", f"line {at} of {path.name}"),
        label=words("label", f"line {at}"),
        whose=words("whose", "not known"),
        adjacency=adjacency,
        delta=float(delta),
        target=words("target", ""),
        counted="planned",
        views={},
        unread=f"line {at} of {path}: {why}",
    )


def _view(found: Any, adjacency: Adjacency) -> PersonView:
    _check_keys(found, _VIEW_KEYS, "a view")
    if found["status"] not in _STATUSES:
        raise InputError(f"status={_shown(found['status'])} must be one of {', '.join(_STATUSES)}")
    if not isinstance(found["events"], list):
        raise InputError("events must be a list")
    events: Counter[Event] = Counter()
    for one in found["events"]:
        if isinstance(one, Mapping) and "otherwise" not in one and one.get("coin") == 1.0:
            one = {**one, "otherwise": None}  # a lottery without its other side says too little
        _check_keys(one, _EVENT_KEYS | {"count"}, "an event")
        event = {key: one[key] for key in _EVENT_KEYS}
        events[_event(event)] += check_count(one["count"])
    if events:
        check_rounds(events, adjacency)
    return PersonView(status=found["status"], events=dict(events))


def _event(found: Any, *, other: bool = False) -> Event:
    """What takes place, or, of a public lottery, what does otherwise."""
    _check_keys(found, _EVENT_KEYS, "what takes place otherwise" if other else "an event")
    for key in ("multiples", "probabilities"):
        if not isinstance(found[key], list):
            raise InputError(f"{key} must be a list of numbers")
        for value in found[key]:
            check_real(key, value)
    check_real("noise_multiplier", found["noise_multiplier"])
    check_real("coin", found["coin"])
    moves = ParticipationPattern(
        tuple(map(float, found["multiples"])), tuple(map(float, found["probabilities"]))
    )
    otherwise = found["otherwise"]
    if other and otherwise is not None:
        raise InputError("what takes place otherwise has no lottery of its own")
    return Event(
        float(found["noise_multiplier"]),
        moves.checked(),
        Reach(found["reach"]),
        float(found["coin"]),
        None if otherwise is None else _event(otherwise, other=True),
    )


def _check_keys(found: Any, keys: set[str], what: str) -> None:
    if not isinstance(found, Mapping) or found.keys() != keys:
        raise InputError(f"{what} must be an object with the keys {', '.join(sorted(keys))}")


def _shown(value: object) -> str:
    return json.dumps(value)[:40]
