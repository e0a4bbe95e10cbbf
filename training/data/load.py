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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError, needs
from .readers import Records, read_cifar10, read_idx_folder, read_image_folder, read_libsvm
from .store import Examples, Shard, Store, TensorStore

# A data set: its records, and the public constants that normalise them.
#
# Shape letters: N training records, M test records; shape is that of one record, (channels, height,
# width) for images.


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumn:
    """A column of a table, and the numbers of a record that hold it.

    Args:
        kind: A number, one number that is either of two values, or one number a level.
        start: The first of its numbers in a record.
        width: How many they are.
        levels: What each number of a category stands for, or the two values of a binary one.
        box: The inputs between which a number lies, the smaller first.
        low: The value at the smaller one, in the column's unit.
        high: The value at the larger one.
        dates: Whether the number counts days.
    """

    name: str
    kind: Literal["number", "category", "binary"]
    start: int
    width: int = 1
    levels: tuple[str, ...] = ()
    box: tuple[float, float] = (0.0, 1.0)
    low: float = 0.0
    high: float = 1.0
    dates: bool = False

    def text(self, units: Sequence[float]) -> str:
        """The value of the column, from its numbers on the unit box."""
        if self.kind == "number":
            value = self.low + (self.high - self.low) * units[0]
            # A time is a part of its day, and float32 may end a little before one.
            return date.fromordinal(int(value + 0.01)).isoformat() if self.dates else f"{value:.4g}"
        if self.kind == "binary":
            return self.levels[int(units[0] > 0.5)]
        return self.levels[max(range(self.width), key=lambda place: units[place])]


_SPLIT_SEED = 30_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dataset:
    """Records, normalised by public constants.

    Args:
        name: What reports call the set.
        inputs: (N, *shape) float32, contiguous; on the meta device, without values, where a store
            holds them.
        targets: (N,) int64 in [0, classes); of a regression (N,) float32, or (N, outputs).
        test_inputs: (M, *shape) float32, contiguous.
        test_targets: (M,) int64, or float32 as targets.
        classes: Number of classes, at least 2; 0 of a regression.
        mean: Public constants, one per channel (one in all if these are no images).
        std: The same, positive.
        image: Whether shape is (channels, height, width).
        outputs: Numbers that a regression predicts of a record, at least 1; 0 of classes.
        store: Where the training records are, if not in memory.
        users: (N,) int64 number of each training record's user; None where nobody says.
        held_by: (N,) int64 agent that holds each training record; None where they are dealt.
        optimum: (D,) where the mean of all agents' losses is least, in parameters of the network
            "linear"; None where nobody knows.
        validation: Records that are kept from training, on which a run is measured in place of the
            test records; None where nothing was kept.
        notes: What is counted as public though it was read off the records, one sentence each.
        columns: Of a table, what its numbers stand for; empty where nobody says.
        held_out: Whether the test records were held out of those that were given to train on.

    Raises:
        ValueError: If shapes, types or ranges do not fit together.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image: bool
    outputs: int = 0
    store: Store | None = None
    users: Tensor | None = None
    held_by: Tensor | None = None
    optimum: Tensor | None = None
    validation: Examples | None = None
    notes: tuple[str, ...] = ()
    columns: tuple[TableColumn, ...] = ()
    held_out: bool = False

    def __post_init__(self) -> None:
        # Targets are either classes or numbers.
        if self.outputs < 0 or (self.outputs and self.classes):
            raise InputError(
                f"outputs={self.outputs} and classes={self.classes} of {self.name!r}: one of them "
                "must be positive, and the other 0"
            )
        if self.classes < 2 and not self.outputs:
            raise InputError(f"classes={self.classes} of {self.name!r} must be at least 2")
        # The shapes of both parts, and of what is known of each record.
        if self.inputs.is_meta != (self.store is not None):
            raise InputError(f"inputs of {self.name!r} must be in memory or in a store")
        for part, inputs, targets in (
            ("", self.inputs, self.targets),
            ("test_", self.test_inputs, self.test_targets),
        ):
            _check_part(self, part, inputs, targets)
        if self.test_inputs.shape[1:] != self.inputs.shape[1:]:
            raise InputError(
                f"test_inputs of {self.name!r} have shape {tuple(self.test_inputs.shape[1:])} and "
                f"inputs {self.input_shape}; they must be equal"
            )
        for what in ("users", "held_by"):
            of = getattr(self, what)
            if of is not None and (
                of.dtype != torch.int64 or tuple(of.shape) != (len(self.targets),)
            ):
                raise InputError(
                    f"{what} of {self.name!r} must be {len(self.targets)} int64 numbers, one a "
                    f"record, not {tuple(of.shape)} {of.dtype}"
                )
        # A mean and a deviation for each channel.
        channels = self.input_shape[0] if self.image else 1
        if self.image and len(self.input_shape) != 3:
            raise InputError(
                f"input_shape={self.input_shape} of {self.name!r} must be (channels, height, "
                "width); set image=False for other records"
            )
        if not len(self.mean) == len(self.std) == channels or not all(
            0 < std < math.inf for std in self.std
        ):
            raise InputError(
                f"mean={self.mean} and std={self.std} of {self.name!r} must hold {channels} values "
                "each, with std positive"
            )

    @property
    def train(self) -> Store:
        """The training records, wherever they are."""
        return self.store or TensorStore(self.inputs, self.targets)

    @property
    def measured(self) -> Examples:
        """The records that a run is measured on: those kept for validation, else the test ones."""
        return self.validation or Examples(self.test_inputs, self.test_targets)

    def with_validation(self, share: float) -> Dataset:
        """The same set, with a share of the training records kept from training.

        Which ones is one fixed shuffle of positions for all seeds, so that what was tuned on them
        has not met them; labels are not looked at.

        Args:
            share: Of the training records, in (0, 1); the number is rounded.

        Raises:
            ValueError: If no record would be kept, or none left to train on.

        >>> from overhear.training.data.load import load_dataset
        >>> kept = load_dataset("digits").with_validation(0.25)
        >>> len(kept.targets), len(kept.measured.targets), len(kept.test_targets)
        (1078, 360, 359)
        """
        count = len(self.targets)
        aside = round(share * count) if 0 < share < 1 else 0
        if not 0 < aside < count:
            raise InputError(
                f"validation={share:g} of the {count} training records of {self.name!r} keeps "
                f"{aside}; at least one must be kept, and one left to train on"
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED))
        held, rows = order[:aside].sort().values, order[aside:].sort().values
        stored = self.store is not None
        return replace(
            self,
            inputs=self.inputs[rows].contiguous(),
            targets=self.targets[rows],
            store=Shard(self.train, rows) if stored else None,
            users=None if self.users is None else self.users[rows],
            held_by=None if self.held_by is None else self.held_by[rows],
            validation=self.train.take(held),
            notes=(
                *self.notes,
                f"{aside} records are kept from training and the run is measured on them; no "
                "epsilon counts what these metrics tell of them.",
            ),
        )

    @property
    def width(self) -> int:
        """Numbers that a network returns for a record: classes or outputs."""
        return self.classes or self.outputs

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.inputs.shape[1:])

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Normalised black and white, per channel: two tensors (channels,); of columns (D,).

        Raises:
            ValueError: If these are no images and no columns; then no bounds are known.
        """
        if self.columns:
            ends = [column.box for column in self.columns for _ in range(column.width)]
            low, high = torch.tensor(ends, dtype=torch.float32).T
            return low.contiguous(), high.contiguous()
        if not self.image:
            raise InputError(f"{self.name!r} holds no images and has no bounds; state your own")
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return (0 - mean) / std, (1 - mean) / std

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], (..., *shape), as inputs."""
        mean, std = self._constants(pixels)
        return (pixels - mean) / std

    def pixels(self, inputs: Tensor) -> Tensor:
        """The inverse of `normalise`: inputs (..., *shape) as pixels, not cut to [0, 1].

        Of columns: inputs (..., D) on the unit box.
        """
        if self.columns:
            low, high = (end.to(inputs) for end in self.bounds)
            return (inputs - low) / (high - low)
        mean, std = self._constants(inputs)
        return inputs * std + mean

    def _constants(self, like: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1, 1, 1) if self.image else (1,)
        mean, std = (
            torch.tensor(values, dtype=like.dtype, device=like.device).reshape(shape)
            for values in (self.mean, self.std)
        )
        return mean, std


def _check_part(dataset: Dataset, part: str, inputs: Tensor, targets: Tensor) -> None:
    where = f"{part}inputs of {dataset.name!r}"
    if inputs.dtype != torch.float32 or not inputs.is_contiguous():
        raise InputError(f"{where} must be float32 and contiguous, not {inputs.dtype}")
    if not len(inputs):
        raise InputError(f"{where} are empty; there is nothing to train on or to test with")
    if dataset.outputs:
        shape = (len(inputs),) if dataset.outputs == 1 else (len(inputs), dataset.outputs)
        if targets.dtype != torch.float32 or tuple(targets.shape) != shape:
            raise InputError(
                f"{part}targets of {dataset.name!r} must be {shape} float32 numbers, not "
                f"{tuple(targets.shape)} {targets.dtype}"
            )
        return
    if targets.dtype != torch.int64 or targets.shape != inputs.shape[:1]:
        raise InputError(
            f"{part}targets of {dataset.name!r} must be {len(inputs)} int64 labels, not "
            f"{tuple(targets.shape)} {targets.dtype}"
        )
    if int(targets.min()) < 0 or int(targets.max()) >= dataset.classes:
        raise InputError(
            f"{part}targets of {dataset.name!r} must lie in [0, {dataset.classes - 1}], found "
            f"[{int(targets.min())}, {int(targets.max())}]"
        )


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
    name: str, root: Path, *, features: int | None, test: Path | None, labels: Sequence[int] | None
) -> Dataset:
    """A data set from its files, normalised by public constants."""
    if name == "libsvm":
        train, held_out, values = read_libsvm(root, test, features=features, labels=labels)
        dataset = _dataset(name, train, held_out, classes=len(values), mean=(0.0,), std=(1.0,))
        told = f"the labels of {root.name!r}, {list(values)}, are taken from its records and"
        return dataset if labels else replace(dataset, notes=(f"{told} counted as public",))
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
    package = find_spec("sklearn")  # whose modules take more memory than all else but torch
    if package is None or package.origin is None:
        raise needs("digits", "sklearn")
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    images = rows[:, :-1].reshape(-1, 1, 8, 8) / 16.0  # 17 shades of grey
    return Records(inputs=images, targets=rows[:, -1].astype(np.int64))


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


_SPLIT_SEED_LOAD = 20_000


def _hold_out(name: str, records: Records) -> tuple[Records, Records]:
    """Every fifth record by a fixed shuffle.

    Labels are not looked at: a stratified split would let one record decide where another goes.
    """
    count = len(records.targets)
    if count < 5:
        raise InputError(f"{name!r} holds {count} records, too few to hold a fifth out for testing")
    order = np.random.default_rng(_SPLIT_SEED_LOAD).permutation(count)
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
