"""TOML as a run file needs it: tables of scalars, strings and lists, and overrides of one key."""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Mapping, Sequence

import tomli_w

from ...privacy.errors import InputError, InputTypeError

__all__ = ["merge_overrides", "write_toml"]

_BARE_WORD = re.compile(r"[A-Za-z][\w.,:/-]*")
# Two ways to say the same thing: an override of one replaces the other.
_ALTERNATIVES = (
    ("privacy", "epsilon", "noise_multiplier"),
    ("training", "sampling_rate", "batch_size"),
)


def write_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    r"""Tables of scalars, strings and lists as TOML, in their order.

    Raises:
        TypeError: a value of another type; a run file has no tables inside tables, no dates.

    >>> print(write_toml({"privacy": {"delta": 1e-5, "clip_norm": float("inf")}}), end="")
    [privacy]
    delta = 1e-05
    clip_norm = inf
    """
    return tomli_w.dumps(
        {
            name: {key: _checked(value) for key, value in table.items()}
            for name, table in tables.items()
        }
    )


def _checked(value: object) -> object:
    match value:
        case enum.Enum():
            return _checked(value.value)
        case bool() | str() | int() | float():
            return value
        case list() | tuple():
            return [_checked(item) for item in value]
        case _:
            # The writer would take a table or a date, which the tables' types do not read back.
            raise InputTypeError(
                f"{value!r} of type {type(value).__name__} has no place in a run file"
            )


def merge_overrides(values: dict[str, object], overrides: Sequence[str]) -> None:
    """Set "table.key=value" in the tables of a run file, in place.

    Raises:
        ValueError: an override that is not of this form.

    >>> values = {"privacy": {"epsilon": 4.0}}
    >>> merge_overrides(values, ["privacy.noise_multiplier=2", "graph.name=full"])
    >>> values
    {'privacy': {'noise_multiplier': 2}, 'graph': {'name': 'full'}}
    """
    given: set[tuple[str, str]] = set()
    for text in overrides:
        path, equals, value = text.partition("=")
        table, dot, key = (part.strip() for part in path.partition("."))
        if not (equals and dot and table and key) or "." in key:
            raise InputError(
                f"override {text!r} must read table.key=value, such as privacy.epsilon=4"
            )
        section = values.setdefault(table, {})
        if not isinstance(section, dict):
            raise InputError(f"override {text!r}: {table!r} is no table in this run file")
        section[key] = _parse(value.strip(), text)
        given.add((table, key))
    for table, one, other in _ALTERNATIVES:
        for key, rival in ((one, other), (other, one)):
            section = values.get(table)
            if (table, key) in given and (table, rival) not in given and isinstance(section, dict):
                section.pop(rival, None)


def _parse(value: str, override: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        if _BARE_WORD.fullmatch(value):  # a shell eats the quotes of a string
            return value
        parsed = {}
    if parsed.keys() != {"value"}:
        raise InputError(
            f"override {override!r}: {value!r} is no TOML value; quote a string as "
            "'table.key=\"some text\"'"
        )
    return parsed["value"]
