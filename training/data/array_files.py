"""Files of NumPy arrays as data sets: ``npz``, in memory, and ``npy``, mapped.

=======  =====================================  ===================================================
Name     Files                                  What is in memory
=======  =====================================  ===================================================
``npz``  X and y, or X_test and y_test beside   all records
``npy``  X.npy, and another one for the labels  the labels, and a batch while it runs
=======  =====================================  ===================================================
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from ...privacy.bounded import check_memory
from ...privacy.errors import InputError
from .arrays import check_finite, checked_targets
from .dataset import Dataset
from .own_data import dataset_of, dataset_of_stores
from .store import MappedStore, mapped

__all__ = ["read_npy", "read_npz"]

_TRAIN, _TEST = ("X", "y"), ("X_test", "y_test")


def read_npz(path: Path, *, classes: int | None = None, outputs: int = 0) -> Dataset:
    """The arrays X and y of a file, and X_test and y_test if it has them.

    Args:
        path: the file.
        classes: public number of classes; None where the labels tell it.
        outputs: numbers to predict of a record, 0 of labels.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is no such file, lacks an array, or `dataset_of` refuses one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no npz file at {path.absolute()}; set root to the file itself")
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(of.file_size for of in packed.infolist())
        check_memory(f"{path}, unpacked,", 2 * size, "give X and y as two files, with npy")
        with np.load(path, allow_pickle=False) as held:
            names = _TRAIN + (_TEST if any(name in held for name in _TEST) else ())
            absent = [name for name in names if name not in held]
            if absent:
                has = ", ".join(held.files) or "none"
                raise InputError(f"{path} has no array {absent[0]!r}; its arrays are {has}")
            arrays = tuple(held[name] for name in names)
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no npz file or is damaged: {error}") from error
    return dataset_of(arrays, name=path.name, classes=classes, outputs=outputs)


def read_npy(path: Path, target: Path, *, classes: int | None = None, outputs: int = 0) -> Dataset:
    """The records of one file, which is mapped read-only, and the targets of another.

    Args:
        path: (N, *shape) numbers.
        target: (N,) labels, or with outputs numbers.
        classes: public number of classes; None where the labels tell it.
        outputs: numbers to predict of a record, 0 of labels.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: a file is no such array, or holds what cannot be trained on.
    """
    for one, key in ((path, "root"), (target, "target")):
        if not one.is_file():
            raise FileNotFoundError(
                f"no npy file at {one.absolute()}; set {key} to the file itself"
            )
    rows = mapped(path)
    if rows.ndim < 2 or rows.dtype.kind not in "fiub":
        raise InputError(
            f"{path} has shape {rows.shape} and type {rows.dtype}; it must be (records, numbers of "
            "one record), of numbers"
        )
    check_finite(rows, path.name)
    try:
        given = np.load(target, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{target} is no npy file or is damaged: {error}") from error
    targets = checked_targets(given, target.name, rows=len(rows), classes=classes, outputs=outputs)
    store = MappedStore(path, targets)
    return dataset_of_stores(store, None, name=path.name, classes=classes, outputs=outputs)
