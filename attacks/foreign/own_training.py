"""The user's `train`, called with care: what it gets, what it may give, and what went wrong.

`train(dataset)` is called once for each training. Audits compare trainings that differ in who is in
the data and in nothing else, so data that change under them are refused: items that differ when
asked twice, and a call that leaves the data other than it found them.
"""

from __future__ import annotations

import hashlib
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...privacy.errors import InputError, InputTypeError
from .planted_records import check_dataset

__all__ = ["OwnTraining", "Train"]

Train = Callable[[Any], Any]
_PROBED = 32  # records that are compared, where nobody says which


class OwnTraining:
    """Calls `train`, and holds the data against what they were.

    Args:
        train: the user's function of a data set.
        data: map-style, from which the data sets are made.
        probes: numbers of records that are compared before and after each call.

    Raises:
        ValueError: data that are no map-style data set, or give other items when asked twice.
        TypeError: train cannot be called.
    """

    def __init__(self, train: Train, data: Any, *, probes: Sequence[int] | None = None) -> None:
        if not callable(train):
            raise InputTypeError(
                f"train={train!r:.60} must be a function that takes a dataset and trains on it"
            )
        self._train, self._data = train, data
        self.size = check_dataset(data, name="data")
        spread = np.unique(np.linspace(0, self.size - 1, _PROBED).astype(int)).tolist()
        self._probes = spread if probes is None else list(probes)
        self._digests = self._read()
        self._models: list[weakref.ref[nn.Module]] = []
        self.calls = 0
        if (other := self._changed()) is not None:
            raise InputError(
                f"record {other} of the data differs when it is read twice; leave out random "
                "transforms, or apply them inside train, so that it is known what is trained on"
            )

    def __call__(self, dataset: Any) -> Any:
        """What `train` gives for a data set.

        Raises:
            ValueError: it raises, gives nothing, or changes the data.
        """
        self.calls += 1
        where = f"training {self.calls}, on {len(dataset)} records"
        try:
            came = self._train(dataset)
        except InputError:
            raise  # says by itself what is to be done
        except Exception as error:
            raise InputError(
                f"train raised {type(error).__name__} in {where}: {error!s:.300}; call "
                "train(dataset) by itself to see where"
            ) from error
        if came is None:
            raise InputError(f"train gave nothing in {where}; let it return the trained model")
        if len(self._data) != self.size:
            raise InputError(
                f"train changed the data in {where}: {self.size} records became {len(self._data)}; "
                "let it work on a copy"
            )
        if (other := self._changed()) is not None:
            raise InputError(
                f"train changed record {other} of the data in {where}; let it work on a copy"
            )
        return came

    def model(self, dataset: Any) -> nn.Module:
        """The model that `train` gives, another one each time.

        Raises:
            TypeError: it gives something else.
            ValueError: as above, or it gives one model twice.
        """
        came = self(dataset)
        if not isinstance(came, nn.Module):
            raise InputTypeError(
                f"train gave a {type(came).__name__} and must return the trained torch.nn.Module"
            )
        if any(known() is came for known in self._models):
            raise InputError(
                "train gave the same model object twice, which goes on from what it learned of "
                "other records; make the model inside train"
            )
        self._models.append(weakref.ref(came))
        return came

    def _read(self) -> list[bytes]:
        return [_digest(self._data[at]) for at in self._probes]

    def _changed(self) -> int | None:
        """The first of the probed records that is not what it was."""
        pairs = zip(self._probes, self._digests, self._read(), strict=True)
        return next((at for at, before, now in pairs if before != now), None)


def _digest(item: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    _feed(found, item)
    return found.digest()


def _feed(found: Any, item: Any) -> None:
    if isinstance(item, tuple | list):
        for part in item:
            _feed(found, part)
    elif isinstance(item, dict):
        for key, part in item.items():
            found.update(repr(key).encode())
            _feed(found, part)
    elif isinstance(item, Tensor):
        _feed(found, item.detach().cpu().numpy())
    elif isinstance(item, np.ndarray):
        found.update(repr((item.dtype, item.shape)).encode() + np.ascontiguousarray(item).tobytes())
    else:
        found.update(pickle.dumps(item))
