"""Which layer of a network is linear and sees the records as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from ....training.models.parameters import unflatten


def first_linear(model: nn.Module, flat: Tensor, input_shape: Sequence[int]) -> str | None:
    """Name of the first parametrised layer if it is linear, biased and fed the raw input."""
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        if not isinstance(module, nn.Linear) or module.bias is None:
            return None
        return name if _is_fed_raw(model, module, flat, input_shape) else None
    return None


def _is_fed_raw(
    model: nn.Module, layer: nn.Linear, flat: Tensor, input_shape: Sequence[int]
) -> bool:
    """Whether the layer's input is the flattened record, seen on a probe."""
    count = math.prod(input_shape)
    if layer.in_features != count:
        return False
    probe = torch.linspace(-1, 1, count, dtype=flat.dtype).reshape(1, *input_shape).to(flat)
    fed = fed_to(model, flat, probe, [layer])
    return len(fed) == 1 and torch.equal(fed[0].reshape(-1), probe.reshape(-1))


def fed_to(
    model: nn.Module, flat: Tensor, probe: Tensor, layers: Sequence[nn.Module]
) -> list[Tensor]:
    """What layers are called with, call by call, where a network gets a probe."""
    fed: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        fed.append(inputs[0])

    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        with torch.no_grad():
            functional_call(model, unflatten(model, flat), (probe,))
    finally:
        for handle in handles:
            handle.remove()
    return fed


def parameter_name(layer: str, name: str) -> str:
    """Name of a layer's parameter within the network."""
    return f"{layer}.{name}" if layer else name


def joint_of(values: Mapping[str, Tensor], layer: str) -> Tensor:
    """(..., O, I + 1) weight and bias of a linear layer side by side, or their gradients."""
    weight, bias = (values[parameter_name(layer, name)] for name in ("weight", "bias"))
    return torch.cat([weight, bias[..., None]], dim=-1)


def derivatives_in(model: nn.Module, flat: Tensor, layer: str, inputs: Tensor) -> Tensor:
    """(C, m) the derivative of one record's cross-entropy in a layer's output, under each label."""
    values, bias = unflatten(model, flat), parameter_name(layer, "bias")

    def logits(b: Tensor) -> Tensor:
        return functional_call(model, values | {bias: b}, (inputs,))[0]

    slopes = jacrev(logits)(values[bias])  # (C, m)
    p = logits(values[bias]).detach().softmax(dim=0)
    return p @ slopes - slopes  # p - e_y in place of the logits, for each y
