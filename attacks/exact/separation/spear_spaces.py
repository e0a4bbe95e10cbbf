"""What the gradients of two linear layers around a ReLU span, and how sure that is.

For h = W x + b, a = relu(h), z = V a + c, the gradient of [W, b] has the records' directions as
its column space and their [x, 1] as its row space; that of [V, c] has their [a, 1] as its row
space. Ranks are read from gaps of the singular values, errors of a basis from the first value
behind the gap: nothing here knows whether the gradient was computed in single precision.

Shape letters: m units, n inputs, B records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ....training.models.parameters import unflatten
from ...problem.observation import Observation
from .first_linear import fed_to, parameter_name

_GAP = 100.0  # of the singular values at rank B: less is no rank
_FLOOR = 1e-5  # what is above it, relative to the largest value, is a record and not rounding


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReluLayers:
    """Names of the two linear layers around the ReLU."""

    first: str
    second: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReluSpaces:
    """What one intercept says of the batch, in float64."""

    left: Tensor  # (m, B) U
    values: Tensor  # (B,) S
    right: Tensor  # (n + 1, B) Y
    noise: Tensor  # (B,) error of the columns of U and Y: the first rounding value over S
    always: Tensor  # (m,) units that every record activates
    never: Tensor
    weight: Tensor  # (m, n + 1) [W, b]
    back: Tensor  # (m, ranks) V^T R
    activations: Tensor | None  # (m + 1, B) row space of [dV, dc], where it has rank B
    activation_noise: Tensor  # (B,) error of its columns


def find_relu_layers(
    model: nn.Module, flat: Tensor, input_shape: Sequence[int]
) -> ReluLayers | None:
    """The first two parametrised layers, if probes show the input, and a ReLU between them.

    Args:
        model: any network.
        flat: (D,) its parameters.
        input_shape: of one record.
    """
    own = [
        (name, module)
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    count = math.prod(input_shape)
    if len(own) < 2:
        return None
    (first, one), (second, two) = own[:2]
    if not (isinstance(one, nn.Linear) and isinstance(two, nn.Linear)):
        return None
    if one.bias is None or one.in_features != count or two.in_features != one.out_features:
        return None
    values = unflatten(model, flat)
    probe = torch.stack([torch.linspace(-1, 1, count), torch.linspace(1, -1, count) ** 3])
    probe = probe.to(flat).reshape(2, *input_shape)
    fed = fed_to(model, flat, probe, [one, two])
    if len(fed) != 2 or not torch.equal(fed[0].reshape(2, -1), probe.reshape(2, -1)):
        return None
    weight, bias = values[parameter_name(first, "weight")], values[parameter_name(first, "bias")]
    expected = (probe.reshape(2, -1) @ weight.T + bias).clamp_min(0)
    if fed[1].shape != expected.shape or not torch.allclose(fed[1], expected, atol=1e-12):
        return None
    return ReluLayers(first=first, second=second)


def measure_spaces(seen: Observation, model: nn.Module, layers: ReluLayers) -> ReluSpaces | None:
    """Column and row spaces of both layers' gradients, None where the rank is not B.

    Args:
        seen: one intercept without noise.
        model: network it was taken of.
        layers: as `find_relu_layers` names them.
    """
    gradients = unflatten(model, seen.gradient[0].double())
    values = unflatten(model, seen.points[0, 0].double())

    def joint(source: dict[str, Tensor], layer: str) -> Tensor:
        parts = [source[parameter_name(layer, "weight")]]
        if parameter_name(layer, "bias") in source:
            parts.append(source[parameter_name(layer, "bias")][:, None])
        return torch.cat(parts, dim=1)

    records = seen.records
    first, second = joint(gradients, layers.first), joint(gradients, layers.second)
    if records >= min(first.shape):
        return None
    left, strengths, right = torch.linalg.svd(first, full_matrices=False)
    top, last, behind = (float(strengths[i]) for i in (0, records - 1, records))
    behind = max(behind, 1e-16 * top)
    if top == 0 or last < _GAP * behind or behind > _FLOOR * top:
        return None
    rounding = (10 * behind / top) ** 0.75  # between the rounding and what a record leaves
    rows = torch.linalg.vector_norm(first, dim=1)
    never = rows <= rounding * rows.max()
    outgoing = values[parameter_name(layers.second, "weight")]
    always = torch.zeros_like(never)
    biased = parameter_name(layers.second, "bias") in gradients
    if biased:
        slope = gradients[parameter_name(layers.second, "bias")]
        sizes = outgoing.T.abs() @ slope.abs()
        always = (first[:, -1] - outgoing.T @ slope).abs() <= rounding * sizes
        always &= ~never
    classes, weights, rest = torch.linalg.svd(second, full_matrices=False)
    # All of V^T is free of rounding; where it leaves too much open, its part in dV's column space.
    back = outgoing.T
    if int(always.sum()) < records + len(weights):
        rank = int((weights > 10 * behind / top * weights[0]).sum())
        back = outgoing.T @ classes[:, : min(records, max(rank, 1))]
    activations, doubt = None, torch.ones(records).to(weights)
    if biased and len(weights) > records:
        after = max(float(weights[records]), 1e-16 * float(weights[0]))
        doubt = after / weights[:records].clamp_min(after)
        activations = rest[:records].T if float(doubt[-1]) <= 1 / _GAP else None
    return ReluSpaces(
        left=left[:, :records],
        values=strengths[:records],
        right=right[:records].T,
        noise=behind / strengths[:records],
        always=always,
        never=never,
        weight=joint(values, layers.first),
        back=back / torch.linalg.vector_norm(back, dim=0).clamp_min(1e-300),
        activations=activations,
        activation_noise=doubt,
    )
