"""What stands before the first linear layer, made to hand a record on whole.

    nothing        the record itself, flattened
    convolutions   strides s_1, s_2, ...: the pixel at phase (a, b) of every s x s block goes to a
                   channel of its own (space to depth), so that nothing is lost; a ReLU passes it,
                   because a bias lifts it above 0

A pooling layer keeps the largest of several pixels and loses the others, and a normalisation mixes
them; for networks with these no crafted trunk is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

_IMAGE = ("channels", "height", "width")
_LARGE = 1e5  # features over pixels, so that the trunk's own gradient is small beside the head's

Chain = Sequence[tuple[str, nn.Module]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trunk:
    """Layers that hand a record on.

    Attributes:
        parameters: by name those that are chosen.
        features_of: (N, *shape) records to (N, F) features, float64.
        inputs_of: (F,) features to the record (*shape).
        count: F.
    """

    parameters: Mapping[str, Tensor]
    features_of: Callable[[Tensor], Tensor]
    inputs_of: Callable[[Tensor], Tensor]
    count: int


def trunk_of(chain: Chain, shape: tuple[int, ...], *, low: Tensor) -> Trunk | str:
    """The trunk of a chain of layers, or why there is none.

    Args:
        chain: layers with their names.
        low: least value of an input, broadcastable to a record.

    >>> found = trunk_of([("0", nn.Flatten())], (1, 2, 2), low=torch.tensor(0.0))
    >>> found.inputs_of(torch.arange(4.0)).tolist()
    [[[0.0, 1.0], [2.0, 3.0]]]
    """
    if any(of.start_dim != 1 or of.end_dim != -1 for _, of in chain if isinstance(of, nn.Flatten)):
        return "it flattens a part of its dimensions alone"
    layers = [entry for entry in chain if not isinstance(entry[1], nn.Flatten)]
    if not layers:
        return Trunk(
            parameters={},
            features_of=lambda x: x.flatten(1).double(),
            inputs_of=lambda f: f.reshape(shape),
            count=math.prod(shape),
        )
    if len(shape) != len(_IMAGE):
        return "its first layer takes no rows of numbers"
    if low.numel() not in (1, shape[0]):
        return "its inputs have bounds of their own for every pixel"
    parameters, held, size = dict[str, Tensor](), None, shape
    for name, layer in layers:
        if isinstance(layer, nn.ReLU) and held is not None:
            continue
        if not isinstance(layer, nn.Conv2d):
            return f"{type(layer).__name__} stands before its first linear layer"
        before = held or [_Shift(channel, 0, 0) for channel in range(shape[0])]
        moved = _moved(layer, before, scale=_LARGE if held is None else 1.0)
        if isinstance(moved, str):
            return moved
        held, weight = moved
        bias = weight.new_zeros(layer.out_channels)
        if not parameters:  # above 0, where ReLUs pass it
            base = low.double().reshape(-1).expand(shape[0])
            bias[: len(held)] = torch.stack([-_LARGE * base[at.channel] for at in held])
        parameters |= {f"{name}.weight": weight, f"{name}.bias": bias}
        size = (layer.out_channels, *(_out(layer, i, side) for i, side in enumerate(size[1:])))
    assert held is not None  # noqa: S101 # there is a layer
    stride = math.prod(_square(of.stride)[0] for _, of in layers if isinstance(of, nn.Conv2d))
    pixels = _pixels(held, size, shape, stride=stride)  # (F,), -1 where a feature is empty
    full = pixels >= 0
    at = torch.empty(math.prod(shape), dtype=torch.int64)
    at[pixels[full]] = full.nonzero().flatten()
    if len(pixels[full].unique()) < len(at):
        return "its convolutions do not reach every pixel"
    lift = low.double().expand(shape)

    def features_of(x: Tensor) -> Tensor:
        lifted = _LARGE * (x.double() - lift).flatten(1)
        return torch.where(full, lifted[:, pixels.clamp_min(0)], 0.0)

    return Trunk(
        parameters=parameters,
        features_of=features_of,
        inputs_of=lambda f: f[at.to(f.device)].reshape(shape) / _LARGE + lift.to(f),
        count=math.prod(size),
    )


class _Shift(NamedTuple):
    """What a channel holds: pixels of a channel of the record, from (row, column) on."""

    channel: int
    row: int
    column: int
    stride: int = 1


def _moved(
    layer: nn.Conv2d, held: Sequence[_Shift], *, scale: float
) -> tuple[list[_Shift], Tensor] | str:
    """Every phase of a convolution's stride in a channel of its own, and the weights for it."""
    side, step, pad = (_square(of)[0] for of in (layer.kernel_size, layer.stride, layer.padding))
    plain = layer.groups == 1 and _square(layer.dilation) == (1, 1) and layer.bias is not None
    alike = all(len(set(_square(of))) == 1 for of in (layer.kernel_size, layer.stride))
    if not plain or not alike or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return "a convolution has groups, dilation, no bias, or sides that differ"
    if pad + step > side:
        return "a convolution does not reach all pixels of its stride"
    if len(held) * step**2 > layer.out_channels:
        return (
            f"a convolution with stride {step} has {layer.out_channels} channels, and all pixels "
            f"need {len(held) * step**2}"
        )
    weight = torch.zeros_like(layer.weight, dtype=torch.float64, device="cpu")
    found = list[_Shift]()
    for channel, at in enumerate(held):
        for row, column in itertools.product(range(step), repeat=2):
            weight[len(found), channel, pad + row, pad + column] = scale
            found.append(
                _Shift(
                    at.channel,
                    at.row + row * at.stride,
                    at.column + column * at.stride,
                    at.stride * step,
                )
            )
    return found, weight


def _pixels(
    held: Sequence[_Shift], size: Sequence[int], shape: Sequence[int], *, stride: int
) -> Tensor:
    """(F,) for each feature the pixel that it holds, counted over the record; -1 for none."""
    found = torch.full(tuple(size), -1, dtype=torch.int64)
    for number, at in enumerate(held):
        rows = at.row + stride * torch.arange(size[1])
        columns = at.column + stride * torch.arange(size[2])
        inside = (rows < shape[1])[:, None] & (columns < shape[2])
        index = (at.channel * shape[1] + rows[:, None]) * shape[2] + columns
        found[number] = torch.where(inside, index, -1)
    return found.flatten()


def _square(value: object) -> tuple[int, int]:
    """Both sides of a number or a pair of them; of words none."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[1]) if isinstance(value, tuple) else (0, 0)


def _out(layer: nn.Conv2d, side: int, length: int) -> int:
    pad, size, step = (_square(of)[side] for of in (layer.padding, layer.kernel_size, layer.stride))
    return (length + 2 * pad - size) // step + 1
