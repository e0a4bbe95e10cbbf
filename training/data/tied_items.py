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
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...privacy.errors import InputError, describe, line_of
from .load import Dataset
from .own_data import LEAVE_OUT, own_function, stores_of
from .store import Store, TensorStore, blocks, digests_of

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


# A data function of the user, called with one record left out: what becomes of the other items.
#
# A figure is of one item, and says of one record what it says only where the item is made of that
# record alone. A function that takes ``leave_out`` can show it::
#
# def houses(leave_out=None):
#          rows = read()
#          if leave_out is not None:
#              del rows[leave_out]
#          return X(rows), y(rows)
#
# It is called with record i left out and with record i + 1 left out. Both calls have equally many
# records, so a shuffle or a split by number, and the rounding of a product of so many rows, are the
# same in both; items may then differ in one place, where record i + 1 stands in one of them and
# record i in the other. Whatever else differs was computed from several records, or one record is
# in several items.
#
# It is the promise of an author and no proof: a function that forgets to leave the record out of a
# mean shows nothing, and records that were not left out may matter.

_MOST_PAIRS = 12  # of records that are left out after each other
_SECONDS = 60.0  # after which no further pair is begun
_SLOW = 3.0  # seconds of a call of which is told
_CLASSES = 4  # of which a record is left out
_EXTREME = 3  # records that are the largest or smallest in most numbers
_MOST_CALLED = 1 << 26  # of all inputs, where extremes are looked for


@dataclass(frozen=True, slots=True)
class _Items:
    """What one call gave.

    Attributes:
        trained: the stores whose items are trained on, or held out of those by number; () where
            they are not kept.
        keys: what tells each of their items from others.
        users: (N,) of each item, None where nobody says.
        every: how many items there are, those to test with among them.
    """

    trained: Sequence[Store]
    keys: list[bytes]
    users: torch.Tensor | None
    every: int

    def without_values(self) -> _Items:
        """The same without what takes as much memory as the data."""
        return replace(self, trained=())


def leave_out(
    name: str,
    options: dict[str, Any],
    *,
    classes: int | None = None,
    outputs: int = 0,
    most: int = 1,
    clock: Callable[[], float] = time.monotonic,
    notice: Callable[[str], None] | None = None,
) -> int:
    """Call a data function with records left out, and refuse what is not of one record each.

    Args:
        name: of the function, as in the run file.
        options: its own arguments.
        classes: public number of classes.
        outputs: numbers to predict of a record, 0 of labels.
        most: how many items one unit of the figures has: 1 of a record, the cap of a user.
        clock: seconds; after a minute of it no further records are left out.
        notice: told for how long a slow function is called.

    Returns:
        How many different records were left out, each with the others' items as they were; 0 where
        the function takes no ``leave_out``.

    Raises:
        ValueError: other items change, a record is in more items than that, nothing is left out,
            or the function fails or gives something else when it is called again.
    """
    function = own_function(name)
    if function is None:
        return 0

    def call(at: int | None) -> _Items:
        try:
            given = function(**options, **({} if at is None else {LEAVE_OUT: at}))
        except (Exception, SystemExit) as error:  # the user's own code
            where = "" if at is None else f" with {LEAVE_OUT}={at}"
            few = (
                f"; there are {len(base.keys)} items, so if each is one record there is it"
                if at
                else ""
            )
            raise InputError(
                f"[data] name={name!r}: calling it{where} raised "
                f"{describe(error)}{line_of(error)}{few}"
            ) from error
        return _items(given, name=name, classes=classes, outputs=outputs)

    # The items of all records, and the time that a call takes.
    asked = clock()
    base = call(None)
    begun, calls = clock(), dict[int, _Items]()
    if notice is not None and (one := begun - asked) > _SLOW:
        pairs = min(_MOST_PAIRS, math.ceil(_SECONDS / (2 * one)))
        notice(
            f"Calling {name!r} with records left out, for about {(2 * pairs + 1) * one:.0f} seconds"
        )
    # Two records in a row are left out, one at a time, and differ from each other by both.
    records = max(2, -(-len(base.keys) // most))
    places, base = list(_places(base, records)), base.without_values()
    left = set[int]()
    for first in places:
        if calls and clock() - begun > _SECONDS:
            break
        kept = {at: calls[at] for at in (first, first + 1) if at in calls}
        calls = {at: kept.get(at) or call(at).without_values() for at in (first, first + 1)}
        _check_pair(base, calls, call, name=name, most=most)
        left |= {at for at in calls if calls[at].every < base.every}
    # A function that gives something else when it is asked again shows nothing of records.
    if call(None).keys != base.keys:
        raise _unsteady(name)
    if not left:
        raise InputError(
            f"[data] name={name!r}: {LEAVE_OUT} leaves nothing out: there are {base.every} items "
            f"with it and without; leave the record of that number out before anything is computed "
            f"from it, or take no {LEAVE_OUT}"
        )
    return len(left)


def _items(given: object, *, name: str, classes: int | None, outputs: int) -> _Items:
    stores = stores_of(given, name=name, classes=classes, outputs=outputs)
    held = isinstance(given, Dataset) and given.held_out
    trained = stores if held else stores[:1]
    keys = [key for store in trained for key in digests_of(store).tolist()]
    users = None
    if isinstance(given, Dataset) and not held:
        users = given.users
        if given.held_by is not None:  # another agent's is another item
            at = given.held_by.tolist()
            keys = [b"%d %b" % (agent, key) for agent, key in zip(at, keys, strict=True)]
    return _Items(trained, keys, users, sum(store.size for store in stores))


def _check_pair(
    base: _Items,
    calls: dict[int, _Items],
    call: Callable[[int | None], _Items],
    *,
    name: str,
    most: int,
) -> None:
    (i, one), (j, other) = calls.items()
    gone = max(base.every - min(one.every, other.every), 0)
    a, b = Counter(one.keys), Counter(other.keys)
    of_j, of_i = a - b, b - a  # an item that only one call has is of the record that it kept
    changed = max(of_j.total(), of_i.total())
    # Of a record in several items none may be made anew when it leaves: it would count twice.
    anew = changed > 1 and bool((of_i + of_j) - Counter(base.keys))
    theirs = _one_user(base, of_i) and _one_user(base, of_j)
    if changed <= most and gone <= most and theirs and not anew:
        return
    again = call(i)
    if again.keys != one.keys:
        raise _unsteady(name)
    said = f"[data] name={name!r}: between record {i} left out and record {j} left out"
    may = "1 item" if most == 1 else f"{most} items of one user"
    if gone > 1 and changed <= gone and not anew:
        at = i if one.every <= other.every else j
        raise InputError(
            f"[data] name={name!r}: with record {at} left out {gone} items are gone, where {may} "
            "may be: a record is in several of them, and each would be protected for itself "
            "alone; make one item of a record, or give their users by "
            "overhear.training.Dataset(users=...) and state unit = 'user' in [privacy] with "
            f"records_per_person = {max(gone, most)} or more"
        )
    raise InputError(
        f"{said} {changed} items differ{_where(again, call(j), changed)}, where {may} may: an item "
        "must be made of one record alone, or its figure says nothing of the others in it; scale, "
        "fill in and choose by public constants, and put nothing of one record into another's item"
    )


def _one_user(base: _Items, keys: Counter[bytes]) -> bool:
    """Whether some items are known to be of one user, and so to be dealt to one agent."""
    if keys.total() < 2 or base.users is None:
        return keys.total() < 2
    places = [at for at, key in enumerate(base.keys) if key in keys]
    return len(places) < 2 or len(base.users[places].unique()) == 1


def _where(one: _Items, other: _Items, changed: int) -> str:
    """In which numbers of a record the items of two calls differ, and by how much."""
    first, second = one.trained[0], other.trained[0]
    if sum(map(operator.ne, one.keys, other.keys)) > changed:  # the items stand in another order
        return ""
    if first.record_shape != second.record_shape:
        return f", in shape: {first.record_shape} and {second.record_shape}"
    if len(one.trained) > 1 or first.size != second.size:
        return ""
    apart = None
    for a, b in zip(blocks(first), blocks(second), strict=True):
        off = (a.inputs - b.inputs).abs().flatten(1)
        # The largest but one: the record in whose place the other stands differs, too.
        most = off.topk(min(2, len(off)), dim=0).values
        apart = most if apart is None else torch.cat([apart, most])
    if apart is None or len(apart) < 2:
        return ""
    second_most = apart.topk(2, dim=0).values[1]
    count, by = int((second_most > 0).sum()), float(second_most.max())
    return f" in {count} of {len(second_most)} numbers, by up to {by:.3g}" if count else ""


def _unsteady(name: str) -> InputError:
    return InputError(
        f"[data] name={name!r} gives other items when it is called again, so nothing can be shown "
        "by leaving records out; seed what it draws, and change nothing that it reads"
    )


def _places(base: _Items, records: int) -> Iterator[int]:
    """The first of each pair of records that is left out, the most telling ones first."""
    found = dict[int, None]()
    for at in _told_apart(base):
        found[min(at, records - 2)] = None
    for at in (0, records - 2, *np.linspace(0, records - 2, _MOST_PAIRS).astype(int).tolist()):
        found[at] = None
    yield from list(found)[:_MOST_PAIRS]


def _told_apart(base: _Items) -> Iterator[int]:
    """Ends, copies, records of rare classes, and those of extreme numbers, by their place.

    An item's place tells its record's where the function keeps the order.
    """
    yield 0
    seen = dict[bytes, int]()
    copies = (seen[key] for at, key in enumerate(base.keys) if seen.setdefault(key, at) < at)
    yield from (at for at, _ in zip(copies, range(1), strict=False))
    store = base.trained[0]
    if not store.targets.is_floating_point():
        labels, counts = store.targets.unique(return_counts=True)
        for label in labels[counts.argsort()][:_CLASSES].tolist():
            yield int((store.targets == label).nonzero()[0])
    numbers = store.size * int(np.prod(store.record_shape, dtype=np.int64))
    if isinstance(store, TensorStore) and numbers <= _MOST_CALLED:
        inputs = store.take(torch.arange(store.size)).inputs.flatten(1)
        # One scale of all numbers, and columns that one record alone needs, as a length.
        yield from (int(end) // inputs.shape[1] for end in (inputs.argmax(), inputs.argmin()))
        there = inputs != 0
        yield from there[:, there.sum(0) == 1].byte().argmax(0)[-1:].tolist()
        # Another record with the same end stands in for one that leaves, so nothing would change.
        low, high = inputs == inputs.amin(0), inputs == inputs.amax(0)
        ends = [end.int().argmax(0)[end.sum(0) == 1] for end in (low, high)]
        yield from (at for at, _ in Counter(torch.cat(ends).tolist()).most_common(_EXTREME))
    yield len(base.keys) - 1
