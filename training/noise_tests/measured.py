"""What is measured of the rows that one operation of noise gave: sums and counts, no figure kept.

R rows   D coordinates   P parts, such as the parameter tensors of a network   K sampled coordinates

Every round has the sums of squares of all rows and parts, and some coordinates of every row to know
it again. A closer look is at a block of whole rows, all of them where they are few and others every
time where they are not. Of small operations, whose fixed cost would be a good part of their round,
the first `_FIRST` have it and then every `_EVERY`-th.

On the CPU everything is at hand at once. On a device the reductions stay there as one vector until
`Measured.read` brings them over, so that a round waits for the device once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

THRESHOLDS = (1.0, 3.0, 4.0)
_SAMPLED = 256  # coordinates of each row, evenly spread
_BLOCK = 1 << 20  # values that sums, zeros and single coordinates look at
_SHAPED = 1 << 16  # of them, whose size is counted
_SORTED = 1 << 17  # values of a row among which repetitions are counted, every eighth time
_FEW = 1 << 10  # the same every other time, since sorting takes longest
_SMALL = 1 << 20  # values of an operation that is looked at closer now and then
_FIRST, _EVERY = 4, 4
_LEAST = 1e-12  # scale whose squares float32 holds, and its inverse


@dataclass(kw_only=True, slots=True)
class Coordinates:
    """Sums of squares (D,) of each coordinate over all rows that were looked at, where they are."""

    sums: Any = None
    rows: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Closer:
    """What a closer look at B rows has.

    Attributes:
        sums, zeros: (B,) sums, and how many values are 0.
        extremes: least and largest sum of squares of a coordinate, over all looks.
        rows: over how many rows.
        shaped, beyond: how many values were counted, and how many are beyond each threshold.
        sorted, repeated: how many values of a row were sorted, and how many equal the one before.
    """

    sums: NDArray[np.float64]
    zeros: NDArray[np.float64]
    extremes: NDArray[np.float64]
    rows: int
    shaped: int
    beyond: NDArray[np.float64]
    sorted: int
    repeated: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The figures of one operation.

    Attributes:
        squares: (R, P) sums of squares of standardised values.
        sample: (R, K) values at evenly spread coordinates.
        closer: what a closer look has, where there was one.
    """

    squares: NDArray[np.float64]
    sample: NDArray[np.floating[Any]]
    closer: Closer | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The same where it was computed, as one vector.

    Attributes:
        values: all figures.
        sizes: (R, P, K, B), B = 0 without a closer look.
        rows, shaped, sorted: see `Closer`.
    """

    values: Tensor
    sizes: tuple[int, int, int, int]
    rows: int = 0
    shaped: int = 0
    sorted: int = 0

    def taken(self, values: NDArray[np.float64]) -> Reading:
        """From a vector that is on the host."""
        count, parts, sampled, block = self.sizes
        squares, sample, rest = np.split(values, np.cumsum([count * parts, count * sampled]))
        closer = None
        if block:
            ends = np.cumsum([block, block, 2, len(THRESHOLDS)])
            sums, zeros, extremes, beyond, repeated = np.split(rest, ends)
            closer = Closer(
                sums=sums,
                zeros=zeros,
                extremes=extremes,
                rows=self.rows,
                shaped=self.shaped,
                beyond=beyond,
                sorted=self.sorted,
                repeated=float(repeated[0]),
            )
        return Reading(
            squares=squares.reshape(count, parts),
            sample=sample.reshape(count, sampled),
            closer=closer,
        )


class _Look(NamedTuple):
    """Where a closer look is at."""

    block: slice  # rows
    alone: slice  # those of the block whose values are independent
    chosen: int  # the row of it in which repetitions are counted
    few: int  # in how many values
    turn: int

    def shaped(self, flat: Any) -> Any:
        """The values whose size is counted."""
        start = self.turn * _SHAPED % max(1, len(flat) - _SHAPED + 1)
        return flat[start : start + _SHAPED]


def _look(count: int, width: int, *, turn: int, mixed: bool) -> _Look | None:
    if count * width < _SMALL and turn > _FIRST:
        if turn % _EVERY:
            return None
        turn = _FIRST + (turn - _FIRST) // _EVERY  # so that every row has its turn
    size = max(1, min(count, _BLOCK // width))
    first = min(turn * size % count, count - size)
    chosen = turn % size
    alone = slice(chosen, chosen + 1) if mixed else slice(0, size)
    few = _SORTED if turn % 8 == 1 else _FEW
    return _Look(slice(first, first + size), alone, chosen, few, turn)


def measure(
    rows: Tensor,
    scales: NDArray[np.float64],
    *,
    parts: Sequence[int],
    coordinates: Coordinates,
    turn: int,
    mixed: bool,
) -> Reading | Measured:
    """Reduce rows of noise.

    Args:
        rows: (R, D) as the step gets them.
        scales: (R, 1) their standard deviations, none of them 0.
        parts: sizes of the parts, which add up to D.
        coordinates: of the rounds before; the rows that are looked at are added.
        turn: of the operation, from 1: which rows and values are looked at closer, and when.
        mixed: whether rows have sources in common, so that values of one row alone are independent.

    Returns:
        Figures, on the device of the rows.
    """
    look = _look(*rows.shape, turn=turn, mixed=mixed)
    reduce = _on_host if rows.device.type == "cpu" else _on_device
    return reduce(rows, scales, parts=parts, coordinates=coordinates, look=look)


def _on_host(
    rows: Tensor,
    scales: NDArray[np.float64],
    *,
    parts: Sequence[int],
    coordinates: Coordinates,
    look: _Look | None,
) -> Reading:
    # Sums are divided in place of values, unless float32 does not hold their squares.
    values, by = rows.numpy(), scales
    if not _LEAST < by.min() <= by.max() < 1 / _LEAST:
        values, by = values / scales.astype(values.dtype), np.ones_like(scales)
    count, width = values.shape
    squares, start = np.empty((count, len(parts))), 0
    for at, size in enumerate(parts):
        part = values[:, start : start + size]
        squares[:, at] = _dots(part, part)
        start += size
    sample = values[:, :: max(1, width // _SAMPLED)][:, :_SAMPLED]
    return Reading(
        squares=squares / by**2,
        sample=sample / by.astype(values.dtype),
        closer=None if look is None else _closer(values, by, coordinates=coordinates, look=look),
    )


def _closer(
    values: NDArray[Any], by: NDArray[np.float64], *, coordinates: Coordinates, look: _Look
) -> Closer:
    looked, of = values[look.block], by[look.block]
    zero = looked == 0
    pool, scale = looked[look.alone], float(of[look.alone][0, 0])
    _add(coordinates, _columns(pool) / scale**2, rows=len(pool))
    shaped = np.abs(look.shaped(pool.reshape(-1)))
    ordered = np.sort(np.abs(looked[look.chosen, : look.few]))
    return Closer(
        sums=np.einsum("ij->i", looked) / of[:, 0],
        zeros=zero.sum(axis=1) if zero.any() else np.zeros(len(looked)),
        extremes=np.array([coordinates.sums.min(), coordinates.sums.max()]),
        rows=coordinates.rows,
        shaped=len(shaped),
        beyond=np.array([float(np.count_nonzero(shaped > scale * t)) for t in THRESHOLDS]),
        sorted=len(ordered),
        repeated=float(np.count_nonzero(ordered[1:] == ordered[:-1])),
    )


def _on_device(
    rows: Tensor,
    scales: NDArray[np.float64],
    *,
    parts: Sequence[int],
    coordinates: Coordinates,
    look: _Look | None,
) -> Measured:
    # Of every row its squares by part, and a sample of its numbers.
    unit = rows / torch.from_numpy(scales).to(rows)
    count, width = unit.shape
    squared = unit.square().split(list(parts), dim=1)
    squares = torch.stack([part.sum(dim=1) for part in squared], 1)
    sample = unit[:, :: max(1, width // _SAMPLED)][:, :_SAMPLED]
    sizes = count, len(parts), sample.shape[1]
    if look is None:
        return Measured(values=_joined(squares, sample), sizes=(*sizes, 0))
    # Some rows are looked at closer: coordinates, shape and equal numbers.
    looked = unit[look.block]
    pool = looked[look.alone]
    _add(coordinates, pool.square().sum(dim=0).double(), rows=len(pool))
    shaped = look.shaped(pool.reshape(-1)).abs()
    ordered = looked[look.chosen, : look.few].abs().sort().values
    values = _joined(
        squares,
        sample,
        looked.sum(dim=1),
        (looked == 0).sum(dim=1),
        torch.stack(torch.aminmax(coordinates.sums)),
        torch.stack([(shaped > threshold).sum() for threshold in THRESHOLDS]),
        (ordered[1:] == ordered[:-1]).sum(),
    )
    return Measured(
        values=values,
        sizes=(*sizes, len(looked)),
        rows=coordinates.rows,
        shaped=len(shaped),
        sorted=len(ordered),
    )


def _joined(*values: Tensor) -> Tensor:
    """All of them as one vector in double precision."""
    return torch.cat([value.reshape(-1).double() for value in values])


def _add(coordinates: Coordinates, squares: Any, *, rows: int) -> None:
    """Count rows in, whose sums are of double precision."""
    if coordinates.sums is None:
        coordinates.sums = squares
    else:
        coordinates.sums += squares
    coordinates.rows += rows


def _columns(values: NDArray[Any]) -> NDArray[np.float64]:
    """Sums of squares of columns."""
    return np.einsum("ij,ij->j", values, values).astype(np.float64)


def _dots(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Inner products of rows."""
    if hasattr(np, "vecdot"):  # from numpy 2 on
        return np.asarray(np.vecdot(left, right))
    return np.asarray(np.einsum("ij,ij->i", left, right))
