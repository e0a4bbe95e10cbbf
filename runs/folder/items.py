"""How the items of a run's data were made of records, looked at before anything is released."""

from __future__ import annotations

from collections.abc import Callable

from ...privacy.guarantee import Statement
from ...training.data.dataset import Dataset
from ...training.data.left_out import leave_out
from ...training.data.tied_items import tied_items
from ..run_file.run_file import RunFile
from .records import Items

__all__ = ["items_of"]


def items_of(
    config: RunFile,
    data: Dataset,
    statement: Statement,
    *,
    notice: Callable[[str], None] | None = None,
) -> Items | None:
    """Leave records out of what a data function gives, and look for items of several records.

    Args:
        data: its data set.
        statement: whose records the figures are about.
        notice: told what speaks for items of several records.

    Returns:
        What was found; None of data that come along with a library or were made by a seed.

    Raises:
        ValueError: with a record left out more changes than its own item.
    """
    d = config.data
    if d.root is None and d.source == "rows":
        return None
    shown = 0
    if d.source == "function":
        shown = leave_out(
            d.name,
            d.options,
            classes=data.classes or None,
            outputs=data.outputs,
            most=statement.at_once,
            notice=notice,
        )
    found = Items(source=d.source, left_out=shown, tied=tied_items(data))
    if notice is not None:
        for words in found.tied:
            notice(
                f"Warning: {words}; a figure of a record holds where items are made of one alone"
            )
    return found
