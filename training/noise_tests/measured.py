"""What is measured of the rows that one operation of noise gave: sums and counts, no figure kept.

R rows   D coordinates   P parts, such as the parameter tensors of a network   K sampled coordinates

On the CPU everything is at hand at once. On a device the reductions stay there as one vector until
`Measured.read` brings them over, so that a round waits for the device once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["THRESHOLDS", "Measured", "Reading", "measure"]

THRESHOLDS = (1.0, 3.0, 4.0)
_SAMPLED = 256  # coordinates of each row, evenly spread
_SHAPED = 1 << 16  # values whose size is counted
_TOGETHER = 1 << 17  # values that fit into a cache
_LEAST = 1e-12  # scale whose squares float32 holds, and its inverse
_SORTED = 1 << 17  # values of a row among which repetitions are counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The figures of one operation.

    Attributes:
        squares: (R, P) sums of squares of standardised values.
        sums, zeros: (R,) sums, and how many values are 0.
        sample: (R, K) values at evenly spread coordinates.
        shaped, beyond: how many values were counted, and how many are beyond each threshold.
        sorted, repeated: how many values of a row were sorted, and how many equal the one before.
    """

    squares: NDArray[np.float64]
    sums: NDArray[np.float64]
    zeros: NDArray[np.float64]
    sample: NDArray[np.float64]
    shaped: int
    beyond: NDArray[np.float64]
    sorted: int
    repeated: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The same where it was computed, as one vector."""

    values: Tensor
    rows: int
    parts: int
    sampled: int
    shaped: int
    sorted: int

    def read(self) -> Reading:
        """Bring it to the host."""
        return self.taken(self.values.cpu().numpy())

    def taken(self, values: NDArray[np.float64]) -> Reading:
        """From a vector that is on the host."""
        sizes = [self.rows * self.parts, self.rows, self.rows, self.rows * self.sampled]
        ends = np.cumsum([*sizes, len(THRESHOLDS), 1])
        squares, sums, zeros, sample, beyond, repeated = np.split(values, ends[:-1])
        return Reading(
            squares=squares.reshape(self.rows, self.parts),
            sums=sums,
            zeros=zeros,
            sample=sample.reshape(self.rows, self.sampled),
            shaped=self.shaped,
            beyond=beyond,
            sorted=self.sorted,
            repeated=float(repeated[0]),
        )


def measure(
    rows: Tensor, scales: Tensor, *, parts: Sequence[int], turn: int, mixed: bool
) -> Measured:
    """Reduce rows of noise.

    Args:
        rows: (R, D) as the step gets them.
        scales: (R, 1) their standard deviations, none of them 0.
        parts: sizes of the parts, which add up to D.
        turn: which row and which values are looked at closer, where that is not all of them.
        mixed: whether rows have sources in common, so that values of one row alone are independent.

    Returns:
        Figures on the device of the rows.
    """
    count, width = rows.shape
    apart = rows.device.type == "cpu" and count * width > _TOGETHER
    squares, sums, zeros = (_row_by_row if apart else _at_once)(rows, scales, list(parts))
    at = turn % count
    row = rows[at] / float(scales[at])
    pool = (rows / scales.to(rows)).reshape(-1) if _pools(count, width, mixed) else row
    start = turn * _SHAPED % max(1, len(pool) - _SHAPED + 1)
    shaped = pool[start : start + _SHAPED].abs()
    beyond = torch.stack([(shaped > threshold).sum() for threshold in THRESHOLDS])
    # A whole row the first time and then at every eighth, since sorting takes longest.
    some = row[: _SORTED if turn % 8 == 1 else _SORTED >> 5].abs()
    sample = rows[:, :: max(1, width // _SAMPLED)][:, :_SAMPLED] / scales.to(rows)
    values = (squares, sums, zeros, sample, beyond, _repeated(some))
    return Measured(
        values=torch.cat([value.reshape(-1).double() for value in values]),
        rows=count,
        parts=len(parts),
        sampled=sample.shape[1],
        shaped=len(shaped),
        sorted=len(some),
    )


def _pools(count: int, width: int, mixed: bool) -> bool:
    """Whether values of all rows are looked at together."""
    return not mixed and count > 1 and count * width <= _SHAPED


def _at_once(rows: Tensor, scales: Tensor, parts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of squares (R, P), sums and zeros (R,), where the rows are."""
    unit = rows / scales.to(rows)
    squares = torch.stack([part.sum(dim=1) for part in unit.square().split(parts, dim=1)], 1)
    return squares, unit.sum(dim=1), (unit == 0).sum(dim=1)


def _row_by_row(rows: Tensor, scales: Tensor, parts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The same on the CPU, each row while the cache holds it."""
    ends = np.cumsum(parts)[:-1]
    squares, sums, zeros = [], [], []
    for row, scale in zip(rows.numpy(), scales[:, 0].tolist(), strict=True):
        unit = row if _LEAST < scale < 1 / _LEAST else row / scale
        by = scale if unit is row else 1.0
        squares.append([float(np.dot(part, part)) / by**2 for part in np.split(unit, ends)])
        sums.append(float(unit.sum()) / by)
        zeros.append(np.count_nonzero(unit == 0))
    return torch.tensor(squares, dtype=torch.float64), torch.tensor(sums), torch.tensor(zeros)


def _repeated(values: Tensor) -> Tensor:
    """How many values equal an earlier one."""
    if values.device.type == "cpu":
        ordered = np.sort(values.numpy())
        return torch.tensor(np.count_nonzero(ordered[1:] == ordered[:-1]))
    found = values.sort().values
    return (found[1:] == found[:-1]).sum()
