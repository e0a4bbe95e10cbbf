"""A torch data set of one's own as a store: its records are asked for when a batch needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.raised import told
from .examples import Examples

__all__ = ["DatasetStore", "is_map_style"]

_ASKED_TWICE = 8  # records
_SHOWN = 60  # characters of a value that a refusal repeats


def is_map_style(value: object) -> bool:
    """Whether a value gives records by position and has a length."""
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


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
            raise InputError(f"{name!r}: its length cannot be had: {told(error)}") from error
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
            raise InputError(f"{place} cannot be had: {told(error)}") from error
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
            raise InputError(f"{what} are no plain tensor: {told(error)}") from error
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
