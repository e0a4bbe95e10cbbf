"""The layers whose per-example gradients follow from what they read and what they returned.

========================  ==============================================  =====================
Layer                     Rule                                            Left to another layout
========================  ==============================================  =====================
`nn.Linear`, `nn.Conv2d`  a product of two factors (`products`)           groups, padding modes
`nn.GroupNorm`,           gradients of scale and shift, whole             none; without scale
`nn.LayerNorm`            (`normalisations`)                              there is nothing to sum
`nn.Embedding`            signals summed by token (`embeddings`)          sparse, max_norm,
                                                                          scale_grad_by_freq
========================  ==============================================  =====================
"""

from __future__ import annotations

from torch import Tensor, nn

from ...privacy.errors import InputTypeError
from .embedding import lookup, unsupported_embedding
from .linear_conv import convolution_product, linear_product, unsupported_convolution
from .norms import group_affine, layer_affine
from .rules import Factors, Layer

_KINDS = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)


def unsupported_layer(model: nn.Module) -> str | None:
    """Why a model has parameters without a rule here; None where all have one.

    >>> unsupported_layer(nn.Sequential(nn.Linear(4, 4), nn.PReLU()))
    "layer '1' (PReLU) is neither Linear, Conv2d, GroupNorm, LayerNorm nor Embedding"
    """
    seen = set[int]()
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        kind = f"layer {name!r} ({type(module).__name__})"
        # A subclass may compute something else from the same parameters.
        if type(module) not in _KINDS:
            return f"{kind} is neither Linear, Conv2d, GroupNorm, LayerNorm nor Embedding"
        reason = None
        if isinstance(module, nn.Conv2d):
            reason = unsupported_convolution(module)
        elif isinstance(module, nn.Embedding):
            reason = unsupported_embedding(module)
        if reason is not None:
            return f"{kind} {reason}"
        if any(id(parameter) in seen for parameter in own):
            return f"{kind} shares its parameters with another layer"
        seen.update(id(parameter) for parameter in own)
    return None


def find_layers(model: nn.Module) -> list[Layer]:
    """The layers with parameters of a model that `unsupported_layer` lets pass.

    >>> [(layer.weight, layer.bias) for layer in find_layers(nn.Linear(3, 2))]
    [(0, 6)]
    """
    starts, at = dict[str, int](), 0
    for name, parameter in model.named_parameters():
        starts[name] = at
        at += parameter.numel()
    found = []
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if f"{prefix}weight" in starts and type(module) in _KINDS:
            weight, bias = starts[f"{prefix}weight"], starts.get(f"{prefix}bias")
            found.append(Layer(name=name, module=module, weight=weight, bias=bias))
    return found


def factor(
    layer: Layer, inputs: Tensor, *, signals: Tensor, measured: bool, patches: Tensor | None = None
) -> Factors:
    """What a layer's per-example gradients follow from.

    Args:
        inputs: Its input, with the examples first.
        signals: Gradient of the loss by its output, of the output's shape.
        measured: Whether norms follow, so that gradients are formed where a rule needs them.
        patches: Of a convolution's input, where `products.cut_patches` has run before.

    Raises:
        TypeError: If no rule is for the layer.

    >>> layer, = find_layers(nn.Linear(2, 1))
    >>> found = factor(layer, Tensor([[1, 1]]), signals=Tensor([[3]]), measured=True)
    >>> float(found.squared_norms())  # 9 for each weight and 9 for the bias
    27.0
    """
    match layer.module:
        case nn.Linear():
            return linear_product(layer, inputs, signals=signals, measured=measured)
        case nn.Conv2d():
            return convolution_product(
                layer, inputs, signals=signals, measured=measured, patches=patches
            )
        case nn.GroupNorm():
            return group_affine(layer, inputs, signals=signals)
        case nn.LayerNorm():
            return layer_affine(layer, inputs, signals=signals)
        case nn.Embedding():
            return lookup(layer, inputs, signals=signals, measured=measured)
    raise InputTypeError(f"layer {layer.name!r} ({type(layer.module).__name__}) has no rule")
