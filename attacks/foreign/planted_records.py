"""The records that are planted: what each canary looks like, whoever draws it.

    mislabelled   a record of the data with a label that is not its own
    blank         zeros but for one coordinate, another for each canary, with any label
    gradient      any record, drawn at random; an adapter that sees gradients replaces its own
    yours         records that the user gives

A final model shows most of a canary that nothing else in the data explains, and little of any.
Records are drawn without their coins, so that a canary says nothing of whether it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError

__all__ = ["GRADIENT", "KINDS", "Record", "check_dataset", "make_records"]

GRADIENT = "gradient"
KINDS = ("mislabelled", "blank", GRADIENT, "yours")
_LOOKED_AT = 256  # records of the data whose labels and sizes are looked at, besides those drawn
Record = Any  # as the data set gives it: a pair (input, target) where we make one


def check_dataset(data: Any, *, name: str) -> int:
    """The length of a map-style data set.

    Raises:
        ValueError: it has no length or no items by number, or is empty.
    """
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InputError(
            f"{name} of {type(data).__name__} must be a map-style dataset, with len(...) and "
            "[index], such as torch.utils.data.TensorDataset(inputs, targets)"
        )
    size = len(data)
    if size < 1:
        raise InputError(f"{name} is empty; give at least one record")
    return size


def make_records(
    data: Any,
    count: int,
    *,
    kind: str,
    generator: np.random.Generator,
    records: Sequence[Record] | None = None,
    labels: int | None = None,
) -> list[Record]:
    """The canaries of an audit.

    Args:
        data: (n) the data set.
        count: how many.
        kind: one of `KINDS`.
        generator: chooses records and labels.
        records: of "yours", as many as `count`.
        labels: how many classes there are; by default the largest label that is seen, plus 1.

    Raises:
        ValueError: an unknown kind, records where none belong, too many for the kind, items that
            are no pairs of an input and a label, or a single class.
    """
    size = check_dataset(data, name="dataset")
    if kind not in KINDS:
        raise InputError(f"kind={kind!r} must be one of {', '.join(KINDS)}")
    if kind == "yours":
        return _given(records, count, data[0])
    if records is not None:
        raise InputError(f'records belong to kind="yours", not to {kind!r}; leave them out')
    if kind == GRADIENT:
        return [data[int(at)] for at in generator.choice(size, size=count)]
    picked = generator.choice(size, size=min(size, max(count, _LOOKED_AT)), replace=False)
    pairs = [_pair(data, int(at)) for at in picked]
    classes = labels or 1 + max(label for _, _, label in pairs)
    if classes < 2:
        raise InputError("all labels that were seen are 0; give labels=, the number of classes")
    if kind == "mislabelled":
        if count > size:
            raise InputError(
                f"count={count} must be at most {size}, the records of the data: a mislabelled "
                "canary is a copy of one with another label"
            )
        return [
            (x, _like(y, (label + int(generator.integers(1, classes))) % classes))
            for x, y, label in pairs[:count]
        ]
    return _blank(pairs, count, classes, generator)


def _given(records: Sequence[Record] | None, count: int, like: Record) -> list[Record]:
    if records is None or len(records) != count:
        held = "none" if records is None else len(records)
        raise InputError(
            f'kind="yours" takes records=[...], one for each of the {count} canaries; {held} given'
        )
    wanted = _types(like)
    for at, record in enumerate(records):
        if _types(record) != wanted:
            raise InputError(
                f"canary {at} holds {_types(record)}, and the data hold {wanted}; give records of "
                "the same form, so that they fit into one batch"
            )
    return list(records)


def _types(record: Record) -> str:
    parts = record if isinstance(record, tuple | list) else (record,)
    return ", ".join(type(part).__name__ for part in parts)


def _pair(data: Any, at: int) -> tuple[Any, Any, int]:
    item = data[at]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(
            f"record {at} of the data is a {type(item).__name__} and must be a pair (input, "
            'label); make canaries yourself and give them as kind="yours", records=[...]'
        )
    x, y = item
    label = y.item() if isinstance(y, Tensor | np.ndarray | np.generic) and _is_one(y) else y
    if isinstance(label, bool) or not isinstance(label, int) or label < 0:
        raise InputError(
            f"record {at} of the data has the label {y!r:.40} and must have an integer of at "
            'least 0; make canaries yourself and give them as kind="yours", records=[...]'
        )
    return x, y, label


def _is_one(value: Tensor | np.ndarray | np.generic) -> bool:
    return (value.numel() if isinstance(value, Tensor) else value.size) == 1


def _like(y: Any, label: int) -> Any:
    """A label as the data has them: a tensor, an array, a number."""
    if isinstance(y, Tensor):
        return torch.full_like(y, label)
    if isinstance(y, np.ndarray):
        return np.full_like(y, label)
    return type(y)(label)


def _blank(
    pairs: Sequence[tuple[Any, Any, int]],
    count: int,
    classes: int,
    generator: np.random.Generator,
) -> list[Record]:
    x, y, _ = pairs[0]
    if not (isinstance(x, Tensor) and x.is_floating_point()) and not (
        isinstance(x, np.ndarray) and x.dtype.kind == "f"
    ):
        raise InputError(
            f"inputs of {type(x).__name__} cannot be blank; they must be tensors or arrays of "
            'floating-point numbers. Use kind="mislabelled"'
        )
    size = int(np.prod(x.shape))
    if count > size * classes:
        raise InputError(
            f"count={count} must be at most {size * classes}, one blank canary a coordinate and "
            f'label; plant fewer, or use kind="mislabelled"'
        )
    height = max(float(abs(other).max()) for other, _, _ in pairs) or 1.0
    found = []
    for at in generator.choice(size * classes, size=count, replace=False):
        blank = torch.zeros_like(x) if isinstance(x, Tensor) else np.zeros_like(x)
        blank.reshape(-1)[int(at) % size] = height
        found.append((blank, _like(y, int(at) // size)))
    return found
