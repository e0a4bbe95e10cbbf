"""The two general layouts of per-example gradients: one example at a time, and vmap.

They take any deterministic network, and any task. Random numbers are refused: their generator would
carry from one example to the next how many there were. `overhear.training.gradients.ghost` and
`overhear.training.gradients.choice` are for networks of layers with a rule;
`overhear.training.gradients.gradients` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError
from ..device.memory import elements_at_once
from ..models.losses import ForwardCalls
from ..models.parameters import unflatten
from ..models.tasks import Task
from .clipping import (
    Examples,
    Pass,
    Summed,
    clip_factors,
    finite_only,
    gather,
    squared_norms,
    total_squares,
)

# Per-example gradients of one vmap on a CPU, 64 MiB in float32: shorter ones pay for more calls.
_CPU_ELEMENTS = 2**24

# Passes of so few examples, of so many, are joined: each call costs what some examples do.
_SHORT, _MANY = 16, 16


class Kernel(Protocol):
    """A layout: it adds the clipped gradients of passes to the rows that their spans name."""

    def prepare(self, examples: Examples, *, uses: int) -> Examples:
        """Do once what all passes share; ``uses`` counts the examples summed over all pairs."""
        ...

    def examples_at_once(self, device: torch.device) -> int:
        """Most examples of one pass."""
        ...

    def add(self, out: Tensor, points: Tensor, passes: Sequence[Pass], of: Summed) -> None:
        """Add to out (E, D) the passes' clipped gradients at their owners' points (K, A, D)."""
        ...


class Objective(Protocol):
    """What is differentiated: a loss of one example at a point that comes in pieces."""

    size: int

    def pieces(self, flat: Tensor) -> dict[str, Tensor]:
        """The pieces of a point (D,), in its order."""
        ...

    def loss(self, pieces: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Scalar loss of inputs (*shape) and a target ()."""
        ...


class OfModel:
    """The cross-entropy of a network; a piece is a parameter."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._calls = model, ForwardCalls(model)
        self.size = sum(p.numel() for p in model.parameters())

    def pieces(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name."""
        return unflatten(self._model, flat)

    def loss(self, pieces: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """See `Objective.loss`."""
        return cross_entropy(self._logits(pieces, x), y.unsqueeze(0))

    def outputs(self, pieces: dict[str, Tensor], x: Tensor) -> Tensor:
        """(classes,) what the network gives for inputs (*shape)."""
        return self._logits(pieces, x)[0]

    def _logits(self, pieces: dict[str, Tensor], x: Tensor) -> Tensor:
        inputs = x.unsqueeze(0).clone()  # which a forward may overwrite
        with sdpa_kernel(SDPBackend.MATH):  # no other attention has a rule for vmap
            return self._calls(pieces, inputs)


class OfTask:
    """The loss of a task, in one piece."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.size = sum(task.dimensions)

    def pieces(self, flat: Tensor) -> dict[str, Tensor]:
        """The whole point."""
        return {"point": flat}

    def loss(self, pieces: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """See `Objective.loss`."""
        return self._task.loss(pieces["point"], x, y)


class Loop:
    """One example, one backward pass."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def prepare(self, examples: Examples, *, uses: int) -> Examples:  # noqa: ARG002 - one interface
        """Nothing is shared."""
        return examples

    def examples_at_once(self, device: torch.device) -> int:
        """Any number: examples are taken one by one."""
        return elements_at_once(device)

    def _gradient(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        before = _generators(flat.device)
        with torch.enable_grad():
            point = flat.detach().clone().requires_grad_()  # which a forward may overwrite
            loss = self._objective.loss(self._objective.pieces(point), x, y)
            (gradient,) = torch.autograd.grad(loss, point)
        if not all(map(torch.equal, before, _generators(flat.device))):
            raise InputError(
                "the network or task draws random numbers, which tie the gradient of a record to "
                "the records before it; compute without them, or draw them once when it is made"
            )
        return gradient

    def add(self, out: Tensor, points: Tensor, passes: Sequence[Pass], of: Summed) -> None:
        """Add clipped gradients one by one."""
        for owner, span in ((work.owner, span) for work in passes for span in work.spans):
            for b in range(span.start, span.stop):
                gradient = torch.zeros_like(out[0])  # (D,)
                for coefficient, point in zip(of.coefficients, points[:, owner], strict=True):
                    found = self._gradient(point, of.examples.inputs[b], of.examples.targets[b])
                    gradient += coefficient * found
                if of.clip_norm is not None:
                    squares = gradient.square().sum()
                    if of.drops:
                        gradient = finite_only(gradient[None], squares[None])[0]
                    gradient *= clip_factors(squares, of.clip_norm, drops=of.drops)
                out[span.row] += gradient


def _generators(device: torch.device) -> list[Tensor]:
    """The states of torch's own generators that a loss on the device may draw from."""
    states = [torch.get_rng_state()]
    # A generator that was never made has drawn nothing.
    if device.type == "cuda" and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps" and torch.backends.mps.is_available():
        states.append(torch.mps.get_rng_state())
    return states


class Vmap:
    """Per-example gradients by `torch.func`, the data of a model's neighbours stacked.

    Args:
        objective: What is differentiated.
        joins: Whether models of many owners may be stacked too, one for each example, where they
            meet few examples each. Code of the user is called at one model at a time: it may
            branch on its parameters.
    """

    def __init__(self, objective: Objective, *, joins: bool = False) -> None:
        self._objective, self._joins = objective, joins

    def prepare(self, examples: Examples, *, uses: int) -> Examples:  # noqa: ARG002 - one interface
        """Nothing is shared."""
        return examples

    def examples_at_once(self, device: torch.device) -> int:
        """As many as have a gradient each within the bound on memory."""
        return max(elements_at_once(device, on_cpu=_CPU_ELEMENTS) // self._objective.size, 1)

    def add(self, out: Tensor, points: Tensor, passes: Sequence[Pass], of: Summed) -> None:
        """Add clipped gradients, all examples of a pass at once, or of several short ones."""
        most = self.examples_at_once(out.device)
        joins = self._joins and len(passes) >= _MANY
        for works in _joined(passes, most=most // 16) if joins else zip(passes):
            self._add_some(out, points, works, of)

    def _add_some(self, out: Tensor, points: Tensor, works: Sequence[Pass], of: Summed) -> None:
        spans = [span for work in works for span in work.spans]
        x, y = gather(of.examples.inputs, spans), gather(of.examples.targets, spans)
        # One model for all examples, or for each its own.
        at: int | Tensor = works[0].owner
        if len(works) > 1:
            owners = torch.tensor([work.owner for work in works])
            at = owners.repeat_interleave(torch.tensor([work.length for work in works]))
        dims = (None if len(works) == 1 else 0, 0, 0)
        per_example = torch.func.vmap(torch.func.grad(self._objective.loss), in_dims=dims)
        # Gradients of all examples, by parameter, combined over the points.
        gradients: list[Tensor] = []  # (B, d), one block a parameter
        for coefficient, point in zip(of.coefficients, points, strict=True):
            found = per_example(self._objective.pieces(point[at].clone()), x, y)
            blocks = [g.reshape(len(g), -1) for g in found.values()]
            if isinstance(coefficient, Tensor):
                parts = coefficient.split([block.shape[1] for block in blocks])
                blocks = [part * block for part, block in zip(parts, blocks, strict=True)]
            elif coefficient != 1:
                blocks = [coefficient * block for block in blocks]
            gradients = (
                [a + b for a, b in zip(gradients, blocks, strict=True)] if gradients else blocks
            )
        # One factor for each example, by the norm of its whole vector.
        factors = squares = torch.ones(len(y), device=out.device, dtype=out.dtype)  # (B,)
        if of.clip_norm is not None:
            squares = total_squares([squared_norms(g) for g in gradients])
            factors = clip_factors(squares, of.clip_norm, drops=of.drops)
        first = 0
        for block in gradients:  # one at a time: what is kept of it takes its memory again
            chosen = finite_only(block, squares) if of.drops else block
            begin = 0
            for span in spans:
                here = slice(begin, begin + span.stop - span.start)
                row = out[span.row, first : first + block.shape[1]]
                row.addmv_(chosen[here].T, factors[here])
                begin = here.stop
            first += block.shape[1]


def _joined(passes: Sequence[Pass], *, most: int) -> list[list[Pass]]:
    """Short passes that follow one another together, up to so many examples; others alone."""
    blocks, room = list[list[Pass]](), 0
    for work in passes:
        if work.length > min(room, _SHORT):
            blocks.append([])
            room = most if work.length <= _SHORT else 0
        blocks[-1].append(work)
        room -= work.length
    return blocks
