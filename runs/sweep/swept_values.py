"""Values of a swept key: how they are shown, what they change of the run file, what is refused."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...privacy.errors import InputError
from ...privacy.plain_text import plain
from ..run_file.toml import write_toml


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
        f"[{where}] {key!r} gives {one[:_LONGEST_SHOWN]} twice; give each value once"
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
        return Choice(shown=str(shown), overrides=(f"{key}={toml_of(value)}",))
    if not isinstance(value, Mapping):
        return Choice(shown=_text(value), overrides=(f"{key}={toml_of(value)}",))
    together = {k: v for k, v in value.items() if k != "label"}
    first = together.get(key)
    beside = [f"{k}={_text(v)}" for k, v in together.items() if k != key]
    words = ", ".join(([] if first is None else [_text(first)]) + beside)
    return Choice(
        shown=str(value.get("label", words)),
        overrides=tuple(f"{k}={toml_of(v)}" for k, v in together.items()),
    )


def _together(value: Any) -> Mapping[str, object]:
    """A table of keys of the run file that go together; nothing of any other value."""
    if not isinstance(value, Mapping):
        return {}
    return value if any("." in key for key in value) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else toml_of(value)


def toml_of(value: Any) -> str:
    """A value as it stands behind the sign of equality."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    if isinstance(value, Mapping):  # such as a pattern of rounds
        return f"{{{', '.join(f'{json.dumps(k)} = {toml_of(v)}' for k, v in value.items())}}}"
    written = write_toml({"t": {"v": value}})
    body = written.partition("\n")[2]
    if body.startswith("v = "):
        return " ".join(body.removeprefix("v = ").split())
    raise InputError(f"{value!r} is no value of a key; give a number, a word or a list")


def brief(value: object) -> str:
    """A value as a sentence shows it, cut where it is long."""
    return plain(repr(value), most=_LONGEST_SHOWN)


_LONGEST_SHOWN = 80
