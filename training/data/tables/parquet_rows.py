"""Rows of a parquet file, some thousand at a time; needs pyarrow, the extra ``table``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ....privacy.bounded import check_expansion, check_size, decoding
from ....privacy.errors import InputError
from ....privacy.formats.csv_rows import check_names
from ....privacy.missing import needs
from .csv_rows import Block, check_header

__all__ = ["parquet_blocks", "parquet_header"]

_ROWS = 4096  # at once
_WIDTH = 8  # bytes of a cell that is a number
_LONGEST_CELL = 1 << 14  # bytes of one that is text


def parquet_header(path: Path) -> list[str]:
    """The names of the columns.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is no parquet file, a name comes twice, or pyarrow is not installed.
    """
    return _header(path, _opened(path))


def parquet_blocks(path: Path, names: Sequence[str]) -> Iterator[Block]:
    """The cells of some columns; a null is a missing cell.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is no parquet file or is damaged, lacks a column, or a column holds neither
            numbers nor text; or pyarrow is not installed.
    """
    file = _opened(path)
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
        (one for one in cells if not isinstance(one, (str, int, float, bool, type(None)))), None
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


def _opened(path: Path) -> Any:
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
