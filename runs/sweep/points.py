"""The runs of a sweep: each has a name, its settings, a seed, and a resolved run file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...privacy.errors import InputError
from ..errors import STATED, sentence
from ..run_file.run_file import RunFile, read_tables
from .sweep_file import SEED, TUNING_SEEDS, SweepFile
from .swept_values import Choice, is_one_of

__all__ = ["Point", "Tried", "check_points", "config_of", "is_chosen", "points_of", "tried_of"]

_LONGEST = 80  # characters of a name, beside its digest


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
        row: the settings of the row.
        chosen: what is tried.
        points: its runs.
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
            is_one_of(one, [seed if key == SEED else settings[key]], of_seeds=key == SEED)
            for one in values
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
    return ", ".join(f"{key}={value}" for key, value in point.settings.items())


def check_points(base: Mapping[str, object], points: Sequence[Point]) -> dict[str, str]:
    """Why some runs cannot be: a sentence by the settings of their row.

    Args:
        base: tables of the run file.
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
