"""Arrays of one's own, checked: inputs that are finite numbers, and labels or numbers to predict.

Whatever is refused is named by its value and its row, which counts from 0 as in the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError

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
        what: its name, in a refusal.
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
