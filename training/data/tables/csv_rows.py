"""Rows of a csv file, some thousand at a time, in memory that no file can raise.

The text is UTF-8, with or without a byte-order mark; its first line names the columns. A row ends
with its line unless a quoted cell holds the end of it. Spaces around a cell are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from ....privacy.errors import InputError, did_you_mean
from ....privacy.formats.csv_rows import LONGEST_ROW, CsvRows, check_names

__all__ = ["Block", "check_header", "csv_blocks", "csv_header"]

_ROWS = 4096  # at once
_CHARACTERS = 16 << 20  # of these rows


class Block(NamedTuple):
    """Some rows by column.

    Attributes:
        cells: by column, in the order asked for.
        places: of each row, in words.
    """

    cells: Sequence[Sequence[str | float | int | bool | None]]
    places: Sequence[str]


def csv_header(path: Path, *, separator: str) -> list[str]:
    """The names of the columns, from the first line alone.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is empty or no such text, or a name comes twice or is empty.
    """
    with _opened(path) as file:
        _, header = _started(path, file, separator=separator)
    return header


def csv_blocks(path: Path, names: Sequence[str], *, separator: str) -> Iterator[Block]:
    """The cells of some columns.

    Args:
        separator: between cells, one character.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is no such text, or lacks a column; a row has more or fewer cells than
            there are columns.
    """
    with _opened(path) as file:
        rows, header = _started(path, file, separator=separator)
        check_header(path, header, names)
        at = [header.index(name) for name in names]
        for block in _parts(_whole(path, rows, len(header))):
            every = list(zip(*(row for row, _ in block), strict=True))
            yield Block(
                cells=[[cell.strip() for cell in every[place]] for place in at],
                places=[f"line {line}" for _, line in block],
            )


def check_header(path: Path, header: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a table that lacks one of the columns asked for.

    Raises:
        ValueError: it does.
    """
    for name in names:
        if name not in header:
            has = ", ".join(map(repr, header[:20])) + (" and more" if len(header) > 20 else "")
            raise InputError(
                f"{path} has no column {name!r}{did_you_mean(name, header, form=repr)}; its first "
                f"line names {has}; if these are no names, put a line of names first"
            )


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    if not path.is_file():
        raise FileNotFoundError(f"no csv file at {path.absolute()}; set root to the file itself")
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield file


def _started(path: Path, file: IO[str], *, separator: str) -> tuple[CsvRows, list[str]]:
    lines = iter(lambda: file.readline(LONGEST_ROW + 1), "")
    rows = CsvRows(path, lines, separator=separator)
    header = [name.strip() for name in next(rows, [])]
    if not any(header):
        raise InputError(f"{path} is empty; its first line must name the columns")
    if len(header) == 1:
        other = next((one for one in (";", "\t", ",", "|") if one in header[0]), None)
        if other is not None:
            raise InputError(
                f"{path} has one column, {header[0][:80]!r}; set separator = "
                f'"{other.encode("unicode_escape").decode()}"'
            )
    check_names(path, header)
    return rows, header


def _parts(rows: Iterator[tuple[list[str], int]]) -> Iterator[list[tuple[list[str], int]]]:
    """The rows some at a time: so many, or fewer of long ones."""
    part, held = list[tuple[list[str], int]](), 0
    for row, line in rows:
        part.append((row, line))
        held += sum(map(len, row))
        if len(part) == _ROWS or held > _CHARACTERS:
            yield part
            part, held = [], 0
    if part:
        yield part


def _whole(path: Path, rows: CsvRows, width: int) -> Iterator[tuple[list[str], int]]:
    """Rows of the right number of cells, with their lines; empty lines are passed over."""
    for row in rows:
        if len(row) == width:
            yield row, rows.line
        elif row:
            raise InputError(
                f"{path} line {rows.line} has {len(row)} cells, and there are {width} columns; "
                "quote a cell that holds the separator"
            )
