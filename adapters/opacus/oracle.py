"""Per-example gradients by other means than Opacus': torch.func on the bare model, in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.errors import InputError

__all__ = ["Loss", "gradients_of"]

Loss = Callable[[Tensor, Tensor], Tensor]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def gradients_of(
    model: nn.Module,
    parameters: list[nn.Parameter],
    loader: Any,
    *,
    loss: Loss,
    clips: Sequence[float] | None = None,
) -> Callable[[Tensor, NDArray[np.int64]], Tensor]:
    """A function of per-example gradients, as a check of conformance takes it.

    Args:
        model: as trained, wrapped by Opacus or not.
        parameters: those that are trained, in the optimizer's order.
        loader: whose data set and collation give pairs (inputs (B, ...), targets (B, ...)), asked
            for each record by itself.
        loss: of (outputs (1, ...), targets (1, ...)), a scalar.
        clips: of each parameter, where each is clipped by itself; a check clips whole rows alone,
            so it is done here.

    Returns:
        (point (D,), positions (B,)) -> (B, D) float64.

    Raises:
        ValueError: a parameter that is trained is none of the model's.
    """
    network = getattr(model, "_module", model)
    names = {id(of): name for name, of in network.named_parameters()}
    if strays := [tuple(of.shape) for of in parameters if id(of) not in names]:
        raise InputError(
            f"the model lacks a parameter of shape {strays[0]} that the optimizer trains; give the "
            "model that make_private returned"
        )
    trained = [names[id(of)] for of in parameters]
    shapes = [of.shape for of in parameters]
    sizes = [of.numel() for of in parameters]

    def one(point: Tensor, others: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        parts = zip(trained, point.split(sizes), shapes, strict=True)
        values = {**others, **{name: part.view(shape) for name, part, shape in parts}}
        outputs = torch.func.functional_call(network, values, (inputs[None],))
        return loss(outputs, target[None])

    each = torch.func.vmap(
        torch.func.grad(one), in_dims=(None, None, 0, 0), randomness="different"
    )  # so that dropout is found to be another each time

    def gradients(point: Tensor, positions: NDArray[np.int64]) -> Tensor:
        if not len(positions):
            return torch.zeros(0, sum(sizes), dtype=torch.float64)
        device = parameters[0].device
        # Each record is collated by itself, so that no other is in it.
        pairs = [_pair(loader.collate_fn([loader.dataset[int(at)]])) for at in positions]
        others = {
            name: (of.detach().double() if of.is_floating_point() else of.detach())
            for name, of in [*network.named_parameters(), *network.named_buffers()]
            if name not in trained
        }
        found = torch.zeros(len(pairs), sum(sizes), dtype=torch.float64)
        for at, inputs, targets in _stacked(pairs):
            x = inputs.double() if inputs.is_floating_point() else inputs
            with _without_hooks_of_opacus(network):
                rows = each(point.double().to(device), others, x.to(device), targets.to(device))
            found[at] = rows.detach().cpu()
        return _clipped(found, sizes, clips)

    return gradients


def _clipped(rows: Tensor, sizes: list[int], clips: Sequence[float] | None) -> Tensor:
    """(B, D) rows with each part no longer than its clip norm."""
    if clips is None:
        return rows
    parts = zip(rows.split(sizes, dim=1), clips, strict=True)
    return torch.cat(
        [part * (clip / part.norm(dim=1, keepdim=True).clamp(min=clip)) for part, clip in parts],
        dim=1,
    )


def _stacked(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Records of one shape together: their places, and their inputs and targets."""
    alike: dict[tuple[torch.Size, torch.Size], list[int]] = {}
    for place, (inputs, targets) in enumerate(pairs):
        alike.setdefault((inputs.shape, targets.shape), []).append(place)
    for at in alike.values():
        yield at, torch.cat([pairs[k][0] for k in at]), torch.cat([pairs[k][1] for k in at])


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        inputs, targets = batch
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            if len(inputs) != 1 or len(targets) != 1:
                raise InputError(
                    f"collate_fn makes {len(inputs)} inputs and {len(targets)} targets of one "
                    "record, where one vector is clipped for each; give all of a record as one"
                )
            return inputs, targets
    raise InputError(
        "batches of the loader are no pairs (inputs, targets) of tensors; give "
        "conformance(gradients=...), a function (point, positions) -> (B, D) of your own"
    )


@contextmanager
def _without_hooks_of_opacus(network: nn.Module) -> Iterator[None]:
    """Take Opacus' hooks off, which would record what the oracle computes."""
    taken = []
    for module in network.modules():
        for name in _HOOKS:
            held = getattr(module, name)
            for key in [key for key, hook in held.items() if _is_of_opacus(hook)]:
                taken.append((held, dict(held)))
                del held[key]
    try:
        yield
    finally:
        for held, before in reversed(taken):
            held.clear()
            held.update(before)


def _is_of_opacus(hook: Any) -> bool:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).startswith("opacus.")
