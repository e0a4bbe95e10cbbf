"""Which layout serves a network, and which of several is the fastest here.

A layout serves if it agrees with the loop on a network: the network's list of layers does not show
parameters that are used outside their layer's call, layers that are called twice, overwritten
outputs and mixed examples; a comparison does. Which of those that serve is the fastest depends on
the network, the graph and the device; a measurement shows it. Layouts differ in rounding, so what
is chosen belongs to the record of a run, and a run is repeated bit by bit by asking for the layout
by its name.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from .bookkeeping import BookKeeping
from .clipping import Examples, Pass, Span, plan_passes
from .grouped import Grouped
from .layouts import Kernel, Loop, OfModel

# Layouts by layer, in the order of preference.
BY_LAYER: Mapping[str, Callable[[nn.Module], Kernel]] = {
    "book-keeping": BookKeeping,
    "grouped": Grouped,
}

# Examples times parameters, over all pairs: below, any layout takes less than about .05 s.
_WORTH_MEASURING = 2**22
_MEASURED_PAIRS, _MEASURED_WORK = 64, 2**26
# A later layout must take less than this share of the first one's time: noise shall not choose.
_SHARE = 0.8


def disagreement(
    build: Callable[[nn.Module], Kernel], model: nn.Module, *, point: Tensor, examples: Examples
) -> tuple[bool, str | None]:
    """Whether two examples settle that a layout serves a model, and why it does not.

    Args:
        build: The layout.
        model: The network.
        point: (D,) where to compare.
        examples: At least one.
    """
    model = copy.deepcopy(model).double()
    inputs, targets = examples.inputs[:2], examples.targets[:2]
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    few, count = Examples(inputs=inputs, targets=targets), len(targets)
    passes = [
        Pass(owner=0, spans=(Span(row=0, start=0, stop=1), Span(row=1, start=0, stop=count))),
        Pass(owner=1, spans=(Span(row=2, start=count - 1, stop=count),)),
    ]
    # Two owners, so that a layout that mixes them is found.
    points = torch.stack([point.double(), 0.5 * point.double()])[None]
    sums = []
    for kernel in (Loop(OfModel(model)), build(model)):
        rows = torch.zeros(3, len(point), device=point.device, dtype=torch.float64)
        try:
            kernel.add(
                rows,
                points,
                examples=kernel.prepare(few, uses=0),
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
    if not 0 < size < math.inf:
        return False, None  # a vanishing or overflowing gradient shows nothing; ask the next batch
    distance = float((sums[1] - sums[0]).norm())
    agrees = distance <= 1e-6 * size
    return True, None if agrees else f"its sum is off by {distance / size:.1e} of the loop's"


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
