"""Points at which gradients are taken, and what functions of one agent give: rows put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..step.values import Agents, UndeclaredOperation, Value

__all__ = ["of_agents", "same_pick", "stacked"]

_ALIGNMENT = 64  # bytes: a vector register, and what memory is allocated at


def of_agents(operation: str, rows: list[Tensor], *, width: int) -> Agents:
    """What a function gave for each agent: all coordinates, for which noise is counted.

    Raises:
        UndeclaredOperation: it gave another shape than (width,).
    """
    wrong = [tuple(row.shape) for row in rows if tuple(row.shape) != (width,)]
    if wrong:
        raise UndeclaredOperation(
            f"the function of round.{operation} returned shape {wrong[0]}; it must return "
            f"({width},)"
        )
    return Agents(torch.stack(rows))


def stacked(points: Sequence[Value]) -> tuple[Tensor, Tensor | None]:
    """The points as models (K, M, D), and for each row its position in M; None where they agree.

    Each model starts at the same alignment, by which products round, so its gradients do not depend
    on which models come before it.
    """
    first = points[0]
    shared = all(same_pick(point, first) for point in points)
    models = [point.base if shared else point.rows for point in points]
    pick = first.pick if shared else None
    width = models[0].shape[1]
    step = _ALIGNMENT // models[0].element_size()
    padded = models[0].new_empty(len(models), len(models[0]), -(-width // step) * step)
    for into, model in zip(padded, models, strict=True):
        into[:, :width] = model
    return padded[:, :, :width], pick


def same_pick(one: Value, other: Value) -> bool:
    """Whether two values keep their rows in the same order, as far as that costs nothing to see."""
    if len(one.base) != len(other.base):
        return False
    if one.pick is None or other.pick is None:
        return one.pick is other.pick
    if one.pick is other.pick:
        return True
    on_host = one.pick.device.type == other.pick.device.type == "cpu"  # elsewhere it is read back
    return on_host and torch.equal(one.pick, other.pick)
