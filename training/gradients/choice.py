"""Which layout serves a network, and which of several is the fastest here.

A layout by layer runs examples together, so it bounds what one record changes only if they do not
meet in the network. No finite number of examples shows that of a forward that may branch on a
whole batch; hence "auto" offers these layouts only where `unknown_forward` finds nothing. They
serve if they also agree with the loop: the network's list of layers does not show parameters that
are used outside their layer's call, layers that are called twice and overwritten outputs; a
comparison does. Which of those that serve is the fastest depends on the network, the graph and the
device; a measurement shows it. Layouts differ in rounding, so what is chosen belongs to the record
of a run, and a run is repeated bit by bit by asking for the layout by its name.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..models import networks
from .clipping import Examples, Pass, Span, plan_passes
from .ghost import BookKeeping
from .grouped import Grouped
from .loop_and_vmap import Kernel, Loop, OfModel

# Layouts by layer, in the order of preference.
BY_LAYER: Mapping[str, Callable[[nn.Module], Kernel]] = {
    "book-keeping": BookKeeping,
    "grouped": Grouped,
}

# Their forward treats the examples along the first dimension one by one, whatever they read.
_SEPARATE = frozenset(
    {
        *(nn.Sequential, nn.Identity, nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm),
        *(nn.Embedding, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU),
        *(nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign),
        *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d),
        *(nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d),
        nn.AdaptiveMaxPool2d,
    }
)
# These do along any dimension but the first, which this attribute names.
_ALONG = {
    nn.Flatten: "start_dim",
    nn.Unflatten: "dim",
    nn.Softmax: "dim",
    nn.LogSoftmax: "dim",
    nn.Softmin: "dim",
    nn.GLU: "dim",
}

# Of probes, in units of the data's largest number: there, what a batch's statistics decide changes.
_PROBES = (8.0, 4096.0)

# Examples times parameters, over all pairs: below, any layout takes less than about .05 s.
_WORTH_MEASURING = 2**22
_MEASURED_PAIRS, _MEASURED_WORK = 64, 2**26
# A later layout must take less than this share of the first one's time: noise shall not choose.
_SHARE = 0.8


def unknown_forward(model: nn.Module) -> str | None:
    """Why examples may meet in a network's forward, as far as is known; None where they cannot.

    Known are the networks of `overhear.training.models.networks` and layers of torch by their exact
    class, without hooks and with no method that is the layer's own.

    Args:
        model: The network.

    Examples:
        >>> unknown_forward(nn.Sequential(nn.Flatten(start_dim=0), nn.Linear(4, 2)))
        "layer '0' (Flatten) has start_dim=0, which may be that of the examples"
    """
    for name, module in model.named_modules():
        of = type(module)
        kind = f"layer {name!r} ({of.__name__})"
        if of in _ALONG:
            dim = getattr(module, _ALONG[of])
            # -1 is the first dimension only of a single one, which no layer takes as examples.
            if not isinstance(dim, int) or (dim < 1 and dim != -1):
                return f"{kind} has {_ALONG[of]}={dim}, which may be that of the examples"
        elif of not in _SEPARATE and of.__module__ != networks.__name__:
            return f"{kind} is of a class whose forward is not known"
        if any(callable(getattr(of, held, None)) for held in vars(module)):
            return f"{kind} has a method of its own"
        hooks = (
            *(module._forward_hooks, module._forward_pre_hooks),
            *(module._backward_hooks, module._backward_pre_hooks),
        )
        if any(hooks):
            return f"{kind} has hooks"
    return None


def disagreement(
    build: Callable[[nn.Module], Kernel], model: nn.Module, *, point: Tensor, examples: Examples
) -> tuple[bool, str | None]:
    """Whether two examples, beside probes, settle that a layout serves a model, and why not.

    Args:
        build: The layout.
        model: The network.
        point: (D,) where to compare.
        examples: At least one.
    """
    model = copy.deepcopy(model).double()
    inputs, targets = examples.inputs[:2], examples.targets[:2]
    inputs = inputs.double() if inputs.is_floating_point() else inputs
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
    for kernel in (Loop(OfModel(model)), build(model)):
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
            if isinstance(kernel, Loop):
                raise
            return True, str(error)
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


def worth_measuring(uses: int, *, parameters: int) -> bool:
    """Whether a round is long enough for the choice to matter.

    Args:
        uses: Examples summed over all pairs.
        parameters: D.

    Examples:
        >>> worth_measuring(24_000, parameters=2_410)  # 1,000 agents on a ring, 8 examples each
        True
    """
    return uses * parameters >= _WORTH_MEASURING


def seconds(
    kernels: Mapping[str, Kernel],
    points: Tensor,
    *,
    examples: Examples,
    senders: Sequence[int],
    receivers: Sequence[int],
    sizes: Sequence[int],
    clip_norm: float | None,
) -> dict[str, float]:
    """Seconds of each layout for some of a round's pairs, at most 64; the better of two.

    On the CPU they are the process's own, which other processes do not lengthen; wall seconds
    elsewhere.

    Args:
        kernels: The layouts, by name.
        points: (1, A, D).
        examples: All batches stacked; `clipping.plan_passes` has the other arguments.
        senders: Model owner of each pair.
        receivers: Data owner of each pair.
        sizes: Examples of each data owner.
        clip_norm: As in the round.
    """
    rows, work = list[int](), 0
    for row in sorted(range(len(senders)), key=lambda e: (senders[e], receivers[e], e)):
        if not sizes[receivers[row]]:
            continue
        work += sizes[receivers[row]] * points.shape[2]
        if rows and (len(rows) == _MEASURED_PAIRS or work > _MEASURED_WORK):
            break
        rows.append(row)
    chosen = [senders[row] for row in rows], [receivers[row] for row in rows]
    uses = sum(sizes[receiver] for receiver in chosen[1])
    clock = time.process_time if points.device.type == "cpu" else time.perf_counter
    found = {}
    for name, kernel in kernels.items():
        times = []
        for _ in range(3):  # the first warms up
            start = clock()
            ready = kernel.prepare(examples, uses=uses)
            out = torch.zeros(len(rows), points.shape[2], device=points.device, dtype=points.dtype)
            kernel.add(
                out,
                points,
                examples=ready,
                passes=plan_passes(*chosen, sizes=sizes, limit=kernel.examples_at_once()),
                coefficients=(1.0,),
                clip_norm=clip_norm,
            )
            float(out[-1, -1])  # waits for the device
            times.append(clock() - start)
        found[name] = min(times[1:])
    return found


def fastest(measured: Mapping[str, float]) -> str:
    """The layout to take: the first, unless another takes less than .8 of its seconds.

    Examples:
        >>> fastest({"book-keeping": 1.0, "grouped": 0.9, "vmap": 2.0})
        'book-keeping'
        >>> fastest({"book-keeping": 1.0, "grouped": 0.3, "vmap": 0.5})
        'grouped'
    """
    first = next(iter(measured))
    best = min(measured, key=lambda name: measured[name])
    return best if measured[best] < _SHARE * measured[first] else first
