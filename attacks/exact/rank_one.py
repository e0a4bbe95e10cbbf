"""The input of a linear first layer from the change of several local steps, whatever these were.

One record's gradient of [W, b] is delta [x, 1]^T at every model. So what plain steps, steps with
momentum or steps with other rates than were declared add up to has rank 1 as well, with the same
right factor. Weight decay adds a multiple c of the first model, which is known:

    (before - after) / (steps rate) = d [x, 1]^T + c [W, b]

The steps need not be re-enacted. The certificate is the spectrum: what d and c leave of the change
is no more than rounding of the models does, and a second record would leave far more. That it would
is tried: where other inputs have derivatives delta in the direction of d, as of two classes behind
a single layer, the change of a batch has rank 1 too, and nothing is claimed. Nor is it where every
number of the input is 0 or 1 in size: steps that divide a gradient by its own size (Adam, RMSprop,
signs) leave of any input its signs, with rank 1. Weights and bias are taken to have one rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...training.models.parameters import unflatten
from ..problem.observation import Observation, sent_gradient
from ..problem.prior import Box
from .patches import rounding_of
from .separation.first_linear import first_linear

_ROUNDS = 30  # of d and c in turn
_EDGE = 2.0  # times the largest singular value that rounding is expected to have
_CLEAR = 30.0  # times that: the leading one
_APART = 50.0  # times the same: the angle of another record's derivative
_LABELS = 8  # of another record, at most
_SIGNS = 0.05  # distance from 0 or 1 up to which a number may be a sign
_DETERMINED = 0.05  # error of a number, of the box, up to which an input is determined


def repeated_input(
    observation: Observation,
    model: nn.Module,
    *,
    input_shape: Sequence[int],
    box: Box,
    classes: int,
) -> Tensor | None:
    """The record that took every one of several local steps.

    Args:
        observation: the mean gradient of several local steps of one record, without noise.
        model: network whose first parametrised layer may be linear on the flattened input.
        input_shape: shape of one record.
        box: range of the inputs; the result is clamped into it.
        classes: number of logits.

    Returns:
        (1, *input_shape) input; None where there is noise, a batch, a single step or several
        intercepts, the first layer is of another kind, its change is not of rank 1, or that of
        several records would be, or the input may be signs alone.

    Examples:
        >>> from dataclasses import replace
        >>> from overhear.training.models.parameters import flatten
        >>> _ = torch.manual_seed(0)
        >>> layers = nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)
        >>> model, x = nn.Sequential(*layers).double(), torch.rand(1, 3).double()
        >>> before, decayed = flatten(model), torch.optim.SGD(
        ...     model.parameters(), 0.1, momentum=0.9, weight_decay=0.01
        ... )
        >>> for _ in range(4):
        ...     decayed.zero_grad()
        ...     nn.functional.cross_entropy(model(x), torch.tensor([1])).backward()
        ...     decayed.step()
        >>> seen = Observation.single(
        ...     gradient=(before - flatten(model)) / 0.4, model=before, noise_std=0.0,
        ...     clip_norm=None, records=1,
        ... )
        >>> seen = replace(seen, local_steps=4, local_rate=0.1)
        >>> box = Box(low=torch.zeros(()).double(), span=torch.ones(()).double())
        >>> found = repeated_input(seen, model, input_shape=(3,), box=box, classes=2)
        >>> round((found - x).abs().max().item(), 4)
        0.0
    """
    steps, rate = observation.local_steps, observation.local_rate
    alone = observation.records == 1 and len(observation.gradient) == 1
    if not alone or steps < 2 or observation.is_noisy or observation.task is not None:
        return None
    point = observation.points[0, 0]
    name = first_linear(model, point, input_shape)
    if name is None:
        return None
    changed = _of_layer(unflatten(model, observation.gradient[0]), name)
    start = _of_layer(unflatten(model, point), name)
    # A rounding of the model in every step, and of the quotient, are numbers of both layers.
    rounded = rounding_of(point) * _size(start) / (math.sqrt(steps) * rate)
    rounded += rounding_of(observation.gradient) * _size(changed)
    edge = _EDGE * rounded * sum(math.sqrt(length) for length in changed.shape)
    flat = torch.cat([start[:, :-1], torch.zeros_like(start[:, -1:])], dim=1)
    for decayed in (None, start, flat):  # of the bias too, or of the weights alone
        rest = changed if decayed is None else changed - _decay(changed, decayed) * decayed
        left, values, right = torch.linalg.svd(rest, full_matrices=False)
        if len(values) > 1 and float(values[1]) <= edge and float(values[0]) > _CLEAR * edge:
            break
    else:
        return None
    direction, last = right[0], abs(float(right[0, -1]))
    if last * float(values[0]) <= rounded:
        return None
    found = (direction[:-1] / direction[-1]).reshape(tuple(input_shape))
    if float((found.abs() - found.abs().round().clamp(max=1)).abs().max()) <= _SIGNS:
        return None
    error = rounded / (last * float(values[0])) * (1 + float(found.abs().max()))
    wide = box.to(dtype=torch.float64)
    pixels = wide.pixels(found)
    error /= float(wide.span.min())
    outside = torch.maximum(-pixels, pixels - 1).max()
    if not error <= _DETERMINED or not float(outside) <= _DETERMINED:
        return None
    pixels = pixels.clamp(0, 1).to(box.span)

    def derivative(x: Tensor, label: int) -> Tensor:
        sent = sent_gradient(
            model, point, inputs=box.inputs(x)[None].to(point), clip_norm=None,
            targets=torch.tensor([label], device=point.device),
        )  # fmt: skip
        return _of_layer(unflatten(model, sent.detach()), name)[:, -1]

    least = _APART * edge / float(values[0])
    angle = _angle(left[:, 0], derivative, pixels=pixels, classes=classes)
    return box.inputs(pixels)[None] if angle > least else None


def _angle(
    direction: Tensor, derivative: Callable[[Tensor, int], Tensor], *, pixels: Tensor, classes: int
) -> float:
    """Sine of the least angle of other inputs' derivatives to a direction; 1 where all are 0."""
    draw = torch.Generator().manual_seed(0)
    drawn = torch.rand(2, *pixels.shape, generator=draw).to(pixels)
    turned = pixels.flatten().flip(0).reshape(pixels.shape)
    least = 1.0
    for x in (turned, (turned + drawn[0]) / 2, (pixels + drawn[1]) / 2):
        for label in range(0, classes, -(-classes // _LABELS)):
            delta = derivative(x, label)
            size = float(delta.norm())
            if size > 0:
                across = delta - (delta @ direction) * direction
                least = min(least, float(across.norm()) / size)
    return least


def _of_layer(values: dict[str, Tensor], name: str) -> Tensor:
    """(O, I + 1) weight and bias of a layer."""
    prefix = f"{name}." if name else ""
    weight, bias = values[f"{prefix}weight"], values[f"{prefix}bias"]
    return torch.cat([weight, bias[:, None]], dim=1).detach().double()


def _size(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _decay(changed: Tensor, start: Tensor) -> float:
    """The factor of a matrix that leaves most of rank 1."""
    factor = 0.0
    for _ in range(_ROUNDS):
        left, _, right = torch.linalg.svd(changed - factor * start, full_matrices=False)
        u, v = left[:, :1], right[:1]
        outer = start - u @ (u.T @ start)
        outer = outer - (outer @ v.T) @ v
        before, factor = factor, float((outer * changed).sum() / outer.square().sum())
        if abs(factor - before) <= 1e-12 * abs(factor):
            break
    return factor
