"""Gradient steps of every agent on its own data, and what they change, clipped as one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..data.dataset import Examples
from ..device.copies import on_device
from ..step.local_steps import LocalSteps
from ..step.values import Batch
from .clipping import clipped_rows
from .gradients import ClippedSums

__all__ = ["local_change"]


def local_change(
    start: Tensor,
    asked: LocalSteps,
    *,
    records: Callable[[Batch], Sequence[Examples]],
    gradients: ClippedSums,
    pairs_of_run: int,
) -> Tensor:
    """(A, D) what the steps of `Round.local_update` change in each row.

    Args:
        start: (A, D) the models at which the agents begin.
        asked: the steps.
        records: the agents' records of a batch.
        gradients: the gradient layout.
        pairs_of_run: how many agents there are on all ranks.

    Raises:
        FloatingPointError: a gradient or the change is not finite: the steps are too large.
    """
    rows = list(range(len(start)))
    x, direction = start, torch.zeros_like(start)
    for number in range(asked.steps):
        taken = records(asked.of_step(number))
        sums = gradients.clipped_sums(
            x, (rows, rows), taken, clip_norm=None, pairs_of_run=pairs_of_run
        )
        sizes = torch.tensor([max(1, len(of.targets)) for of in taken], dtype=sums.dtype)
        mean = sums / on_device(sizes, sums.device)[:, None]
        if asked.proximal:
            mean = mean + asked.proximal * (x - start)
        direction = asked.momentum * direction + mean if asked.momentum else mean
        x = x - asked.learning_rate * direction
    return clipped_rows(x - start, asked.clip_norm)
