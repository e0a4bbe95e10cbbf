"""Files of NumPy arrays as data sets: ``npz``, in memory, and ``npy``, mapped.

=======  =====================================  ===================================================
Name     Files                                  What is in memory
=======  =====================================  ===================================================
``npz``  X and y, or X_test and y_test beside   all records
``npy``  X.npy, and another one for the labels  the labels, and a batch while it runs
=======  =====================================  ===================================================
"""

from __future__ import annotations

from pathlib import Path

from ...privacy.errors import InputError
from ...privacy.formats.numpy_arrays import PackedArrays, map_array, read_array
from .arrays import check_finite, checked_targets
from .dataset import Dataset
from .own_data import dataset_of, dataset_of_stores
from .store import MappedStore

__all__ = ["read_npy", "read_npz"]

_TRAIN, _TEST = ("X", "y"), ("X_test", "y_test")


def read_npz(path: Path, *, classes: int | None = None, outputs: int = 0) -> Dataset:
    """The arrays X and y of a file, and X_test and y_test if it has them.

    Args:
        classes: public number of classes; None where the labels tell it.
        outputs: numbers to predict of a record, 0 of labels.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is no such file, lacks an array, or `dataset_of` refuses one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no npz file at {path.absolute()}; set root to the file itself")
    held = PackedArrays(path, copies=2)
    names = _TRAIN + (_TEST if any(name in held for name in _TEST) else ())
    absent = [name for name in names if name not in held]
    if absent:
        has = ", ".join(held) or "none"
        raise InputError(f"{path} has no array {absent[0]!r}; its arrays are {has}")
    arrays = tuple(held[name] for name in names)
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
