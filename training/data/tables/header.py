"""The names of a table's columns, and what is said of a table whose columns nobody declared."""

from __future__ import annotations

from pathlib import Path

from ....privacy.errors import InputError
from .columns import skeleton
from .csv_rows import csv_header
from .parquet_rows import parquet_header

__all__ = ["header_of", "undeclared"]


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
