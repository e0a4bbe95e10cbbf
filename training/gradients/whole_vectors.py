"""What is clipped as one vector in place of each record's: a local change, or a user's sum.

    local_change    what gradient steps of an agent on its own data change
    S[e] = sum over users u of d  clip(sum over the records b of u in batch(d) of g_b)

The records of a user stand as a batch of their own, whose sum is taken without clipping by whatever
layout computes gradients, and is clipped here: in one place for all layouts. Nothing is read back
from a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ..data.dataset import Examples
from ..device.copies import on_device
from ..device.memory import elements_at_once
from ..step.local_steps import LocalSteps
from ..step.values import Batch
from .clipping import Coefficient, check_clip_norm, clipped_rows
from .gradients import Batch as Records
from .gradients import ClippedSums, Indices

__all__ = ["ByUser", "local_change"]


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


class _Of(NamedTuple):
    """A user's records on one model: the row of the result, the model owner, and the records."""

    row: int
    owner: int
    records: Records


class ByUser:
    """`ClippedSums` that clips the sums of users.

    Args:
        gradients: what gives the sums.
        users: by data owner the number of the user of each record of its batch, on the host; None
            where nobody says, which serves a batch of one record alone.

    >>> from overhear.training.gradients.gradients import PairGradients
    >>> engine = PairGradients(torch.nn.Linear(2, 2), dtype=torch.float64)
    >>> batch = torch.tensor([[3.0, 4.0]]).expand(3, -1), torch.tensor([0, 0, 0])
    >>> of = torch.zeros(1, 6), ([0], [0]), [batch]
    >>> for users in ([1, 1, 1], [1, 2, 1]):  # three gradients of one direction
    ...     sums = ByUser(engine, [torch.tensor(users)]).clipped_sums(*of, clip_norm=1.0)
    ...     round(float(sums.norm()), 6)
    1.0
    2.0
    """

    def __init__(self, gradients: ClippedSums, users: Sequence[Tensor | None]) -> None:
        self._gradients, self._users = gradients, users

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Records],
        *,
        clip_norm: float | None,
        coefficients: Sequence[Coefficient] = (1.0,),
        pairs_of_run: int | None = None,
    ) -> Tensor:
        """See `PairGradients.clipped_sums`; the bound is on the sum of each user's gradients.

        Raises:
            ValueError: a batch of which nobody says whose its records are, beside the errors there.
        """
        check_clip_norm(clip_norm)
        by_owner = [_parts(*of) for of in zip(batches, self._users, strict=True)]
        owners, holders = ([int(i) for i in of] for of in pairs)
        work = [
            _Of(row, owner, records)
            for row, (owner, holder) in enumerate(zip(owners, holders, strict=True))
            for records in by_owner[holder]
        ]
        out = torch.zeros(len(owners), models.shape[-1], device=models.device, dtype=models.dtype)
        step = max(1, elements_at_once(models.device) // max(1, models.shape[-1]))
        for start in range(0, len(work), step):
            some = work[start : start + step]
            sums = self._gradients.clipped_sums(
                models,
                ([one.owner for one in some], list(range(len(some)))),
                [one.records for one in some],
                clip_norm=None,
                coefficients=coefficients,
                pairs_of_run=pairs_of_run,
            )
            runs = [(row, len(list(of))) for row, of in groupby(one.row for one in some)]
            each = clipped_rows(sums, clip_norm).split([count for _, count in runs])
            for (row, _), part in zip(runs, each, strict=True):  # always added in this order
                out[row] += part.sum(dim=0)
        return out


def _parts(batch: Records, users: Tensor | None) -> list[Records]:
    """The records of each user of a batch."""
    inputs, targets = batch
    if not len(targets):
        return []
    if users is None:
        if len(targets) > 1:
            raise InputError(
                f"a batch of {len(targets)} records is planted where sums are clipped by user, and "
                "nobody says whose they are; plant one record, or clip records"
            )
        return [batch]
    order = torch.argsort(users, stable=True)
    counts: list[int] = torch.unique(users, return_counts=True)[1].tolist()
    parts = zip(inputs[order].split(counts), targets[order].split(counts), strict=True)
    return [Examples(*part) for part in parts]
