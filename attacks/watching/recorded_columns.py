"""Recorded columns: what a watched round had in the columns of its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .watched_round import WatchedRound

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ROUNDING = 64  # units of rounding that adding up a row may lose


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Columns from `start` on: their values (columns, D), and how long each is."""

    start: int
    values: Tensor
    sizes: np.ndarray


class RecordedColumns:
    """The values of a round's columns, all as the run recorded them.

    Args:
        watched: a round that did what was traced.
    """

    def __init__(self, watched: WatchedRound) -> None:
        self._groups, units = list[_Group](), [torch.finfo(torch.float64).eps]
        for group, value in watched.columns():
            units.append(torch.finfo(value.dtype).eps)
            sizes = torch.linalg.vector_norm(value, dim=1, dtype=torch.float64).numpy()
            self._groups.append(_Group(start=group.start, values=value, sizes=sizes))
        self.unit = max(units)

    def value(self, rows: csr_array, *, width: int) -> np.ndarray:
        """(R, width) what rows of the trace come to."""
        total = np.zeros((rows.shape[0], width))
        for group in self._groups:
            if rows[:, group.start : group.start + len(group.sizes)].nnz:
                values = group.values.double().numpy()
                total += influence(rows, [group.start], [values], width=width)
        return total

    def rounding(self, rows: csr_array) -> np.ndarray:
        """(R,) the norm that rounding may account for in rows of the trace."""
        return self.rounding_of(
            rows, [group.start for group in self._groups], [group.sizes for group in self._groups]
        )

    def rounding_of(
        self, rows: csr_array, starts: Sequence[int], sizes: Sequence[np.ndarray]
    ) -> np.ndarray:
        """(R,) the same, where groups from `starts` on have columns of the lengths `sizes`."""
        lengths = [size[:, None] for size in sizes]
        return _ROUNDING * self.unit * influence(abs(rows), starts, lengths, width=1)[:, 0]


def influence(
    rows: csr_array, starts: Sequence[int], differences: Sequence[np.ndarray], *, width: int
) -> np.ndarray:
    """(R, width) what rows of the trace change by, where some groups of columns change.

    Args:
        rows: over the columns of the round.
        starts: of each group its first column.
        differences: of each group (columns, D).
        width: D of the rows' block.
    """
    total = np.zeros((rows.shape[0], width))
    for start, values in zip(starts, differences, strict=True):
        part = rows[:, start : start + len(values)]
        if part.nnz:  # a column of another block has another width, and does not occur
            total += part @ values[: part.shape[1]]
    return total
