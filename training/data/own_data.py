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

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError, InputTypeError
from ...privacy.raised import line_of, told
from ..own.names import own_object
from .arrays import checked_inputs, checked_targets, classes_of
from .dataset import Dataset
from .dataset_store import DatasetStore, is_map_style
from .partition import hold_out_users
from .store import Shard, Store, TensorStore

__all__ = [
    "LEAVE_OUT",
    "dataset_of",
    "dataset_of_stores",
    "own_dataset",
    "own_function",
    "stores_of",
]

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
                f"[data] name={name!r}: calling it raised {told(error)}{line_of(error)}"
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
        name: what reports call it.
        classes: public number of classes.
        outputs: numbers to predict of a record, 0 of labels.

    Raises:
        ValueError: what is no such value, or holds what is no number or label.
    """
    if isinstance(value, Dataset):
        kept = [] if value.validation is None else [TensorStore(*value.validation)]
        return [value.train, TensorStore(value.test_inputs, value.test_targets), *kept]
    parts: list[object] = list(value) if isinstance(value, (tuple, list)) else [value]
    if len(parts) in (1, 2) and all(_is_torch(part) for part in parts):
        return [_dataset_store(part, name=name, outputs=outputs) for part in parts]
    if isinstance(value, (tuple, list)) and len(parts) in (2, 4):
        return _of_arrays(parts, name=name, classes=classes, outputs=outputs)
    found = type(value).__name__
    found += f" of {len(parts)}" if isinstance(value, (tuple, list)) else ""
    raise InputTypeError(f"{name!r} gives a {found}; it must give {_FORMS}")


def _is_torch(value: object) -> bool:
    array = isinstance(value, Tensor) or hasattr(value, "__array__")
    return is_map_style(value) and not array and not isinstance(value, (list, tuple, str, dict))


def _dataset_store(value: object, *, name: str, outputs: int) -> Store:
    return DatasetStore(value, name=name, regression=bool(outputs))


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
        name: what reports call it.
        classes: public number of classes; None where the labels tell it.
        outputs: numbers to predict of a record, 0 of labels.
        users: (N,) number of the user of each record of `train`; one who is tested with is not
            trained on.

    Raises:
        ValueError: labels that are no such classes, or too few records or users.
    """
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
