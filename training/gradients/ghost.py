"""Clipped gradient sums from one forward and one backward pass to the layers' outputs.

Bu, Wang, Zha, Karypis, "Differentially Private Optimization on Large Model at Small Cost", ICML
2023, arXiv:2210.00038, with the ghost norms of Goodfellow 2015, arXiv:1510.01799.

    keep each layer's inputs a_b in the forward pass
    take u_b = d loss_b / d layer output, all layers at once      # and no parameter's gradient
    f_b = min(1, C / |G_b|),  G_b from a_b and u_b over all layers    # layers.factor
    row of the pair += sum_b f_b G_b                              # Factors.add_sum

Symbols and shapes: `overhear.training.gradients.rules` and, for u^T a,
`overhear.training.gradients.linear_conv`.

Where we differ from the paper: one pass takes the data of all neighbours of a model, and the
patches of the network's input are cut once for all models that meet it; images have their channels
innermost where no layer is a GroupNorm; a layer that is called twice is refused rather than summed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError
from ..device.memory import elements_at_once
from ..models.parameters import flatten, unflatten
from .clipping import Coefficient, Examples, Pass, clip_factors, gather, joined, total_squares
from .layers import factor, find_layers
from .linear_conv import cut_patches
from .rules import Layer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """What a layer read and returned in one forward pass."""

    layer: Layer
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

    def prepare(self, examples: Examples, *, uses: int) -> Examples:
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
        return replace(examples, patches=cut_patches(self._first, examples.inputs))

    def examples_at_once(self, device: torch.device) -> int:
        """Most examples of one pass."""
        return max(elements_at_once(device) // self._elements, 1)

    def add(
        self,
        out: Tensor,
        points: Tensor,
        *,
        examples: Examples,
        passes: Sequence[Pass],
        coefficients: Sequence[Coefficient],
        clip_norm: float | None,
        drops: bool = False,
    ) -> None:
        """Add the sums at one point of each owner, points (1, A, D), to the rows (E, D).

        Its coefficient is one number: signals belong to no coordinate.
        """
        (coefficient,) = coefficients
        for work in passes:
            self._add_one(
                out,
                points[0, work.owner],
                examples=examples,
                work=work,
                coefficient=coefficient,
                clip_norm=clip_norm,
                drops=drops,
            )

    def _add_one(
        self,
        out: Tensor,
        flat: Tensor,
        *,
        examples: Examples,
        work: Pass,
        coefficient: Coefficient,
        clip_norm: float | None,
        drops: bool = False,
    ) -> None:
        spans = work.spans
        inputs = gather(examples.inputs, spans)
        # Patches that do not lie side by side are faster cut anew than copied together.
        shared = None
        if examples.patches is not None and joined(spans):
            shared = gather(examples.patches, spans)
        layers = []
        for call, signals in self._signals(flat, inputs, gather(examples.targets, spans)):
            # Another convolution of the same input has patches of its own.
            own = call.inputs is inputs and call.layer.module is self._first
            layers.append(
                factor(
                    call.layer,
                    call.inputs,
                    signals=signals if coefficient == 1 else signals * coefficient,
                    measured=clip_norm is not None,
                    patches=shared if own else None,
                )
            )
        factors = None
        if clip_norm is not None:
            squares = total_squares([layer.squared_norms() for layer in layers])
            factors = clip_factors(squares, clip_norm, drops=drops)  # (B,)
            if drops:
                layers = [layer.kept(squares) for layer in layers]
        begin = 0
        for span in spans:
            here = slice(begin, begin + span.stop - span.start)
            for layer in layers:
                layer.add_sum(out[span.row], weights=factors, examples=here)
            begin = here.stop

    def _signals(self, flat: Tensor, inputs: Tensor, targets: Tensor) -> list[tuple[_Call, Tensor]]:
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
        names = [call.layer.name for call in calls]
        if len(set(names)) < len(names):
            raise InputError(f"layers {names} are called, one more than once; use layout='vmap'")
        signals = torch.autograd.grad(loss, [c.outputs for c in calls], materialize_grads=True)
        return list(zip(calls, signals, strict=True))

    def _measure(self, inputs: Tensor, targets: Tensor) -> None:
        """Count the elements one example keeps; find a convolution that reads the input."""
        self._elements, self._shape, self._first = 0, inputs.shape[1:], None
        for call, signals in self._signals(flatten(self._model), inputs, targets):
            found = factor(call.layer, call.inputs, signals=signals, measured=True)
            self._elements += found.elements()
            if call.inputs is inputs and isinstance(call.layer.module, nn.Conv2d):
                self._first = call.layer.module


def without_overwriting(model: nn.Module) -> nn.Module:
    """A copy whose activations do not overwrite what layers read and returned."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]  # a flag, not a submodule
    return model


def _keep(
    layer: Layer, calls: list[_Call]
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
