"""Records that need not be in memory.

A store gives the records of some positions, and what an agent holds is a list of its rows.

=================  ==============================  ====================================
Store              Where the records are           What is in memory
=================  ==============================  ====================================
`TensorStore`      in tensors                      all of them
`MappedStore`      in a .npy file, mapped          the labels, and a batch while it runs
`DatasetStore`     in a torch data set of yours    the labels, and a batch while it runs
=================  ==============================  ====================================

A batch is drawn by positions alone, so that who reads a store sees which records take part in a
round: a store belongs to the agent that it serves, as the records do.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.files import check_memory
from ...privacy.formats.tensor_archives import map_array
from ..device.precision import on_device

# Arrays of one's own, checked: inputs that are finite numbers, and labels or numbers to predict.


_ROWS = 1 << 16  # at once


def checked_inputs(value: object, what: str) -> Tensor:
    """(N, *shape) float32 on the host, a copy.

    Args:
        value: a NumPy array, a tensor, or what has `__array__`.
        what: its name, in a refusal.

    Raises:
        ValueError: it holds no numbers, an infinite one, or has no rows of one shape.

    >>> checked_inputs(np.array([[1, 2], [3, 4]]), "X").dtype
    torch.float32
    """
    found = _array(value, what)
    if found.ndim < 2 or found.dtype.kind not in "fiub":
        raise InputError(
            f"{what} has shape {found.shape} and type {found.dtype}; it must be (records, "
            "numbers of one record), of numbers"
        )
    with np.errstate(over="ignore"):
        single = np.array(found, dtype=np.float32, order="C")
    check_finite(single, what, was=found)
    return torch.from_numpy(single)


def check_finite(rows: NDArray[Any], what: str, *, was: NDArray[Any] | None = None) -> None:
    """Refuse what is no finite number of float32, by its place."""
    for start in range(0, len(rows), _ROWS):
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.asarray(rows[start : start + _ROWS], dtype=np.float32))
        if not finite.all():
            row, *rest = (int(i) for i in np.argwhere(~finite)[0])
            place = (start + row, *rest)
            value = (rows if was is None else was)[place]
            raise InputError(
                f"{what}[{', '.join(map(str, place))}]={value} must be a finite number of float32; "
                "fill in what is missing by a public value, or leave the record out"
            )


def checked_targets(
    value: object, what: str, *, rows: int, classes: int | None, outputs: int
) -> Tensor:
    """(N,) int64 labels; with outputs (N,) float32, or (N, outputs).

    Args:
        rows: N, how many there must be.
        classes: public number of classes; None where the labels tell it.
        outputs: numbers to predict of a record; 0 of labels.

    Raises:
        ValueError: a label is negative, too large or no whole number; a number is not finite; or
            there are more or fewer of them.

    >>> checked_targets([0, 2, 1], "y", rows=3, classes=3, outputs=0).tolist()
    [0, 2, 1]
    """
    found = _array(value, what)
    if found.shape[:1] != (rows,):
        raise InputError(
            f"{what} has shape {found.shape} for {rows} records; give each record one target"
        )
    if outputs:
        return _numbers(found, what, rows=rows, outputs=outputs)
    if found.dtype.kind == "f":
        odd = np.flatnonzero(found != np.round(found)) if found.ndim == 1 else np.zeros(0, int)
        row = int(odd[0]) if len(odd) else 0
        raise InputError(
            f"{what}[{row}]={found[row]} is of type {found.dtype} and labels are whole numbers; "
            "give integers, or set [data] outputs to predict numbers"
        )
    if found.ndim != 1 or found.dtype.kind not in "iub":
        raise InputError(
            f"{what} has shape {found.shape} and type {found.dtype}; labels must be ({rows},) "
            "whole numbers that count from 0"
        )
    _check_labels(found, what, classes=classes)
    return torch.from_numpy(found.astype(np.int64))


def _check_labels(found: NDArray[Any], what: str, *, classes: int | None) -> None:
    below = np.flatnonzero(found < 0) if found.dtype.kind == "i" else np.zeros(0, int)
    if len(below):
        row = int(below[0])
        raise InputError(f"{what}[{row}]={found[row]} is negative; labels count from 0")
    if len(found) and int(found.max()) > np.iinfo(np.int64).max:
        row = int(found.argmax())
        raise InputError(f"{what}[{row}]={found[row]} is too large for a label; count from 0")
    if classes is not None and len(above := np.flatnonzero(found >= classes)):
        row = int(above[0])
        raise InputError(
            f"{what}[{row}]={found[row]} must be at most {classes - 1}, as there are {classes} "
            "classes"
        )


def classes_of(labels: Tensor, what: str) -> int:
    """How many classes labels name: those from 0 to the largest, none left out.

    Raises:
        ValueError: a number in between is no record's label, or all have one label.

    >>> classes_of(torch.tensor([0, 2, 1]), "y")
    3
    """
    used = labels.unique()
    if len(used) != int(used[-1]) + 1:
        absent = next(i for i, label in enumerate(used.tolist()) if label != i)
        raise InputError(
            f"{what} goes to {int(used[-1])} and no record has label {absent}; number the labels "
            f"without a gap, or set [data] classes, a public number"
        )
    if len(used) == 1:
        raise InputError(
            f"{what} names one class only, {int(used[0])}; set [data] classes, a public number, "
            "or outputs to predict numbers"
        )
    return len(used)


def _numbers(found: NDArray[Any], what: str, *, rows: int, outputs: int) -> Tensor:
    if found.dtype.kind not in "fiub":
        raise InputError(f"{what} is of type {found.dtype}; give numbers to predict")
    if outputs == 1 and found.shape == (rows, 1):
        found = found[:, 0]
    shape = (rows,) if outputs == 1 else (rows, outputs)
    if found.shape != shape:
        raise InputError(f"{what} has shape {found.shape}; with outputs={outputs} give {shape}")
    with np.errstate(over="ignore"):
        single = np.array(found, dtype=np.float32, order="C")
    check_finite(single, what, was=found)
    return torch.from_numpy(single)


def _array(value: object, what: str) -> NDArray[Any]:
    if isinstance(value, Tensor):
        return np.asarray(value.detach().cpu().numpy())
    try:
        found = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{what} is no array: {error}") from error
    if found.dtype == object:
        try:
            return found.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} holds what is no number: {error}") from error
    return found


# Records in memory.
#
# Shape letters: B records; shape is that of one record.


class Examples(NamedTuple):
    """Inputs (B, *shape) and targets of one agent: (B,) labels, or (B,) or (B, K) numbers."""

    inputs: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        """B."""
        return len(self.targets)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.inputs.shape[1:])

    def take(self, positions: Tensor) -> Examples:
        """The records at positions (b,), copies."""
        return Examples(*(of.index_select(0, positions) for of in self))


_FEWEST_ALIKE = 8  # records; fewer may be alike by chance in a table of few values
_BLOCK = 4096  # records at once, where all are gone through
# What a read of one row can bring into memory: Linux maps 16 pages around the one that is asked.
_PER_ROW = 16 * mmap.PAGESIZE
_MOST_MAPPED = 32 << 20  # bytes of pages before they are let go


class Store(Protocol):
    """Records by position, and the labels of all of them."""

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        ...

    @property
    def targets(self) -> Tensor:
        """(N,) int64 labels, or (N,) or (N, K) float32 targets, in memory."""
        ...

    @property
    def size(self) -> int:
        """N, the number of records."""
        ...

    def take(self, positions: Tensor) -> Examples:
        """The records at positions (B,) in [0, N), float32 copies on the host."""
        ...


class Held(Store, Protocol):
    """What one agent holds: `Examples` in memory, or rows of a store."""

    @property
    def inputs(self) -> Tensor:
        """(n, *shape), all of them, in memory."""
        ...


class TensorStore:
    """Records in two tensors.

    Args:
        inputs: (N, *shape).
        targets: (N,) or (N, K).
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self.targets = inputs, targets

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self._inputs.shape[1:])

    @property
    def size(self) -> int:
        """N."""
        return len(self.targets)

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`."""
        return Examples(self._inputs[positions], self.targets[positions])


class MappedStore:
    """Records in a .npy file that is mapped read-only; pages are let go as batches are done.

    Args:
        path: (N, *shape) numbers; those of a batch become float32.
        targets: (N,) or (N, K), in memory.

    Raises:
        ValueError: the file is no such array, or holds another number of records than targets.
    """

    def __init__(self, path: Path, targets: Tensor) -> None:
        self.path, self.targets = path, targets
        self._rows = map_array(path)
        self._touched = 0
        if len(self._rows) != len(targets):
            raise InputError(
                f"{path} holds {len(self._rows)} records and there are {len(targets)} targets; "
                "give each record one"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the file anew."""
        return MappedStore, (self.path, self.targets)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self._rows.shape[1:]

    @property
    def size(self) -> int:
        """N."""
        return len(self._rows)

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`."""
        found = self._rows[positions.numpy()]  # a copy
        rows = torch.from_numpy(np.asarray(found, dtype=np.float32, order="C"))
        self._touched += len(positions) * max(_PER_ROW, rows[:1].nbytes)
        if self._touched >= _MOST_MAPPED:
            self._let_go()
        return Examples(rows, self.targets[positions])

    def _let_go(self) -> None:
        """Take the pages out of this process; the system keeps what it has room for."""
        self._touched = 0
        held = self._rows.base
        while held is not None and not isinstance(held, mmap.mmap):
            held = getattr(held, "base", None) if isinstance(held, np.ndarray) else held.obj
        if isinstance(held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            held.madvise(mmap.MADV_DONTNEED)


class Shard:
    """The rows of a store that one agent holds.

    Args:
        rows: (n,) int64 positions in it.
    """

    def __init__(self, store: Store, rows: Tensor) -> None:
        self.store, self.rows = store, rows

    @property
    def in_memory(self) -> bool:
        """Whether the store holds all of its records in memory."""
        return isinstance(self.store, TensorStore)

    @property
    def size(self) -> int:
        """How many records."""
        return len(self.rows)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.store.record_shape

    @property
    def targets(self) -> Tensor:
        """(n,) or (n, K), a copy."""
        return self.store.targets[self.rows]

    @property
    def inputs(self) -> Tensor:
        """(n, *shape), all of them: a copy in memory.

        Raises:
            ValueError: they are more than the memory that is free.
        """
        _check_room(self)
        return torch.cat([block.inputs for block in blocks(self)])

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`."""
        return self.store.take(self.rows[positions])

    def all(self) -> Examples:
        """All of them, in memory; refused as `inputs` is."""
        return Examples(self.inputs, self.targets)


class Followed:
    """What an agent holds, and some records in memory behind it.

    Args:
        more: what follows; of the same shape.
    """

    def __init__(self, first: Held, more: Examples) -> None:
        self._first, self._more = first, more

    @property
    def size(self) -> int:
        """How many records."""
        return self._first.size + self._more.size

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self._first.record_shape

    @property
    def targets(self) -> Tensor:
        """All targets."""
        return torch.cat([self._first.targets, self._more.targets])

    @property
    def inputs(self) -> Tensor:
        """All inputs, a copy in memory."""
        return torch.cat([self._first.inputs, self._more.inputs])

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`; the records of the first come first where positions ascend."""
        behind = positions >= self._first.size
        parts = (
            self._first.take(positions[~behind]),
            self._more.take(positions[behind] - self._first.size),
        )
        order = torch.cat([(~behind).nonzero()[:, 0], behind.nonzero()[:, 0]]).argsort()
        inputs, targets = (torch.cat(both)[order] for both in zip(*parts, strict=True))
        return Examples(inputs, targets)


class SideBySide:
    """Records of many agents in one tensor on a device, so that batches of all are one gather.

    Args:
        shards: by agent, all in memory, on one device, of one shape and type.

    Attributes:
        shards: the same, as parts of that tensor.
    """

    def __init__(self, shards: Mapping[int, Examples]) -> None:
        inputs, targets = zip(*shards.values(), strict=True)
        self._every = Examples(torch.cat(inputs).detach(), torch.cat(targets).detach())
        sizes = [shard.size for shard in shards.values()]
        parts = zip(*(of.split(sizes) for of in self._every), strict=True)
        self.shards = dict(zip(shards, map(Examples._make, parts), strict=True))
        starts = accumulate(sizes[:-1], initial=0)
        self._lies = dict(zip(shards, zip(starts, sizes, strict=True), strict=True))

    @staticmethod
    def of(shards: Mapping[int, Held], device: torch.device) -> SideBySide | None:
        """Of those that lie on a device; None where they do not, or are not alike."""
        held = {a: s for a, s in shards.items() if isinstance(s, Examples)}
        kinds = {tuple((of.shape[1:], of.dtype) for of in shard) for shard in held.values()}
        return SideBySide(held) if device.type != "cpu" and len(kinds) == 1 else None

    def take(self, where: Mapping[int, Tensor]) -> dict[int, Examples]:
        """The records at positions (b,) on the host, by agent: copies.

        Raises:
            ValueError: a position at which an agent holds no record.
        """
        if not where:
            return {}
        counts = [len(at) for at in where.values()]
        starts, sizes = np.repeat([self._lies[a] for a in where], counts, axis=0).T
        at = torch.cat(list(where.values())).numpy()
        if ((at < 0) | (at >= sizes)).any():
            raise InputError("a batch has a position at which its agent holds no record")
        index = on_device(torch.from_numpy(at + starts), self._every.targets.device)
        parts = (of.index_select(0, index).split(counts) for of in self._every)
        return dict(zip(where, map(Examples._make, zip(*parts, strict=True)), strict=True))


def followed_by(held: Held, more: Examples) -> Held:
    """An agent's records with some more behind them; nothing that is not in memory is read."""
    if isinstance(held, Examples):
        return Examples(
            torch.cat([held.inputs, more.inputs.to(held.inputs)]),
            torch.cat([held.targets, more.targets.to(held.targets)]),
        )
    return Followed(held, Examples(more.inputs.cpu(), more.targets.cpu()))


def moved(examples: Examples, device: torch.device, dtype: torch.dtype) -> Examples:
    """Examples on a device; their numbers in a precision, inputs that are indices as they are."""
    kind = dtype if examples.inputs.is_floating_point() else None
    return Examples(examples.inputs.to(device, kind), examples.targets.to(device))


def placed(held: Held, device: torch.device, dtype: torch.dtype) -> Held:
    """What an agent holds where batches are taken of it: on a device if it is in memory anyway.

    Of a store whose records are elsewhere nothing is read but batches.
    """
    if isinstance(held, Shard) and held.in_memory and device.type != "cpu":
        held = held.all()
    return moved(held, device, dtype) if isinstance(held, Examples) else held


def blocks(records: Store, *, size: int = _BLOCK) -> Iterator[Examples]:
    """All records in their order, some thousand at a time; at least one block, perhaps empty."""
    for start in range(0, max(records.size, 1), size):
        yield records.take(torch.arange(start, min(start + size, records.size)))


def _check_room(shard: Shard) -> None:
    numbers = shard.size * int(np.prod(shard.record_shape, dtype=np.int64))
    if not shard.in_memory:
        check_memory(
            f"all {shard.size} records of an agent at once, which this asks for,",
            4 * numbers,
            "give the agents fewer records",
        )


def check_copies(shards: Sequence[Held]) -> None:
    """Refuse agents that are given the same records as a whole, as far as they are in memory.

    Args:
        shards: of each agent.

    Raises:
        ValueError: with the first two agents that hold the same.

    >>> shard = Examples(torch.arange(18.0).reshape(9, 2), torch.zeros(9))
    >>> check_copies([shard, shard])
    Traceback (most recent call last):
    overhear...InputError: agents 0 and 1 hold the same 9 records, and the plan is of agents that...
    """
    firsts: dict[tuple[int, bytes], int] = {}
    for agent, shard in enumerate(shards):
        if not isinstance(shard, Examples) or shard.size < _FEWEST_ALIKE:
            continue
        key = (shard.size, shard.inputs[0].detach().cpu().numpy().tobytes())
        other = firsts.setdefault(key, agent)
        if other == agent:
            continue
        held = shards[other]
        alike = torch.equal(held.inputs, shard.inputs) and torch.equal(held.targets, shard.targets)
        if alike:
            raise InputError(
                f"agents {other} and {agent} hold the same {shard.size} records, and the plan is "
                "of agents that share none: give each record to one agent, or state a person at "
                f"several by holders=[{other}, {agent}]"
            )


# Digests of records, which are compared and never published.

_BYTES = 32  # of a SHA-256


def digests_of(records: Store, *, targets: bool = True) -> NDArray[np.bytes_]:
    """(N,) SHA-256 of each record in their order, by default with its target; 32 bytes a record."""
    found = np.empty(records.size, dtype=f"S{_BYTES}")
    for place, one in enumerate(_each(records, targets=targets)):
        found[place] = one
    return found


def _each(records: Store, *, targets: bool) -> Iterator[bytes]:
    for block in blocks(records):
        inputs = block.inputs.detach().cpu().contiguous()
        shape = f"{inputs.dtype} {tuple(inputs.shape[1:])} ".encode()
        for row, target in zip(inputs.numpy(), block.targets.cpu().tolist(), strict=True):
            label = f"{target} ".encode() if targets else b""
            yield hashlib.sha256(shape + label + row.tobytes()).digest()


def digest_of_records(shards: Sequence[Held]) -> tuple[str, str]:
    """SHA-256 of all records, in whatever order and wherever they are, and of who holds which.

    Args:
        shards: the records of each agent, normalised.

    Returns:
        Of the records; and of the records of each agent, in the order of the agents.
    """
    every = np.empty(sum(shard.size for shard in shards), dtype=f"S{_BYTES}")
    held, start = hashlib.sha256(), 0
    for shard in shards:
        mine = every[start : start + shard.size]
        mine[:] = digests_of(shard)
        mine.sort()
        held.update(hashlib.sha256(mine.view(np.uint8).data).digest())
        start += shard.size
    every.sort()
    return hashlib.sha256(every.view(np.uint8).data).hexdigest(), held.hexdigest()
