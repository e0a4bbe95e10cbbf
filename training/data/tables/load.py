"""A table of declared columns as a data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..dataset import Dataset, TableColumn
from ..own_data import dataset_of_stores
from .columns import Declared, Range
from .table import read_table, read_users

__all__ = ["table_dataset"]


def table_dataset(
    path: Path,
    declaration: Declared,
    *,
    form: str,
    separator: str = ",",
    test: Path | None = None,
    cache: Path | None = None,
    keep: bool = True,
    classes: int | None = None,
    user: str | None = None,
) -> Dataset:
    """The records of a table, and those of another one to test with.

    Args:
        form: "csv" or "parquet".
        separator: of a csv file.
        test: another file of the same columns; by default a fifth of the records is held out.
        cache: folder of converted files; by default one beside a large table.
        keep: whether files are converted there, as of `read_table`.
        classes: public number of classes, where the labels are not declared.
        user: the column that names whose record it is; it is no input.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: `read_table` refuses a file, or labels are no such classes.
    """
    stores = [
        read_table(one, declaration, form=form, separator=separator, cache=cache, keep=keep)
        for one in (path, test)
        if one is not None
    ]
    found = dataset_of_stores(
        stores[0],
        stores[1] if test is not None else None,
        name=path.name,
        classes=declaration.classes or classes,
        outputs=1 if declaration.target.regression else 0,
        users=None if user is None else read_users(path, user, form=form, separator=separator),
    )
    return replace(found, columns=columns_of(declaration))


def columns_of(declaration: Declared) -> tuple[TableColumn, ...]:
    """What the numbers of a record stand for."""
    found, start = [], 0
    for name, column in declaration.columns.items():
        if isinstance(column, Range):
            one = TableColumn(
                name=name, kind="number", start=start, low=column.low, high=column.high
            )
        else:
            levels = (*column.names, "other", "missing")
            one = TableColumn(
                name=name, kind="category", start=start, width=len(levels), levels=levels
            )
        found.append(one)
        start += column.width
    return tuple(found)
