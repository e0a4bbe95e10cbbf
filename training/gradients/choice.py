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
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..forwards.separate import Separate, separate
from ..models.forward_calls import unknown_forward
from .clipping import Examples, Pass, Span
from .ghost import BookKeeping
from .grouped import Grouped
from .layers import find_layers, unsupported_layer
from .loop_and_vmap import Kernel, Loop, OfModel

# Layouts by layer, in the order of preference.
BY_LAYER: Mapping[str, Callable[[nn.Module], Kernel]] = {
    "book-keeping": BookKeeping,
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
    (`overhear.training.forwards.separate`).

    Args:
        example: (1, *shape), of which the shape, the type and the device matter.
    """
    unsupported = unsupported_layer(model)
    if unsupported is None and unknown_forward(model) is None:
        return model
    found = separate(model, example)
    if isinstance(found, str) and unsupported is not None:
        return f"{unsupported}, and {found}"
    return found


def disagreement(
    build: Callable[[nn.Module], Kernel],
    model: nn.Module,
    *,
    layered: nn.Module,
    point: Tensor,
    examples: Examples,
) -> tuple[bool, str | None]:
    """Whether two examples, beside probes, settle that a layout serves a model, and why not.

    Args:
        layered: What `with_layers` made of it.
        point: (D,) where to compare.
        examples: At least one.
    """
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
    few = Examples(
        inputs=torch.cat([inputs, probes]),
        targets=torch.cat([targets, targets[:1].expand(len(probes))]),
    )
    count, stop = len(targets), len(few.targets)
    # Spans apart, and spans side by side, of which patches are shared.
    passes = [
        Pass(owner=0, spans=(Span(row=0, start=0, stop=1), Span(row=1, start=0, stop=stop))),
        Pass(
            owner=1, spans=(Span(row=2, start=0, stop=count), Span(row=3, start=count, stop=stop))
        ),
    ]
    # Two owners of about one length, so that a layout that mixes them is found.
    points = torch.stack([point.double(), 0.5 * point.double()])[None]
    sums = []
    for kernel in (Loop(OfModel(model)), build(exact)):
        rows = torch.zeros(4, len(point), device=point.device, dtype=torch.float64)
        try:
            kernel.add(
                rows,
                points,
                examples=kernel.prepare(few, uses=1 + 2 * stop),
                passes=passes,
                coefficients=(1.0,),
                clip_norm=1e-6,  # so small that every gradient is clipped and every norm matters
            )
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

    >>> network_size(nn.Linear(3, 2), torch.zeros(1, 3))
    NetworkSize(layers=1, parameters=8, per_example=5)
    >>> network_size(nn.Conv2d(1, 2, 3), torch.zeros(1, 1, 4, 4))  # 4 patches of 9 give 4 of 2
    NetworkSize(layers=1, parameters=20, per_example=88)
    """
    counts: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            patches = outputs[0, 0].numel() * module.weight[0].numel()
            counts.append(2 * (patches + outputs.numel()))
        else:
            counts.append(inputs[0].numel() + outputs.numel())

    layers = find_layers(model)
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

    >>> digits = NetworkSize(layers=2, parameters=2_410, per_example=138)
    >>> choose(digits, owners=1_000, pairs=3_000, examples=24.0, device="cpu")
    ('grouped', 'book-keeping')
    >>> choose(digits, owners=1, pairs=1, examples=4_096.0, device="cpu")
    ('book-keeping', 'grouped')
    >>> lenet = NetworkSize(layers=5, parameters=61_706, per_example=82_626)
    >>> choose(lenet, owners=10, pairs=30, examples=96.0, device="cpu")
    ('book-keeping', 'grouped')
    """
    calls = (owners - _PASSES + (pairs - owners) / _PAIRS) * size.layers - _CALLS
    entries = size.parameters * owners + (size.parameters * pairs) / 2
    entries += owners * examples * size.per_example / 2
    if calls * _CALL > (entries if device == "cpu" else 0):
        return "grouped", "book-keeping"
    return "book-keeping", "grouped"
