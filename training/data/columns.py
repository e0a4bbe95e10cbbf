"""Columns of a table, declared: how the cells of a row become the numbers of a record.

Whatever would be read off the data, a smallest value or a list of categories, would be a release of
it without noise. So the run file declares what is public::

    columns = {age = [0, 120], sex = ["f", "m"]}

=================  =======================================================  ======================
Declared           A cell becomes                                           A missing cell becomes
=================  =======================================================  ======================
``[low, high]``    (value - low) / (high - low), in [0, 1]                  1/2, the middle
``["f", "m"]``     1 at its place, 0 elsewhere: f, m, other, missing        1 at "missing"
=================  =======================================================  ======================

A value outside of its range is refused, or taken to the bound that it passes where ``outside`` is
"clamp". A category that is not declared counts as "other". A cell is missing if it is empty; "nan"
is no number. Columns that are not declared are not read.

The target is a column, too. Declared as categories it is a label, in the order of the declaration,
and any other value is refused; declared as a range it is scaled, and not declared it is a whole
number from 0, or with ``outputs = 1`` any number.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.bounded import check_expansion, check_size, decoding
from ...privacy.errors import InputError, did_you_mean, needs
from ...privacy.formats.csv_rows import LONGEST_ROW, CsvRows, check_names

Cells = Sequence[str | float | int | bool | None]
_SHOWN = 60  # characters of a cell that a refusal repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A column of numbers with public bounds.

    >>> age = Range(low=0.0, high=120.0)
    >>> age.encode(["30", ""], clamp=False)[:, 0].tolist()
    [0.25, 0.5]
    """

    low: float
    high: float

    @property
    def width(self) -> int:
        """Numbers of a record."""
        return 1

    def encode(self, cells: Cells, *, clamp: bool) -> NDArray[np.float32]:
        """(B, 1) of B cells.

        Raises:
            BadCell: one is no number, or outside.
        """
        if "" in cells or None in cells:
            middle = 0.5 * self.low + 0.5 * self.high
            cells = [middle if cell is None or cell == "" else cell for cell in cells]
        values = _numbers(cells)
        if clamp:
            values = values.clip(self.low, self.high)
        outside = np.flatnonzero((values < self.low) | (values > self.high))
        if len(outside):
            at = int(outside[0])
            raise BadCell(
                at,
                f"{_shown(cells[at])} lies outside [{self.low:g}, {self.high:g}]; widen the range "
                'by what is public, or set outside = "clamp"',
            )
        scaled = (values - self.low) / (self.high - self.low)
        return np.asarray(scaled[:, None], dtype=np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Categories:
    """A column of public categories.

    >>> Categories(names=("f", "m")).encode(["m", "x", ""], clamp=False).tolist()
    [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """

    names: tuple[str, ...]

    @property
    def width(self) -> int:
        """Numbers of a record: the categories, "other" and "missing"."""
        return len(self.names) + 2

    def encode(self, cells: Cells, *, clamp: bool) -> NDArray[np.float32]:  # noqa: ARG002 - one interface
        """(B, width) of B cells."""
        places = {name: place for place, name in enumerate(self.names)}
        other, missing = len(self.names), len(self.names) + 1
        found = [
            missing if cell is None or cell == "" else places.get(_text(cell), other)
            for cell in cells
        ]
        coded = np.zeros((len(found), self.width), dtype=np.float32)
        coded[np.arange(len(found)), found] = 1.0
        return coded


Column = Range | Categories


class BadCell(Exception):
    """A cell that is refused: its place among those given, and why."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place, self.why = place, why


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The column that is predicted.

    Attributes:
        name: of the column.
        column: how it is declared, if it is.
        regression: whether it is a number.
    """

    name: str
    column: Column | None
    regression: bool

    def encode(self, cells: Cells, *, clamp: bool) -> NDArray[np.float32] | NDArray[np.int64]:
        """(B,) float32 numbers, or int64 labels.

        Raises:
            BadCell: one is missing, or is no such target.
        """
        for place, cell in enumerate(cells):
            if cell is None or cell == "":
                raise BadCell(place, "is empty; a record without a target cannot be trained on")
        # Declared labels are numbered in their order; a declared number is scaled as declared.
        if isinstance(self.column, Categories):
            places = {name: place for place, name in enumerate(self.column.names)}
            for place, cell in enumerate(cells):
                if _text(cell) not in places:
                    known = ", ".join(map(repr, self.column.names))
                    raise BadCell(place, f"{_shown(cell)} is none of the labels {known}")
            return np.array([places[_text(cell)] for cell in cells], dtype=np.int64)
        if self.column is not None:
            return self.column.encode(cells, clamp=clamp)[:, 0]
        # Undeclared targets are numbers as they are, or labels from 0.
        values = _numbers(cells)
        if self.regression:
            with np.errstate(over="ignore"):
                single = values.astype(np.float32)
            if not np.isfinite(single).all():
                at = int(np.flatnonzero(~np.isfinite(single))[0])
                raise BadCell(at, f"{_shown(cells[at])} is too large for float32")
            return single
        bad = np.flatnonzero((values < 0) | (values != np.floor(values)) | (values > 2**31))
        if len(bad):
            at = int(bad[0])
            raise BadCell(
                at,
                f"{_shown(cells[at])} is no label: labels are whole numbers from 0; declare "
                f"columns.{_key(self.name)} as a list of the labels, or set outputs = 1 to predict "
                "numbers",
            )
        return values.astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What a run file declares of a table.

    Attributes:
        columns: of the inputs, in their order.
        target: what is predicted.
        clamp: whether a value outside of its range is taken to its bound.
    """

    columns: Mapping[str, Column]
    target: Target
    clamp: bool = False

    @property
    def width(self) -> int:
        """Numbers of a record."""
        return sum(column.width for column in self.columns.values())

    @property
    def classes(self) -> int | None:
        """How many labels are declared."""
        column = self.target.column
        return len(column.names) if isinstance(column, Categories) else None


def declared(
    columns: Mapping[str, Sequence[object]], *, target: str, outputs: int, clamp: bool
) -> Declared:
    """The columns of a run file, checked.

    Args:
        columns: by name [low, high] or a list of strings; with the target or without it.
        target: the name of the column that is predicted.
        outputs: 1 to predict a number, 0 a label.
        clamp: whether a value outside of its range is taken to its bound.

    Raises:
        ValueError: a declaration is neither, or is empty, or no column is left for the inputs.

    >>> found = declared({"age": [0, 120], "sex": ["f", "m"]}, target="ill", outputs=0, clamp=False)
    >>> found.width
    5
    """
    found = {name: _column(name, value) for name, value in columns.items()}
    of_target = found.pop(target, None)
    if not found:
        raise InputError(f"columns declares nothing but the target {target!r}; declare the inputs")
    if outputs > 1:
        raise InputError(f"outputs={outputs} must be 1: a table has one column for its target")
    if isinstance(of_target, Categories) and outputs:
        raise InputError(
            f"columns.{_key(target)} declares labels, and outputs=1 predicts a number; leave one "
            "of them out"
        )
    if isinstance(of_target, Categories) and len(of_target.names) < 2:
        raise InputError(f"columns.{_key(target)} declares one label; a class needs another one")
    if isinstance(of_target, Range) and not outputs:
        raise InputError(
            f"columns.{_key(target)} declares a range; set outputs = 1 to predict a number, or "
            "list the labels"
        )
    return Declared(
        columns=found,
        target=Target(name=target, column=of_target, regression=bool(outputs)),
        clamp=clamp,
    )


def _column(name: str, value: Sequence[object]) -> Column:
    what = f"columns.{_key(name)}"
    if value and all(isinstance(one, str) for one in value):
        names = tuple(str(one).strip() for one in value)
        if len(set(names)) < len(names) or "" in names:
            raise InputError(
                f"{what}={list(value)} must name each category once, none of them empty"
            )
        return Categories(names=names)
    bounds = [float(one) for one in value if isinstance(one, (int, float)) and one is not True]
    if len(value) != 2 or len(bounds) != 2 or not all(map(math.isfinite, bounds)):
        raise InputError(
            f"{what}={list(value)} must be a range, such as [0, 120], or a list of categories, "
            'such as ["f", "m"]'
        )
    if not 0 < bounds[1] - bounds[0] < math.inf:
        raise InputError(f"{what}={list(value)} must be a range from a smaller number to a larger")
    return Range(low=bounds[0], high=bounds[1])


def skeleton(header: Sequence[str], *, target: str | None) -> str:
    """A declaration to paste, of the names of the columns alone.

    >>> skeleton(["age", "smoker", "ill"], target="ill")
    'columns = {age = [0, 1], smoker = [0, 1]}  # check these ranges: they must be public'
    """
    ranges = ", ".join(f"{_key(name)} = [0, 1]" for name in header if name != target)
    return f"columns = {{{ranges}}}  # check these ranges: they must be public"


def _key(name: str) -> str:
    """A name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _text(cell: object) -> str:
    return cell if isinstance(cell, str) else str(cell)


def _shown(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _numbers(cells: Cells) -> NDArray[np.float64]:
    """Cells as finite numbers."""
    values, plain = np.zeros(0), False
    try:
        values = np.array(list(map(float, cells)), dtype=np.float64)  # type: ignore[arg-type]  # a cell that is none raises
        # Python reads 1_000 as a number, nobody else does.
        plain = not any("_" in cell for cell in cells if isinstance(cell, str))
    except (TypeError, ValueError, OverflowError):
        pass
    if plain and np.isfinite(values).all():
        return values
    for place, cell in enumerate(cells):
        try:
            fine = math.isfinite(float(cell)) and "_" not in _text(cell)  # type: ignore[arg-type]  # as above
        except (TypeError, ValueError, OverflowError):
            fine = False
        if not fine:
            remedy = "leave the cell empty where it is missing"
            if isinstance(cell, str) and re.fullmatch(r"[+-]?\d+,\d+", cell):
                remedy = "write numbers with a decimal point"
            raise BadCell(place, f"{_shown(cell)} is no finite number; {remedy}")
    raise AssertionError("a cell was refused, and none is bad")


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
        cells = [one.strip() if isinstance(one, str) else one for one in column.to_pylist()]
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
    """The refusal of a table without a declaration, with one to paste."""
    what = "columns is missing" if target else "columns and target are missing"
    what += "; nothing is read off the data, so declare a public range or list for each column"
    if not path.is_file():
        return InputError(f'{what}, such as columns = {{age = [0, 120], sex = ["f", "m"]}}')
    names = header_of(path, form=form, separator=separator)
    return InputError(f"{what}: {skeleton(names, target=target)}")
