"""Which layout serves a network, and which of those that serve a run takes.

A layout by layer runs examples together, so it bounds what one record changes only if they do not
meet in the network. No finite number of examples shows that of a forward that may branch on a
whole batch; hence these layouts serve, by name too, only where `unknown_forward` finds nothing, or
where `overhear.training.forwards` finds a graph in which examples stay apart, and runs that graph.
They serve if they also agree with the loop: the network's list of layers does not show parameters
that are used outside their layer's call, layers that are called twice and overwritten outputs; a
comparison does. Of those that serve, `choose` takes one by a rule. Layouts differ in rounding, so
the rule reads no clock, and of a run the whole graph and the expected batch: the same run takes the
same layout every time, and on every rank.

The rule weighs the calls that a group saves against the entries that it moves:

    calls   = (A - 2) L - 3 + (E - A) L / 32     # a group alone: 2 L + 3; a further pair: L / 32
    entries = A D + (E D + A B M) / 2
    take grouped where calls * c > entries, else book-keeping

| symbol | name here         | unit                                                               |
|--------|-------------------|--------------------------------------------------------------------|
| A      | ``owners``        | model owners                                                       |
| E      | ``pairs``         | pairs of a model owner and a data owner                            |
| B      | ``examples``      | expected examples that meet one model                              |
| L      | ``layers``        | layers with parameters                                             |
| D      | ``parameters``    | entries of a model, and of a sum                                   |
| M      | ``per_example``   | entries that layers read and return for one example; twice those   |
|        |                   | of convolutions, with the input as patches: they take longer under |
|        |                   | models of their own; of a graph, also what its operations make     |
| c      | `_CALL`           | entries that a group moves in the time of one call                 |

2, 3, 1 / 32, 1 / 2 and c are fitted to a CPU (`benchmarks/engine.py`). On an accelerator entries
count as 0: there a pass costs what the host takes to call it.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.hooks import RemovableHandle

from ..device.precision import elements_at_once, on_device
from ..models.losses import unknown_forward
from ..models.parameters import flatten, unflatten
from . import clipping, ghost
from .examples_independent import Separate, separate
from .linear_conv import Cells, Factors, Layer

# Clipped gradient sums of many model owners at once, for many small models and for accelerators.
#
#     sort the passes by size, cut them into blocks of M owners of about as many examples each
#     stack the owners' parameters (M, D) and their examples (M, B)
#     take inputs a and signals u of every layer for the block     # vmap of the gradient by outputs
#     f = min(1, C / |G|) for all M B examples                     # the rules of `layers`
#     rows of the block's pairs += sums over their examples        # one product for cells of a
#     length
#
# | symbol | name here  | shape     | meaning                                                     |
# |--------|------------|-----------|-------------------------------------------------------------|
# | M      |            |           | passes of a block, each of another owner                    |
# | B      |            |           | examples of a block's longest pass                          |
# |        | ``cells``  | (C, L)    | spans of about one length, see `layer_rules.Cells`          |
# | u      | ``zeros``  | (M, B, *) | what is added to a layer's output, to differentiate by it   |
#
# A shorter pass repeats its last example, and no cell takes the repetition. All positions come from
# lists on the host: nothing waits for the device.

# Elements, 16 MiB in float32, and owners of a block on a CPU: measured, more gain nothing.
_CPU_ELEMENTS, _CPU_OWNERS = 2**22, 200


class _Tape:
    """What the hooks of one pass add to the layers' outputs, and what they keep, call by call."""

    def __init__(self) -> None:
        self.zeros: dict[str, Tensor] = {}
        self.inputs: dict[str, Tensor] = {}
        self.calls = Counter[str]()  # so far, by layer
        self.shapes: dict[str, torch.Size] = {}

    def hook(self, layer: Layer) -> RemovableHandle:
        """Record a layer's calls."""

        def keep(_module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            call = f"{layer.name} {self.calls[layer.name]}"
            self.calls[layer.name] += 1
            self.inputs[call], self.shapes[call] = inputs[0], outputs.shape
            return outputs + self.zeros[call] if self.zeros else outputs

        return layer.module.register_forward_hook(keep)


class _Places(NamedTuple):
    """Where the examples of spans lie in a block, and the output rows of their sums: (S,) each."""

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class Grouped:
    """Layout for the models of `BookKeeping`, many owners at a time."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ghost.without_overwriting(model)
        self._layers = ghost.find_layers(self._model)
        self._size = sum(p.numel() for p in model.parameters())
        self._tape = _Tape()
        for layer in self._layers:
            self._tape.hook(layer)
        self._elements = 0
        self._shapes: dict[str, torch.Size] = {}  # of one example's outputs, by layer called
        self._shape: torch.Size | None = None  # of the example that was measured

    def prepare(self, examples: clipping.Examples, *, uses: int) -> clipping.Examples:  # noqa: ARG002 - one interface
        """Measure an example; nothing is shared."""
        if examples.inputs.shape[1:] != self._shape:
            self._measure(examples.inputs[:1], examples.targets[:1])
        return examples

    def examples_at_once(self, device: torch.device) -> int:
        """Most examples of one pass."""
        return max(elements_at_once(device) // self._elements, 1)

    def add(
        self, out: Tensor, points: Tensor, passes: Sequence[clipping.Pass], of: clipping.Summed
    ) -> None:
        """Add the sums at one point of each owner, points (1, A, D), to the rows (E, D).

        Its coefficient is one number: signals belong to no coordinate.
        """
        on_cpu = out.device.type == "cpu"
        for block in cut_blocks(
            passes,
            per_example=self._elements,
            per_row=self._size,
            limit=elements_at_once(out.device, on_cpu=_CPU_ELEMENTS),
            owners=_CPU_OWNERS if on_cpu else len(passes),
        ):
            self._add_block(out, points[0], block, of)

    def _add_block(
        self, out: Tensor, points: Tensor, block: Sequence[clipping.Pass], of: clipping.Summed
    ) -> None:
        (coefficient,) = of.coefficients
        owners = _to_device([work.owner for work in block], device=out.device)
        positions, places = _lay_out(block)
        index = _to_device(positions.ravel(), device=out.device)
        inputs = of.examples.inputs.index_select(0, index).unflatten(0, positions.shape)
        targets = of.examples.targets.index_select(0, index).unflatten(0, positions.shape)
        found = self._factors(
            points.index_select(0, owners),
            inputs,
            targets=targets,
            coefficient=coefficient,
            measured=of.clip_norm is not None,
        )
        factors = None
        if of.clip_norm is not None:
            squares = clipping.total_squares([layer.squared_norms() for layer in found])
            factors = clipping.clip_factors(squares, of.clip_norm, drops=of.drops)  # (M * B,)
            if of.drops:
                found = [layer.kept(squares) for layer in found]
        for rows, cells in _cells(places, factors, count=positions.size, like=out):
            parts = sorted(
                (part for layer in found for part in layer.sums(cells)), key=lambda part: part[0]
            )
            out.index_add_(0, rows, _joined(parts, size=self._size))

    def _factors(
        self,
        points: Tensor,
        inputs: Tensor,
        *,
        targets: Tensor,
        coefficient: clipping.Coefficient,
        measured: bool,
    ) -> list[Factors]:
        """Each layer's factors over the block's (M, B) examples, flat."""
        lead = targets.shape
        zeros = {
            name: torch.zeros((), device=points.device, dtype=points.dtype).expand(*lead, *shape)
            for name, shape in self._shapes.items()
        }
        signals, read = torch.func.vmap(torch.func.grad(self._loss, has_aux=True))(
            zeros, unflatten(self._model, points), inputs, targets
        )
        self._tape.inputs.clear()
        found = []
        for layer in self._layers:
            if calls := [
                f"{layer.name} {number}" for number in range(self._tape.calls[layer.name])
            ]:
                inputs, sent = ghost.calls_together(
                    layer, *([of[call].flatten(0, 1) for call in calls] for of in (read, signals))
                )
                sent = sent if coefficient == 1 else sent * coefficient
                found.append(ghost.factor(layer, inputs, signals=sent, measured=measured))
        return found

    def _loss(
        self, zeros: dict[str, Tensor], parameters: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One owner's loss, summed over its examples, and what its layers read."""
        logits = self._call(parameters, x, zeros=zeros)
        return cross_entropy(logits, y, reduction="sum"), dict(self._tape.inputs)

    def _call(
        self, parameters: dict[str, Tensor], x: Tensor, *, zeros: dict[str, Tensor]
    ) -> Tensor:
        self._tape.zeros = zeros
        for kept in (self._tape.inputs, self._tape.shapes, self._tape.calls):
            kept.clear()
        try:
            with sdpa_kernel(SDPBackend.MATH):  # no other attention has a rule for vmap
                return torch.func.functional_call(self._model, parameters, (x,))
        finally:
            self._tape.zeros = {}

    def _measure(self, inputs: Tensor, targets: Tensor) -> None:
        """Note the shapes of the layers' outputs; count the elements one example keeps."""
        self._call(dict(self._model.named_parameters()), inputs, zeros={})
        self._shapes = {name: shape[1:] for name, shape in self._tape.shapes.items()}
        self._tape.inputs.clear()
        found = self._factors(
            flatten(self._model)[None],
            inputs[None],
            targets=targets[None],
            coefficient=1.0,
            measured=True,
        )
        self._elements = sum(layer.elements() for layer in found)
        self._shape = inputs.shape[1:]


def cut_blocks(
    passes: Sequence[clipping.Pass], *, per_example: int, per_row: int, limit: int, owners: int
) -> list[list[clipping.Pass]]:
    """Passes of about one size, each of another owner, that are computed together.

    Args:
        passes: In any order.
        per_example: Elements that one example holds.
        per_row: Elements of a model, and of a row of sums.
        limit: Most elements of a block of several passes.
        owners: Most passes of a block.

    Returns:
        Blocks from the longest passes to the shortest; a block's longest pass has at most one and
        a half times the examples of its shortest.
    """
    blocks: list[list[clipping.Pass]] = []
    longest, rows, members = 0, 0, set[int]()
    for work in sorted(passes, key=lambda work: (-work.length, work.owner)):
        length, spans = work.length, len(work.spans)
        held = (len(members) + 1) * longest * per_example + (rows + spans + 1) * per_row
        full = held > limit or len(members) == owners
        if not blocks or full or 3 * length < 2 * longest or work.owner in members:
            blocks.append([])
            longest, rows, members = length, 0, set[int]()
        blocks[-1].append(work)
        members.add(work.owner)
        rows += spans + 1
    return blocks


def _lay_out(block: Sequence[clipping.Pass]) -> tuple[np.ndarray, _Places]:
    """Positions (M, B) in the stack of a block's examples, and the places of its spans there."""
    rows, starts, stops = np.array([span for work in block for span in work.spans]).T
    lengths = stops - starts
    # Examples one after the other, and how many lie before each pass and each span.
    held = np.array([work.length for work in block])
    width, before = held.max(), np.cumsum(held) - held
    counts, ends = [len(work.spans) for work in block], np.cumsum(lengths)
    offsets = np.repeat(width * np.arange(len(block)) - before, counts)
    each = np.arange(ends[-1])
    positions = np.repeat(stops[np.cumsum(counts) - 1] - 1, width)  # a pass's last, at first
    positions[each + np.repeat(offsets, lengths)] = each + np.repeat(stops - ends, lengths)
    return positions.reshape(len(block), width), _Places(rows, ends - lengths + offsets, lengths)


def _cells(
    places: _Places, factors: Tensor | None, *, count: int, like: Tensor
) -> list[tuple[Tensor, Cells]]:
    """Output rows and cells of the spans, those of about one length together.

    Args:
        places: Of the spans in a block of ``count`` examples.
        factors: Clip factors (M * B,); None for no clipping.
        count: M * B.
        like: Gives device and dtype.
    """
    kinds, kind_of = np.unique(places.lengths, return_inverse=True)
    longest = np.array([_longest_beside(length) for length in kinds.tolist()])[kind_of]
    found = []
    for beside in dict.fromkeys(longest.tolist()):
        row_numbers, starts, lengths = (of[longest == beside] for of in places)
        shape = (len(starts), int(lengths.max()))
        steps = np.arange(shape[1])
        inside = steps < lengths[:, None]  # (C, L)
        positions = (starts[:, None] + np.minimum(steps, lengths[:, None] - 1)).ravel()
        in_order = len(positions) == count and bool((positions == np.arange(count)).all())
        index = None if in_order else _to_device(positions, device=like.device)
        weights = None
        if factors is not None:
            chosen = factors if index is None else factors.index_select(0, index)
            weights = chosen.view(shape)
        if not inside.all():
            mask = _to_device(inside, device=like.device).to(like.dtype)
            weights = mask if weights is None else weights * mask
        rows = _to_device(row_numbers, device=like.device)
        found.append((rows, Cells(shape=shape, index=index, weights=weights)))
    return found


def _longest_beside(length: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not below a length."""
    power = 1 << (length - 1).bit_length()
    return power // 4 * 3 if power >= 4 and length <= power // 4 * 3 else power


def _joined(parts: Sequence[tuple[int, Tensor]], *, size: int) -> Tensor:
    """Parts (C, n) in the order of their places as rows (C, D), zero where no layer was called."""
    columns, at = [], 0
    for start, values in parts:
        if start > at:
            columns.append(values.new_zeros(len(values), start - at))
        columns.append(values)
        at = start + values.shape[1]
    if at < size:
        columns.append(parts[0][1].new_zeros(len(parts[0][1]), size - at))
    return torch.cat(columns, 1)


def _to_device(values: Sequence[int] | np.ndarray, *, device: torch.device) -> Tensor:
    """A host array on a device."""
    return on_device(torch.as_tensor(np.asarray(values)), device)


# Layouts by layer, in the order of preference.
BY_LAYER: Mapping[str, Callable[[nn.Module], clipping.Kernel]] = {
    "book-keeping": ghost.BookKeeping,
    "grouped": Grouped,
}

# Of probes, in units of the data's largest number: there, what a batch's statistics decide changes.
_PROBES = (8.0, 4096.0)

# What a group costs by itself, in passes of one owner and in calls of a layer.
_PASSES, _CALLS = 2, 3
# Pairs whose sums book-keeping adds, one by one, in the time of a pass.
_PAIRS = 32
# Entries that a group moves in the time of a layer's calls in one pass.
_CALL = 2**18


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSize:
    """What the rule reads of a network.

    Attributes:
        layers: layers with parameters.
        parameters: D.
        per_example: entries that layers read and return for one example, a convolution's twice.
    """

    layers: int
    parameters: int
    per_example: int


def with_layers(model: nn.Module, example: Tensor) -> nn.Module | str:
    """A network as layers that have a rule, among which examples cannot meet; or why it is none.

    A network whose forward is known is returned itself, any other one as a checked graph
    (`overhear.training.gradients.examples_independent`).

    Args:
        example: (1, *shape), of which the shape, the type and the device matter.
    """
    unsupported = ghost.unsupported_layer(model)
    if unsupported is None and unknown_forward(model) is None:
        return model
    found = separate(model, example)
    if isinstance(found, str) and unsupported is not None:
        return f"{unsupported}, and {found}"
    return found


def disagreement(
    build: Callable[[nn.Module], clipping.Kernel],
    model: nn.Module,
    *,
    layered: nn.Module,
    point: Tensor,
    examples: clipping.Examples,
) -> tuple[bool, str | None]:
    """Whether two examples, beside probes, settle that a layout serves a model, and why not.

    Args:
        layered: What `with_layers` made of it.
        point: (D,) where to compare.
        examples: At least one.
    """
    # In double precision, on two examples and probes beside them.
    model = copy.deepcopy(model).double()
    inputs, targets = examples.inputs[:2], examples.targets[:2]
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    exact = model
    if isinstance(layered, Separate):  # a graph is of one precision
        found = separate(model, inputs[:1])
        if isinstance(found, str):
            return True, found
        exact = found
    probes = _probes(inputs)
    few = clipping.Examples(
        inputs=torch.cat([inputs, probes]),
        targets=torch.cat([targets, targets[:1].expand(len(probes))]),
    )
    count, stop = len(targets), len(few.targets)
    # Spans apart, and spans side by side, of which patches are shared.
    passes = [
        clipping.Pass.of(0, [clipping.Span(0, 0, 1), clipping.Span(1, 0, stop)]),
        clipping.Pass.of(1, [clipping.Span(2, 0, count), clipping.Span(3, count, stop)]),
    ]
    # Two owners of about one length, so that a layout that mixes them is found.
    points = torch.stack([point.double(), 0.5 * point.double()])[None]
    # The loop, which is the measure, and the layout.
    sums = []
    for kernel in (clipping.Loop(clipping.OfModel(model)), build(exact)):
        rows = torch.zeros(4, len(point), device=point.device, dtype=torch.float64)
        try:
            prepared = kernel.prepare(few, uses=1 + 2 * stop)
            # So small a bound that every gradient is clipped and every norm matters.
            kernel.add(rows, points, passes, clipping.Summed(prepared, clip_norm=1e-6))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            return True, str(error)  # of the loop too: a constant of a forward may be of float32
        sums.append(rows)
    size = float(sums[0].norm())
    if size == 0 and bool(sums[1].any()):
        return True, "it has a sum where the loop has none"
    distance = float((sums[1] - sums[0]).norm())
    # A vanishing gradient of the examples, or an overflowing one, shows too little for a yes.
    if not size < math.inf or (distance <= 1e-6 * size and not bool(sums[0][::2].any())):
        return False, None
    agrees = distance <= 1e-6 * size
    return True, None if agrees else f"its sum is off by {distance / size:.1e} of the loop's"


def _probes(inputs: Tensor) -> Tensor:
    """Examples (2, *shape) far from given ones; of whole numbers, others of the same range."""
    if not inputs.is_floating_point():
        low, high = inputs.amin(), inputs.amax()
        return torch.stack([low + high - inputs[0], high.expand_as(inputs[0])])
    draw = torch.Generator().manual_seed(0)
    shape = inputs.shape[1:]
    drawn = torch.randn(len(_PROBES), *shape, generator=draw, dtype=inputs.dtype)
    scale = drawn.new_tensor(_PROBES).view(-1, *[1] * len(shape))
    return (scale * (1 + drawn)).to(inputs.device) * inputs.abs().amax().clamp(min=1.0)


@torch.no_grad()
def network_size(model: nn.Module, example: Tensor) -> NetworkSize:
    """Count a network's layers and entries by one call.

    Args:
        model: What `with_layers` returned.
        example: (1, *shape), of which the shape and the type matter.
    """
    counts: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            patches = outputs[0, 0].numel() * module.weight[0].numel()
            counts.append(2 * (patches + outputs.numel()))
        else:
            counts.append(inputs[0].numel() + outputs.numel())

    layers = ghost.find_layers(model)
    hooks = [layer.module.register_forward_hook(count) for layer in layers]
    try:
        model(torch.zeros_like(example))  # a copy, which a layer may overwrite
    finally:
        for hook in hooks:
            hook.remove()
    return NetworkSize(
        layers=len(layers),
        parameters=sum(p.numel() for p in model.parameters()),
        per_example=sum(counts) + (model.entries if isinstance(model, Separate) else 0),
    )


def choose(
    size: NetworkSize, *, owners: int, pairs: int, examples: float, device: str
) -> tuple[str, ...]:
    """The layouts by layer in the order in which a run tries them; see the rule above.

    Args:
        owners: Model owners of the whole run.
        pairs: Pairs of a model owner and a data owner in a round of the whole run.
        examples: Expected examples that meet one model in a round.
        device: Where the run computes, such as "cpu".
    """
    calls = (owners - _PASSES + (pairs - owners) / _PAIRS) * size.layers - _CALLS
    entries = size.parameters * owners + (size.parameters * pairs) / 2
    entries += owners * examples * size.per_example / 2
    if calls * _CALL > (entries if device == "cpu" else 0):
        return "grouped", "book-keeping"
    return "book-keeping", "grouped"
