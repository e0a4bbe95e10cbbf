"""The sweep file: a run file, seeds, and the keys of it that take several values.

base = "run.toml"                 a run file, or its tables as [base.data], [base.model], ...
seeds = 10                        1 to 10, or a list; each is [training] seed of a run
[grid]                            every combination of the values is a row
"graph.name" = ["ring", {"graph.name" = "erdos-renyi", "graph.edge_probability" = 0.4}]
[tune]                            values that are chosen for each row on validation records
"training.learning_rate" = [0.1, 1]
[also]
attack = true                     or the rows and seeds that are attacked
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from ...privacy.errors import InputError, all_problems, did_you_mean
from ...privacy.formats.toml_text import read_toml, toml_value
from ...privacy.plain_text import plain
from ..errors import STATED, sentence
from ..run_file.run_file import RunFile, read_tables, write_toml
from ..run_file.tables import Table

MOST_POINTS = 100_000
"""Runs of a sweep; the largest table of the papers has 3,600."""
TUNING_SEEDS = 1_000_000
"""Seeds of tuning count from here, so that no reported seed was tuned on."""

SEED = "seed"
SWEEP = "sweep.toml"
"""Of the folder of a sweep: its file, with the run file in it."""
Chosen = bool | dict[str, list[Any]]


class TuneTable(Table):
    """[tune]: what is chosen for each row, on records that are kept from training."""

    keys: dict[str, list[Any]]
    """Values that each key takes."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the training records that is kept from training while tuning."""
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Runs of each value; their seeds are none of those that are reported."""


class AlsoTable(Table):
    """[also]: what is done with a finished run."""

    attack: Chosen = False
    """Whether all runs are attacked, or those with these values, such as {seed = [1]}."""
    audit: Chosen = False
    """Whether all runs are audited, or those with these values."""


class SweepFile(Table):
    """A whole sweep file."""

    base: str | dict[str, object]
    """A run file, or its tables."""
    seeds: Annotated[int, Field(ge=1, le=1000)] | list[Annotated[int, Field(ge=0)]] = 1
    """How many seeds, counted from 1, or which ones."""
    grid: dict[str, list[Any]]
    """Values by key."""
    tune: TuneTable | None = None
    also: AlsoTable = AlsoTable()

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, values: Any) -> Any:
        """Keys with and without quotes, and the keys of [tune] beside its own."""
        if not isinstance(values, Mapping):
            return values
        found = dict(values)
        found["grid"] = flat(found.get("grid", {}), "[grid]")
        if isinstance(tune := found.get("tune"), Mapping):
            own = {k: v for k, v in tune.items() if k in ("validation", "seeds")}
            keys = flat({k: v for k, v in tune.items() if k not in own}, "[tune]")
            found["tune"] = {**own, "keys": keys}
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = []
        if not self.grid:
            problems.append(
                "[grid] names no key, so there is nothing to sweep; give one, such as "
                '"graph.name" = ["ring", "full"]'
            )
        tuned = {} if self.tune is None else self.tune.keys
        if self.tune is not None and not tuned:
            problems.append('[tune] names no key; give one, such as "training.learning_rate"')
        for where, keys in (("grid", self.grid), ("tune", tuned)):
            problems += [p for key, values in keys.items() for p in problems_of(where, key, values)]
        problems += [
            f"{key!r} stands in [grid] and in [tune]; leave it in one of them"
            for key in tuned
            if key in self.grid
        ]
        if isinstance(self.seeds, list) and len(set(self.seeds)) < len(self.seeds):
            problems.append(f"seeds={self.seeds} names a seed twice; give each once")
        if isinstance(self.seeds, list) and not self.seeds:
            problems.append("seeds=[] names no seed; give a number, or a list of seeds")
        if isinstance(self.seeds, list) and any(s >= TUNING_SEEDS for s in self.seeds):
            problems.append(
                f"seeds={self.seeds} must lie below {TUNING_SEEDS}, where those of tuning start"
            )
        problems += [
            f"[also] {name}: {key!r} is no key of [grid] and not {SEED!r}"
            for name in ("attack", "audit")
            if isinstance(chosen := getattr(self.also, name), dict)
            for key in chosen
            if key != SEED and key not in self.grid
        ]
        problems += overlaps({**self.grid, **tuned}, tunes=self.tune is not None)
        problems += [p for name in ("attack", "audit") for p in self._unknown(name)]
        rows = math.prod(map(len, self.grid.values()))
        tries = math.prod(map(len, tuned.values())) * self.tune.seeds if self.tune else 0
        if not problems and (count := rows * (len(self.seed_list()) + tries)) > MOST_POINTS:
            told = f"{count}" if count < 10**15 else f"about {float(min(count, 10**300)):.0e}"
            problems.append(
                f"the sweep has {told} runs, and at most {MOST_POINTS} are taken; sweep fewer "
                "values at a time"
            )
        if problems:
            raise InputError("\n".join(problems))
        return self

    def _unknown(self, name: str) -> Iterator[str]:
        """What [also] asks for that no run of the sweep has, and would be left out in silence."""
        chosen = getattr(self.also, name)
        if not isinstance(chosen, dict):
            return
        for key, asked in chosen.items():
            held = self.seed_list() if key == SEED else self.grid.get(key)
            if held is None:
                continue
            known = held if key == SEED else [choice_of(key, value).shown for value in held]
            for one in asked:
                if not is_one_of(one, known, of_seeds=key == SEED):
                    yield (
                        f"[also] {name}: no run of the sweep has {key}={brief(one)}; choose among "
                        f"{', '.join(map(str, known[:_MOST_TOLD]))}"
                    )

    def seed_list(self) -> list[int]:
        """The seeds that are reported."""
        return list(range(1, self.seeds + 1)) if isinstance(self.seeds, int) else list(self.seeds)

    def rows(self) -> Iterator[dict[str, Choice]]:
        """Every combination of [grid]; the last key varies fastest."""
        return combinations(self.grid)

    def tried(self) -> list[dict[str, Choice]]:
        """Every combination of [tune]; none without it."""
        return [] if self.tune is None else list(combinations(self.tune.keys))


def read_sweep_file(path: str | Path) -> tuple[SweepFile, dict[str, object]]:
    """A sweep file and the tables of the run file that it is about.

    Args:
        path: of the sweep file. `base` is a path from the working directory, or from the folder of
            the sweep file where the working directory has no such file.

    Raises:
        FileNotFoundError: no such file, or no such run file.
        ValueError: with one sentence for each problem.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no sweep file at {path}")
    values = read_toml(path)
    found = checked(values, where=str(path))
    return found, base_of(found, beside=path.parent, where=str(path))


def kept_sweep(out: Path) -> SweepFile:
    """The sweep file that the folder of a sweep keeps.

    Raises:
        FileNotFoundError: the folder holds no sweep.
        ValueError: the file cannot be read.
    """
    path = out / SWEEP
    if not path.is_file():
        raise FileNotFoundError(
            f"{out} holds no sweep; `overhear sweep SWEEP.toml --out {out}` makes one"
        )
    values = read_toml(path)
    return checked(values, where=str(path))


def checked(values: Mapping[str, object], *, where: str) -> SweepFile:
    """The sweep file of some values.

    Raises:
        ValueError: with one sentence for each problem, which begins with `where`.
    """
    try:
        return SweepFile.model_validate(values)
    except ValidationError as error:
        every = error.errors(include_url=False)
        of_seeds = [one for one in every if one["loc"][:1] == ("seeds",)]
        rest = [one for one in every if one not in of_seeds]
        found = [line for one in rest for line in _told(one).splitlines()]
        if of_seeds:  # a number and a list are two ways to read them, and both are told of
            found.append(
                f"seeds={brief(values['seeds'])} must be a number from 1 to 1000, for the seeds 1, "
                f"2, ..., or a list of different integers from 0 to {TUNING_SEEDS - 1}"
            )
        more = max(len(found) - _MOST_TOLD, 0)
        raise all_problems(where, found[:_MOST_TOLD], more=more) from None


_MOST_TOLD = 10
_KEYS = tuple(SweepFile.model_fields)


def _told(error: ErrorDetails) -> str:
    """A problem in a sentence."""
    loc = [plain(part) for part in error["loc"] if part not in _BRANCHES]
    if error["type"] == "value_error":
        words = str(error.get("ctx", {}).get("error", error["msg"]))
        return words if not loc else f"[{loc[0]}] {words}"
    place = loc[0] if len(loc) == 1 else f"[{loc[0]}] {'.'.join(loc[1:])}"
    if error["type"] == "extra_forbidden":
        meant = did_you_mean(loc[0], _KEYS) if len(loc) == 1 else ""
        return f"{place} is no key of a sweep file{meant}"
    if error["type"] == "missing":
        return f"{place} is missing; {_WANTED.get(place, 'give it')}"
    return f"{place}={brief(error['input'])}: {error['msg'][0].lower()}{error['msg'][1:]}"


_BRANCHES = frozenset({"int", "constrained-int", "bool", "str", "list[constrained-int]"})
_BRANCHES |= {"dict[str,any]", "dict[str,list[any]]"}
_WANTED = {
    "base": "name a run file, or give its tables as [base.data], [base.model], ...",
    "grid": 'give a key at least, such as "graph.name" = ["ring", "full"]',
}


def base_of(sweep: SweepFile, *, beside: Path, where: str) -> dict[str, object]:
    """The tables of a sweep's run file."""
    if not isinstance(sweep.base, str):
        return dict(sweep.base)
    places = [Path(sweep.base), beside / sweep.base]
    run = next((place for place in places if place.is_file()), None)
    if run is None:
        raise FileNotFoundError(
            f"{where}: base={sweep.base!r} is no file, neither here nor in {beside}"
        )
    return read_toml(run)


def file_text(sweep: SweepFile, base: Mapping[str, object]) -> str:
    """A sweep file with the tables of its run file in it, as TOML."""
    whole = sweep.model_dump(exclude_none=True)
    tune = whole.pop("tune", None)
    if tune is not None:
        whole["tune"] = {**tune.pop("keys"), **tune}
    seeds = whole.pop("seeds")
    tables = write_toml({**{k: v for k, v in whole.items() if k != "base"}})
    run = write_toml({"base": dict(base)})
    return f"seeds = {toml_value(seeds)}\n\n{tables}\n{run}"


# Values of a swept key: how they are shown, what they change of the run file, what is refused.


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One value of a swept key.

    Attributes:
        shown: what tables say of it.
        overrides: "table.key=value", as `load_run_file` takes them.
    """

    shown: str
    overrides: tuple[str, ...]


def flat(table: Any, where: str) -> Any:
    """{"graph": {"name": [...]}} as {"graph.name": [...]}; what is no table stays."""
    if not isinstance(table, Mapping):
        return table
    found: dict[str, object] = {}
    for key, value in table.items():
        inner = value.items() if isinstance(value, Mapping) else [(None, value)]
        for name, values in inner:
            path = key if name is None else f"{key}.{name}"
            if path in found:
                raise InputError(f"{where} gives {path!r} twice; give it once")
            found[path] = values
    return found


def problems_of(where: str, key: str, values: Sequence[Any]) -> Iterator[str]:
    """What is wrong with the values of one key, in sentences."""
    if key.count(".") != 1 or not all(key.split(".")):
        yield f'[{where}] {key!r} must read table.key, such as "graph.name"'
        return
    if not values:
        yield f"[{where}] {key!r} has no value; give at least one, or leave the key out"
    if key == "training.seed":
        yield f"[{where}] {key!r} is what `seeds` is for; use that"
    if any(isinstance(value, Mapping) and not set(value) - {"label"} for value in values):
        yield f"[{where}] {key!r} has a table without a key; give it one, or leave it out"
    shown = Counter(choice_of(key, value).shown for value in values)
    yield from (
        f"[{where}] {key!r} gives {one[:_LONGEST]} twice; give each value once"
        for one, count in shown.items()
        if count > 1
    )


def overlaps(keys: Mapping[str, Sequence[Any]], *, tunes: bool) -> Iterator[str]:
    """Keys of the run file that two keys of the sweep set, so that one would undo the other."""
    owner: dict[str, str] = {}
    for key, values in keys.items():
        own = {key: None} | {k: None for v in map(_together, values) for k in v}
        for one in own:
            if one != key and one == "training.seed":
                yield f"{key!r} sets 'training.seed', which is what `seeds` is for; use that"
            if one == "data.validation" and tunes:
                yield (
                    f"{key!r} sets 'data.validation', which [tune] validation sets while it tunes, "
                    "and which no reported run may have; leave it out"
                )
            if (other := owner.setdefault(one, key)) != key and one != "label":
                yield (
                    f"{other!r} and {key!r} both set {one!r}, and a run has it once; leave it in "
                    "one of them"
                )


def is_one_of(asked: object, shown: Sequence[object], *, of_seeds: bool) -> bool:
    """Whether a value of [also] is among some of a key: a seed, or a value as tables show it.

    >>> is_one_of(True, ["true"], of_seeds=False), is_one_of("1", [1], of_seeds=True)
    (True, False)
    """
    if of_seeds:
        return type(asked) is int and asked in shown
    return choice_of("", asked).shown in shown


def combinations(keys: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Choice]]:
    """Every combination of values; the last key varies fastest."""
    each = [[choice_of(key, value) for value in values] for key, values in keys.items()]
    for chosen in itertools.product(*each):
        yield dict(zip(keys, chosen, strict=True))


def choice_of(key: str, value: Any) -> Choice:
    """A value, or a table of keys that go together, which may hold a `label`.

    A table whose keys are no "table.key" is a value itself, such as a schedule of learning rates.

    >>> choice_of("training.learning_rate", {"schedule": "cosine", "start": 0.5}).overrides
    ('training.learning_rate={"schedule" = "cosine", "start" = 0.5}',)
    """
    if isinstance(value, Mapping) and not _together(value):
        label = value.get("label")
        value = {k: v for k, v in value.items() if k != "label"}
        shown = label or ", ".join(f"{k}={_text(v)}" for k, v in value.items())
        return Choice(shown=str(shown), overrides=(f"{key}={toml_value(value)}",))
    if not isinstance(value, Mapping):
        return Choice(shown=_text(value), overrides=(f"{key}={toml_value(value)}",))
    together = {k: v for k, v in value.items() if k != "label"}
    first = together.get(key)
    beside = [f"{k}={_text(v)}" for k, v in together.items() if k != key]
    words = ", ".join(([] if first is None else [_text(first)]) + beside)
    return Choice(
        shown=str(value.get("label", words)),
        overrides=tuple(f"{k}={toml_value(v)}" for k, v in together.items()),
    )


def _together(value: Any) -> Mapping[str, object]:
    """A table of keys of the run file that go together; nothing of any other value."""
    if not isinstance(value, Mapping):
        return {}
    return value if any("." in key for key in value) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else toml_value(value)


def brief(value: object) -> str:
    """A value as a sentence shows it, cut where it is long."""
    return plain(repr(value), most=_LONGEST)


# The runs of a sweep: each has a name, its settings, a seed, and a resolved run file.

_LONGEST = 80  # characters of a value in a sentence, and of a name beside its digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A run of a sweep.

    Attributes:
        name: of its folder; settings that are equal have equal names.
        settings: by swept key what tables show.
        seed: [training] seed.
        overrides: what it changes of the base.
        attack, audit: whether these follow the training.
    """

    name: str
    settings: Mapping[str, str]
    seed: int
    overrides: tuple[str, ...]
    attack: bool = False
    audit: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A value that is tried for a row.

    Attributes:
        chosen: what is tried.
    """

    row: Mapping[str, str]
    chosen: Mapping[str, Choice]
    points: tuple[Point, ...]


def points_of(
    sweep: SweepFile, tuned: Mapping[tuple[str, ...], Mapping[str, Choice]]
) -> list[Point]:
    """The runs that are reported.

    Args:
        tuned: what was chosen for each row, by the texts of its settings.
    """
    found = []
    for row in sweep.rows():
        settings = {key: choice.shown for key, choice in row.items()}
        chosen = tuned.get(tuple(settings.values()), {})
        for seed in sweep.seed_list():
            found.append(
                Point(
                    name=_name([*settings.values(), f"seed-{seed}"], settings, seed),
                    settings=settings,
                    seed=seed,
                    overrides=(*_overrides(row), *_overrides(chosen), f"training.seed={seed}"),
                    attack=is_chosen(sweep.also.attack, settings, seed),
                    audit=is_chosen(sweep.also.audit, settings, seed),
                )
            )
    return found


def tried_of(sweep: SweepFile) -> list[Tried]:
    """The runs of tuning, row by row and value by value."""
    if sweep.tune is None:
        return []
    share, found = sweep.tune.validation, []
    for row in sweep.rows():
        settings = {key: choice.shown for key, choice in row.items()}
        for chosen in sweep.tried():
            words = {f"tune {key}": choice.shown for key, choice in chosen.items()}
            points = []
            for number in range(sweep.tune.seeds):
                seed = TUNING_SEEDS + number
                parts = ["tune", *settings.values(), *words.values(), f"seed-{seed}"]
                every = {**settings, **words, "validation": f"{share:g}"}
                beside = (f"data.validation={share!r}", f"training.seed={seed}")
                points.append(
                    Point(
                        name=_name(parts, every, seed),
                        settings=every,
                        seed=seed,
                        overrides=(*_overrides(row), *_overrides(chosen), *beside),
                    )
                )
            found.append(Tried(row=settings, chosen=chosen, points=tuple(points)))
    return found


def is_chosen(
    chosen: bool | Mapping[str, Sequence[Any]], settings: Mapping[str, str], seed: int
) -> bool:
    """Whether [also] takes a run.

    >>> is_chosen({"seed": [1], "graph.name": ["ring"]}, {"graph.name": "ring"}, 1)
    True
    """
    if isinstance(chosen, bool):
        return chosen
    return all(
        any(
            is_one_of(value, [seed if key == SEED else settings[key]], of_seeds=key == SEED)
            for value in values
        )
        for key, values in chosen.items()
    )


def _overrides(choices: Mapping[str, Choice]) -> tuple[str, ...]:
    return tuple(text for choice in choices.values() for text in choice.overrides)


def _name(parts: Iterable[str], settings: Mapping[str, str], seed: int) -> str:
    """Words that a person knows again, and a digest that tells any two settings apart."""
    words = "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-.") for part in parts)
    whole = repr((sorted(settings.items()), seed)).encode()
    return f"{words[:_LONGEST].strip('-._')}-{hashlib.sha256(whole).hexdigest()[:8]}"


def config_of(base: Mapping[str, object], point: Point) -> RunFile:
    """The resolved run file of a run.

    Raises:
        ValueError: with one sentence for each problem.
    """
    return read_tables(base, point.overrides, where=shown(point))


def shown(point: Point) -> str:
    """The settings of a run, in words."""
    return settings_words(point.settings)


def settings_words(settings: Mapping[str, str]) -> str:
    """Settings as tables show them, in words."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def check_points(base: Mapping[str, object], points: Sequence[Point]) -> dict[str, str]:
    """Why some runs cannot be: a sentence by the settings of their row.

    Args:
        points: of the sweep; one of each row is read.

    Raises:
        InputError: a swept key or value that no row can have, or no row can be.
    """
    refused: dict[str, str] = {}
    standing: dict[str, set[str]] = {}
    first: dict[tuple[str, str], str] = {}
    for point in points:
        if (row := shown(point)) in refused or row in standing.get("", set()):
            continue
        try:
            config_of(base, point)
        except STATED as error:
            refused[row] = " ".join(sentence(error).split())
            for key, value in point.settings.items():
                first.setdefault((key, value), refused[row])
        else:
            standing.setdefault("", set()).add(row)
            for key, value in point.settings.items():
                standing.setdefault(key, set()).add(value)
    for (key, value), why in first.items():
        if value not in standing.get(key, set()):
            raise InputError(f"no run of the sweep can have {key}={value}: {why}")
    return refused
