"""Rows of a table by column, some thousand at a time: csv, and parquet, which needs pyarrow.

And what is said of a table whose columns nobody declared.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from ...privacy.errors import InputError, did_you_mean, needs
from ...privacy.files import check_expansion, check_size, decoding
from ...privacy.formats.toml_text import LONGEST_ROW, CsvRows, check_names
from .columns import kind_of, skeleton

# Rows of a csv file, some thousand at a time, in memory that no file can raise.
#
# The text is UTF-8, with or without a byte-order mark; its first line names the columns. A row ends
# with its line unless a quoted cell holds the end of it. Spaces around a cell are not part of it.

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


# Rows of a parquet file, some thousand at a time; needs pyarrow, the extra ``table``.

_WIDTH = 8  # bytes of a cell that is a number
_LONGEST_CELL = 1 << 14  # bytes of one that is text


def parquet_header(path: Path) -> list[str]:
    """The names of the columns.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is no parquet file, a name comes twice, or pyarrow is not installed.
    """
    return _header(path, _opened_parquet_rows(path))


def parquet_blocks(path: Path, names: Sequence[str]) -> Iterator[Block]:
    """The cells of some columns; a null is a missing cell.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is no parquet file or is damaged, lacks a column, or a column holds neither
            numbers nor text; or pyarrow is not installed.
    """
    file = _opened_parquet_rows(path)
    check_header(path, _header(path, file), names)
    for name in names:
        kind = file.schema_arrow.field(name).type
        if kind.num_fields:  # of which a row may hold any number
            raise InputError(f"{path} column {name!r} holds {kind}; it must hold numbers or text")
    row = 1
    for batch in _batches(path, file, names):
        cells = [_cells(path, name, batch.column(name)) for name in names]
        count = len(cells[0])
        yield Block(cells=cells, places=[f"row {row + i}" for i in range(count)])
        row += count


def _batches(path: Path, file: Any, names: Sequence[str]) -> Iterator[Any]:
    # One column may be packed so that a batch is small on disk and large in memory: few rows.
    with decoding(path, "parquet file"):
        batches = file.iter_batches(batch_size=_ROWS, columns=list(names), use_threads=False)
    while True:
        with decoding(path, "parquet file"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _cells(path: Path, name: str, column: Any) -> list[Any]:
    with decoding(path, "parquet file"):
        if hasattr(column, "dictionary"):
            compute = importlib.import_module("pyarrow.compute")
            longest = compute.max(compute.binary_length(column.dictionary)).as_py() or 0
            if longest > _LONGEST_CELL:
                raise InputError(
                    f"{path} column {name!r} has a cell of {longest} bytes, must have at most "
                    f"{_LONGEST_CELL}; shorten it"
                )
        held = (one.isoformat() if isinstance(one, date) else one for one in column.to_pylist())
        cells = [one.strip() if isinstance(one, str) else one for one in held]
    odd = next(
        (cell for cell in cells if not isinstance(cell, (str, int, float, bool, type(None)))), None
    )
    if odd is not None:
        raise InputError(
            f"{path} column {name!r} holds {type(odd).__name__}; it must hold numbers or text"
        )
    return cells


def _header(path: Path, file: Any) -> list[str]:
    with decoding(path, "parquet file"):
        names = [str(name) for name in file.schema_arrow.names]
    check_names(path, names)
    return names


def _opened_parquet_rows(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"no parquet file at {path.absolute()}; set root to the file itself"
        )
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(f"{needs('parquet', 'pyarrow')}; or write {path.name} as csv") from error
    check_size(path, 1 << 62)
    with decoding(path, "parquet file"):
        columns = parquet.ParquetFile(path).schema
        # A text that many rows share is held once until it is known to be short.
        texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]
        file = parquet.ParquetFile(path, read_dictionary=texts)
        said = file.metadata
        cells = said.num_rows * said.num_columns
        groups = [said.row_group(at).total_byte_size for at in range(said.num_row_groups)]
    check_expansion(path, max(_WIDTH * cells, *groups, 0), width=_WIDTH)
    return file


# The names of a table's columns, and what is said of a table whose columns nobody declared.


def header_of(path: Path, *, form: str, separator: str) -> list[str]:
    """The names of a table's columns; see `csv_header` and `parquet_header`."""
    return csv_header(path, separator=separator) if form == "csv" else parquet_header(path)


def undeclared(path: Path, *, form: str, separator: str, target: str | None) -> InputError:
    """The refusal of a table without a declaration, with one to paste; no cell is repeated."""
    what = "columns is missing" if target else "columns and target are missing"
    what += "; nothing is read off the data, so declare a public range or list for each column"
    if not path.is_file():
        return InputError(f'{what}, such as columns = {{age = [0, 120], sex = ["f", "m"]}}')
    names = header_of(path, form=form, separator=separator)
    read = csv_blocks(path, names, separator=separator) if form == "csv" else None
    kinds = dict[str, str]()
    try:  # what its first rows hold; a table whose rows are refused is told by its names
        for block in islice(read or parquet_blocks(path, names), 1):
            kinds = dict(zip(names, map(kind_of, block.cells), strict=True))
    except InputError:
        pass
    return InputError(f"{what}: {skeleton(names, target=target, kinds=kinds)}")
