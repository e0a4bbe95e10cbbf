"""A data function of the user, called with one record left out: what becomes of the other items.

A figure is of one item, and says of one record what it says only where the item is made of that
record alone. A function that takes ``leave_out`` can show it::

    def houses(leave_out=None):
        rows = read()
        if leave_out is not None:
            del rows[leave_out]
        return X(rows), y(rows)

It is called with record i left out and with record i + 1 left out. Both calls have equally many
records, so a shuffle or a split by number, and the rounding of a product of so many rows, are the
same in both; items may then differ in one place, where record i + 1 stands in one of them and
record i in the other. Whatever else differs was computed from several records, or one record is in
several items.

It is the promise of an author and no proof: a function that forgets to leave the record out of a
mean shows nothing, and records that were not left out may matter.
"""

from __future__ import annotations

import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...privacy.errors import InputError, describe, line_of
from .load import Dataset
from .own_data import LEAVE_OUT, own_function, stores_of
from .store import Store, TensorStore, blocks, digests_of

_MOST_PAIRS = 12  # of records that are left out after each other
_SECONDS = 60.0  # after which no further pair is begun
_SLOW = 3.0  # seconds of a call of which is told
_CLASSES = 4  # of which a record is left out
_EXTREME = 3  # records that are the largest or smallest in most numbers
_MOST_NUMBERS = 1 << 26  # of all inputs, where extremes are looked for


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
    if isinstance(store, TensorStore) and numbers <= _MOST_NUMBERS:
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
