"""Rebuilt rows of a table: decoded, set against the truth column by column, and measured as one.

A record lies on the unit box, each number between the ends of its column. A category is decoded to
its largest number, a binary column to the nearer of its two values; numbers stay as they are.

    error of a record = mean over columns of   1 for a wrong category or binary value, else 0
                                               the squared difference on the unit box, for a number

That is a weighted mean squared error of decoded records, since two different categories differ in
two numbers: the weight of a category's number is 1/2. So what holds for any squared distance, the
count of rebuilt records and the proof's bound on it, holds for this one.

Shape letters: N records, D numbers of a record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...training.data.load import Dataset, TableColumn
from ..interception.names import ColumnScore
from .metrics import Convention

_TIE = 1e-4  # of its range: two guesses of a number that are as good as each other


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """The error of a record as a mean squared error of weighted numbers.

    Args:
        weights: (D,) what the numbers are multiplied by, at most 1.
        scale: the error is so many times the mean of the squared differences then.
    """

    weights: Tensor
    scale: float

    @classmethod
    def of(cls, columns: Sequence[TableColumn]) -> Distance:
        """That of some columns."""
        each = [0.5 if c.kind == "category" else 1.0 for c in columns for _ in range(c.width)]
        shares = torch.tensor(each, dtype=torch.float64) / len(columns)
        most = float(shares.max())
        return cls(weights=(shares / most).sqrt(), scale=most * len(shares))

    def points(self, units: Tensor) -> Tensor:
        """(N, D) numbers whose mean squared error is the error of a record, but for the scale."""
        return units * self.weights.to(units)

    @property
    def convention(self) -> Convention:
        """The scale of scores that makes the mean squared error the error of a record."""
        return Convention(high=math.sqrt(self.scale))


def with_columns(data: Dataset) -> Dataset:
    """A data set whose numbers have columns, declared or one for each number.

    What is not declared is told by the test records, which are public: whether a number is one of
    two values, 0 and 1, and between which bounds it lies.

    Args:
        data: rows of numbers.

    Raises:
        ValueError: its records are no rows.
    """
    if len(data.input_shape) != 1:
        raise InputError(
            f"records of shape {data.input_shape} of {data.name!r} are neither images nor rows of "
            "numbers, and no attack rebuilds others; overhear audit measures what the run leaks"
        )
    known = data.columns or tuple(
        TableColumn(name=f"feature {i + 1}", kind="number", start=i)
        for i in range(data.input_shape[0])
    )
    return replace(
        data, columns=tuple(_told(one, data, declared=bool(data.columns)) for one in known)
    )


def _told(column: TableColumn, data: Dataset, *, declared: bool) -> TableColumn:
    if column.kind != "number" or column.dates:
        return column
    values = data.test_inputs[:, column.start]
    if bool(((values == 0) | (values == 1)).all()):
        levels = (f"{column.low:g}", f"{column.high:g}")
        return replace(column, kind="binary", levels=levels)
    if declared:
        return column
    low, high = float(values.min()), float(values.max())
    if not low < high:  # of one value, which stands in the middle of some box
        low, high = low - 0.5, high + 0.5
    return replace(column, box=(low, high), low=low, high=high)


def usual_record(units: Tensor, columns: Sequence[TableColumn]) -> Tensor:
    """(D,) the most frequent category and binary value and the median of numbers, of (N, D)."""
    found = torch.zeros(units.shape[1], dtype=units.dtype)
    for column in columns:
        at = slice(column.start, column.start + column.width)
        if column.kind == "category":
            found[column.start + int(decoded(units, columns)[:, at].sum(dim=0).argmax())] = 1.0
        elif column.kind == "binary":
            found[at] = float((units[:, at] > 0.5).double().mean() > 0.5)
        else:
            found[at] = units[:, at].quantile(0.5)
    return found


def decoded(units: Tensor, columns: Sequence[TableColumn]) -> Tensor:
    """(N, D) the nearest records that a table can hold."""
    found = units.clamp(0, 1)
    for column in columns:
        at = slice(column.start, column.start + column.width)
        if column.kind == "category":
            best = units[:, at].argmax(dim=1)
            found[:, at] = torch.nn.functional.one_hot(best, column.width).to(units)
        elif column.kind == "binary":
            found[:, at] = (units[:, at] > 0.5).to(units)
    return found


def column_scores(
    columns: Sequence[TableColumn], truth: Tensor, guess: Tensor, *, blind: Tensor
) -> list[ColumnScore]:
    """Scores of each column beside its blind guess; all (N, D), not decoded, on the unit box."""
    best, usual, found = decoded(guess, columns), decoded(blind, columns), []
    for column in columns:
        at = slice(column.start, column.start + column.width)
        score, baseline = (_score(column, truth[:, at], of[:, at]) for of in (best, usual))
        number = column.kind == "number"
        found.append(
            ColumnScore(
                name=column.name,
                kind=column.kind,
                accuracy=None if number else score,
                auc=None if number else _auc(truth[:, at], guess[:, at]),
                mae=score if number else None,
                baseline=baseline,
            )
        )
    return found


def _score(column: TableColumn, truth: Tensor, best: Tensor) -> float:
    """The mean absolute error of a number, else the share of records whose value is right."""
    if column.kind == "number":
        return float((truth - best).abs().double().mean()) * (column.high - column.low)
    return float((truth.round() == best).all(dim=1).double().mean())


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnGain:
    """In how many records a column was read better than by its usual value.

    Args:
        nearer: records in which what was rebuilt is nearer to the truth.
        farther: those in which the usual value is.
    """

    name: str
    nearer: int
    farther: int

    @property
    def p(self) -> float:
        """Probability of so many by a guess that knows nothing of the record, at most.

        Without a message no guess is nearer than the median, or right where the most frequent
        value is not, with a probability above 1/2 (of those records in which the two differ).

        >>> ColumnGain(name="age", nearer=10, farther=0).p * 1024
        1.0
        """
        from scipy.stats import binom

        return float(binom.sf(self.nearer - 1, self.nearer + self.farther, 0.5))


def column_gains(
    columns: Sequence[TableColumn], truth: Tensor, guess: Tensor, *, usual: Tensor
) -> list[ColumnGain]:
    """How each column was read, beside its usual value; records that were planted one by one.

    All of them are (N, D) on the unit box: the truth, what was rebuilt of each, not decoded, and
    the usual record N times.
    """
    found, right = [], decoded(truth, columns)
    ours, theirs = ((decoded(one, columns) - right).abs() for one in (guess, usual))
    for column in columns:
        at = slice(column.start, column.start + column.width)
        less = ours[:, at].sum(dim=1) - theirs[:, at].sum(dim=1)
        counts = (int((less < -_TIE).sum()), int((less > _TIE).sum()))
        found.append(ColumnGain(name=column.name, nearer=counts[0], farther=counts[1]))
    return found


def _auc(truth: Tensor, guess: Tensor) -> float | None:
    """Mean over values of the probability that a record with it gets more, a tie counting half."""
    every = []
    for has, gets in zip(truth.T > 0.5, guess.T.double(), strict=True):
        if has.any() and not has.all():
            above = gets[has][:, None] - gets[~has][None, :]
            every.append(float((above.sign() + 1).mean() / 2))
    return sum(every) / len(every) if every else None
