"""What a step counts of its records: a number of each, from its loss, outputs or gradient norm.

    count = sum over b in batch of  min(max(fn(of b), 0), 1)

Each record is looked at by itself, and what is no finite number counts as 0. So one record moves
the count by 1 at most, whatever the function makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ..models.losses import stated, unknown_forward
from ..models.parameters import copied
from ..models.tasks import Task
from ..own.contents import Watch
from ..step.operations import Of
from .clipping import Examples, Kernel, OfModel, OfTask, Pass, Span, Summed, squared_norms

# Calls of a network or a loss of the user, which may raise anything and must keep nothing.


# By how much a gradient may differ from itself, of its length: no more than sums in another order.
_SAME = {torch.float32: 1e-5, torch.float64: 1e-12}
_SAME_ON_DEVICE = 1e-4


class OwnCode:
    """Looks at the calls of an objective where it has code of the user.

    Args:
        objective: a network, or a task.

    >>> OwnCode(nn.Linear(2, 2)).is_there
    False
    """

    def __init__(self, objective: nn.Module | Task) -> None:
        self._watch = Watch(objective)
        self.is_there = not self._watch.is_empty
        self._what = "the loss, or the network's forward,"
        if isinstance(objective, nn.Module):
            self.is_there |= unknown_forward(objective) is not None
            self._what = "the network's forward"
        self._witness: tuple[Tensor, Examples, Tensor] | None = None

    def warm_up(self, kernel: Kernel, point: Tensor, examples: Examples) -> None:
        """Call the code on the witness alone, unless that was done.

        Args:
            kernel: the layout.
            point: (D,) where the witness is looked at from now on.
            examples: of which the shape and the type matter.

        Raises:
            FailedForward: the code raises something.
        """
        if not self.is_there:
            return
        made = _made(examples)
        held = self._witness
        if held is not None and held[1].inputs.shape == made.inputs.shape:
            return
        point = point.clone()
        with stated():
            _gradient(kernel, point, made)
            self._watch.check_dead(self._what)
            self._witness = (point, made, _gradient(kernel, point, made))

    @contextmanager
    def watched(self, kernel: Kernel, point: Tensor, examples: Examples) -> Iterator[None]:
        """Call the code on records.

        Args:
            point: (D,), see `warm_up`.
            examples: likewise.

        Raises:
            FailedForward: it raises something.
            InputError: it keeps something from call to call.
        """
        if not self.is_there:
            yield
            return
        self.warm_up(kernel, point, examples)
        assert self._witness is not None  # noqa: S101 - of the line above
        at, made, first = self._witness
        with self._watch.calls(self._what), stated():
            yield
        with stated():
            again = _gradient(kernel, at, made)
        if not _is_same(again, first):
            raise InputError(
                f"{self._what} gives another gradient for the same record once it was called on "
                "others: something is kept from call to call, which ties the gradient of a record "
                "to the records before it, and no figure covers that; compute from what it is "
                "given alone"
            )

    @contextmanager
    def called(
        self, examples: Examples, call: Callable[[Tensor, Tensor], object]
    ) -> Iterator[None]:
        """Call the code on records for anything but gradients: contents alone are compared.

        Args:
            call: calls the code in the same way, on the inputs and the target of one made record.

        Raises:
            FailedForward: it raises something.
            InputError: it keeps something from call to call.
        """
        if not self.is_there:
            yield
            return
        made = _made(examples)
        with stated("where records are counted"):
            call(made.inputs[0], made.targets[0])
        with self._watch.calls(self._what), stated("where records are counted"):
            yield


def _made(examples: Examples) -> Examples:
    """An example of the same shapes and types that is no record; whole numbers are 0."""
    inputs, targets = torch.zeros_like(examples.inputs[:1]), torch.zeros_like(examples.targets[:1])
    if inputs.is_floating_point():
        draw = torch.Generator().manual_seed(0)
        inputs = torch.rand(inputs.shape, generator=draw, dtype=inputs.dtype).to(inputs.device)
    if targets.is_floating_point():
        targets += 0.5
    return Examples(inputs=inputs, targets=targets)


def _gradient(kernel: Kernel, point: Tensor, of: Examples) -> Tensor:
    """(1, D) the gradient of one example."""
    out = torch.zeros(1, len(point), device=point.device, dtype=point.dtype)
    passes = [Pass.of(0, [Span(0, 0, 1)])]
    prepared = kernel.prepare(of, uses=1)
    kernel.add(out, point[None, None], passes, Summed(prepared))
    return out


def _is_same(one: Tensor, other: Tensor) -> bool:
    where = other.isfinite()
    if not torch.equal(where, one.isfinite()):
        return False
    most = _SAME[other.dtype] if other.device.type == "cpu" else _SAME_ON_DEVICE
    one, other = one.where(where, 0.0).double(), other.where(where, 0.0).double()
    return float((one - other).norm()) <= most * float(other.norm())


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
