"""TOML and rows of CSV, in time and memory that grow with the length of the text alone."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import InputError, InputTypeError
from ..files import read_bounded, read_text

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
_MOST_BITS = 1023  # of an integer: a float holds it


def parse_toml(text: str) -> dict[str, object]:
    """The tables of a TOML document, in time and memory that grow with its length alone.

    Raises:
        InputError: it is not TOML, or has a key of more than 32 parts or an integer of hundreds of
            digits; a clause that follows the name of what was read.

    >>> parse_toml("training.rounds = 5")
    {'training': {'rounds': 5}}
    """
    _check_keys(text)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise NotToml(f"is not TOML: {error}") from error
    except ValueError as error:  # a date that is none, or an integer that Python does not read
        words = str(error).partition(";")[0]  # after it Python says how to lift its limit
        raise InputError(f"has a value that is not read: {words}; give a smaller one") from error
    _check_integers(values)
    return values


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file of at most a megabyte.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is larger, no regular file, or `parse_toml` refuses it.
    """
    text = read_text(path)  # whose refusal names the file itself
    try:
        return parse_toml(text)
    except InputError as error:
        raise InputError(f"{path} {error}") from error


def toml_value(value: object, *, comparable: bool = False) -> str:
    r"""A value in TOML, on one line, as it stands behind the sign of equality.

    Args:
        comparable: whether equal values get equal text: keys in order, ASCII alone, and anything
            that TOML has no form for as Python shows it.

    Raises:
        TypeError: a value that no run file holds, such as a date.

    >>> print(toml_value({'a" = 1, "b.py': [True, "\U0001f600"]}, comparable=True))
    {"a\" = 1, \"b.py" = [true, "\U0001f600"]}
    """

    def text(one: object) -> str:
        return toml_value(one, comparable=comparable)

    match value:
        case str() if comparable:
            return _PAIR.sub(_one_escape, json.dumps(value)).replace("\x7f", "\\u007f")
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | float():
            return str(value).lower()
        case Mapping():
            keys = sorted(value) if comparable else value
            return f"{{{', '.join(f'{text(str(key))} = {text(value[key])}' for key in keys)}}}"
        case list() | tuple():
            return f"[{', '.join(map(text, value))}]"
        case _ if comparable or isinstance(value, int):
            return str(value)
    raise InputTypeError(f"{value!r} of type {type(value).__name__} has no place in a run file")


_PAIR = re.compile(r"\\ud[89ab]..\\ud[c-f]..")  # how JSON escapes what TOML does by one


def _one_escape(found: re.Match[str]) -> str:
    held: str = json.loads(f'"{found[0]}"')
    return f"\\U{ord(held):08x}"


class NotToml(InputError):
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


# Rows of comma-separated text, with the line that each ends in, and the names that begin them.

LONGEST_ROW = 1 << 20  # characters


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse columns of which two have one name.

    Raises:
        ValueError: with the first such name.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{path} has {times} columns {name!r:.80}; name each once")


class CsvRows(Iterator[list[str]]):
    r"""What the parser gives, row by row.

    Args:
        path: of the text, for a refusal.
        lines: of the text, with their ends.
        separator: between cells, one character.

    Raises:
        ValueError: from an iteration: the text is no rows of cells, or no UTF-8.

    >>> rows = CsvRows(Path("a.csv"), ["a,b\n", "1,2\n"])
    >>> next(rows), rows.line
    (['a', 'b'], 1)
    """

    def __init__(self, path: Path, lines: Iterable[str], *, separator: str = ",") -> None:
        self._path, self._held = path, 0
        self._reader = csv.reader(self._counted(lines), delimiter=separator, strict=True)

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._held += len(line)  # a quoted cell takes a row on to the next line
            if self._held > LONGEST_ROW:
                raise InputError(
                    f"{self._path} line {self.line + 1} is longer than {LONGEST_ROW} characters, "
                    "or the row is that ends in it; is it a csv file, and each quote closed?"
                )
            yield line

    @classmethod
    def of_file(cls, path: Path, most: int) -> CsvRows:
        """Those of a file of at most so many bytes."""
        held = io.BytesIO(read_bounded(path, most))
        return cls(path, io.TextIOWrapper(held, encoding="utf-8-sig", newline=""))

    @property
    def line(self) -> int:
        """The number of the line that the last row ended in, from 1."""
        return self._reader.line_num

    def __next__(self) -> list[str]:
        self._held = 0
        try:
            return next(self._reader)
        except csv.Error as error:
            raise InputError(
                f"{self._path} line {self.line}: {error}; a cell with quotes in it is written in "
                "quotes, and each of its own twice"
            ) from error
        except UnicodeDecodeError as error:
            wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
            raise InputError(
                f"{self._path} is not UTF-8 after line {self.line}"
                f"{', it looks like UTF-16' if wide else ''}; write it anew, as by iconv -t utf-8"
            ) from error
