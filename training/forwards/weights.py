"""Operations with parameters, as torch's layers that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from .operations import Call, ExamplesMeet, Parameter, rank
from .places import FIRST, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """A layer, the names of its parameters in the network by its own, and its examples' place."""

    module: nn.Module
    names: dict[str, str]
    place: Place


def layer_of(call: Call, parameters: Mapping[str, nn.Parameter]) -> Weighted | None:
    """The layer that an operation is, where its weight is a parameter; else None.

    Raises:
        ExamplesMeet: If the operation has a parameter and is no layer with a rule, or examples
            meet in it.
    """
    if call.name not in _LAYERS:
        return None
    names = {}
    for own in ("weight", "bias"):
        node = call.arguments.get(own)
        state = call.states[node] if isinstance(node, fx.Node) else None
        if isinstance(state, Parameter):
            if state.name not in parameters:
                raise ExamplesMeet(f"parameter {state.name!r} has two names")
            names[own] = state.name
        elif node is not None and names:
            raise ExamplesMeet("a part of its parameters is computed")
    if "weight" not in names:
        return None
    operand = call.arguments["indices" if call.name == "embedding" else "input"]
    place = call.place(operand)
    if place is None:
        raise ExamplesMeet(f"{names['weight']!r} meets what all examples share")
    module = _LAYERS[call.name](call, parameters[names["weight"]], place)
    for own in ("weight", "bias"):
        value = parameters[names[own]].detach().clone() if own in names else None
        module.register_parameter(own, None if value is None else nn.Parameter(value))
    return Weighted(module=module, names=names, place=place)


def _linear(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _within(place, rank(call.arguments["input"]) - 1)
    outputs, inputs = weight.shape
    return nn.Linear(inputs, outputs, device="meta")


def _convolution(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _whole(place, call, sides=4)
    of: dict[str, Any] = call.arguments
    padding = of["padding"]
    if isinstance(padding, str) or of["groups"] != 1:
        raise ExamplesMeet("it has groups or a padding in words")
    outputs, inputs, *kernel = weight.shape
    return nn.Conv2d(
        inputs,
        outputs,
        tuple(kernel),  # type: ignore[arg-type]  # two sides
        stride=_two(of["stride"]),
        padding=_two(padding),
        dilation=_two(of["dilation"]),
        device="meta",
    )


def _layer_norm(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _within(place, rank(call.arguments["input"]) - weight.ndim)
    return nn.LayerNorm(list(weight.shape), eps=call.arguments["eps"], device="meta")


def _group_norm(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _whole(place, call, sides=None)
    groups = call.arguments["num_groups"]
    return nn.GroupNorm(groups, len(weight), eps=call.arguments["eps"], device="meta")


def _embedding(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _within(place, rank(call.arguments["indices"]))
    if call.arguments["scale_grad_by_freq"] or call.arguments["sparse"]:
        raise ExamplesMeet("it is sparse or scales gradients by frequency")
    padding = call.arguments["padding_idx"]
    rows, width = weight.shape
    return nn.Embedding(rows, width, padding_idx=None if padding < 0 else padding, device="meta")


def _within(place: Place, sides: int) -> None:
    if place.dim >= sides:
        raise ExamplesMeet("it runs along the dimension of the examples")


def _whole(place: Place, call: Call, *, sides: int | None) -> None:
    if place != FIRST or sides not in (None, rank(call.arguments["input"])):
        raise ExamplesMeet("its examples are not the first dimension")


def _two(sides: list[int]) -> tuple[int, int]:
    return (sides[0], sides[-1])


_LAYERS: Mapping[str, Callable[[Call, torch.Tensor, Place], nn.Module]] = {
    "linear": _linear,
    "conv2d": _convolution,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "embedding": _embedding,
}
