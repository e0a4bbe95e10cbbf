"""TOML as a run file needs it: tables of scalars, strings and lists, and overrides of one key."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

import tomli_w

from ...privacy.errors import InputError, InputTypeError
from ...privacy.formats.toml_text import NotToml, parse_toml

_BARE_WORD = re.compile(r"[A-Za-z][\w.,:/-]*")
_POINTED = re.compile(r"([+-]?)(?:\.(\d+)|(\d+)\.)((?:[eE][+-]?\d+)?)")
_LONGEST_SHOWN = 200  # characters of an override that a refusal repeats
# Ways to say the same thing, each with its keys: an override of one replaces the others.
_ALTERNATIVES = (
    ("privacy", (("epsilon",), ("noise_multiplier",), ("advantage",), ("tpr", "fpr"))),
    ("training", (("sampling_rate",), ("batch_size",))),
)


def write_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    r"""Tables of scalars, strings, lists and tables of these as TOML, in their order.

    Raises:
        TypeError: a value of another type; a run file has no dates.
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
        case dict():
            return {str(key): _checked(item) for key, item in value.items()}
        case _:
            # The writer would take a date, which the tables' types do not read back.
            raise InputTypeError(
                f"{value!r} of type {type(value).__name__} has no place in a run file"
            )


def merge_overrides(values: dict[str, object], overrides: Sequence[str]) -> list[str]:
    """Set "table.key=value" in the tables of a run file, in place.

    Returns:
        A sentence for each key that the tables gave and that holds no longer, since an override
        takes its place.

    Raises:
        ValueError: an override that is not of this form.
    """
    given, silenced = set[tuple[str, str]](), list[str]()
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
    for table, ways in _ALTERNATIVES:
        section = values.get(table)
        asked = [way for way in ways if any((table, key) in given for key in way)]
        if not asked or not isinstance(section, dict):
            continue
        for way in ways:
            for key in [one for one in way if one in section and way not in asked]:
                lost = f"[{table}] {key} = {section.pop(key)} of the run file holds no longer"
                silenced.append(f"{lost}: {asked[0][0]} takes its place")
    return silenced


def _parse(value: str, override: str) -> object:
    shown = override if len(override) <= _LONGEST_SHOWN else f"{override[:_LONGEST_SHOWN]}..."
    try:
        parsed = parse_toml(f"value = {value}")
    except NotToml:
        if _BARE_WORD.fullmatch(value):  # a shell eats the quotes of a string
            return value
        parsed = {}
    except InputError as error:
        if _BARE_WORD.fullmatch(value):
            return value
        raise InputError(f"override {shown!r} {error}") from error
    if parsed.keys() != {"value"}:
        remedy = "quote a string as 'table.key=\"some text\"'"
        if number := _POINTED.fullmatch(value):
            sign, after, before, power = number.groups()
            remedy = f"write {sign}{before or '0'}.{after or '0'}{power}"
        raise InputError(
            f"override {shown!r}: {value[:_LONGEST_SHOWN]!r} is no TOML value; {remedy}"
        )
    return parsed["value"]
