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
from ...attacks.posterior.candidates import Candidates
from ...attacks.scoring.columns import Distance, column_scores, usual_record
from ...attacks.scoring.evaluation import Row
from ...attacks.scoring.prior_hit_rate import prior_hit_rate, rebuilt_threshold
from ...privacy.errors import InputError
from ...training.data.dataset import Dataset, TableColumn
from ..evidence.schema import ColumnScore
from .planted import Public

__all__ = ["DISTANCE", "HELD_OUT", "plant_rows", "row_fields", "values_of"]

HELD_OUT = (
    "records of the table that were held out, planted as the victim's batch of re-enacted rounds; "
    "nobody says that they are public, so that no value of them is kept ([data] test names public "
    "ones)"
)
DISTANCE = (
    "mean over columns: 1 for a wrong category or binary value, for a number the squared "
    "difference over its range"
)
_NEAR = 0.01  # of its range, where a number counts as right


def plant_rows(data: Dataset, count: int, *, seed: int = 0) -> Public:
    """Random test records, and what the other ones say.

    Args:
        data: of columns; supplies the records.
        count: how many to plant.
        seed: decides which.

    Raises:
        ValueError: there are not so many, or all the others are alike.
    """
    every = len(data.test_targets)
    if count > every:
        raise InputError(f"images={count} is more than the {every} public test records")
    order = torch.randperm(every, generator=torch.Generator().manual_seed(seed))[:count]
    others = torch.ones(every, dtype=torch.bool)
    others[order] = False
    units = data.pixels(data.test_inputs[others])
    usual, by = usual_record(units, data.columns), Distance.of(data.columns)
    points, guess = by.points(units), by.points(usual)
    threshold = rebuilt_threshold(points, guess)
    if not threshold > 0:
        raise InputError(
            f"the {len(units)} test records of {data.name!r} that are not planted all have the "
            "same values, so there is nothing to rebuild that is not known; name others in [data] "
            "test, or lower [attack] images"
        )
    low, high = data.bounds
    classes = data.test_targets[others].bincount(minlength=data.classes)
    return Public(
        images=data.test_inputs[order],
        labels=data.test_targets[order],
        prior=low + (high - low) * usual,
        threshold=threshold * by.scale,
        guessed=prior_hit_rate(points, guess, threshold=threshold) if len(points) > 3 else 1.0,
        near=0.0,  # common rows are exactly alike
        guessed_label=float(classes.max() / max(int(classes.sum()), 1)),
        candidates=None
        if data.held_out
        else Candidates(inputs=data.test_inputs[others], labels=data.test_targets[others]),
        decoys=None,
    )


_Fields = dict[str, Any]  # of an `AttackRow`, each of its own type


def row_fields(row: Row, data: Dataset, truth: Tensor, blind: Row) -> _Fields:
    """What an `AttackRow` says of a table beside its errors.

    Args:
        row: what was rebuilt.
        data: of columns.
        truth: (N, D) planted records on the unit box.
        blind: the row of the blind guess.
    """
    usual = {one.name: one for one in column_scores(data.columns, truth, blind.images)}
    scores = []
    for one in column_scores(data.columns, truth, row.images):
        known = usual[one.name]
        scores.append(
            ColumnScore(
                name=one.name,
                kind=_kind(data.columns, one.name),
                accuracy=one.accuracy,
                auc=one.auc,
                mae=one.mae,
                baseline=(known.mae if one.mae is not None else known.accuracy) or 0.0,
            )
        )
    return {
        "columns": scores,
        "certified": count_proven(row.stages),
        "whole": whole_rows(data.columns, truth, row.images),
        "values": values_of(data, row.images),
    }


def _kind(columns: Sequence[TableColumn], name: str) -> Any:
    return next(one.kind for one in columns if one.name == name)


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


def values_of(data: Dataset, units: Tensor) -> list[list[str]]:
    """The values of records on the unit box, column by column; nothing of held out ones."""
    if data.held_out:
        return []
    rows = units.tolist()
    return [[c.text(row[c.start : c.start + c.width]) for c in data.columns] for row in rows]
