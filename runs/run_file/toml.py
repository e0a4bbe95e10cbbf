"""TOML as a run file needs it: tables of scalars, strings and lists, and overrides of one key."""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Mapping, Sequence

import tomli_w

from ...privacy.errors import InputError, InputTypeError

__all__ = ["merge_overrides", "read_toml", "write_toml"]

_BARE_WORD = re.compile(r"[A-Za-z][\w.,:/-]*")
_POINTED = re.compile(r"([+-]?)(?:\.(\d+)|(\d+)\.)((?:[eE][+-]?\d+)?)")
# Strings and comments are passed over; an open string ends the reading anyway.
_TOKENS = re.compile(
    r"""
    "{3} (?: [^"\\]++ | \\. | "(?!"") )*+ (?: "{3,5} | \Z )
    | '{3} (?: [^']++ | '(?!'') )*+ (?: '{3,5} | \Z )
    | " (?: [^"\\\n]++ | \\. )*+ "?
    | '[^'\n]*+ '?
    | \#[^\n]*+
    | (?P<end> [=,\[\]{}\n] )
    | (?P<dot> \. )
    """,
    re.VERBOSE | re.DOTALL,
)
_MOST_PARTS = 32  # of a key; a run file has 2
_LONGEST_SHOWN = 200  # characters of an override that a refusal repeats
_MOST_BITS = 14_000  # of an integer: about 4,200 digits, which Python still writes
# Ways to say the same thing, each with its keys: an override of one replaces the others.
_ALTERNATIVES = (
    ("privacy", (("epsilon",), ("noise_multiplier",), ("advantage",), ("tpr", "fpr"))),
    ("training", (("sampling_rate",), ("batch_size",))),
)


def read_toml(text: str) -> dict[str, object]:
    """The tables of a TOML document, in time and memory that grow with its length alone.

    Raises:
        InputError: it is not TOML, or has a key of more than 32 parts or an integer of thousands of
            digits; a clause that follows the name of what was read.

    >>> read_toml("training.rounds = 5")
    {'training': {'rounds': 5}}
    """
    _check_keys(text)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _NotToml(f"is not TOML: {error}") from error
    except ValueError as error:  # a date that is none, or an integer that Python does not read
        words = str(error).partition(";")[0]  # after it Python says how to lift its limit
        raise InputError(f"has a value that is not read: {words}; give a smaller one") from error
    _check_integers(values)
    return values


class _NotToml(InputError):
    """The text breaks the grammar, and may be a bare word."""


def _check_keys(text: str) -> None:
    """Refuse a key of many parts, for which the parser takes their square."""
    dots = 0
    for token in _TOKENS.finditer(text):
        if token["end"]:
            dots = 0
        elif token["dot"]:
            dots += 1
            if dots >= _MOST_PARTS:
                line = text.count("\n", 0, token.start()) + 1
                raise InputError(
                    f"has a key of more than {_MOST_PARTS} parts in line {line}; write table.key"
                )


def _check_integers(values: object) -> None:
    """Refuse what no message could name: Python does not write it as a decimal."""
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise InputError(
                f"has an integer of {value.bit_length()} bits, and at most {_MOST_BITS} are read; "
                "give a smaller one"
            )


def write_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    r"""Tables of scalars, strings, lists and tables of these as TOML, in their order.

    Raises:
        TypeError: a value of another type; a run file has no dates.

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
        case dict():
            return {str(key): _checked(item) for key, item in value.items()}
        case _:
            # The writer would take a date, which the tables' types do not read back.
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
    for table, ways in _ALTERNATIVES:
        section = values.get(table)
        asked = [way for way in ways if any((table, key) in given for key in way)]
        if not asked or not isinstance(section, dict):
            continue
        for way in ways:
            for key in way if way not in asked else ():
                section.pop(key, None)


def _parse(value: str, override: str) -> object:
    shown = override if len(override) <= _LONGEST_SHOWN else f"{override[:_LONGEST_SHOWN]}..."
    try:
        parsed = read_toml(f"value = {value}")
    except _NotToml:
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
