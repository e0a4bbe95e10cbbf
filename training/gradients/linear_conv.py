"""Fully connected layers and convolutions: gradients as products of two factors, signals^T inputs.

| symbol  | name here        | shape     | unit                                       |
|---------|------------------|-----------|--------------------------------------------|
| a       | ``inputs``       | (B, P, I) | layer input, a convolution's as patches    |
| u       | ``signals``      | (B, P, O) | gradient of the loss by the layer's output |
| G       | ``gradients``    | (B, O, I) | weight gradient of each example, u^T a     |
|         | ``bias_signals`` | (B, O)    | bias gradient of each example, sum of u    |
| P, I, O |                  |           | positions, inputs and outputs of the layer |

At P = 1 the norm needs no product: |G| = |u| |a| (Goodfellow 2015, arXiv:1510.01799). At P > 1 it
is that of G itself: what is measured is what is added. Where positions are few beside inputs and
outputs, 2 P (I + O) < I O, it is that of Gram matrices of positions (Bu et al. 2022,
arXiv:2205.10683) with all that rounding may take from it:

    |G|^2 = sum over p, q of (a_p . a_q) (u_p . u_q),    S = sum over p of |a_p| |u_p|
    norm  = sqrt(|G|^2 + (I + O + P^2 + 2) e64 S^2) + P e S

e64 and e are the spacing of doubles, in which the matrices are made, and of the working precision,
in which G is added: terms that cancel leave S, and no norm that is too small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...privacy.errors import InputTypeError
from .clipping import finite_only, squared_norms

# What a rule for a kind of layer gives: norms and sums of its per-example gradients.
#
# A rule sees what a layer read in one pass and the gradient of the loss by what it returned,
# examples first. It never sees the parameters, so examples may belong to different owners' models.
#
# | letter | meaning                                                   |
# |--------|-----------------------------------------------------------|
# | B      | examples of the pass                                      |
# | C, L   | cells, and examples of the longest cell; one cell one row |
# | D      | parameters of the whole network, one flat row             |


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer with parameters, and where they lie in the flat vector."""

    name: str
    module: nn.Module
    weight: int
    bias: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """Examples by the output row that they belong to.

    ``index`` (C * L,) counts the pass's examples, and is None where they lie in the cells' order
    with none left out. ``weights`` (C, L) are the factors of the examples, all one for None. A cell
    shorter than L repeats its own last example with the weight zero: what is not finite there is so
    in the same row without it.
    """

    shape: tuple[int, int]
    index: Tensor | None
    weights: Tensor | None

    def take(self, values: Tensor) -> Tensor:
        """Values (B, *rest) of the examples in the cells, (C, L, *rest)."""
        chosen = values if self.index is None else values.index_select(0, self.index)
        return chosen.reshape(*self.shape, *values.shape[1:])

    def total(self, values: Tensor) -> Tensor:
        """Weighted sums over each cell of flat per-example values (B, n), shape (C, n)."""
        chosen = self.take(values)
        if self.weights is None:
            return chosen.sum(1)
        return (self.weights[:, None] @ chosen)[:, 0]


Part = tuple[int, Tensor]  # the place of a parameter in the flat row, and its sums (C, n)


class Factors(Protocol):
    """One layer's per-example gradients in one pass, in whatever form its rule keeps them."""

    def elements(self) -> int:
        """Elements that are held."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared norms (B,) of the per-example gradients, bias included."""
        ...

    def kept(self, squares: Tensor) -> Factors:
        """The same with zero gradients where an example's squared norm (B,) is not finite."""
        ...

    def add_sum(self, row: Tensor, *, weights: Tensor | None, examples: slice) -> None:
        """Add the gradients of some examples, each times its weight (B,), to a flat row (D,)."""
        ...

    def sums(self, cells: Cells) -> list[Part]:
        """The weighted sums of each cell, by parameter."""
        ...


# Squared norms in float32 between which no entry that matters is lost to underflow or overflow.
_SMALLEST_SQUARE, _LARGEST_SQUARE = 1e-20, 1e30
_SMALLEST_DOUBLE = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """The factors of one layer's per-example gradients in one pass."""

    layer: Layer
    shape: torch.Size  # of the weight
    inputs: Tensor  # (B, P, I)
    signals: Tensor  # (B, P, O)
    bias_signals: Tensor  # (B, O), summed over positions
    gradients: Tensor | None  # (B, O, I), formed where P > 1 is not small and a norm is asked for
    rows_first: bool  # I counts (height, width, channel), not the weight's (channel, height, width)

    def elements(self) -> int:
        """See `Factors.elements`."""
        formed = 0 if self.gradients is None else self.gradients.numel()
        return self.inputs.numel() + self.signals.numel() + formed

    def squared_norms(self) -> Tensor:
        """See `Factors.squared_norms`."""
        if self.gradients is not None:
            squares = squared_norms(self.gradients.flatten(1))
            if self.layer.bias is not None:
                squares = squares + squared_norms(self.bias_signals)
            return squares
        if self.inputs.shape[1] > 1:
            squares = self._at_most().square().to(self.signals.dtype)
            if self.layer.bias is not None:
                squares = squares + squared_norms(self.bias_signals)
            return squares
        read, sent = _in_double(self.inputs.flatten(1)), _in_double(self.signals.flatten(1))
        if self.layer.bias is not None:
            read = read + 1
        return (read * sent).to(self.signals.dtype)

    def _at_most(self) -> Tensor:
        """Norms (B,) of the weights' gradients from Gram matrices, not below the true ones."""
        positions, width = self.inputs.shape[1], self.inputs.shape[2] + self.signals.shape[2]
        read, sent = (found @ found.mT for found in (self.inputs.double(), self.signals.double()))
        # Squares that underflow lose at most n eps of the smallest double: `rounding` has them.
        ends = [
            found.diagonal(dim1=1, dim2=2).clamp(min=_SMALLEST_DOUBLE) for found in (read, sent)
        ]
        longest = (ends[0] * ends[1]).sqrt().sum(1)  # S
        rounding = (width + positions**2 + 2) * torch.finfo(torch.float64).eps
        squares = (read * sent).sum((1, 2)).clamp(min=0) + rounding * longest.square()
        return squares.sqrt() + positions * torch.finfo(self.signals.dtype).eps * longest

    def kept(self, squares: Tensor) -> Product:
        """See `Factors.kept`; factors are left where gradients are formed, and summed."""
        biases = finite_only(self.bias_signals, squares)
        if self.gradients is not None:
            return replace(
                self, bias_signals=biases, gradients=finite_only(self.gradients, squares)
            )
        inputs, signals = (finite_only(of, squares) for of in (self.inputs, self.signals))
        return replace(self, bias_signals=biases, inputs=inputs, signals=signals)

    def add_sum(self, row: Tensor, *, weights: Tensor | None, examples: slice) -> None:
        """See `Factors.add_sum`."""
        target = row[self.layer.weight : self.layer.weight + self.shape.numel()].view(self.shape)
        signals = self.signals[examples]
        if weights is not None:
            weights = weights[examples]
        if self.layer.bias is not None:
            summed = self.bias_signals[examples]
            bias = summed.sum(0) if weights is None else summed.T @ weights
            row[self.layer.bias : self.layer.bias + self.shape[0]].add_(bias)
        if self.gradients is not None and weights is not None:
            gradient = self.gradients[examples].flatten(1).T @ weights
            target.add_(self._as_weight(gradient[None])[0])
            return
        if weights is not None:
            signals = signals * weights[:, None, None]
        left, right = signals.flatten(0, 1).T, self.inputs[examples].flatten(0, 1)
        if len(self.shape) == 2:
            target.addmm_(left, right)
        else:
            target.add_(self._as_weight((left @ right)[None])[0])

    def sums(self, cells: Cells) -> list[Part]:
        """See `Factors.sums`."""
        parts = []
        if self.layer.bias is not None:
            parts.append((self.layer.bias, cells.total(self.bias_signals)))
        if self.gradients is not None:
            found = cells.total(self.gradients.flatten(1))
        else:
            signals, inputs = cells.take(self.signals), cells.take(self.inputs)  # (C, L, P, .)
            if cells.weights is not None:
                signals = signals * cells.weights[..., None, None]
            found = torch.bmm(signals.flatten(1, 2).mT, inputs.flatten(1, 2))
        return [*parts, (self.layer.weight, self._as_weight(found).flatten(1))]

    def _as_weight(self, gradients: Tensor) -> Tensor:
        """Gradients (C, O * I) or (C, O, I) as (C, *shape), their patch order undone."""
        if not self.rows_first:
            return gradients.reshape(-1, *self.shape)
        outputs, channels, high, wide = self.shape
        return gradients.reshape(-1, outputs, high, wide, channels).permute(0, 1, 4, 2, 3)


def linear_product(layer: Layer, inputs: Tensor, *, signals: Tensor, measured: bool) -> Product:
    """The factors of a fully connected layer over any positions; see `layers.factor`."""
    inputs = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    signals = signals.reshape(len(signals), -1, signals.shape[-1])
    return _product(layer, inputs, signals=signals, measured=measured, rows_first=False)


def convolution_product(
    layer: Layer, inputs: Tensor, *, signals: Tensor, measured: bool, patches: Tensor | None = None
) -> Product:
    """The factors of a convolution; patches (B, P, I) where `cut_patches` has run before."""
    module = layer.module
    if not isinstance(module, nn.Conv2d):
        raise InputTypeError(f"layer {layer.name!r} is {type(module).__name__}, must be a Conv2d")
    return _product(
        layer,
        cut_patches(module, inputs) if patches is None else patches,
        signals=signals.permute(0, 2, 3, 1).flatten(1, 2),
        measured=measured,
        rows_first=_rows_first(module, signals.shape[3]),
    )


def unsupported_convolution(module: nn.Conv2d) -> str | None:
    """Why a convolution has no rule; None where it has one."""
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        return "has groups, a padding mode or a padding in words"
    return None


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
    # Views by strides, which only the reshape copies: rows of a patch first, or positions.
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


def _product(
    layer: Layer, inputs: Tensor, *, signals: Tensor, measured: bool, rows_first: bool
) -> Product:
    (_, positions, read), sent = inputs.shape, signals.shape[2]
    formed = measured and positions > 1 and 2 * positions * (read + sent) >= read * sent
    return Product(
        layer=layer,
        shape=layer.module.get_parameter("weight").shape,
        inputs=inputs,
        signals=signals,
        bias_signals=signals.sum(1) if signals.shape[1] > 1 else signals[:, 0],
        gradients=torch.bmm(signals.mT, inputs) if formed else None,
        rows_first=rows_first,
    )


def _in_double(rows: Tensor) -> Tensor:
    """Squared norms (B,) of rows (B, n) in double precision.

    The square of one factor may underflow, or overflow, while the product of the two does neither:
    hence no square is below the smallest normal double. On a CPU, where doubles take five times as
    long, they are asked for where a square is near that.
    """
    if rows.device.type == "cpu" and rows.dtype == torch.float32:
        found = squared_norms(rows)
        if bool(((found > _SMALLEST_SQUARE) & (found < _LARGEST_SQUARE)).all()):
            return found.double()
    return rows.double().square().sum(1).clamp(min=_SMALLEST_DOUBLE)


def _rows_first(layer: nn.Conv2d, columns: int) -> bool:
    return layer.kernel_size[1] * layer.in_channels > columns
