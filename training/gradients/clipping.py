"""The clip factor of one example, and the passes in which stacked examples meet a model.

A clip factor is ``min(1, clip_norm / (norm * (1 + slack)))``. The slack is 32 units of rounding of
the working precision (3.8e-6 in float32, 7.1e-15 in float64), more than a norm loses by rounding,
so rounding makes no clipped gradient longer than ``clip_norm``. A float32 norm loses at most 1.5e-6
(`squared_norms`), the product of two, which is the norm of a linear layer's gradient, twice that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError, NotFiniteError, within
from ..device.precision import elements_at_once
from ..models.losses import ForwardCalls
from ..models.parameters import unflatten
from ..models.tasks import Task

Coefficient = float | Tensor  # of the gradient at a point, or (D,) of each of its coordinates

# Entries of one running float32 sum: it loses at most 2^-24 of itself with each of them.
_RUN = 48

# Below this bound the squares of a longer gradient's float32 entries may underflow to zero.
_SMALLEST_CLIP_NORM = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """All data owners' batches in one stack: inputs (B, *shape), integer targets (B,).

    ``patches`` (B, P, I), where a layout shares them, are what the first convolution multiplies.
    """

    inputs: Tensor
    targets: Tensor
    patches: Tensor | None = None


def stack(
    batches: Sequence[tuple[Tensor, Tensor]], *, device: torch.device, dtype: torch.dtype
) -> Examples:
    """The examples of all batches one after the other, on a device and in its precision.

    Raises:
        ValueError: If a batch has another number of inputs than of targets.
    """
    for d, (inputs, targets) in enumerate(batches):
        if len(inputs) != len(targets):
            raise InputError(f"batch {d} has {len(inputs)} inputs but {len(targets)} targets")
    inputs, targets = (
        torch.cat([one if one.device == device else one.to(device) for one in of]).detach()
        for of in zip(*(batch for batch in batches if len(batch[1])), strict=True)
    )
    return Examples(
        inputs=inputs.to(dtype) if inputs.is_floating_point() else inputs, targets=targets
    )


class Summed(NamedTuple):
    """What sums are made of.

    Attributes:
        examples: Of all data owners.
        coefficients: Weights of the points at which gradients are taken, as many as there are.
        clip_norm: Bound on the norm of an example's gradient; None for no clipping.
        drops: As in `clip_factors`.
    """

    examples: Examples
    coefficients: Sequence[Coefficient] = (1.0,)
    clip_norm: float | None = None
    drops: bool = False


class Span(NamedTuple):
    """Consecutive stacked examples whose gradients belong to one output row."""

    row: int
    start: int
    stop: int


class Pass(NamedTuple):
    """Examples that meet one model together: one forward, one backward.

    Attributes:
        owner: Of the model.
        spans: Of the examples.
        length: How many they are.
    """

    owner: int
    spans: tuple[Span, ...]
    length: int

    @staticmethod
    def of(owner: int, spans: Sequence[Span]) -> Pass:
        """Of some spans."""
        return Pass(owner, tuple(spans), sum([stop - start for _, start, stop in spans]))


def clip_factors(squared_norms: Tensor, clip_norm: float, *, drops: bool = False) -> Tensor:
    """Factors that bring gradients of these squared norms within ``clip_norm``.

    Args:
        squared_norms: Squared Euclidean norms in the working precision, shape (B,).
        clip_norm: Bound on the norm after clipping, in the gradient's unit.
        drops: Whether an example of a norm that is not finite counts as the zero vector, for which
            `finite_only` has to take what is not finite out of it, too.

    Returns:
        Factors in (0, 1], shape (B,). A norm that is not finite has the factor NaN, so that the
        row it joins turns NaN and is reported; where it is dropped, zero.

    >>> clip_factors(torch.tensor([25.0, 0.25]).double(), 1.0).round(decimals=6).tolist()
    [0.2, 1.0]
    """
    slack = 32 * torch.finfo(squared_norms.dtype).eps
    factors = (clip_norm / (squared_norms.sqrt() * (1 + slack))).clamp(max=1.0)
    return torch.where(squared_norms.isfinite(), factors, 0.0 if drops else torch.nan)


def finite_only(values: Tensor, squared_norms: Tensor) -> Tensor:
    """Values (B, *rest) of the examples, zero where the squared norm (B,) is not finite.

    Chosen, and without a look at which: nothing waits for a device.

    >>> finite_only(torch.tensor([[1.0], [torch.nan]]), torch.tensor([1.0, torch.nan])).tolist()
    [[1.0], [0.0]]
    """
    finite = squared_norms.isfinite()
    return values.where(finite.view(-1, *[1] * (values.ndim - 1)), 0)


def squared_norms(rows: Tensor) -> Tensor:
    """Squared Euclidean norms (B,) of rows (B, n), in their own precision.

    Norms of runs of 48 entries are squared and summed in double precision. In whatever order a
    machine adds 48 float32 squares, every square is rounded at most 48 times, so the sum is short
    by at most 48 * 2^-24 of itself, and its root by half of that: 1.4e-6. The running sum of a
    whole row of ten million entries comes out up to 1 % short; squares of all entries take a second
    row's memory, and three to four times as long.

    >>> squared_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [25.0, 0.0]
    """
    if rows.shape[1] <= _RUN:
        return rows.square().sum(1)
    whole = rows.shape[1] // _RUN * _RUN
    runs = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, _RUN)), dim=2)
    return total_squares([runs.double().square().sum(1), rows[:, whole:].square().sum(1)])


def total_squares(parts: Sequence[Tensor]) -> Tensor:
    """The sum (B,) of squared norms (B,), added in double precision, in the last one's precision.

    >>> float(total_squares([torch.tensor([9.0]), torch.tensor([16.0])]))
    25.0
    """
    return torch.stack([part.double() for part in parts]).sum(0).to(parts[-1].dtype)


def clipped_rows(rows: Tensor, clip_norm: float | None, *, drops: bool = False) -> Tensor:
    """Rows that are scaled down to at most ``clip_norm``; all as they are for None.

    Args:
        rows: (E, D).
        clip_norm: Bound on a row's Euclidean norm, in the gradient's unit.
        drops: Whether a row that is not finite, or whose squared norm is not, is the zero vector.

    Raises:
        ValueError: If the bound is not a finite number of at least 1e-12.
        FloatingPointError: If a row's squared norm is not finite and it is not dropped. On a
            device, where looking would wait, such a row is NaN instead, which is found in the state
            when the round ends.
    """
    check_clip_norm(clip_norm)
    if clip_norm is None:
        return rows
    squares = rows.double().square().sum(dim=1).to(rows.dtype)
    if drops:
        return finite_only(rows, squares) * clip_factors(squares, clip_norm, drops=True)[:, None]
    if rows.device.type == "cpu" and not bool(squares.isfinite().all()):
        raise NotFiniteError(
            "the squared norm of a mean gradient overflows; check the inputs and the learning rate"
        )
    return rows * clip_factors(squares, clip_norm)[:, None]


def bound_at(norm: float) -> float | None:
    """A norm of the data as a bound; None, which lets all stay, where it is too small for one."""
    return norm if norm >= _SMALLEST_CLIP_NORM else None


def check_clip_norm(clip_norm: float | None) -> None:
    """Refuse a bound that cannot be kept.

    >>> check_clip_norm(0.0)
    Traceback (most recent call last):
        ...
    overhear...InputError: clip_norm=0.0 must be at least 1e-12; ...
    """
    if clip_norm is not None:
        bound = f"[{_SMALLEST_CLIP_NORM}, inf)"
        within("clip_norm", clip_norm, bound, "None means no clipping")


def plan_passes(
    senders: Sequence[int], receivers: Sequence[int], *, sizes: Sequence[int], limit: int
) -> list[Pass]:
    """Group pairs by model owner into passes of at most ``limit`` examples.

    Args:
        senders: Model owner of each row, shape (E,).
        receivers: Data owner of each row, shape (E,).
        sizes: Examples of each data owner; their batches are stacked in this order.
        limit: Most examples of one pass; more are split over passes of about one length.

    Returns:
        Passes ordered by model owner, then data owner. Empty batches appear in none.

    >>> passes = plan_passes([0, 1, 0], [0, 0, 1], sizes=[4, 3], limit=5)
    >>> [(p.owner, sum(s.stop - s.start for s in p.spans)) for p in passes]
    [(0, 4), (0, 3), (1, 4)]
    """
    starts = [0, *accumulate(sizes)]
    passes: list[Pass] = []
    order = sorted(range(len(senders)), key=lambda row: (senders[row], receivers[row]))
    for owner, rows in groupby(order, key=senders.__getitem__):
        whole = [
            Span(e, starts[d], starts[d + 1]) for e in rows for d in [receivers[e]] if sizes[d]
        ]
        of_owner = Pass.of(owner, whole)
        if of_owner.length:
            passes += [of_owner] if of_owner.length <= limit else _split(of_owner, limit=limit)
    return passes


def _split(work: Pass, *, limit: int) -> list[Pass]:
    """As many passes as there must be of at most ``limit`` examples, of about one length."""
    passes, spans, left = list[Pass](), list[Span](), work.length
    room = -(-left // -(-left // limit))
    for row, first, end in work.spans:
        start = first
        while start < end:
            stop = min(end, start + room)
            spans.append(Span(row, start, stop))
            room, left, start = room - (stop - start), left - (stop - start), stop
            if room == 0:
                passes.append(Pass.of(work.owner, spans))
                spans, room = [], -(-left // -(-left // limit)) if left else 0
    return passes


def joined(spans: Sequence[Span]) -> bool:
    """Whether the spans follow one another in the stack."""
    return all(one.stop == following.start for one, following in pairwise(spans))


def gather(stacked: Tensor, spans: Sequence[Span]) -> Tensor:
    """Rows of ``stacked`` under the spans: a view where they are joined, else a copy."""
    if joined(spans):
        return stacked[spans[0].start : spans[-1].stop]
    return torch.cat([stacked[span.start : span.stop] for span in spans])


def check_finite(finite: Tensor, senders: Sequence[int], receivers: Sequence[int]) -> None:
    """Refuse sums (E,) that are not finite.

    Raises:
        FloatingPointError: If there is one; the first is named by its model and data owner.

    >>> check_finite(torch.tensor([True]), [0], [1])
    """
    bad: list[int] = (~finite).nonzero().flatten().tolist()
    if bad:
        raise NotFiniteError(
            f"{len(bad)} of {len(finite)} sums are not finite, the first on the model of agent "
            f"{senders[bad[0]]} over the data of agent {receivers[bad[0]]}: a gradient or its "
            "squared norm overflows; check the inputs and the learning rate"
        )


# The two general layouts of per-example gradients: one example at a time, and vmap.


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
