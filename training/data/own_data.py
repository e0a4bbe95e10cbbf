"""Data of one's own: what a function of the user returns, as a data set.

=======================================================  ===========================================
Value                                                    Becomes
=======================================================  ===========================================
``(X, y)`` or ``(X, y, X_test, y_test)``                 tensors in memory
a torch data set with a length, or a pair train, test    a store that asks for a batch's records
`overhear.training.Dataset`                              itself
=======================================================  ===========================================

Nothing is normalised: a mean of private records would be a release. Inputs become float32 as they
are, so scale them by public constants. Without a test part of its own a set gives up a fifth of its
records, the same ones every time; of records that are not in memory at most 10,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError, InputTypeError, describe, line_of
from ...privacy.formats.tensor_archives import PackedArrays, map_array, read_array
from ..own.names import own_object
from .load import Dataset
from .partition import hold_out_users
from .store import (
    Examples,
    MappedStore,
    Shard,
    Store,
    TensorStore,
    check_finite,
    checked_inputs,
    checked_targets,
    classes_of,
)

# A torch data set of one's own as a store: its records are asked for when a batch needs them.

_ASKED_TWICE = 8  # records
_SHOWN = 60  # characters of a value that a refusal repeats


class DatasetStore:
    """Records of a map-style data set, whose items are pairs (inputs, target).

    All records are asked for once, for their targets and to be checked. A transform that draws at
    random would give a record another gradient each time; the bound on it would hold, but no check
    of the messages could be made, so such a data set is refused.

    Args:
        records: with `len` and items of one shape.
        name: what reports call the set.
        regression: whether targets are numbers; else they are labels.

    Raises:
        ValueError: an item is no such pair, holds what is no finite number, differs in shape, or
            comes out otherwise when it is asked for again.

    >>> from torch.utils.data import TensorDataset
    >>> store = DatasetStore(TensorDataset(torch.eye(3), torch.tensor([0, 1, 1])), name="mine")
    >>> store.size, store.take(torch.tensor([2])).inputs.tolist()
    (3, [[0.0, 0.0, 1.0]])
    """

    def __init__(self, records: Any, *, name: str, regression: bool = False) -> None:
        self._records, self._name, self._regression = records, name, regression
        self._shape: tuple[int, ...] | None = None
        try:
            self._size = len(records)
        except (TypeError, NotImplementedError) as error:
            raise InputError(
                f"{name!r} gives a data set without a length ({error}); give a map-style one, "
                "which has __len__ and __getitem__: every record needs a known place"
            ) from error
        except (Exception, SystemExit) as error:  # the user's own code
            raise InputError(f"{name!r}: its length cannot be had: {describe(error)}") from error
        if not self._size:
            raise InputError(f"{name!r} gives a data set without records")
        targets = []
        for position in range(self._size):
            inputs, target = self._item(position)
            if self._shape is None:
                self._shape = tuple(inputs.shape)
            targets.append(target)
        self.targets = torch.stack(targets)
        self._ask_twice()

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self._shape or ()

    @property
    def size(self) -> int:
        """N."""
        return self._size

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`.

        Raises:
            ValueError: a record has another target than before.
        """
        targets = self.targets[positions]
        if not len(positions):
            return Examples(torch.zeros(0, *self.record_shape), targets)
        items = [self._item(position) for position in positions.tolist()]
        found = torch.stack([target for _, target in items])
        if not torch.equal(found, targets):
            at = int((found != targets).reshape(len(found), -1).any(1).nonzero()[0])
            raise self._changed(int(positions[at]))
        return Examples(torch.stack([inputs for inputs, _ in items]), found)

    def _item(self, position: int) -> tuple[Tensor, Tensor]:
        place = f"{self._name!r}: item {position}"
        try:
            item = self._records[position]
        except (Exception, SystemExit) as error:  # the user's own code
            raise InputError(f"{place} cannot be had: {describe(error)}") from error
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
            raise InputError(
                f"{place} is {_shown(item)}; it must be a pair, the inputs and the target of a "
                "record"
            )
        inputs = _numbers(item[0], f"{place}: its inputs")
        if self._shape is not None and tuple(inputs.shape) != self._shape:
            raise InputError(
                f"{place} has shape {tuple(inputs.shape)} and item 0 {self._shape}; give all "
                "records one shape, by a transform that crops or pads"
            )
        return inputs, self._target(item[1], place)

    def _target(self, value: object, place: str) -> Tensor:
        if self._regression:
            return _numbers(value, f"{place}: its target")
        found = np.asarray(value)
        if found.dtype.kind not in "iub" or found.ndim:
            raise InputError(
                f"{place}: its target is {_shown(value)}; a label is one whole number; of numbers "
                "to predict give outputs"
            )
        return torch.tensor(int(found), dtype=torch.int64)

    def _ask_twice(self) -> None:
        places = np.unique(np.linspace(0, self._size - 1, _ASKED_TWICE).astype(int)).tolist()
        for position in places:
            (one, first), (other, second) = self._item(position), self._item(position)
            if not torch.equal(one, other) or not torch.equal(first, second):
                raise self._changed(position)

    def _changed(self, position: int) -> InputError:
        return InputError(
            f"{self._name!r}: item {position} comes out otherwise when it is read again; "
            "leave out random transforms: what a record sends could not be checked"
        )


def _numbers(value: object, what: str) -> Tensor:
    """A value as float32, a copy."""
    if not isinstance(value, (Tensor, np.ndarray, np.generic, int, float, list, tuple)):
        raise InputError(
            f"{what} are of {type(value).__name__}; give a tensor or an array, by a transform"
        )
    if isinstance(value, Tensor):
        try:
            value = value.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:  # sparse, or of a type that numpy lacks
            raise InputError(f"{what} are no plain tensor: {describe(error)}") from error
    found = np.asarray(value)
    if found.dtype.kind not in "fiub":
        raise InputError(f"{what} are {_shown(value)}, of type {found.dtype}; give numbers")
    with np.errstate(over="ignore"):
        single = np.array(found, dtype=np.float32)
    if not np.isfinite(single).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(single))[0])
        raise InputError(
            f"{what} hold {found[where]} at {list(where)}; give finite numbers of float32"
        )
    return torch.from_numpy(single)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


LEAVE_OUT = "leave_out"  # the argument by which a function leaves one of its records out

_SPLIT_SEED = 20_000
_MOST_HELD_OUT = 10_000  # records that are brought into memory to test with
_FORMS = (
    "arrays (X, y) or (X, y, X_test, y_test), a torch data set with a length or a pair of them, or "
    "an overhear.training.Dataset"
)


def own_dataset(
    name: str, options: dict[str, Any], *, classes: int | None = None, outputs: int = 0
) -> Dataset:
    """The data set that "module:NAME" of a run file stands for.

    Args:
        name: of a function, which is called with the options, or of a data set.
        options: keys of [data] that are the function's own.
        classes: public number of classes.
        outputs: numbers to predict of a record, 0 of labels.

    Raises:
        ValueError: there is no such name, the function does not take these options or fails, or
            what it returns is refused by `dataset_of`.
    """
    found = own_object(name, key="[data] name")
    if callable(found) and not isinstance(found, Dataset):
        _check_options(found, name, options)
        try:
            found = found(**options)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code
            raise InputError(
                f"[data] name={name!r}: calling it raised {describe(error)}{line_of(error)}"
            ) from error
    elif options:
        raise InputError(
            f"[data] {next(iter(options))} is unknown, and {name!r} is no function that could take "
            "it; leave it out"
        )
    return dataset_of(found, name=name, classes=classes, outputs=outputs)


def own_function(name: str) -> Callable[..., Any] | None:
    """The function that "module:NAME" stands for, if it can leave a record out; else None.

    Args:
        name: of a function that was found before.
    """
    found = own_object(name, key="[data] name")
    if not callable(found) or isinstance(found, Dataset):
        return None
    try:
        taken = signature(found).parameters
    except (TypeError, ValueError):  # of built-in functions
        return None
    return found if LEAVE_OUT in taken and taken[LEAVE_OUT].default is None else None


def _check_options(function: Any, name: str, options: dict[str, Any]) -> None:
    try:
        taken = signature(function).parameters
    except (TypeError, ValueError):  # of built-in functions
        return
    if any(one.kind is Parameter.VAR_KEYWORD for one in taken.values()):
        return
    named = {
        key: one
        for key, one in taken.items()
        if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    for key in options:
        if key not in named:
            known = ", ".join(named) or "nothing"
            raise InputError(f"[data] {key} is unknown, and {name!r} takes {known}; leave it out")
        if key == LEAVE_OUT and named[key].default is None:
            raise InputError(
                f"[data] {key} is given when it is checked that items are of one record each, and "
                "training is on all; leave it out, or call it otherwise in your function"
            )
    for key, one in named.items():
        if one.default is Parameter.empty and key not in options:
            raise InputError(f"[data] {key} is missing; {name!r} needs it")


def dataset_of(
    value: object, *, name: str, classes: int | None = None, outputs: int = 0
) -> Dataset:
    """A data set from whatever form the records have.

    Args:
        value: arrays, torch data sets or a `Dataset`; see the table at the head of this module.
        name: what reports call it.
        classes: public number of classes. Without it the labels tell it, which `Dataset.notes`
            says: a record that is the only one of the last class would show by it.
        outputs: numbers to predict of a record, 0 of labels.

    Raises:
        ValueError: what is no such value, or what no model can be trained on.

    >>> X, y = np.eye(10), np.arange(10) % 2
    >>> data = dataset_of((X, y), name="mine")
    >>> tuple(data.inputs.shape), data.classes
    ((8, 10), 2)
    >>> data.notes
    ("the number of classes of 'mine', 2, is taken from its labels and counted as public",)
    """
    if outputs and classes:
        raise InputError(f"classes={classes} and outputs={outputs}: give one of them")
    if isinstance(value, Dataset):
        return _agreeing(value, classes=classes, outputs=outputs)
    stores = stores_of(value, name=name, classes=classes, outputs=outputs)
    test = stores[1] if len(stores) > 1 else None
    return dataset_of_stores(stores[0], test, name=name, classes=classes, outputs=outputs)


def stores_of(
    value: object, *, name: str, classes: int | None = None, outputs: int = 0
) -> list[Store]:
    """The records of such a value, and those to test with where it has any.

    Args:
        value: as for `dataset_of`.

    Raises:
        ValueError: what is no such value, or holds what is no number or label.
    """
    if isinstance(value, Dataset):
        kept = [] if value.validation is None else [TensorStore(*value.validation)]
        return [value.train, TensorStore(value.test_inputs, value.test_targets), *kept]
    parts: list[object] = list(value) if isinstance(value, (tuple, list)) else [value]
    if len(parts) in (1, 2) and all(_is_torch(part) for part in parts):
        return [DatasetStore(part, name=name, regression=bool(outputs)) for part in parts]
    if isinstance(value, (tuple, list)) and len(parts) in (2, 4):
        return _of_arrays(parts, name=name, classes=classes, outputs=outputs)
    found = type(value).__name__
    found += f" of {len(parts)}" if isinstance(value, (tuple, list)) else ""
    raise InputTypeError(f"{name!r} gives a {found}; it must give {_FORMS}")


def _is_torch(value: object) -> bool:
    """Whether a value gives records by position and has a length, and is no array."""
    if isinstance(value, (Tensor, list, tuple, str, dict)) or hasattr(value, "__array__"):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _of_arrays(parts: list[object], *, name: str, classes: int | None, outputs: int) -> list[Store]:
    stores = list[Store]()
    for suffix, inputs, targets in zip(("", "_test"), parts[::2], parts[1::2], strict=False):
        x = checked_inputs(inputs, f"{name!r}: X{suffix}")
        y = checked_targets(
            targets, f"{name!r}: y{suffix}", rows=len(x), classes=classes, outputs=outputs
        )
        stores.append(TensorStore(x, y))
    return stores


def _agreeing(data: Dataset, *, classes: int | None, outputs: int) -> Dataset:
    if classes is not None and classes != data.classes:
        raise InputError(
            f"[data] classes={classes}, and the data set {data.name!r} has {data.classes}; leave "
            "it out"
        )
    if outputs != data.outputs:
        raise InputError(
            f"[data] outputs={outputs}, and the data set {data.name!r} has {data.outputs}; set it "
            "to that"
        )
    return data


def dataset_of_stores(
    train: Store,
    test: Store | None,
    *,
    name: str,
    classes: int | None = None,
    outputs: int = 0,
    users: NDArray[np.int64] | None = None,
) -> Dataset:
    """A data set whose records are in stores; those to test with are brought into memory.

    Args:
        train: the training records, or all of them.
        test: those to test with; by default a fifth of the others.
        classes: public number of classes; None where the labels tell it.
        users: (N,) number of the user of each record of `train`; one who is tested with is not
            trained on.

    Raises:
        ValueError: labels that are no such classes, or too few records or users.
    """
    # Records to test with, of which none is trained on, and no user's where these are known.
    held_out = test is None
    if test is None:
        chosen = _held_out(name, train, users)
        left = np.setdiff1d(np.arange(train.size), chosen)
        test, train = (Shard(train, torch.from_numpy(part)) for part in (chosen, left))
        users = None if users is None else users[left]
    elif test.record_shape != train.record_shape:
        raise InputError(
            f"{name!r}: test records have shape {test.record_shape} and training records "
            f"{train.record_shape}; they must be equal"
        )
    # Labels are checked; their number counts as public where nobody declares it.
    notes: tuple[str, ...] = ()
    if not outputs:
        for part, what in ((train, "y"), (test, "y_test")):
            checked_targets(
                part.targets, f"{name!r}: {what}", rows=part.size, classes=classes, outputs=0
            )
        if classes is None:
            classes = classes_of(torch.cat([train.targets, test.targets]), f"{name!r}: y")
            notes = (
                f"the number of classes of {name!r}, {classes}, is taken from its labels and "
                "counted as public",
            )
    # Test records come into memory; training records do where their store is in memory.
    tested = test.take(torch.arange(test.size))
    in_memory = train.take(torch.arange(train.size)) if _in_memory(train) else None
    return Dataset(
        name=name,
        inputs=torch.empty(train.size, *train.record_shape, device="meta")
        if in_memory is None
        else in_memory.inputs,
        targets=train.targets if in_memory is None else in_memory.targets,
        test_inputs=tested.inputs,
        test_targets=tested.targets,
        classes=classes or 0,
        outputs=outputs,
        mean=(0.0,),
        std=(1.0,),
        image=False,
        store=train if in_memory is None else None,
        users=None if users is None else torch.from_numpy(users),
        notes=notes,
        held_out=held_out,
    )


def _in_memory(store: Store) -> bool:
    return isinstance(store, TensorStore) or (isinstance(store, Shard) and store.in_memory)


def _held_out(name: str, records: Store, users: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """A fifth of the records, chosen by their number, or by their user, alone."""
    if records.size < 5:
        raise InputError(
            f"{name!r} holds {records.size} records, too few to hold a fifth out for testing"
        )
    count = records.size // 5
    if not _in_memory(records):
        count = min(count, _MOST_HELD_OUT)
    draw = np.random.default_rng(_SPLIT_SEED)
    if users is not None:
        return hold_out_users(users, count, generator=draw)
    return np.sort(draw.permutation(records.size)[:count])


# Files of NumPy arrays as data sets: ``npz``, in memory, and ``npy``, mapped.
#
#     npz    X and y, or X_test and y_test beside them    all records are in memory
#     npy    X.npy, and another one for the labels        the labels are, and a batch while it runs

_TRAIN, _TEST = ("X", "y"), ("X_test", "y_test")


def read_npz(path: Path, *, classes: int | None = None, outputs: int = 0) -> Dataset:
    """The arrays X and y of a file, and X_test and y_test if it has them.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is no such file, lacks an array, or `dataset_of` refuses one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no npz file at {path.absolute()}; set root to the file itself")
    packed_arrays = PackedArrays(path, copies=2)
    names = _TRAIN + (_TEST if any(name in packed_arrays for name in _TEST) else ())
    absent = [name for name in names if name not in packed_arrays]
    if absent:
        has = ", ".join(packed_arrays) or "none"
        raise InputError(f"{path} has no array {absent[0]!r}; its arrays are {has}")
    arrays = tuple(packed_arrays[name] for name in names)
    return dataset_of(arrays, name=path.name, classes=classes, outputs=outputs)


def read_npy(path: Path, target: Path, *, classes: int | None = None, outputs: int = 0) -> Dataset:
    """The records of one file, which is mapped read-only, and the targets of another.

    Args:
        path: (N, *shape) numbers.
        target: (N,) labels, or with outputs numbers.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: a file is no such array, or holds what cannot be trained on.
    """
    for one, key in ((path, "root"), (target, "target")):
        if not one.is_file():
            raise FileNotFoundError(
                f"no npy file at {one.absolute()}; set {key} to the file itself"
            )
    rows = map_array(path)
    if rows.ndim < 2:
        raise InputError(
            f"{path} has shape {rows.shape}; it must be (records, numbers of one record)"
        )
    check_finite(rows, path.name)
    given = read_array(target)
    targets = checked_targets(given, target.name, rows=len(rows), classes=classes, outputs=outputs)
    store = MappedStore(path, targets)
    return dataset_of_stores(store, None, name=path.name, classes=classes, outputs=outputs)
