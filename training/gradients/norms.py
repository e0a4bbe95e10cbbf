"""GroupNorm and LayerNorm: gradients of the scale and the shift, which are small and kept whole.

    weight gradient of example b = sum over positions of u_b * xhat_b
    bias gradient of example b   = sum over positions of u_b

| symbol | name here    | shape          | unit                                        |
|--------|--------------|----------------|---------------------------------------------|
| x      | ``inputs``   | (B, *)         | layer input; a GroupNorm's is (B, n, *)     |
| xhat   | ``standard`` | as x           | x normalised, before the scale; no unit     |
| u      | ``signals``  | as x           | gradient of the loss by the layer's output  |
| n      |              |                | channels, or the size of a normalized_shape |

xhat is computed again from the input: it does not depend on the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm

from ...privacy.errors import InputTypeError
from .clipping import kept
from .rules import Cells, Layer, Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """Per-example gradients of a scale and a shift, each (B, n)."""

    layer: Layer
    weights: Tensor
    biases: Tensor | None

    def elements(self) -> int:
        """See `Factors.elements`; the normalised input is held beside the gradients."""
        return 2 * self.weights.numel()

    def squared_norms(self) -> Tensor:
        """See `Factors.squared_norms`."""
        squares = self.weights.square().sum(1)
        return squares if self.biases is None else squares + self.biases.square().sum(1)

    def kept(self, squares: Tensor) -> Affine:
        """See `Factors.kept`."""
        biases = None if self.biases is None else kept(self.biases, squares)
        return replace(self, weights=kept(self.weights, squares), biases=biases)

    def add_sum(self, row: Tensor, *, weights: Tensor | None, examples: slice) -> None:
        """See `Factors.add_sum`."""
        for start, values in self._parts():
            chosen = values[examples]
            found = chosen.sum(0) if weights is None else chosen.T @ weights[examples]
            row[start : start + len(found)].add_(found)

    def sums(self, cells: Cells) -> list[Part]:
        """See `Factors.sums`."""
        return [(start, cells.total(values)) for start, values in self._parts()]

    def _parts(self) -> list[Part]:
        parts = [(self.layer.weight, self.weights)]
        if self.layer.bias is not None and self.biases is not None:
            parts.append((self.layer.bias, self.biases))
        return parts


def group_affine(layer: Layer, inputs: Tensor, *, signals: Tensor) -> Affine:
    """The gradients of a GroupNorm's scale and shift; see `layers.factor`."""
    module = layer.module
    if not isinstance(module, nn.GroupNorm):
        raise InputTypeError(
            f"layer {layer.name!r} is {type(module).__name__}, must be a GroupNorm"
        )
    standard = group_norm(inputs, module.num_groups, eps=module.eps)
    count, channels = inputs.shape[:2]
    product, signals = (v.reshape(count, channels, -1) for v in (standard * signals, signals))
    return _affine(layer, product.sum(2), biases=signals.sum(2))


def layer_affine(layer: Layer, inputs: Tensor, *, signals: Tensor) -> Affine:
    """The gradients of a LayerNorm's scale and shift; see `layers.factor`."""
    module = layer.module
    if not isinstance(module, nn.LayerNorm):
        raise InputTypeError(
            f"layer {layer.name!r} is {type(module).__name__}, must be a LayerNorm"
        )
    standard = layer_norm(inputs, module.normalized_shape, eps=module.eps)
    width = layer.module.get_parameter("weight").numel()
    count = len(inputs)
    product, signals = (v.reshape(count, -1, width) for v in (standard * signals, signals))
    return _affine(layer, product.sum(1), biases=signals.sum(1))


def _affine(layer: Layer, weights: Tensor, *, biases: Tensor) -> Affine:
    return Affine(layer=layer, weights=weights, biases=None if layer.bias is None else biases)
