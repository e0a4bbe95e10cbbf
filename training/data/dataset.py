"""A data set: its records, and the public constants that normalise them.

Shape letters: N training records, M test records; shape is that of one record, (channels, height,
width) for images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...privacy.errors import InputError
from .examples import Examples
from .store import Shard, Store, TensorStore

__all__ = ["Dataset", "Examples", "TableColumn"]


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

    >>> age = TableColumn(name="age", kind="number", start=0, low=0.0, high=120.0)
    >>> age.text([0.25])
    '30'
    """

    name: str
    kind: Literal["number", "category", "binary"]
    start: int
    width: int = 1
    levels: tuple[str, ...] = ()
    box: tuple[float, float] = (0.0, 1.0)
    low: float = 0.0
    high: float = 1.0

    def text(self, units: Sequence[float]) -> str:
        """The value of the column, from its numbers on the unit box."""
        if self.kind == "number":
            return f"{self.low + (self.high - self.low) * units[0]:.4g}"
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
        if self.outputs < 0 or (self.outputs and self.classes):
            raise InputError(
                f"outputs={self.outputs} and classes={self.classes} of {self.name!r}: one of them "
                "must be positive, and the other 0"
            )
        if self.classes < 2 and not self.outputs:
            raise InputError(f"classes={self.classes} of {self.name!r} must be at least 2")
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
