"""Dense linear forms: rows of a value over contributions and over sources of noise.

What is known to everybody is left out, as it protects nobody and shows nothing. Beside every
coefficient stands the sum of what it was added up from, in absolute value: a coefficient that is
a rounding error of that sum counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Contribution", "Kind", "NotAnswered", "Rows", "Sources", "zeros"]

Array = NDArray[np.float64]
_ROUNDING = 1e-13  # of what a coefficient was added up from


class NotAnswered(Exception):
    """The second tracer has no answer, and says why."""


class Kind:
    """What a contribution is made of."""

    SUM = "clipped examples, added"
    USERS = "clipped users, added"
    BALL = "one clipped vector"


class Contribution(NamedTuple):
    """A vector that depends on the data of one agent.

    Attributes:
        owner: the agent.
        batches: the calls of `draw` of its round that it is made from; none where all data are.
        rate: the probability that a record is in one of these batches; None for the run's own.
        kind: one of `Kind`.
        users: whether its batch is one of whole users.
        bound: what its clipped vectors are at most, by norm.
        round: in which it is made.
        cohort: the probability that its agent takes part in a trusted sum, which nobody sees; None
            where that is decided by no coin.
    """

    owner: int
    batches: tuple[int, ...]
    rate: float | None
    kind: str
    users: bool
    bound: float
    round: int
    cohort: float | None = 1.0


@dataclass(slots=True)
class Sources:
    """The columns of all rows: parts of contributions, and sources of noise.

    Attributes:
        contributions: by number.
        columns: (number of a contribution, block) for a part of it; the agents that know it for
            a source of noise.
    """

    contributions: list[Contribution] = field(default_factory=list)
    columns: list[tuple[int, int] | frozenset[int]] = field(default_factory=list)

    def contribute(self, one: Contribution, blocks: Sequence[int]) -> list[int]:
        """Add a contribution; the columns of its blocks, which are named."""
        self.contributions.append(one)
        number, first = len(self.contributions) - 1, len(self.columns)
        self.columns += [(number, block) for block in blocks]
        return list(range(first, len(self.columns)))

    def noise(self, known_to: frozenset[int]) -> int:
        """Add a source of noise; its column."""
        self.columns.append(known_to)
        return len(self.columns) - 1


class Rows:
    """Rows of linear forms, in one block of a point."""

    __slots__ = ("block", "made_of", "of")

    def __init__(self, of: Array, made_of: Array, block: int = 0) -> None:
        self.of, self.made_of, self.block = of, made_of, block

    @classmethod
    def at(cls, columns: list[int], *, block: int = 0, by: float = 1.0) -> Self:
        """A row for each column, with `by` in it and nothing else; -1 stands for no column."""
        of = np.zeros((len(columns), max(columns, default=-1) + 1))
        for row, column in enumerate(columns):
            if column >= 0:
                of[row, column] = by
        return cls(of, np.abs(of), block)

    @property
    def cleaned(self) -> Array:
        """The coefficients, without what is a rounding error."""
        return np.where(np.abs(self.of) > _ROUNDING * self.made_of, self.of, 0.0)

    def wide(self, columns: int) -> Array:
        """The same with so many columns."""
        return np.pad(self.cleaned, ((0, 0), (0, columns - self.of.shape[1])))

    def through(self, matrix: Array) -> Rows:
        """Public combinations of the rows."""
        return Rows(matrix @ self.of, np.abs(matrix) @ self.made_of, self.block)

    def of_table(self, table: Tensor) -> Rows:
        """A public table, which everybody knows, as rows of the same block."""
        return zeros(len(table), self.block)

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, pick: Any) -> Rows:
        chosen = np.asarray(pick, dtype=np.int64)
        return Rows(self.of[chosen], self.made_of[chosen], self.block)

    def _plus(self, other: object, sign: float) -> Rows:
        if isinstance(other, Tensor):  # a public table
            return self
        if not isinstance(other, Rows) or len(other) != len(self) or other.block != self.block:
            raise NotAnswered("it adds values that do not fit")
        width = max(self.of.shape[1], other.of.shape[1])
        wide = [_widened(one, width) for one in (self.of, other.of, self.made_of, other.made_of)]
        return Rows(wide[0] + sign * wide[1], wide[2] + wide[3], self.block)

    def __add__(self, other: object) -> Rows:
        return self._plus(other, 1.0)

    __radd__ = __add__

    def __sub__(self, other: object) -> Rows:
        return self._plus(other, -1.0)

    def __rsub__(self, other: object) -> Rows:
        return (self * -1.0) + other

    def __mul__(self, factor: Any) -> Rows:
        by = factor.detach().cpu().numpy() if isinstance(factor, Tensor) else np.asarray(factor)
        by = np.asarray(by, dtype=np.float64)
        if by.ndim not in (0, 2) or (by.ndim == 2 and by.shape != (len(self), 1)):
            raise NotAnswered(f"it scales rows by a table of shape {by.shape}")
        return Rows(self.of * by, self.made_of * np.abs(by), self.block)

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A public tensor on the left of `*`, `+` or `-`."""
        name = getattr(func, "__name__", "").strip("_").removeprefix("r")
        left, right = args[0], args[1]
        rows, table = (right, left) if isinstance(right, Rows) else (left, right)
        if name == "mul":
            return rows * table
        if name == "add":
            return rows
        if name == "sub":
            return rows if rows is left else rows * -1.0
        raise NotAnswered(f"it gives rows to torch.{name}")


def zeros(rows: int, block: int = 0) -> Rows:
    """What is known to everybody."""
    return Rows(np.zeros((rows, 0)), np.zeros((rows, 0)), block)


def _widened(table: Array, width: int) -> Array:
    return np.pad(table, ((0, 0), (0, width - table.shape[1])))


def bound_of(clip_norm: float | None) -> float:
    """A bound on a vector's norm; infinite where nothing is clipped."""
    return math.inf if clip_norm is None else float(clip_norm)
