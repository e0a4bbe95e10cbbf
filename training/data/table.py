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
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...privacy.files import make_folder, open_private
from ...privacy.formats.tensor_archives import read_array
from .columns import BadCell, Categories, Dates, Declared, Range
from .load import Dataset, TableColumn
from .own_data import dataset_of_stores
from .partition import user_numbers
from .store import MappedStore, Store, TensorStore
from .table_rows import Block, csv_blocks, parquet_blocks

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
