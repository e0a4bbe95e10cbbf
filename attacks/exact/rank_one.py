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
from collections.abc import Callable

import torch
from torch import Tensor

from ...training.models.parameters import unflatten
from ..problem.observation import sent_gradient
from ..problem.problem import Problem
from .binary_vertices import first_linear, joint_of, parameter_name
from .patches import rounding_of

_ROUNDS = 30  # of d and c in turn
_EDGE = 2.0  # times the largest singular value that rounding is expected to have
_CLEAR = 30.0  # times that: the leading one
_APART = 50.0  # times the same: the angle of another record's derivative
_LABELS = 8  # of another record, at most
_SIGNS = 0.05  # distance from 0 or 1 up to which a number may be a sign
_DETERMINED = 0.05  # error of a number, of the box, up to which an input is determined


def repeated_input(problem: Problem) -> Tensor | None:
    """The record that took every one of several local steps, of which the mean gradient is seen.

    Returns:
        (1, *shape) input in normalised units, within the box; None where there is noise, a batch, a
        single step or several intercepts, the first layer is of another kind, its change is not of
        rank 1, or that of several records would be, or the input may be signs alone.

    >>> from dataclasses import replace
    >>> from torch import nn
    >>> from overhear.attacks.problem.observation import Observation
    >>> from overhear.attacks.problem.problem import Box
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
    >>> posed = Problem(observation=seen, model=model, box=box, shape=(3,), classes=2)
    >>> found = repeated_input(posed)
    >>> round((found - x).abs().max().item(), 4)
    0.0
    """
    observation, model, box = problem.observation, problem.model, problem.box
    steps, rate = observation.local_steps, observation.local_rate
    alone = observation.records == 1 and len(observation.gradient) == 1
    if not alone or steps < 2 or observation.is_noisy or observation.task is not None:
        return None
    point = observation.points[0, 0]
    name = first_linear(model, point, problem.shape)
    if name is None:
        return None
    changed = joint_of(unflatten(model, observation.gradient[0]), name).double()
    start = joint_of(unflatten(model, point), name).double()
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
    found = (direction[:-1] / direction[-1]).reshape(problem.shape)
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
        return unflatten(model, sent.detach())[parameter_name(name, "bias")].double()

    least = _APART * edge / float(values[0])
    angle = _angle(left[:, 0], derivative, pixels=pixels, classes=problem.classes)
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
