"""The norm of the gradient of all training records: how far a model is from a stationary point.

    | (1/N) sum_b grad l(x; record b) |,    N records of all agents, nothing clipped, no noise

It is computed from the private records and is no release of a run: no step of an agent could know
it, and no epsilon counts what it tells of them. It is for evaluations on records that may be shown.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data.store import Store, blocks
from ..device.precision import full_precision
from .losses import NetworkLoss, predictions
from .parameters import unflatten
from .tasks import Task

__all__ = ["NOT_COUNTED", "gradient_norm"]

NOT_COUNTED = (
    "gradient_norm is set: metrics hold the norm of the gradient of all training records, without "
    "noise, and no epsilon counts what it tells of them; for evaluation"
)


def gradient_norm(
    model: nn.Module, point: Tensor, records: Store, *, task: Task | None = None, batch: int = 2048
) -> float:
    """Euclidean norm of the mean gradient of the records at a point.

    Args:
        model: the network; its own parameters are not used.
        point: (D,) flat parameters.
        records: at least one.
        task: what is learned, a `NetworkLoss`; by default the cross-entropy.
        batch: records at once.

    >>> from overhear.training.data.store import TensorStore
    >>> model = nn.Linear(1, 2)
    >>> records = TensorStore(torch.tensor([[2.0]]), torch.tensor([0]))
    >>> round(gradient_norm(model, torch.zeros(4), records), 4)  # of (-1, 1, -1/2, 1/2)
    1.5811
    """
    held = {
        name: value.to(point.device, point.dtype if value.is_floating_point() else None)
        for name, value in model.named_buffers()
    }
    total = torch.zeros_like(point, dtype=torch.float64)
    for block in blocks(records, size=batch):
        inputs = block.inputs
        x = inputs.to(point.device, point.dtype if inputs.is_floating_point() else None)
        y = block.targets.to(point.device)
        at = point.detach().clone().requires_grad_()
        with full_precision(), torch.enable_grad():
            outputs = torch.func.functional_call(model, {**held, **unflatten(model, at)}, (x,))
            if isinstance(task, NetworkLoss):
                found = predictions(outputs) if task.regression else outputs
                wanted = y.to(found.dtype) if task.regression else y
                loss = task.per_example(found, wanted).sum()
            else:
                loss = cross_entropy(outputs, y, reduction="sum")
            total += torch.autograd.grad(loss, at)[0].double()
    return float(total.norm()) / records.size
