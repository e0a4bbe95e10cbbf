"""Many plans at once: every combination of the values that `--sweep` gives to keys of a run file.

    graph.name=ring,full                                   two values
    privacy.adversary="coalition:1,9",eavesdropper         a comma inside quotes or brackets stays
    graph.name=ring,erdos-renyi+graph.edge_probability=0.4 a value that needs another key beside it

A combination that cannot be planned keeps its reason and does not stop the others.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ...privacy.errors import InputError
from ..errors import STATED, sentence
from ..run_file.run_file import load_run_file

if TYPE_CHECKING:
    from .plan import Plan


_OPENING, _CLOSING = "[{", "]}"
_MOST_COMBINATIONS = 10_000
_COMPANION = re.compile(r"\+\s*(?=\w+\.\w+\s*=)")  # 1e+5 has no companion


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """One combination of swept values, and its plan or why there is none.

    Attributes:
        values: the text of the value of each swept key; "a, table.key=b" where b stands beside it.
        overrides: the same as "table.key=value", as `load_run_file` takes them.
        plan: what it costs; None where it is refused.
        refused: the reason in a sentence; None where there is a plan.

    Raises:
        ValueError: both a plan and a reason, or neither.
    """

    values: dict[str, str]
    overrides: tuple[str, ...]
    plan: Plan | None = None
    refused: str | None = None

    def __post_init__(self) -> None:
        """Check that there is a plan or a reason."""
        if (self.plan is None) == (self.refused is None):
            raise InputError("a combination has either a plan or a reason why it is refused")

    def to_json(self) -> dict[str, JsonValue]:
        """The entry in JSON of `overhear plan --sweep`: what was swept, then the plan or reason."""
        return {
            "swept": {**self.values},
            "overrides": [*self.overrides],
            "refused": self.refused,
            **({} if self.plan is None else self.plan.to_json()),
        }


def read_sweep(text: str) -> tuple[str, list[str]]:
    """The key of one sweep, and its values.

    Args:
        text: "table.key=a,b,c"; values are written as in an override. Commas inside quotes,
            brackets or braces belong to a value.

    Raises:
        ValueError: no key, no value, an empty value, or one that is given twice.

    >>> read_sweep('privacy.adversary="coalition:1,9",eavesdropper')
    ('privacy.adversary', ['"coalition:1,9"', 'eavesdropper'])
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    values = [value.strip() for value in _split(rest)]
    if not (equals and re.fullmatch(r"[\w-]+\.[\w-]+", key)):
        raise InputError(f"sweep {text!r} must read table.key=a,b,c, such as graph.name=ring,full")
    if not all(values):
        raise InputError(f"sweep {text!r} has an empty value; separate values by single commas")
    counts = Counter(values)
    twice = next((value for value in values if counts[value] > 1), None)
    if twice is not None:
        raise InputError(f"sweep {text!r} gives {twice} twice; give each value once")
    return key, values


def _split(text: str) -> list[str]:
    """The text at its commas outside quotes, brackets and braces."""
    parts, depth, quote = [""], 0, ""
    for mark in text:
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        else:
            depth += (mark in _OPENING) - (mark in _CLOSING)
        if mark == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    return parts


def plan_sweep(
    run: str | Path, sweeps: Sequence[str], *, overrides: Sequence[str] = ()
) -> list[Combination]:
    """Plan every combination of the swept values; the last sweep varies fastest.

    Args:
        run: path of the run file.
        sweeps: "table.key=a,b,c", one for each key.
        overrides: "table.key=value", the same in all combinations.

    Raises:
        FileNotFoundError: no such run file.
        ValueError: a sweep that is not of this form, or a key that is given twice.

    >>> found = plan_sweep("nothing.toml", ["graph.name=ring,full"])
    Traceback (most recent call last):
    FileNotFoundError: no run file at nothing.toml
    """
    return [
        _planned(run, shown, every)
        for shown, every in combinations_of(run, sweeps, overrides=overrides)
    ]


def combinations_of(
    run: str | Path, sweeps: Sequence[str], *, overrides: Sequence[str] = ()
) -> list[tuple[dict[str, str], tuple[str, ...]]]:
    """Every combination of swept values: what is shown of each key, and its overrides.

    Args:
        sweeps: "table.key=a,b,c", one for each key; none gives the run file itself.

    Raises:
        FileNotFoundError: no such run file.
        ValueError: a sweep that is not of this form, or a key that is given twice.
    """
    read = [read_sweep(text) for text in sweeps]
    given = [key for key, _ in read] + [text.partition("=")[0].strip() for text in overrides]
    for key, _ in read:
        if given.count(key) > 1:
            raise InputError(f"{key} is given twice; sweep it once and leave it out of --set")
    if not Path(run).is_file():
        raise FileNotFoundError(f"no run file at {run}")
    if (count := math.prod(len(values) for _, values in read)) > _MOST_COMBINATIONS:
        raise InputError(
            f"the sweeps make {count} combinations, and at most {_MOST_COMBINATIONS} are planned; "
            "sweep fewer values at a time"
        )
    return [_overriding(values, overrides) for values in _combinations(read)]


def _combinations(read: Sequence[tuple[str, Sequence[str]]]) -> Iterator[dict[str, str]]:
    keys = [key for key, _ in read]
    for values in itertools.product(*(values for _, values in read)):
        yield dict(zip(keys, values, strict=True))


def _overriding(
    values: dict[str, str], overrides: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    parts = {key: [p.strip() for p in _COMPANION.split(value)] for key, value in values.items()}
    shown = {key: ", ".join(own) for key, own in parts.items()}
    swept = (o for key, (first, *beside) in parts.items() for o in (f"{key}={first}", *beside))
    return shown, (*overrides, *swept)


def _planned(run: str | Path, shown: dict[str, str], every: tuple[str, ...]) -> Combination:
    try:
        config = load_run_file(run, every)
        from .plan import make_plan  # after: a bad run file is told without torch

        plan = make_plan(config)
    except STATED as error:
        reason = " ".join(sentence(error).removeprefix(f"{run}: ").split())
        return Combination(values=shown, overrides=every, refused=reason)
    return Combination(values=shown, overrides=every, plan=plan)
