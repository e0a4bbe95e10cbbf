"""A layer's per-example weight gradient as the product of two factors, signals^T inputs.

| symbol  | name here        | shape     | unit                                       |
|---------|------------------|-----------|--------------------------------------------|
| a       | ``inputs``       | (B, P, I) | layer input, a convolution's as patches    |
| u       | ``signals``      | (B, P, O) | gradient of the loss by the layer's output |
| G       | ``gradients``    | (B, O, I) | weight gradient of each example, u^T a     |
|         | ``bias_signals`` | (B, O)    | bias gradient of each example, sum of u    |
| P, I, O |                  |           | positions, inputs and outputs of the layer |

At P = 1 the norm needs no product: |G| = |u| |a| (Goodfellow 2015, arXiv:1510.01799). At P > 1 it
is that of G itself and not of Gram matrices of positions (Bu et al. 2022, arXiv:2205.10683), whose
terms may cancel in float32: what is measured is what is added.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A fully connected layer or convolution, and where its parameters lie in the flat vector."""

    name: str
    module: nn.Linear | nn.Conv2d
    weight: int
    bias: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """The factors of one layer's per-example gradients in one pass."""

    layer: Layer
    inputs: Tensor  # (B, P, I)
    signals: Tensor  # (B, P, O)
    bias_signals: Tensor  # (B, O), summed over positions
    gradients: Tensor | None  # (B, O, I), formed where P > 1 and a norm is asked for
    rows_first: bool  # I counts (height, width, channel), not the weight's (channel, height, width)


def unsupported_layer(model: nn.Module) -> str | None:
    """Why a model has parameters without a rule here; None where all have one.

    Examples:
        >>> unsupported_layer(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
        "layer '1' (LayerNorm) is neither Linear nor Conv2d"
    """
    seen = set[int]()
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        kind = f"layer {name!r} ({type(module).__name__})"
        # A subclass may compute something else from the same parameters.
        if type(module) not in (nn.Linear, nn.Conv2d):
            return f"{kind} is neither Linear nor Conv2d"
        if isinstance(module, nn.Conv2d) and (
            module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str)
        ):
            return f"{kind} has groups, a padding mode or a padding in words"
        if any(id(parameter) in seen for parameter in own):
            return f"{kind} shares its parameters with another layer"
        seen.update(id(parameter) for parameter in own)
    return None


def find_layers(model: nn.Module) -> list[Layer]:
    """The layers of a model that `unsupported_layer` lets pass.

    Examples:
        >>> [(layer.weight, layer.bias) for layer in find_layers(nn.Linear(3, 2))]
        [(0, 6)]
    """
    starts, at = dict[str, int](), 0
    for name, parameter in model.named_parameters():
        starts[name] = at
        at += parameter.numel()
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            prefix = f"{name}." if name else ""
            bias = None if module.bias is None else starts[f"{prefix}bias"]
            weight = starts[f"{prefix}weight"]
            found.append(Layer(name=name, module=module, weight=weight, bias=bias))
    return found


def factor(
    layer: Layer, inputs: Tensor, *, signals: Tensor, measured: bool, patches: Tensor | None = None
) -> Factors:
    """The factors of a layer, from what it read and the gradient by what it returned.

    Args:
        layer: The layer.
        inputs: Its input, with the examples first.
        signals: Gradient of the loss by its output, of the output's shape.
        measured: Whether norms follow, so that gradients are formed where P > 1.
        patches: Patches of the input (B, P, I) where `cut_patches` has run before.
    """
    rows_first = False
    if isinstance(layer.module, nn.Conv2d):
        rows_first = _rows_first(layer.module, signals.shape[3])
        inputs = cut_patches(layer.module, inputs) if patches is None else patches
        signals = signals.permute(0, 2, 3, 1).flatten(1, 2)
    else:
        inputs = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        signals = signals.reshape(len(signals), -1, signals.shape[-1])
    formed = measured and inputs.shape[1] > 1
    return Factors(
        layer=layer,
        inputs=inputs,
        signals=signals,
        bias_signals=signals.sum(1) if signals.shape[1] > 1 else signals[:, 0],
        gradients=torch.bmm(signals.mT, inputs) if formed else None,
        rows_first=rows_first,
    )


def squared_norms(factors: Factors) -> Tensor:
    """Squared norms (B,) of a layer's per-example gradients, bias included.

    Sums of squares are summed in pairs by torch; `torch.linalg.vector_norm` runs one float32 sum
    over all entries and comes out up to 1 % short on ten million.
    """
    if factors.gradients is not None:
        squares = factors.gradients.square().sum((1, 2))
        if factors.layer.bias is not None:
            squares = squares + factors.bias_signals.square().sum(1)
        return squares
    # In double: the square of one factor may underflow while the product of the two does not.
    read = factors.inputs.double().square().sum((1, 2))
    sent = factors.signals.double().square().sum((1, 2))
    if factors.layer.bias is not None:
        read = read + 1
    return (read * sent).to(factors.signals.dtype)


def add_sum(row: Tensor, factors: Factors, *, weights: Tensor | None, examples: slice) -> None:
    """Add a layer's gradients of some examples, each times its weight (B,), to a flat row (D,)."""
    layer = factors.layer
    shape = layer.module.weight.shape
    target = row[layer.weight : layer.weight + shape.numel()]
    signals = factors.signals[examples]
    if weights is not None:
        weights = weights[examples]
    if layer.bias is not None:
        summed = factors.bias_signals[examples]
        bias = summed.sum(0) if weights is None else summed.T @ weights
        row[layer.bias : layer.bias + shape[0]].add_(bias)
    if factors.gradients is not None and weights is not None:
        gradient = factors.gradients[examples].flatten(1).T @ weights
        target.view(shape).add_(_as_weight(gradient, shape, rows_first=factors.rows_first))
        return
    if weights is not None:
        signals = signals * weights[:, None, None]
    left, right = signals.flatten(0, 1).T, factors.inputs[examples].flatten(0, 1)
    if isinstance(layer.module, nn.Linear):
        target.view(shape).addmm_(left, right)
    else:
        target.view(shape).add_(_as_weight(left @ right, shape, rows_first=factors.rows_first))


def cut_patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Patches (B, P, I) of images (B, channels, height, width) under a convolution's kernel.

    They are copied by the longer of two runs: a row of a patch or a row of positions.
    """
    (down, right), (by_row, by_column) = layer.stride, layer.dilation
    high, wide = layer.kernel_size
    above, beside = (int(side) for side in layer.padding)
    if above or beside:
        images = pad(images, (beside, beside, above, above))
    count, channels, height, width = images.shape
    rows = (height - by_row * (high - 1) - 1) // down + 1
    columns = (width - by_column * (wide - 1) - 1) // right + 1
    if _rows_first(layer, columns):
        images = images.permute(0, 2, 3, 1).contiguous()
        s = images.stride()
        cut = images.as_strided(
            (count, rows, columns, high, wide, channels),
            (s[0], down * s[1], right * s[2], by_row * s[1], by_column * s[2], s[3]),
            images.storage_offset(),
        )
        return cut.reshape(count, rows * columns, high * wide * channels)
    s = images.stride()
    cut = images.as_strided(
        (count, channels, high, wide, rows, columns),
        (s[0], s[1], by_row * s[2], by_column * s[3], down * s[2], right * s[3]),
        images.storage_offset(),
    )
    return cut.reshape(count, channels * high * wide, rows * columns).mT


def _rows_first(layer: nn.Conv2d, columns: int) -> bool:
    return layer.kernel_size[1] * layer.in_channels > columns


def _as_weight(gradient: Tensor, shape: torch.Size, *, rows_first: bool) -> Tensor:
    """A gradient (O * I,) or (O, I) in the shape of the weight, its patch order undone."""
    if len(shape) == 4 and rows_first:
        outputs, channels, high, wide = shape
        return gradient.view(outputs, high, wide, channels).permute(0, 3, 1, 2)
    return gradient.view(shape)
