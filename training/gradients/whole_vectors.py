"""What is clipped as one vector in place of each record's: a local change, or a user's sum.

    local_change    what gradient steps of an agent on its own data change
    S[e] = sum over users u of d  clip(sum over the records b of u in batch(d) of g_b)

The records of a user stand as a batch of their own, whose sum is taken without clipping by whatever
layout computes gradients, and is clipped here: in one place for all layouts. What is not finite is
the zero vector in a run, since an error would tell of the records. Nothing is read back from a
device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ..data.store import Examples
from ..device.precision import elements_at_once, on_device
from ..step.values import Batch, ClipNorm, LocalSteps, Parts, Quantile, whole_of
from .clipping import Coefficient, bound_at, check_clip_norm, clipped_rows
from .gradients import Batch as Records
from .gradients import ClippedSums, Indices, PairGradients


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
        records: the agents' records of a batch.
        gradients: the gradient layout.
        pairs_of_run: how many agents there are on all ranks.

    A change that is not finite counts as the zero vector where the gradients drop what is not:
    whether it is depends on the records, and an error would tell so.

    Raises:
        FloatingPointError: a gradient or the change is not finite and not dropped: the steps are
            too large.
    """
    rows = list(range(len(start)))
    x, direction = start, torch.zeros_like(start)
    for number in range(asked.steps):
        taken = records(asked.of_step(number))
        sums = sums_to_clip(
            gradients, x, (rows, rows), taken, clip_norm=asked.clip_norm, pairs_of_run=pairs_of_run
        )
        sizes = torch.tensor([max(1, len(of.targets)) for of in taken], dtype=sums.dtype)
        mean = sums / on_device(sizes, sums.device)[:, None]
        if asked.proximal:
            mean = mean + asked.proximal * (x - start)
        direction = asked.momentum * direction + mean if asked.momentum else mean
        x = x - asked.learning_rate * direction
    return clipped(gradients, x - start, asked.clip_norm)


def sums_to_clip(
    gradients: ClippedSums,
    models: Tensor,
    pairs: tuple[Indices, Indices],
    batches: Sequence[Records],
    *,
    clip_norm: float | None,
    coefficients: Sequence[Coefficient] = (1.0,),
    pairs_of_run: int | None = None,
) -> Tensor:
    """(E, D) sums of gradients that `clipped` clips afterwards: not finite where they are not.

    Args:
        clip_norm: the bound of `clipped`; without one nothing drops a sum, and it is looked at. The
            others are those of `PairGradients.clipped_sums`.
    """
    made: Callable[..., Tensor] = gradients.clipped_sums
    if clip_norm is not None and _drops(gradients):
        made = functools.partial(made, checked=False)
    return made(
        models, pairs, batches, clip_norm=None, coefficients=coefficients, pairs_of_run=pairs_of_run
    )


def clipped(gradients: ClippedSums, rows: Tensor, clip_norm: ClipNorm) -> Tensor:
    """Rows (E, D) within the bound; what is not finite is zero where the gradients drop it."""
    if isinstance(clip_norm, Parts):
        each = zip(rows.split(clip_norm.sizes, dim=1), clip_norm.bounds, strict=True)
        return torch.cat([clipped(gradients, part, bound) for part, bound in each], dim=1)
    return clipped_rows(rows, whole_of(clip_norm), drops=_drops(gradients))


def _drops(gradients: ClippedSums) -> bool:
    """Whether what is clipped counts as the zero vector where it is not finite."""
    return isinstance(gradients, PairGradients) and gradients.drops


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
    """

    def __init__(self, gradients: ClippedSums, users: Sequence[Tensor | None]) -> None:
        self._gradients, self._users = gradients, users

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Records],
        *,
        clip_norm: ClipNorm,
        coefficients: Sequence[Coefficient] = (1.0,),
        pairs_of_run: int | None = None,
    ) -> Tensor:
        """See `PairGradients.clipped_sums`; the bound is on the sum of each user's gradients.

        Of parts each is clipped by itself, and of a quantile to the norm at it in its own batch; a
        record may be a user of its own.

        Raises:
            ValueError: a batch of which nobody says whose its records are, beside the errors there.
        """
        whole = whole_of(clip_norm)
        for bound in clip_norm.bounds if isinstance(clip_norm, Parts) else (whole,):
            check_clip_norm(bound)
        # A piece of work for each user of each pair.
        by_owner = [_parts(*of) for of in zip(batches, self._users, strict=True)]
        owners, holders = ([int(i) for i in of] for of in pairs)
        work = [
            _Of(row, owner, records)
            for row, (owner, holder) in enumerate(zip(owners, holders, strict=True))
            for records in by_owner[holder]
        ]
        out = torch.zeros(len(owners), models.shape[-1], device=models.device, dtype=models.dtype)
        step = max(1, elements_at_once(models.device) // max(1, models.shape[-1]))

        # As many pieces as memory holds at once, by the row that they go into.
        def parts() -> Iterator[tuple[int, Tensor]]:
            for start in range(0, len(work), step):
                some = work[start : start + step]
                sums = sums_to_clip(
                    self._gradients,
                    models,
                    ([one.owner for one in some], list(range(len(some)))),
                    [one.records for one in some],
                    clip_norm=whole,
                    coefficients=coefficients,
                    pairs_of_run=pairs_of_run,
                )
                runs = [(row, len(list(of))) for row, of in groupby(one.row for one in some)]
                rows, counts = zip(*runs, strict=True)
                yield from zip(rows, sums.split(counts), strict=True)

        bounds: list[ClipNorm] = [clip_norm] * len(owners)
        if isinstance(clip_norm, Quantile):
            norms = [[out.new_zeros(1)] for _ in owners]
            for row, part in parts():
                norms[row].append(part.norm(dim=1))
            each = [torch.cat(of[1:] or of).quantile(clip_norm.share) for of in norms]
            bounds = [bound_at(float(bound)) for bound in each]
        for row, part in parts():  # always added in this order
            out[row] += clipped(self._gradients, part, bounds[row]).sum(dim=0)
        return out


def sums_of(
    gradients: ClippedSums, users: Sequence[Tensor | None] | None, *, as_one: bool
) -> Callable[..., Tensor]:
    """What is called like `PairGradients.clipped_sums` and clips users' sums, nothing, or records.

    Args:
        users: see `ByUser`, which clips users' sums; None where it does not.
        as_one: whether the caller gives the sums to `clipped`.
    """
    if users is not None:
        return ByUser(gradients, users).clipped_sums
    return functools.partial(sums_to_clip, gradients) if as_one else gradients.clipped_sums


def _parts(batch: Records, users: Tensor | None) -> list[Records]:
    """The records of each user of a batch."""
    inputs, targets = batch
    if not len(targets):
        return []
    if users is None:
        if len(targets) > 1:
            raise InputError(
                f"a batch of {len(targets)} records is planted where sums are clipped by user, and "
                "no one says whose they are; plant one record, or clip records"
            )
        return [batch]
    order = torch.argsort(users, stable=True)
    counts: list[int] = torch.unique(users, return_counts=True)[1].tolist()
    parts = zip(inputs[order].split(counts), targets[order].split(counts), strict=True)
    return [Examples(*part) for part in parts]
