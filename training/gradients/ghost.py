"""Clipped gradient sums from one forward and one backward pass to the layers' outputs.

Bu, Wang, Zha, Karypis, "Differentially Private Optimization on Large Model at Small Cost", ICML
2023, arXiv:2210.00038, with the ghost norms of Goodfellow 2015, arXiv:1510.01799.

    keep each layer's inputs a_b in the forward pass
    take u_b = d loss_b / d layer output, all layers at once      # and no parameter's gradient
    f_b = min(1, C / |G_b|),  G_b from a_b and u_b over all layers    # layers.factor
    row of the pair += sum_b f_b G_b                              # Factors.add_sum

Symbols and shapes: `overhear.training.gradients.linear_conv` and, for u^T a,
`overhear.training.gradients.linear_conv`.

Where we differ from the paper: one pass takes the data of all neighbours of a model, and the
patches of the network's input are cut once for all models that meet it; images have their channels
innermost where no layer is a GroupNorm; calls of one layer are positions side by side.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, group_norm, layer_norm

from ...privacy.errors import InputError, InputTypeError
from ..device.precision import elements_at_once
from ..models.parameters import flatten, unflatten
from . import clipping, linear_conv
from .clipping import gather, squared_norms

# GroupNorm and LayerNorm: gradients of the scale and the shift, which are small and kept whole.
#
#     weight gradient of example b = sum over positions of u_b * xhat_b
#     bias gradient of example b   = sum over positions of u_b
#
# | symbol | name here    | shape          | unit                                        |
# |--------|--------------|----------------|---------------------------------------------|
# | x      | ``inputs``   | (B, *)         | layer input; a GroupNorm's is (B, n, *)     |
# | xhat   | ``standard`` | as x           | x normalised, before the scale; no unit     |
# | u      | ``signals``  | as x           | gradient of the loss by the layer's output  |
# | n      |              |                | channels, or the size of a normalized_shape |
#
# xhat is computed again from the input: it does not depend on the parameters.


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """Per-example gradients of a scale and a shift, each (B, n)."""

    layer: linear_conv.Layer
    weights: Tensor
    biases: Tensor | None

    def elements(self) -> int:
        """See `Factors.elements`; the normalised input is held beside the gradients."""
        return 2 * self.weights.numel()

    def squared_norms(self) -> Tensor:
        """See `Factors.squared_norms`."""
        wide = isinstance(self.layer.module, Shift)  # as a record may be
        squares = squared_norms(self.weights) if wide else self.weights.square().sum(1)
        return squares if self.biases is None else squares + self.biases.square().sum(1)

    def kept(self, squares: Tensor) -> Affine:
        """See `Factors.kept`."""
        biases = None if self.biases is None else clipping.finite_only(self.biases, squares)
        return replace(self, weights=clipping.finite_only(self.weights, squares), biases=biases)

    def add_sum(self, row: Tensor, *, weights: Tensor | None, examples: slice) -> None:
        """See `Factors.add_sum`."""
        for start, values in self._parts():
            chosen = values[examples]
            found = chosen.sum(0) if weights is None else chosen.T @ weights[examples]
            row[start : start + len(found)].add_(found)

    def sums(self, cells: linear_conv.Cells) -> list[linear_conv.Part]:
        """See `Factors.sums`."""
        return [(start, cells.total(values)) for start, values in self._parts()]

    def _parts(self) -> list[linear_conv.Part]:
        parts = [(self.layer.weight, self.weights)]
        if self.layer.bias is not None and self.biases is not None:
            parts.append((self.layer.bias, self.biases))
        return parts


def group_affine(layer: linear_conv.Layer, inputs: Tensor, *, signals: Tensor) -> Affine:
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


def layer_affine(layer: linear_conv.Layer, inputs: Tensor, *, signals: Tensor) -> Affine:
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


def _affine(layer: linear_conv.Layer, weights: Tensor, *, biases: Tensor) -> Affine:
    return Affine(layer=layer, weights=weights, biases=None if layer.bias is None else biases)


# Embeddings: the gradient of an example has a row for each token that it holds.
#
#     gradient of example b at token v = sum of u_bp over the positions p with token v
#
# | symbol | name here   | shape     | unit                                       |
# |--------|-------------|-----------|--------------------------------------------|
# |        | ``tokens``  | (B, P)    | layer input, integers in 0..V-1            |
# | u      | ``signals`` | (B, P, O) | gradient of the loss by the layer's output |
# | V, O   |             |           | tokens and their width                     |
#
# A token that occurs at several positions of an example is summed once, at its first position, and
# these sums make the norm and the row: signals that nearly cancel leave a sum of rounding, which is
# another in another order, and what is measured is what is added. A Gram matrix of positions is no
# substitute: its terms may cancel in float32.


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """Tokens, and signals that are zero where a token is the padding.

    Where a norm is asked for, the signals are those of each example's tokens, at the first position
    of each and zero at the others.
    """

    layer: linear_conv.Layer
    rows: int  # V
    tokens: Tensor  # (B, P)
    signals: Tensor  # (B, P, O)

    def elements(self) -> int:
        """See `Factors.elements`; where a norm is asked for, all positions are compared."""
        positions = self.tokens.shape[1]
        return 2 * self.signals.numel() + self.tokens.numel() * (1 + 2 * positions)

    def squared_norms(self) -> Tensor:
        """See `Factors.squared_norms`."""
        return self.signals.square().sum((1, 2))

    def kept(self, squares: Tensor) -> Lookup:
        """See `Factors.kept`."""
        return replace(self, signals=clipping.finite_only(self.signals, squares))

    def add_sum(self, row: Tensor, *, weights: Tensor | None, examples: slice) -> None:
        """See `Factors.add_sum`."""
        signals, tokens = self.signals[examples], self.tokens[examples]
        if weights is not None:
            signals = signals * weights[examples, None, None]
        found = _by_token(signals, tokens, rows=self.rows)
        row[self.layer.weight : self.layer.weight + found.numel()].add_(found.flatten())

    def sums(self, cells: linear_conv.Cells) -> list[linear_conv.Part]:
        """See `Factors.sums`."""
        signals, tokens = cells.take(self.signals), cells.take(self.tokens)  # (C, L, P[, O])
        if cells.weights is not None:
            signals = signals * cells.weights[..., None, None]
        count = cells.shape[0]
        own = torch.arange(count, device=tokens.device)[:, None, None] * self.rows
        found = _by_token(signals, tokens + own, rows=count * self.rows)
        return [(self.layer.weight, found.reshape(count, -1))]


def lookup(layer: linear_conv.Layer, inputs: Tensor, *, signals: Tensor, measured: bool) -> Lookup:
    """The gradient of an embedding; see `layers.factor`."""
    module = layer.module
    if not isinstance(module, nn.Embedding):
        raise InputTypeError(
            f"layer {layer.name!r} is {type(module).__name__}, must be an Embedding"
        )
    tokens = inputs.reshape(len(inputs), -1)
    signals = signals.reshape(*tokens.shape, module.embedding_dim)
    if module.padding_idx is not None:
        # Chosen, not multiplied: a signal that is not finite must not reach the padding's row.
        signals = torch.where((tokens == module.padding_idx)[..., None], 0.0, signals)
    if measured:
        signals = _at_first(signals, tokens)
    return Lookup(layer=layer, rows=module.num_embeddings, tokens=tokens, signals=signals)


def unsupported_embedding(module: nn.Embedding) -> str | None:
    """Why an embedding has no rule; None where it has one."""
    if module.sparse or module.scale_grad_by_freq or module.max_norm is not None:
        return "is sparse, scales gradients by frequency or has a max_norm"
    return None


def _at_first(signals: Tensor, tokens: Tensor) -> Tensor:
    """Sums (B, P, O) of each example's signals by token, at the token's first position."""
    same = tokens[:, :, None] == tokens[:, None, :]  # (B, P, P)
    first = ~same.tril(-1).any(2)  # (B, P): the token occurs at no earlier position
    return torch.where(first[..., None], same.to(signals.dtype) @ signals, 0.0)


def _by_token(signals: Tensor, tokens: Tensor, *, rows: int) -> Tensor:
    """Sums (rows, O) of signals by token, in an order that is fixed on every device."""
    # Torch's own backward of an embedding sorts on CUDA, where index_add_ adds in any order.
    width = signals.shape[-1]
    return torch.ops.aten.embedding_dense_backward(
        signals.reshape(-1, width), tokens.reshape(-1), rows, -1, False
    )


# Products with a parameter that is no layer's, and sums with one, as layers of a graph.
#
#     Times    x W, of which the gradient is a^T u: that of a fully connected layer, factors swapped
#     Shift    x + b for b of the shape of an example's last dimensions


class Times(nn.Module):
    """(*, I) to (*, O) by a weight (I, O)."""

    weight: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """The product."""
        return inputs @ self.weight


class Shift(nn.Module):
    """Adds a weight to what ends with its shape."""

    weight: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum."""
        return inputs + self.weight


# The layers whose per-example gradients follow from what they read and what they returned.
#
# ========================  ==============================================  =====================
# Layer                     Rule                                            Left to another layout
# ========================  ==============================================  =====================
# `nn.Linear`, `nn.Conv2d`  a product of two factors (`products`)           groups, padding modes
# `nn.GroupNorm`,           gradients of scale and shift, whole             none; without scale
# `nn.LayerNorm`            (`normalisations`)                              there is nothing to sum
# `nn.Embedding`            signals summed by token (`embeddings`)          sparse, max_norm,
#                                                                           scale_grad_by_freq
# ========================  ==============================================  =====================

_KINDS = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding, Times, Shift)


def unsupported_layer(model: nn.Module) -> str | None:
    """Why a model has parameters without a rule here; None where all have one.

    >>> unsupported_layer(nn.Sequential(nn.Linear(4, 4), nn.PReLU()))
    "layer '1' (PReLU) is neither Linear, Conv2d, GroupNorm, LayerNorm nor Embedding"
    """
    seen = set[int]()
    for name, module in model.named_modules(remove_duplicate=False):
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        kind = f"layer {name!r} ({type(module).__name__})"
        # A subclass may compute something else from the same parameters.
        if type(module) not in _KINDS:
            return f"{kind} is neither Linear, Conv2d, GroupNorm, LayerNorm nor Embedding"
        reason = None
        if isinstance(module, nn.Conv2d):
            reason = linear_conv.unsupported_convolution(module)
        elif isinstance(module, nn.Embedding):
            reason = unsupported_embedding(module)
        if reason is not None:
            return f"{kind} {reason}"
        if any(id(parameter) in seen for parameter in own):
            return f"{kind} shares its parameters with another layer"
        seen.update(id(parameter) for parameter in own)
    return None


def find_layers(model: nn.Module) -> list[linear_conv.Layer]:
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
            found.append(linear_conv.Layer(name=name, module=module, weight=weight, bias=bias))
    return found


def factor(
    layer: linear_conv.Layer,
    inputs: Tensor,
    *,
    signals: Tensor,
    measured: bool,
    patches: Tensor | None = None,
) -> linear_conv.Factors:
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
            return linear_conv.linear_product(layer, inputs, signals=signals, measured=measured)
        case nn.Conv2d():
            return linear_conv.convolution_product(
                layer, inputs, signals=signals, measured=measured, patches=patches
            )
        case nn.GroupNorm():
            return group_affine(layer, inputs, signals=signals)
        case nn.LayerNorm():
            return layer_affine(layer, inputs, signals=signals)
        case nn.Embedding():
            return lookup(layer, inputs, signals=signals, measured=measured)
        case Times():
            return linear_conv.linear_product(layer, signals, signals=inputs, measured=measured)
        case Shift():
            summed = signals.reshape(len(signals), -1, layer.module.weight.numel()).sum(1)
            return _affine(layer, summed, biases=summed)
    raise InputTypeError(f"layer {layer.name!r} ({type(layer.module).__name__}) has no rule")


def calls_together(
    layer: linear_conv.Layer, read: Sequence[Tensor], signals: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """What a layer read in all calls of a pass, and its signals: calls are further positions.

    Raises:
        ValueError: If it is called more than once, and has no positions.
    """
    if len(read) == 1:
        return read[0], signals[0]
    match layer.module:
        case nn.Linear() | Times():
            tails = read[0].shape[-1:], signals[0].shape[-1:]
        case nn.Embedding():
            tails = torch.Size(), signals[0].shape[-1:]
        case nn.LayerNorm() | Shift() as module:
            tails = module.weight.shape, module.weight.shape
        case _:
            raise InputError(f"layer {layer.name!r} is called {len(read)} times; use layout='vmap'")
    inputs, sent = (
        torch.cat([one.reshape(len(one), -1, *tail) for one in of], 1)
        for of, tail in zip((read, signals), tails, strict=True)
    )
    return inputs, sent


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """What a layer read and returned in one call."""

    layer: linear_conv.Layer
    inputs: Tensor
    outputs: Tensor


class BookKeeping:
    """Layout for models whose parameters all belong to layers that `unsupported_layer` passes."""

    def __init__(self, model: nn.Module) -> None:
        self._model = without_overwriting(model)
        # Torch's GroupNorm takes three times as long over channels that lie innermost.
        self._innermost = not any(isinstance(m, nn.GroupNorm) for m in self._model.modules())
        self._calls: list[_Call] = []
        for layer in find_layers(self._model):
            layer.module.register_forward_hook(_keep(layer, self._calls))
        self._elements = 0
        self._shape: torch.Size | None = None  # of the example that was measured
        self._first: nn.Conv2d | None = None

    def prepare(self, examples: clipping.Examples, *, uses: int) -> clipping.Examples:
        """Turn images' channels inwards, and cut their patches if more models than one use them.

        Args:
            examples: The stack.
            uses: Examples summed over all pairs.
        """
        count = len(examples.targets)
        if examples.inputs.ndim == 4 and self._innermost:
            examples = replace(examples, inputs=_channels_last(examples.inputs))
        if examples.inputs.shape[1:] != self._shape:
            self._measure(examples.inputs[:1], examples.targets[:1])
        most = elements_at_once(examples.inputs.device)
        if self._first is None or uses <= count or count * self._elements > most:
            return examples
        return replace(examples, patches=linear_conv.cut_patches(self._first, examples.inputs))

    def examples_at_once(self, device: torch.device) -> int:
        """Most examples of one pass."""
        return max(elements_at_once(device) // self._elements, 1)

    def add(
        self, out: Tensor, points: Tensor, passes: Sequence[clipping.Pass], of: clipping.Summed
    ) -> None:
        """Add the sums at one point of each owner, points (1, A, D), to the rows (E, D).

        Its coefficient is one number: signals belong to no coordinate.
        """
        for work in passes:
            self._add_one(out, points[0, work.owner], work.spans, of)

    def _add_one(
        self, out: Tensor, flat: Tensor, spans: Sequence[clipping.Span], of: clipping.Summed
    ) -> None:
        (coefficient,), examples = of.coefficients, of.examples
        inputs = gather(examples.inputs, spans)
        # Patches that do not lie side by side are faster cut anew than copied together.
        shared = None
        if examples.patches is not None and clipping.joined(spans):
            shared = gather(examples.patches, spans)
        # Gradients of single examples stay in factors, layer by layer.
        layers = []
        for layer, read, signals in self._signals(flat, inputs, gather(examples.targets, spans)):
            # Another convolution of the same input has patches of its own.
            own = read is inputs and layer.module is self._first
            layers.append(
                factor(
                    layer,
                    read,
                    signals=signals if coefficient == 1 else signals * coefficient,
                    measured=of.clip_norm is not None,
                    patches=shared if own else None,
                )
            )
        # Factors of clipping, by the norm over all layers.
        factors = None
        if of.clip_norm is not None:
            squares = clipping.total_squares([layer.squared_norms() for layer in layers])
            factors = clipping.clip_factors(squares, of.clip_norm, drops=of.drops)  # (B,)
            if of.drops:
                layers = [layer.kept(squares) for layer in layers]
        # Each span's clipped sum goes into a row of its own.
        begin = 0
        for span in spans:
            here = slice(begin, begin + span.stop - span.start)
            for one in layers:
                one.add_sum(out[span.row], weights=factors, examples=here)
            begin = here.stop

    def _signals(
        self, flat: Tensor, inputs: Tensor, targets: Tensor
    ) -> Iterator[tuple[linear_conv.Layer, Tensor, Tensor]]:
        """Each layer with what it read and its signals, of all calls."""
        parameters = unflatten(self._model, flat)
        if self._innermost:
            parameters = {
                name: part.contiguous(memory_format=torch.channels_last) if part.ndim == 4 else part
                for name, part in parameters.items()
            }
        self._calls.clear()
        with torch.enable_grad():
            logits = torch.func.functional_call(self._model, parameters, (inputs,))
            loss = cross_entropy(logits, targets, reduction="sum")
        calls = list(self._calls)
        self._calls.clear()
        signals = torch.autograd.grad(loss, [c.outputs for c in calls], materialize_grads=True)
        by_name: dict[str, list[tuple[_Call, Tensor]]] = {}
        for call, sent in zip(calls, signals, strict=True):
            by_name.setdefault(call.layer.name, []).append((call, sent))
        for of in by_name.values():
            layer = of[0][0].layer
            yield layer, *calls_together(layer, [c.inputs for c, _ in of], [u for _, u in of])

    def _measure(self, inputs: Tensor, targets: Tensor) -> None:
        """Count the elements one example keeps; find a convolution that reads the input."""
        self._elements, self._shape, self._first = 0, inputs.shape[1:], None
        for layer, read, signals in self._signals(flatten(self._model), inputs, targets):
            self._elements += factor(layer, read, signals=signals, measured=True).elements()
            if read is inputs and isinstance(layer.module, nn.Conv2d):
                self._first = layer.module


def without_overwriting(model: nn.Module) -> nn.Module:
    """A copy whose activations do not overwrite what layers read and returned."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]  # a flag, not a submodule
    return model


def _keep(
    layer: linear_conv.Layer, calls: list[_Call]
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    """Forward hook that records a call and makes its output a place to differentiate by."""

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        if not outputs.requires_grad:
            outputs.requires_grad_()
        calls.append(_Call(layer=layer, inputs=inputs[0], outputs=outputs))

    return hook


def _channels_last(images: Tensor) -> Tensor:
    """The same images with channels innermost, in the strides too where there is one channel."""
    rows = images.permute(0, 2, 3, 1).contiguous()  # (B, height, width, channels)
    _, height, width, channels = rows.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return rows.as_strided(images.shape, strides)
