"""What a step counts of its records: a number of each, from its loss, outputs or gradient norm.

    count = sum over b in batch of  min(max(fn(of b), 0), 1)

Each record is looked at by itself, and what is no finite number counts as 0. So one record moves
the count by 1 at most, whatever the function makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ..models.parameters import copied
from ..models.tasks import Task
from ..step.operations import Of
from .clipping import Examples, squared_norms
from .loop_and_vmap import OfModel, OfTask
from .own_code import OwnCode


class Counts:
    """Counts of records of one objective.

    Args:
        objective: a network, whose loss is the cross-entropy of its logits, or a task. Copied where
            it is a network.
        device: where records and points are.
        dtype: in which precision.
    """

    def __init__(
        self, objective: nn.Module | Task, *, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self._of: OfModel | OfTask
        if isinstance(objective, nn.Module):
            objective = copied(objective).to(device, dtype)
            self._of = OfModel(objective)
        else:
            self._of = OfTask(objective)
        self._own_code = OwnCode(objective)

    @torch.no_grad()
    def of_batches(
        self,
        fn: Callable[..., Any],
        points: Tensor,
        batches: Sequence[tuple[Tensor, Tensor]],
        *,
        of: Of,
        released: Sequence[Tensor] = (),
    ) -> Tensor:
        """(A, 1) the count of each batch at its point.

        Args:
            fn: of one record: its loss (), its gradient's norm (), or its outputs and target; and
                then its row of each of `released`.
            points: (A, D).
            batches: inputs (B, *shape) and targets (B,) of each row.
            of: what `fn` is given of a record.
            released: (A, .) what it is given besides.

        Raises:
            InputError: a function that returns no number, or outputs of a task, which has none; or
                the network keeps something from call to call.
            FailedForward: the network raises something.
        """
        out = points.new_zeros(len(points), 1)
        first = next((Examples(inputs=x, targets=y) for x, y in batches if len(y)), None)
        if first is None:
            return out
        start = self._of.pieces(points[0])
        with self._own_code.called(first, lambda x, y: self._given(start, x, y, of=of)):
            for row, (point, (inputs, targets)) in enumerate(zip(points, batches, strict=True)):
                pieces = self._of.pieces(point)
                for x, y in zip(inputs, targets, strict=True):
                    own = [value[row].clone() for value in released]
                    out[row] += _score(fn(*self._given(pieces, x, y, of=of), *own), like=out)
        return out

    def _given(
        self, pieces: dict[str, Tensor], x: Tensor, y: Tensor, *, of: Of
    ) -> tuple[Tensor, ...]:
        if of is Of.LOSS:
            return (self._of.loss(pieces, x, y),)
        if of is Of.NORM:
            found = torch.func.grad(self._of.loss)(pieces, x, y)
            whole = torch.cat([part.reshape(1, -1) for part in found.values()], dim=1)
            return (squared_norms(whole)[0].sqrt(),)
        if isinstance(self._of, OfTask):
            raise InputError(
                'round.count(..., of="outputs") of a task, which has a loss and no outputs; use '
                'of="loss" or of="norm"'
            )
        return self._of.outputs(pieces, x), y.clone()


def _score(found: object, *, like: Tensor) -> Tensor:
    """() what one record counts, within [0, 1]."""
    if not isinstance(found, Tensor | bool | int | float) or (
        isinstance(found, Tensor) and (found.numel() != 1 or found.is_complex())
    ):
        shape = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
        raise InputError(
            f"the function of round.count returned {type(found).__name__}{shape}: it returns one "
            "number for one record"
        )
    one = torch.as_tensor(found, device=like.device).detach().reshape(()).to(like.dtype)
    return torch.where(one.isfinite(), one, torch.zeros_like(one)).clamp(0.0, 1.0)
