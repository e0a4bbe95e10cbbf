"""Rows of a table under attack: which are planted, and what is written of those rebuilt.

Values are written of public records alone. Where [data] names no test records, those that are
planted were held out of somebody's table: they are scored by column, and no value of them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...attacks.exact.stages import count_proven
from ...attacks.scoring.columns import column_scores
from ...attacks.scoring.evaluation import Row
from ...training.data.load import Dataset, TableColumn
from ..audit.evidence_schema import ColumnScore

HELD_OUT = (
    "records of the table that were held out, planted as the victim's batch of re-enacted rounds; "
    "no one says that they are public, so that no value of them is kept ([data] test names public "
    "ones)"
)
DISTANCE = (
    "mean over columns: 1 for a wrong category or binary value, for a number the squared "
    "difference over its range"
)
_NEAR = 0.01  # of its range, where a number counts as right


_Fields = dict[str, Any]  # of an `AttackRow`, each of its own type


def row_fields(row: Row, data: Dataset, truth: Tensor, blind: Row) -> _Fields:
    """What an `AttackRow` says of a table beside its errors.

    Args:
        row: what was rebuilt.
        data: of columns.
        truth: (N, D) planted records on the unit box.
        blind: the row of the blind guess.
    """
    return {
        "columns": score_columns(data.columns, truth, row.images, blind.images),
        "certified": count_proven(row.stages),
        "whole": whole_rows(data.columns, truth, row.images),
        "values": [] if data.held_out else values_of(data.columns, row.images),
    }


def score_columns(
    columns: Sequence[TableColumn], truth: Tensor, found: Tensor, blind: Tensor
) -> list[ColumnScore]:
    """How well each column of (N, D) records was rebuilt, beside the blind guess of them."""
    every = (column_scores(columns, truth, of) for of in (found, blind))
    return [
        ColumnScore(
            name=one.name,
            kind=column.kind,
            accuracy=one.accuracy,
            auc=one.auc,
            mae=one.mae,
            baseline=(of.mae if one.mae is not None else of.accuracy) or 0.0,
        )
        for column, one, of in zip(columns, *every, strict=True)
    ]


def whole_rows(columns: Sequence[TableColumn], truth: Tensor, guess: Tensor) -> int:
    """How many of (N, D) records are right in every column, numbers to a thousandth or so."""
    right = torch.ones(len(truth), dtype=torch.bool)
    for column in columns:
        at = slice(column.start, column.start + column.width)
        if column.kind == "number":
            right &= ((truth[:, at] - guess[:, at]).abs() <= _NEAR).all(dim=1)
        else:
            pairs = zip(truth[:, at].tolist(), guess[:, at].tolist(), strict=True)
            right &= torch.tensor([column.text(a) == column.text(b) for a, b in pairs])
    return int(right.sum())


def values_of(columns: Sequence[TableColumn], units: Tensor) -> list[list[str]]:
    """The values of records (N, D) on the unit box, column by column."""
    rows = units.tolist()
    return [[c.text(row[c.start : c.start + c.width]) for c in columns] for row in rows]
