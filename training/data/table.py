"""A table of declared columns as records: in memory, or converted once into a file that is mapped.

A file of more than 32 MiB, or of any size where a folder for it is named, is converted row by row::

    CACHE/NAME-DIGEST.npy           (N, width) float32, mapped read-only
    CACHE/NAME-DIGEST-targets.npy   (N,)

The digest is of the table's bytes and of what is declared of it, so that another table, or another
declaration, never meets a conversion that is not its own. The files hold the records as they are:
they are readable by their owner alone, lie beside the table unless a folder is named, and may be
removed at any time.
"""

from __future__ import annotations

import hashlib
import importlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...privacy.bounded import check_expansion, check_size, decoding
from ...privacy.durable import make_folder, open_private
from ...privacy.errors import InputError, did_you_mean, needs
from ...privacy.formats.csv_rows import LONGEST_ROW, CsvRows, check_names
from ...privacy.formats.tensor_archives import read_array
from .columns import BadCell, Categories, Dates, Declared, Range, kind_of, skeleton
from .load import Dataset, TableColumn
from .own_data import dataset_of_stores
from .partition import user_numbers
from .store import MappedStore, Store, TensorStore

# Rows of a table by column, some thousand at a time: csv, and parquet, which needs pyarrow.


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


FORMATS = ("csv", "parquet")

_IN_MEMORY = 32 << 20  # bytes of a file that is not converted
_CACHE = ".overhear-cache"
_VERSION = 1  # of what is written, part of the digest
_DIGITS = 24  # of the digest, in the files' names
_READ = 1 << 20


def read_table(
    path: Path,
    declaration: Declared,
    *,
    form: str,
    separator: str = ",",
    cache: Path | None = None,
    keep: bool = True,
    others: Counter[str] | None = None,
) -> Store:
    """The records of a table.

    Args:
        form: "csv" or "parquet".
        separator: of a csv file.
        cache: folder of the converted file; by default one beside the table, for large ones.
        keep: whether it stays; else one that is there is read, or one is made and removed.
        others: takes by column how many cells are of no declared category, of the rows that are
            read: nothing of a table that was converted before.

    Raises:
        FileNotFoundError: there is no table.
        ValueError: a cell is refused, which is named by its place and value, or the table is.
        OSError: the folder cannot be written.
    """
    names = [*declaration.columns, declaration.target.name]

    def blocks() -> Iterator[Block]:
        return _blocks(path, names, form=form, separator=separator)

    table = _Table(path, declaration, blocks, Counter() if others is None else others)
    if cache is None and (not path.is_file() or path.stat().st_size <= _IN_MEMORY):
        return _in_memory(table)
    said = f"{declaration!r} {declaration.missing}" if declaration.missing else f"{declaration!r}"
    digest = hashlib.sha256(f"{_VERSION} {form} {separator!r} {said} ".encode())
    with path.open("rb") as file:
        while block := file.read(_READ):
            digest.update(block)
    folder = path.parent / _CACHE if cache is None else cache
    inputs = folder / f"{path.stem}-{digest.hexdigest()[:_DIGITS]}.npy"
    targets = inputs.with_name(f"{inputs.stem}-targets.npy")
    if not (inputs.is_file() and targets.is_file()):
        if not keep:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
                return _converted(table, Path(made) / inputs.name, Path(made) / targets.name)
        return _converted(table, inputs, targets)
    return _mapped(inputs, targets)


def _converted(table: _Table, inputs: Path, targets: Path) -> Store:
    _convert(table, inputs, targets)
    return _mapped(inputs, targets)


def _mapped(inputs: Path, targets: Path) -> Store:
    return MappedStore(inputs, torch.from_numpy(read_array(targets)))


def _blocks(path: Path, names: Sequence[str], *, form: str, separator: str) -> Iterator[Block]:
    if form == "csv":
        return csv_blocks(path, names, separator=separator)
    return parquet_blocks(path, names)


def read_users(path: Path, column: str, *, form: str, separator: str = ",") -> NDArray[np.int64]:
    """(N,) a number for the user of each row of a table; see `user_numbers`.

    Args:
        form: "csv" or "parquet".
        separator: of a csv file.

    Raises:
        FileNotFoundError: there is no table.
        ValueError: there is no such column, or a row names no user.
    """
    found = [np.zeros(0, dtype=np.int64)]
    for block in _blocks(path, [column], form=form, separator=separator):
        (cells,) = block.cells
        for place, cell in zip(block.places, cells, strict=True):
            if cell is None or cell == "" or cell != cell:  # nan
                raise InputError(
                    f"{path} {place}, column {column!r}: is empty; a record without a user cannot "
                    "be counted"
                )
        found.append(user_numbers([str(cell) for cell in cells]))
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class _Table:
    path: Path
    declaration: Declared
    blocks: Callable[[], Iterator[Block]]
    others: Counter[str]

    def records(self) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
        """Inputs (B, width) and targets (B,) of every block.

        Raises:
            ValueError: a cell is refused.
        """
        target = self.declaration.target
        empty = True
        for block in self.blocks():
            empty = False
            inputs = _inputs(self.path, self.declaration, block, self.others)
            try:
                cells = self.declaration.cells(target.name, block.cells[-1])
                aims = target.encode(cells, clamp=self.declaration.clamp)
            except BadCell as error:
                place = block.places[error.place]
                raise InputError(
                    f"{self.path} {place}, column {target.name!r}: {error.why}"
                ) from None
            yield inputs, aims
        if empty:
            raise InputError(f"{self.path} has a line of names and no rows")


def _inputs(
    path: Path, declaration: Declared, block: Block, others: Counter[str]
) -> NDArray[np.float32]:
    """(B, width) inputs of a block, whose first cells are those of the declared columns.

    Raises:
        ValueError: a cell is refused.
    """
    parts = list[NDArray[np.float32]]()
    for (name, column), cells in zip(declaration.columns.items(), block.cells, strict=False):
        try:
            held = declaration.cells(name, cells)
            parts.append(column.encode(held, clamp=declaration.clamp))
        except BadCell as error:
            place = block.places[error.place]
            raise InputError(f"{path} {place}, column {name!r}: {error.why}") from None
        if isinstance(column, Categories):
            others[name] += int(parts[-1][:, len(column.names)].sum())
    return np.concatenate(parts, axis=1)


def read_inputs(
    path: Path, declaration: Declared, *, form: str, separator: str = ","
) -> NDArray[np.float32]:
    """(N, width) inputs of a table that may lack the target.

    Args:
        form: "csv" or "parquet".
        separator: of a csv file.

    Raises:
        FileNotFoundError: there is no table.
        ValueError: a cell is refused, which is named by its place and value, or the table is.
    """
    blocks = _blocks(path, [*declaration.columns], form=form, separator=separator)
    found = [_inputs(path, declaration, block, Counter()) for block in blocks]
    if not found:
        raise InputError(f"{path} has a line of names and no rows")
    return np.concatenate(found)


def _in_memory(table: _Table) -> Store:
    found = list(table.records())
    inputs, targets = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return TensorStore(torch.from_numpy(inputs), torch.from_numpy(targets))


def _convert(table: _Table, inputs: Path, targets: Path) -> None:
    """Write both files whole, or neither; they are readable by their owner alone."""
    folder = inputs.parent
    try:
        make_folder(folder)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            parts = Path(made) / "inputs", Path(made) / "targets"
            with (
                open(parts[0], "wb", opener=open_private) as rows,
                open(parts[1], "wb", opener=open_private) as aims,
            ):
                _write(table, rows, aims)
            for part, whole in zip(parts, (inputs, targets), strict=True):
                part.replace(whole)
    except FileNotFoundError:
        raise  # of the table
    except OSError as error:
        raise InputError(
            f"{folder} cannot hold the converted table ({error.strerror}); set [data] cache to a "
            "folder that you can write"
        ) from error


def _write(table: _Table, rows: BinaryIO, aims: BinaryIO) -> None:
    width, count, kind = table.declaration.width, 0, np.dtype(np.int64)
    for file, shape in ((rows, (0, width)), (aims, (0,))):
        _write_header(file, shape, np.dtype(np.float32))
    for inputs, targets in table.records():
        rows.write(np.ascontiguousarray(inputs).tobytes())
        aims.write(targets.tobytes())
        count, kind = count + len(targets), targets.dtype
    # NumPy leaves room in a header for the number of rows, so that it can be written last.
    for file, shape, dtype in (
        (rows, (count, width), np.dtype(np.float32)),
        (aims, (count,), kind),
    ):
        file.seek(0)
        _write_header(file, shape, dtype)


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    held = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, held)


# A table of declared columns as a data set.


def table_dataset(
    stores: Sequence[Store],
    declaration: Declared,
    *,
    name: str,
    classes: int | None = None,
    users: NDArray[np.int64] | None = None,
) -> Dataset:
    """The records of a table that was read, and those of another one to test with.

    Args:
        stores: of the table, and of one of the same columns to test with; of a table alone a fifth
            of the records is held out.
        name: of the table.
        classes: public number of classes, where the labels are not declared.
        users: whose each record of the table is, as of `read_users`.

    Raises:
        ValueError: labels are no such classes.
    """
    dataset = dataset_of_stores(
        stores[0],
        stores[1] if len(stores) > 1 else None,
        name=name,
        classes=declaration.classes or classes,
        outputs=1 if declaration.target.regression else 0,
        users=users,
    )
    return replace(dataset, columns=columns_of(declaration))


def columns_of(declaration: Declared) -> tuple[TableColumn, ...]:
    """What the numbers of a record stand for."""
    found, start = [], 0
    for name, column in declaration.columns.items():
        if isinstance(column, Range):
            table_column = TableColumn(
                name=name,
                kind="number",
                start=start,
                low=column.low,
                high=column.high,
                dates=isinstance(column, Dates),
            )
        else:
            levels = (*column.names, "other", "missing")
            table_column = TableColumn(
                name=name, kind="category", start=start, width=len(levels), levels=levels
            )
        found.append(table_column)
        start += column.width
    return tuple(found)
