"""What a local update is asked for: its steps, and the data that each of them takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...privacy._validate import whole, within
from ...privacy.errors import InputError
from .refusals import MOST_STEPS
from .values import ALL, Batch, UndeclaredOperation, check_drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSteps:
    """K gradient steps of an agent, whose change is clipped as one vector.

    Attributes:
        steps: K.
        learning_rate: of these steps.
        batch: one batch, a tuple of K of them, or `ALL`.
        clip_norm: bound on the change of the model; None does not clip.
        momentum: how much of a step's direction the next one keeps.
        proximal: how strongly the start pulls the model back.
    """

    steps: int
    learning_rate: float
    batch: Batch | tuple[Batch, ...]
    clip_norm: float | None
    momentum: float = 0.0
    proximal: float = 0.0

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The different batches: none where every step takes all data."""
        if isinstance(self.batch, tuple):
            return self.batch
        return () if self.batch is ALL else (self.batch,)

    @property
    def call(self) -> int:
        """The call of `draw` that stands for all of them."""
        return self.batches[0].call if self.batches else ALL.call

    def of_step(self, number: int) -> Batch:
        """What a step takes, from 0."""
        return self.batch[number] if isinstance(self.batch, tuple) else self.batch

    @staticmethod
    def of(
        *,
        steps: object,
        learning_rate: object,
        batch: object,
        clip_norm: Any,
        momentum: object,
        proximal: object,
        drawn: Sequence[Batch],
    ) -> LocalSteps:
        """The same from what a step gave, once it is checked.

        Args:
            steps: as above, and so are the others.
            learning_rate: likewise.
            batch: likewise.
            clip_norm: likewise.
            momentum: likewise.
            proximal: likewise.
            drawn: the batches of the round.

        Raises:
            ValueError: a number out of range, or another number of batches than of steps.
            TypeError: what is no number.
            UndeclaredOperation: something else than batches of this round, or one of them twice.
        """
        count = whole("steps", steps, f"[1, {MOST_STEPS}]")
        if isinstance(batch, tuple | list):
            given = tuple(batch)
            if len(given) != count:
                raise InputError(
                    f"batch has {len(given)} batches for steps={count}; give one for each step, "
                    "one alone for all of them, or ALL"
                )
            for one in given:
                _check_batch(one, drawn)
            if len({one.call for one in given}) < count:
                raise UndeclaredOperation(
                    "one batch stands twice in round.local_update: draw one for each step, or give "
                    "one alone for all of them"
                )
            taken: Batch | tuple[Batch, ...] = given if count > 1 else given[0]
        else:
            taken = batch  # type: ignore[assignment] # checked in the next line
            if batch is not ALL:
                _check_batch(batch, drawn)
        return LocalSteps(
            steps=count,
            learning_rate=_number("learning_rate", learning_rate, "(0, inf)"),
            batch=taken,
            clip_norm=None if clip_norm is None else _number("clip_norm", clip_norm, "(0, inf)"),
            momentum=_number("momentum", momentum, "[0, 1)"),
            proximal=_number("proximal", proximal, "[0, inf)"),
        )


def checked_number(name: str, value: Any, *, least: float, most: float, remedy: str) -> float:
    """A finite real number in [least, most].

    Raises:
        TypeError: no number.
        ValueError: not finite, or out of range.

    >>> checked_number("std", 2, least=0.0, most=math.inf, remedy="")
    2.0
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    within(name, value, f"[{least}, {most}{')' if math.isinf(most) else ']'}", remedy)
    return float(value)


def checked_rate(rate: object) -> float:
    """The probability of an agent to be in a cohort.

    >>> checked_rate(0.01)
    0.01
    """
    return _number("rate", rate, "(0, 1]")


def _check_batch(one: object, drawn: Sequence[Batch]) -> None:
    if not isinstance(one, Batch):
        raise UndeclaredOperation(
            f"round.local_update with a batch of {type(one).__name__}: give what round.draw() "
            "returned, a tuple of as many as there are steps, or ALL"
        )
    check_drawn(one, drawn)


def _number(name: str, value: Any, bound: str) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    within(name, value, bound)
    return float(value)
