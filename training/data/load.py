"""Data sets: records, labels and the public constants that normalise them.

Normalising by a mean and deviation of the private records would release them without noise, so
every set has constants of its own, known before anybody looks at the data::

    inputs = (pixels - mean) / std        per channel, pixels in [0, 1]

=================  ========================================  ===============  ==================
Name               Where                                     Shape            mean / std
=================  ========================================  ===============  ==================
``digits``         in scikit-learn                           1x8x8            .3053 / .3760
``faces``          in scikit-image (label 1: a face)         1x25x25          .5 / .5
``mnist``          ROOT/MNIST/raw or ROOT, idx files         1x28x28          .1307 / .3081
``fashion-mnist``  ROOT/FashionMNIST/raw or ROOT, idx files  1x28x28          .2860 / .3530
``cifar10``        ROOT/cifar-10-batches-py                  3x32x32          per channel, below
``image-folder``   ROOT/train/CLASS, ROOT/test/CLASS         as stored        .5 / .5
``libsvm``         ROOT is the file, ROOT.t its test set     (features,)      0 / 1
=================  ========================================  ===============  ==================

A set without a test part of its own gives up a fifth of its records, the same ones every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError
from .dataset import Dataset
from .image_folder import read_image_folder
from .partition import partition, poisson_batch
from .readers import Records, read_cifar10, read_idx_folder, read_libsvm

__all__ = ["DATASET_NAMES", "Dataset", "load_dataset", "partition", "poisson_batch"]


def load_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    features: int | None = None,
    test: str | Path | None = None,
    labels: Sequence[int] | None = None,
) -> Dataset:
    """Loads a data set from this machine; nothing is downloaded.

    Args:
        name: One of the names in the table at the head of this module.
        root: Where the files are; not used by "digits" and "faces".
        features: For "libsvm", and required there: the public number of features.
        test: For "libsvm": the test file; by default ROOT.t if there is one.
        labels: For "libsvm": the public labels, in the order of their numbers; not given, the file
            tells them, which `Dataset.notes` says.

    Raises:
        FileNotFoundError: If a file is missing; the message says where it was looked for.
        ValueError: If the name is unknown, an option is missing or belongs to another set, or a
            file cannot be read.

    >>> digits = load_dataset("digits")
    >>> tuple(digits.inputs.shape), tuple(digits.test_inputs.shape), digits.classes
    ((1438, 1, 8, 8), (359, 1, 8, 8), 10)
    """
    if name not in DATASET_NAMES:
        raise InputError(f"data name={name!r} is unknown; choose one of {', '.join(DATASET_NAMES)}")
    for option, value in (("features", features), ("test", test), ("labels", labels)):
        if value is not None and name != "libsvm":
            raise InputError(f"{option}={value!r} belongs to 'libsvm' and not to {name!r}")
    if name in _BUNDLED:
        if root is not None:
            raise InputError(f"root={str(root)!r} has no use: {name!r} comes with a library")
        return _BUNDLED[name]()
    if root is None:
        raise InputError(f"data {name!r} needs root, {_ROOT_HOLDS[name]}")
    test = None if test is None else Path(test).expanduser()
    return _read(name, Path(root).expanduser(), features=features, test=test, labels=labels)


def _read(
    name: str,
    root: Path,
    *,
    features: int | None,
    test: Path | None,
    labels: Sequence[int] | None,
) -> Dataset:
    """A data set from its files, normalised by public constants."""
    if name == "libsvm":
        train, held_out, values = read_libsvm(root, test, features=features, labels=labels)
        found = _dataset(name, train, held_out, classes=len(values), mean=(0.0,), std=(1.0,))
        told = f"the labels of {root.name!r}, {list(values)}, are taken from its records and"
        return found if labels else replace(found, notes=(f"{told} counted as public",))
    if name == "image-folder":
        train, held_out, classes = read_image_folder(root)
        half = (0.5,) * train.inputs.shape[1]
        return _dataset(name, train, held_out, classes=classes, mean=half, std=half)
    if name == "cifar10":
        train, held_out = read_cifar10(root)
    else:
        train, held_out = read_idx_folder(root, folder=_IDX_FOLDERS[name])
    mean, std = _CONSTANTS[name]
    return _dataset(name, train, held_out, classes=10, mean=mean, std=std)


# The usual public constants; those of digits are its own, from scikit-learn's public copy.
_CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "digits": ((0.3053,), (0.3760,)),
    "faces": ((0.5,), (0.5,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}

_IDX_FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}

_ROOT_HOLDS = {
    "mnist": "the folder that holds MNIST/raw",
    "fashion-mnist": "the folder that holds FashionMNIST/raw",
    "cifar10": "the folder that holds cifar-10-batches-py",
    "libsvm": "the training file itself",
    "image-folder": "the folder that holds train/CLASS/*.png",
}


@cache  # reading the text takes longer than training on it for a round
def _digit_records() -> Records:
    from sklearn.datasets import load_digits

    shades, targets = load_digits(return_X_y=True)
    images = shades.reshape(-1, 1, 8, 8) / 16.0  # 17 shades of grey
    return Records(inputs=images, targets=targets.astype(np.int64))


def _digits() -> Dataset:
    mean, std = _CONSTANTS["digits"]
    # What is held out is picked from the records, and so copied: no data set shares memory.
    return _dataset("digits", _digit_records(), None, classes=10, mean=mean, std=std)


def _faces() -> Dataset:
    from skimage.data import lfw_subset

    # scikit-image has no types. 100 faces come first, then 100 patches without one.
    images = lfw_subset()[:, None]
    targets = np.repeat(np.array([1, 0], dtype=np.int64), 100)
    records = Records(inputs=images, targets=targets)
    mean, std = _CONSTANTS["faces"]
    return _dataset("faces", records, None, classes=2, mean=mean, std=std)


_BUNDLED: dict[str, Callable[[], Dataset]] = {"digits": _digits, "faces": _faces}

DATASET_NAMES = (*_BUNDLED, *_ROOT_HOLDS)


def _dataset(
    name: str,
    train: Records,
    test: Records | None,
    *,
    classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    held_out = test is None
    if test is None:
        train, test = _hold_out(name, train)
    image = train.inputs.ndim == 4
    return Dataset(
        name=name,
        inputs=_normalised(train.inputs, mean, std),
        targets=torch.from_numpy(train.targets),
        test_inputs=_normalised(test.inputs, mean, std),
        test_targets=torch.from_numpy(test.targets),
        classes=classes,
        mean=mean,
        std=std,
        image=image,
        held_out=held_out,
    )


_SPLIT_SEED = 20_000


def _hold_out(name: str, records: Records) -> tuple[Records, Records]:
    """Every fifth record by a fixed shuffle.

    Labels are not looked at: a stratified split would let one record decide where another goes.
    """
    count = len(records.targets)
    if count < 5:
        raise InputError(f"{name!r} holds {count} records, too few to hold a fifth out for testing")
    order = np.random.default_rng(_SPLIT_SEED).permutation(count)
    test, train = np.sort(order[: count // 5]), np.sort(order[count // 5 :])
    parts = [
        Records(inputs=records.inputs[part], targets=records.targets[part])
        for part in (train, test)
    ]
    return parts[0], parts[1]


def _normalised(
    stored: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Tensor:
    inputs = np.array(stored, dtype=np.float32, order="C")  # its own copy, changed in place
    if stored.dtype == np.uint8:
        inputs /= 255.0
    shape = (-1, 1, 1) if stored.ndim == 4 else (1,)
    inputs -= np.array(mean, dtype=np.float32).reshape(shape)
    inputs /= np.array(std, dtype=np.float32).reshape(shape)
    return torch.from_numpy(inputs)
