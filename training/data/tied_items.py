"""What shows, in items alone, that they were made of several records.

Nothing here proves that items are of one record each; some common ways in which they are not leave
a trace that is hard to come by otherwise:

==============================================  ====================================================
Trace                                           How it comes about
==============================================  ====================================================
columns of mean 0 and deviation 1               a scaler that was fitted on these records
the same of all numbers, or of a channel        a scaler of pictures that was fitted on them
columns of mean 0                               centring, or a PCA, that was fitted on them
columns whose ends are 0 and 1, each met once   scaling by their smallest and largest value
items that mirror another one                   views of one record, as items of their own
items on the line between two others            records that were mixed: mixup, SMOTE
items far nearer to some than to any others     copies with noise, or other slight changes
==============================================  ====================================================

Each is told where it comes to more than chance would give: see the constants below.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .load import Dataset
from .store import Store, blocks

_Rows = NDArray[np.float32]
_D = NDArray[np.float64]
_Places = NDArray[np.int64]

_FEWEST = 20  # items
_MOST_NUMBERS = 1 << 26  # of items that are looked at; of more, the first and the last ones
# A column of independent normal numbers has a mean within so many standard errors of 0 with
# probability .0024, and a deviation as near to 1 with .0048 (of the population, or of a sample).
_NEAR = 3e-3
_LEAST_NEAR = 3e-6  # to which float32 adds up
_ROW_OF_ITS_OWN = 1e-3  # a mean of numbers of which each item's were centred by themselves
_SHARE = 0.01  # of the columns, at least one, that are standardised
_CENTRED = 0.5  # of the columns that have mean 0 alone
# Of those whose ends are 0 and 1: after such a scaling in float32 half of them just miss these.
_AT_ENDS = 0.34
_DIFFERS = 8  # numbers in which an item differs from what it is held against
_LEAST_WIDTH = 36  # numbers of a row that is taken for a picture
_LEAST_FOUND = 3  # items
_LOOKED_AT = 96  # items that are held against all others, for lines and for copies
_MOST_OTHERS, _NEAREST = 20_000, 1 << 23  # of these, and of their numbers
_MOST_VIEWED = 4096  # items of a view that are held against what projects to the same number
_SIMILAR = 8  # items of one projection that one is held against
_BLOCK = 4096  # items at once
_STRAIGHT = 1e-6  # of a line, relative to its length
_COPY, _GAP = 0.01, 0.05  # of the median distance; of that of the next item
_MOST_COPIES = 64  # of one item
_COPIES = 0.2  # of the items that are looked at


def tied_items(data: Dataset) -> list[str]:
    """What speaks for items that were made of several records, as sentences without a full stop.

    Args:
        data: what is trained on; records that were held out of the same ones are looked at, too.
    """
    rows, tested = _rows_of(data)
    if len(rows) < _FEWEST:
        return []
    shape = data.input_shape
    # Runs of a sweep mostly train on the same items, and looking at them takes seconds.
    seen = hashlib.sha256(repr((shape, rows.shape, tested.shape)).encode())
    for part in (rows, tested):
        seen.update(np.ascontiguousarray(part).data)
    if (found := _told.get(key := seen.digest())) is None:
        found = _traces(rows, tested, shape)
        _told.clear()
        _told[key] = found
    return list(found)


_told: dict[bytes, list[str]] = {}
"""What was said of the items that were looked at last, by their digest."""


def _traces(rows: _Rows, tested: _Rows, shape: tuple[int, ...]) -> list[str]:
    channels = shape[0] if len(shape) == 3 else 1
    # A test part of its own may have been there before or after something was fitted.
    fitted = [*_fitted(rows, channels)]
    if not fitted and len(tested):
        fitted = [*_fitted(np.concatenate([rows, tested]), channels)]
    return [*fitted, *_mirrored(rows, shape), *_between(rows)]


def _rows_of(data: Dataset) -> tuple[_Rows, _Rows]:
    """(N, D) inputs on which something may have been fitted, in the units in which it was.

    And (M, D) those of a test part that came along with them.
    """
    width = max(1, math.prod(data.input_shape))
    most = max(_FEWEST, _MOST_NUMBERS // width)
    parts = [_some(data.train, most)]
    tested = data.test_inputs[:most].flatten(1).numpy()
    if data.held_out:
        parts.append(tested)
        tested = tested[:0]
    if data.validation is not None:
        parts.append(data.validation.inputs[:most].flatten(1).numpy())
    rows = np.concatenate(parts)
    for column in data.columns:
        if column.kind == "number":
            for part in (rows, tested := tested.copy()):
                at = part[:, column.start]
                part[:, column.start] = column.low + (column.high - column.low) * at
    return rows, tested


def _some(store: Store, most: int) -> _Rows:
    """All items, or of many the first and the last ones."""
    if store.size <= most:
        return np.concatenate([block.inputs.flatten(1).numpy() for block in blocks(store)])
    half = most // 2
    at = torch.cat([torch.arange(half), torch.arange(store.size - half, store.size)])
    return store.take(at).inputs.flatten(1).numpy()


def _fitted(rows: _Rows, channels: int = 1) -> Iterator[str]:
    """Constants that were read off the items."""
    items, columns = rows.shape
    mean, off = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
    # Where numbers are -1 and 1, as many of one as of the other are met by chance.
    varied = (off > 0) & ~np.all((rows == 1) | (rows == -1), axis=0)
    # Means nearer to 0, and deviations nearer to 1, than those of a sample are by chance.
    near = _NEAR / math.sqrt(items)
    centred = varied & (np.abs(mean) <= near * off)
    sample = off * math.sqrt(items / (items - 1))
    scaled = centred & (np.minimum(np.abs(off - 1), np.abs(sample - 1)) <= near)
    whole = [np.arange(columns), *np.arange(columns).reshape(channels, -1)] if columns > 1 else []
    if (count := int(scaled.sum())) >= max(1, _SHARE * columns):
        yield (
            f"{count} of {columns} columns have mean 0 and deviation 1 over the items, as after a "
            "scaler fitted on them"
        )
    elif any(varied[of].any() and _is_scaled(rows[:, of], mean[of], off[of]) for of in whole):
        yield (
            "all numbers of the items, or of a channel, have mean 0 and deviation 1 together, as "
            "after a scaler fitted on them"
        )
    elif (count := int(centred.sum())) >= max(3, _CENTRED * int(varied.sum())):
        yield (
            f"{count} of {columns} columns have mean 0 over the items, as after centring, or a "
            "PCA, that was fitted on them"
        )
    # The smallest and the largest value are ends of a scale, and are met once each.
    low, high = rows.min(0), rows.max(0)
    ends = varied & (high == 1) & ((low == 0) | (low == -1))
    once = [
        at
        for at in np.flatnonzero(ends).tolist()
        if (rows[:, at] == 1).sum() == 1 == (rows[:, at] == low[at]).sum()
    ]
    if len(once) >= max(2, _AT_ENDS * int(varied.sum())):
        yield (
            f"{len(once)} of {columns} columns have ends {float(low[once[0]]):g} and 1, "
            "each met by one item, as after scaling by the smallest and largest value"
        )


def _is_scaled(rows: _Rows, mean: _D, off: _D) -> bool:
    """Whether all numbers of columns have mean 0 and deviation 1, and not those of each row."""
    near = max(_NEAR / math.sqrt(rows.size), _LEAST_NEAR)
    centre = float(mean.mean())
    spread = math.sqrt(float((off**2 + mean**2).mean()) - centre**2)
    if abs(centre) > near or abs(spread - 1) > near:
        return False
    return float(np.abs(rows.mean(1, dtype=np.float64)).max()) > _ROW_OF_ITS_OWN


def _mirrored(rows: _Rows, shape: Sequence[int]) -> Iterator[str]:
    """Items that are another one, mirrored or turned, by projections on one random direction."""
    direction = np.random.default_rng(0).normal(size=(1, rows.shape[1]))
    views = _views(shape, rows.shape[1])
    if not views:
        return
    # Turning the items is turning the direction back; what is near is then looked at whole.
    onto = np.concatenate([direction, *(view.turned(direction) for view in views)]).T
    cuts = range(0, len(rows), _BLOCK)
    here, *turned = np.concatenate([rows[cut : cut + _BLOCK] @ onto for cut in cuts]).T
    order = np.argsort(here, kind="stable")
    spread = 1e-6 * max(1.0, float(np.abs(here).max()))
    found = set[int]()
    for view, along in zip(views, turned, strict=True):
        first = np.searchsorted(here[order], along - spread)
        last = np.searchsorted(here[order], along + spread)
        for at in np.flatnonzero(last > first)[:_MOST_VIEWED].tolist():
            of = view.back(rows[at : at + 1])[0]
            if at in found or (of != rows[at]).sum() < _DIFFERS:
                continue
            others = rows[order[first[at] : min(last[at], first[at] + _SIMILAR)]]
            if (others == of).all(1).any():
                found.add(at)
    # Of independent items no view is met more often than equal items are, as by Cauchy-Schwarz
    # sum_x p(x) p(view of x) <= sum_x p(x)^2: rows of few values mirror each other by chance.
    by_chance = len(views) * _repeated(rows, order, here, spread)
    if len(found) >= max(_LEAST_FOUND, _SHARE * len(rows), by_chance + 1):
        yield (
            f"at least {len(found)} of {len(rows)} items are another one, mirrored or turned, as "
            "views of one record are"
        )


def _repeated(rows: _Rows, order: _Places, here: _D, spread: float) -> int:
    """How many items equal another one, which have one projection (N,) and stand side by side."""
    near = np.flatnonzero(np.diff(here[order]) <= spread)
    pairs = zip(order[near].tolist(), order[near + 1].tolist(), strict=True)
    return len({at for pair in pairs if np.array_equal(*rows[list(pair)]) for at in pair})


@dataclass(frozen=True, slots=True)
class _View:
    """A picture turned or mirrored, as a permutation of the numbers of a row."""

    order: _Places

    def turned(self, rows: _D) -> _D:
        """(N, D)."""
        return rows[:, self.order]

    def back(self, rows: _Rows) -> _Rows:
        """The inverse."""
        return rows[:, np.argsort(self.order)]


def _views(shape: Sequence[int], width: int) -> list[_View]:
    """What turns and mirrors records of a shape, or rows that may be square pictures."""
    layouts: list[tuple[int, ...]] = []
    places: list[tuple[int, int]] = []
    if len(shape) == 3:
        layouts, places = [tuple(shape)], [(1, 2)]
    elif len(shape) == 2:
        layouts, places = [tuple(shape)], [(0, 1)]
    elif width >= _LEAST_WIDTH:
        for channels in (1, 3):
            side = math.isqrt(width // channels)
            if side * side * channels == width:
                layouts += [(channels, side, side), (side, side, channels)]
                places += [(1, 2), (0, 1)]
    found = []
    numbers = np.arange(width)
    for layout, (rows, columns) in zip(layouts, places, strict=True):
        grid = numbers.reshape(layout)
        turns: list[_Places] = [np.flip(grid, columns), np.flip(grid, rows)]
        turns.append(np.flip(grid, (rows, columns)))
        if layout[rows] == layout[columns]:
            turns += [np.rot90(grid, k, (rows, columns)) for k in (1, 3)]
        found += [_View(turn.reshape(-1)) for turn in turns]
    return found


def _between(rows: _Rows) -> Iterator[str]:
    """Items on the line between two others, and those that are nearly another one."""
    items, width = rows.shape
    if width < _DIFFERS:
        return
    draw = np.random.default_rng(1)
    kept = np.sort(draw.permutation(items)[: min(_MOST_OTHERS, _NEAREST // width)])
    ends = np.arange(items)[-_LOOKED_AT // 3 :]
    chosen = np.unique(np.r_[np.linspace(0, items - 1, _LOOKED_AT * 2 // 3), ends]).astype(int)
    # A column of large numbers would be all that a distance is made of.
    spread = rows.std(0, dtype=np.float64)
    scale = np.maximum(spread, np.median(spread[spread > 0])) if spread.any() else 1.0
    others = np.asarray(rows[kept] / scale, dtype=np.float64)
    looked_at = np.asarray(rows[chosen] / scale, dtype=np.float64)
    # Lengths and directions of all differences by products, without the differences themselves.
    direction = draw.normal(size=width)
    products = others @ looked_at.T
    squared = (others**2).sum(1)[:, None] + (looked_at**2).sum(1) - 2 * products
    lengths = np.sqrt(squared.clip(0))
    steps = (others @ direction)[:, None] - looked_at @ direction
    reach, lines, copies = _STRAIGHT * float(np.linalg.norm(direction)), 0, 0
    for one, length, step in zip(looked_at, lengths.T, steps.T, strict=True):
        typical = float(np.median(length))
        # There is a gap behind copies; where items are dense, all are near, and there is none.
        first = np.sort(length)[:_MOST_COPIES]
        gaps = np.flatnonzero(first[:-1] < np.minimum(_GAP * first[1:], _COPY * typical))
        near = others[length <= first[gaps].max(initial=-1.0)] - one
        copies += bool(((near != 0).sum(1) >= _DIFFERS).any())
        away = np.flatnonzero(length >= max(_COPY * typical, 1e-12))
        lines += _is_between(others, one, away, step[away] / length[away], reach)
    looked = len(chosen)
    if lines >= max(_LEAST_FOUND, _SHARE * looked):
        yield (
            f"{lines} of {looked} items that were looked at lie on the line between two others, as "
            "records that were mixed do"
        )
    if copies >= max(_LEAST_FOUND, _COPIES * looked):
        yield (
            f"{copies} of {looked} items that were looked at are nearly another one, as copies "
            "with slight changes are"
        )


def _is_between(others: _D, one: _D, away: _Places, along: _D, reach: float) -> bool:
    """Whether an item (D,) lies between two of the others (N, D).

    Args:
        others: among which they are.
        away: (M,) places of those that are not copies of it.
        along: (M,) steps to these, each of length 1, projected on one direction.
        reach: how far two opposite steps may be from each other there.
    """
    order = np.argsort(along, kind="stable")
    first = np.searchsorted(along[order], -along - reach)
    last = np.searchsorted(along[order], -along + reach)
    for further in range(_SIMILAR):
        some = np.flatnonzero(last > first + further)[:_MOST_VIEWED]
        there = others[away[some]] - one
        back = others[away[order[first[some] + further]]] - one
        off = there / np.linalg.norm(there, axis=1, keepdims=True)
        off += back / np.linalg.norm(back, axis=1, keepdims=True)
        straight = np.linalg.norm(off, axis=1) <= 10 * _STRAIGHT
        if (straight & ((there != 0).sum(1) >= _DIFFERS)).any():
            return True
        if not len(some):
            break
    return False
