"""Calls of a network or a loss of the user, which may raise anything and must keep nothing.

Two things are looked at after each call for gradients. What the code reaches has to hold what it
held before (`Watch`). And a *witness*, which is a made record at a fixed point, has to have the
gradient that it had at first: what a call leaves behind, wherever it lies, ties records together
only if it changes a gradient. Before the first record is given to it, the code is called on the
witness, so a table that is filled once is filled from no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ..models.losses import stated, unknown_forward
from ..models.tasks import Task
from ..own.contents import Watch
from .clipping import Examples, Pass, Span, Summed
from .loop_and_vmap import Kernel

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
            kernel: the layout.
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
            examples: of which the shape and the type matter.
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
