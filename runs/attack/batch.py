"""What is known about a batch whose gradients were intercepted: its size, inputs and defence.

The metadata of the file, all of it text, may hold what a `BatchRequest` says; that wins.

Shape letters: B records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...privacy._validate import within
from ...privacy.bounded import check_memory
from ...privacy.errors import InputError
from ..requests import BATCH, BatchRequest

_MOST_STEPS = 100
_LEAST_COPIES = 4  # of what is searched for: itself, its gradient, and two moments
_SCALES = (("mean", "std"), ("low", "high"))
_BEYOND = 0.01  # of the range, that rounding may leave
_Held = Mapping[str, Any]  # what is said by name, each of the type that its reader gives


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFacts:
    """What is known about an intercepted batch, from the metadata and the options.

    Attributes:
        input_shape: of one record, channels first.
        classes: number of logits, None where the gradients have to tell.
        records: number B of records.
        clip_norm: L2 bound, None where nothing is clipped.
        clip_batch: whether the mean of the batch is clipped in place of each record.
        noise_std: on each coordinate of the mean.
        local_steps: number of gradient steps of which the mean gradient is held.
        local_rate: their size; 0 where there is one alone.
        labels: (B,), None where they are unknown.
        low, high: what a pixel of 0 and of 1 is fed as; one value, or one per channel.
    """

    input_shape: tuple[int, ...]
    classes: int | None
    records: int
    clip_norm: float | None
    clip_batch: bool
    noise_std: float
    labels: tuple[int, ...] | None
    low: tuple[float, ...]
    high: tuple[float, ...]
    local_steps: int = 1
    local_rate: float = 0.0

    def __post_init__(self) -> None:
        if not self.input_shape or min(self.input_shape) < 1:
            raise InputError(f"input_shape={self.input_shape} must hold positive sides: 3,32,32")
        within("records", self.records, "[1, inf)", ": the size of the batch")
        check_memory(
            f"a search for records={self.records} of input_shape={self.input_shape}",
            _LEAST_COPIES * 4 * self.records * math.prod(self.input_shape),
            "lower records, or input_shape",
        )
        if self.clip_norm is not None:
            within("clip_norm", self.clip_norm, "(0, inf)", "leave it out if nothing is clipped")
        if self.clip_batch and self.clip_norm is None:
            raise InputError("clip_batch says what is clipped; give clip_norm too")
        self._check_steps()
        within("noise_std", self.noise_std, "[0, inf)")
        if self.labels is not None and len(self.labels) != self.records:
            raise InputError(
                f"{len(self.labels)} labels for records={self.records}; give one for each record"
            )
        for name, values in (("low", self.low), ("high", self.high)):
            if len(values) not in (1, self.input_shape[0]):
                raise InputError(
                    f"{len(values)} values of mean, std or {name} for {self.input_shape[0]} "
                    "channels; give one, or one per channel"
                )
            if not all(math.isfinite(value) for value in values):
                raise InputError(f"{name}={values} must be finite")
        if any(low >= high for low, high in zip(*self._ends(), strict=True)):
            raise InputError(f"low={self.low} must be below high={self.high} in every channel")

    def _check_steps(self) -> None:
        if not 1 <= self.local_steps <= _MOST_STEPS:
            raise InputError(
                f"local_steps={self.local_steps} must lie in 1 to {_MOST_STEPS}: each is "
                "differentiated through"
            )
        if self.local_steps == 1 and self.local_rate != 0:
            raise InputError(
                f"local_rate={self.local_rate} is the size of several local steps; give "
                "local_steps too, or leave it out"
            )
        if self.local_steps > 1 and not 0 < self.local_rate < math.inf:
            raise InputError(
                f"local_rate={self.local_rate} must be finite and positive where local_steps="
                f"{self.local_steps}: the size of each step"
            )
        if self.local_steps > 1 and (self.clip_norm is not None or self.noise_std != 0):
            raise InputError(
                f"local_steps={self.local_steps} goes without clip_norm and noise_std: what "
                "several steps changed is attacked where it was sent as it was"
            )

    def _ends(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        count = max(len(self.low), len(self.high))
        low, high = (v if len(v) == count else v * count for v in (self.low, self.high))
        return low, high

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(low, high) of the network's inputs, broadcastable to one record."""
        rest = (1,) * (len(self.input_shape) - 1)
        low, high = (torch.tensor(v, dtype=torch.float64) for v in (self.low, self.high))
        return low.reshape(-1, *rest), high.reshape(-1, *rest)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Pixels in [0, 1] of inputs (..., *input_shape) of the network."""
        low, high = self.bounds()
        return ((inputs.double() - low) / (high - low)).clamp(0, 1)

    def beyond(self, inputs: Tensor) -> list[str]:
        """That records lie outside of the declared range, which cuts their pixels; or nothing."""
        low, high = self.bounds()
        units = (inputs.double() - low) / (high - low)
        least, most = float(units.min()), float(units.max())
        if least >= -_BEYOND and most <= 1 + _BEYOND:
            return []
        return [
            f"pixels run from {least:.3g} to {most:.3g} and are cut at 0 and 1 in pictures and "
            "scores; say with --mean and --std (or --low and --high) how the network is fed"
        ]


def facts_of(
    metadata: Mapping[str, str], request: BatchRequest
) -> tuple[BatchFacts, tuple[str, ...]]:
    """What the metadata of a file and a request say together.

    Args:
        metadata: text by name, those of the fields of a `BatchRequest`.
        request: what is said besides, None where a field is not given; it wins.

    Returns:
        The facts, and the metadata that are not read.

    Raises:
        ValueError: A value cannot be read, is out of range, or is missing.
    """
    # The request wins over metadata; of two ways to scale it wins as a whole.
    said = {name.lower().replace("-", "_"): text for name, text in metadata.items()}
    held = {name: of.read(said[name]) for name, of in BATCH.items() if name in said}
    given = {name: value for name in BATCH if (value := getattr(request, name)) is not None}
    for pair, other in (_SCALES, _SCALES[::-1]):
        if any(name in given for name in pair):  # the options' form of the range wins whole
            held = {name: value for name, value in held.items() if name not in other}
    held.update(given)
    if "input_shape" not in held:
        raise InputError(
            "input_shape is not given; say the shape of one record, channels first: "
            "--input-shape 3,32,32, or the file's metadata"
        )
    low, high = _range(held)
    labels = held.get("labels")
    facts = BatchFacts(
        input_shape=tuple(held["input_shape"]),
        classes=held.get("classes"),
        records=held.get("records", 1 if labels is None else len(labels)),
        clip_norm=held.get("clip_norm"),
        clip_batch=held.get("clip_batch", False),
        noise_std=held.get("noise_std", 0.0),
        labels=None if labels is None else tuple(labels),
        low=low,
        high=high,
        local_steps=held.get("local_steps", 1),
        local_rate=held.get("local_rate", 0.0),
    )
    return facts, tuple(name for name in said if name not in BATCH and name != "format")


def _range(held: _Held) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What a pixel of 0 and of 1 is fed as."""
    if not any(name in held for name in _SCALES[0]):
        return tuple(held.get("low", (0.0,))), tuple(held.get("high", (1.0,)))
    if any(name in held for name in _SCALES[1]):
        raise InputError("mean and std say the same as low and high; give one pair of the two")
    mean, std = tuple(held.get("mean", (0.0,))), tuple(held.get("std", (1.0,)))
    if min(std) <= 0:
        raise InputError(f"std={std} must be positive in every channel")
    count = max(len(mean), len(std))
    if {len(mean), len(std)} - {1, count}:
        raise InputError(f"mean has {len(mean)} values and std {len(std)}; give one per channel")
    mean, std = (v if len(v) == count else v * count for v in (mean, std))
    pairs = list(zip(mean, std, strict=True))
    return tuple(-m / s for m, s in pairs), tuple((1 - m) / s for m, s in pairs)
