"""One record of a chain of layers, rebuilt from its noiseless gradient by linear algebra.

Zhu and Blaschko (2021), "R-GAP: Recursive Gradient Attack on Privacy", solve one layer at a time
from the last to the first. With z = W * a + b of a layer and d the loss's derivative in z:

    last layer    [dW, db] = f d [a, 1]^T gives a and f d; f is the clip's factor
    activation    z = inverse(a), d *= slope(a); a ReLU hides z where a = 0
    linear layer  a = dW^T d / |d|^2
    convolution   a solves  W * a = z - b,  outer(a, d) = dW       (least squares, all z known)
    otherwise     x solves  z(x) = z where known, z(x) <= 0 where hidden, outer(a(x), d) = dW
                  by semismooth Newton from the box's centre, through all layers that are left

Where we differ from the paper: a layer behind a ReLU or a max-pool is not solved on its own (it has
more unknowns than equations as often as not) but down to the record, whose few unknowns settle the
signs of all hidden units; equations are weighed by what they leave; and what the equations do not
determine is refused, whatever it leaves. The derivative in the logits is read from the gradient and
not computed anew: where a network is sure of its label, p - 1 has lost its digits in float32, and
every layer's gradient was made of what was left.

Shape letters: C classes, F features, N unknowns.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...training.models.parameters import unflatten
from ..problem.labels import fitted
from ..problem.layers import joint_of
from ..problem.problem import Box, Certified, Problem
from . import rgap_record
from .first_layer import residual


def peel(problem: Problem, *, accepted: float = rgap_record.ACCEPTED) -> Certified | None:
    """The record and label of a batch of one, from its noiseless gradient, by one intercept.

    Args:
        problem: of one record, clipped or not.
        accepted: relative residual up to which a layer, and the record, count as found; more where
            messages were rounded.

    Returns:
        The record, with what it leaves of the gradient and of each layer's, or None where there is
        noise or a batch, the network is no chain of linear and convolutional layers with sigmoids,
        tanhs, (leaky) ReLUs and pools, the equations do not determine the record, or what was found
        does not explain the gradient.
    """
    observation, model, box = problem.observation, problem.model, problem.box
    if observation.records != 1 or observation.is_noisy or not observation.is_plain:
        return None
    # In float64, and through layers that can be undone one by one.
    one = observation.only(0)
    exact = replace(one, gradient=one.gradient.double(), points=one.points.double())
    values = unflatten(model, exact.points[0, 0])
    chain = rgap_record.read_chain(model, values, problem.shape)
    if not chain or not isinstance(chain[-1], rgap_record.Affine) or not chain[-1].is_linear:
        return None
    gradients = unflatten(model, exact.gradient[0])
    known_size = observation.clip_norm is None and observation.mean_of is None
    # From the last layer's features down to the record.
    last = _last_layer(chain[-1], gradients, known_size=known_size, accepted=accepted)
    if last is None:
        return None
    features, delta, label = last
    wide = Box(low=box.low.double(), span=box.span.double())
    start = wide.inputs(torch.full(problem.shape, 0.5).to(wide.span))
    descent = _descend(
        chain, gradients, features=features, delta=delta, start=start, box=wide, accepted=accepted
    )
    if descent is None:
        return None
    found, layers = descent
    # The record counts where a loss of the outputs makes its gradient the one observed.
    inputs = box.inputs(box.pixels(found.to(box.span)).clamp(0, 1))[None]
    left = residual(exact, model, inputs=inputs.double(), targets=label)
    if not left <= accepted:
        fit = fitted(exact, model, inputs=inputs, classes=problem.classes)
        left = math.inf if fit is None else fit.left
    if not left <= accepted:
        return None
    return Certified(inputs, label, left=(left, *(of for _, of in layers)))


def _last_layer(
    layer: rgap_record.Affine, gradients: dict[str, Tensor], *, known_size: bool, accepted: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Features (F,), f times the derivative in the logits (C,), and label (1,)."""
    has_bias = layer.bias is not None
    joint = (
        joint_of(gradients, layer.name or "")
        if has_bias
        else rgap_record.weight_gradient(layer, gradients)
    )
    row = joint[joint.square().sum(dim=1).argmax()]
    if not bool((row != 0).any()):
        return None
    left = joint @ row  # one step of the power method on rank 1: zero columns stay zero
    right = left @ joint
    if layer.bias is None:
        features = _scaled(
            layer, joint, right / right.norm(), known_size=known_size, accepted=accepted
        )
        if features is None:
            return None
    else:
        features = right[:-1] / right[-1]
    if not bool(torch.isfinite(features).all()):
        return None
    seen = joint @ torch.cat([features, features.new_ones(joint.shape[1] - len(features))])
    label = (joint[:, -1] if has_bias else seen).argmin()
    weights = features.square().sum() + (layer.bias is not None)
    delta = seen / weights
    return features, delta, label[None]


def _scaled(
    layer: rgap_record.Affine, joint: Tensor, way: Tensor, *, known_size: bool, accepted: float
) -> Tensor | None:
    """Features c * way that the logits' derivative agrees with: without a bias, c is open."""
    seen = joint @ way
    sizes = torch.logspace(-4, 4, 4001, dtype=way.dtype).to(way)

    def misfit(c: Tensor) -> Tensor:
        """(..., C + 1) of softmax(W c way + b) - y against the gradient, for c (...)."""
        logits = c[..., None] * layer.push(way) + layer.offset()
        chances = torch.softmax(logits, dim=-1)
        down = torch.nn.functional.one_hot((seen * c.sign().flatten()[0]).argmin(), len(seen))
        delta = chances - down
        size = delta.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        shape = delta / size - c.sign()[..., None] * seen / seen.norm()
        scale = c.abs()[..., None] * size / seen.norm() - 1 if known_size else 0 * size
        return torch.cat([shape, scale], dim=-1)

    best: tuple[float, Tensor] | None = None
    # The best size on a grid, of either sign, and Newton steps from there.
    for sign in (1.0, -1.0):
        grid = sign * sizes
        c = grid[misfit(grid).square().sum(dim=-1).argmin()]
        for _ in range(30):  # Gauss-Newton in one unknown
            value, slope = misfit(c), torch.func.jacrev(misfit)(c)
            step = (slope @ value) / (slope @ slope).clamp_min(1e-300)
            c = c - step.clamp(-0.5 * c.abs(), 0.5 * c.abs())
        left = float(misfit(c).norm())
        if best is None or left < best[0]:
            best = (left, c)
    return None if best is None or best[0] > accepted else best[1] * way


def _descend(
    chain: list[rgap_record.Layer],
    gradients: dict[str, Tensor],
    *,
    features: Tensor,
    delta: Tensor,
    start: Tensor,
    box: Box,
    accepted: float,
) -> tuple[Tensor, list[tuple[str, float]]] | None:
    """The record, from the features that the last layer reads and the derivative of its logits."""
    last = chain[-1]
    layers: list[tuple[str, float]] = []
    point, slope = features, last.at(features)[2](delta)
    _note(layers, last, gradients, point, delta)
    level: rgap_record.Level | None = None
    # Activations are inverted, and linear layers solved for their inputs.
    for position in range(len(chain) - 2, -1, -1):
        layer = chain[position]
        if isinstance(layer, rgap_record.Reshape):
            point, slope = point.reshape(layer.inside), slope.reshape(layer.inside)
            continue
        if isinstance(layer, rgap_record.Activation):
            steep = layer.slope_at(point)
            level = rgap_record.Level(
                target=layer.inverse(point), known=steep, delta=slope * steep, scale=_rms(point)
            )
            if not bool(torch.isfinite(level.target).all()):
                return None
            point, slope = level.target, level.delta
            continue
        if level is None:
            level = rgap_record.Level(
                target=point, known=torch.ones_like(point), delta=slope, scale=_rms(point)
            )
        point_below = (
            _layer_input(layer, gradients, level) if isinstance(layer, rgap_record.Affine) else None
        )
        if point_below is None or not isinstance(layer, rgap_record.Affine):
            # What this layer alone leaves open, all that are left may determine together.
            rest = chain[: position + 1]
            whole = rgap_record.solve_record(
                rest,
                gradients,
                level=level,
                start=start,
                box=box,
                rounding=max(layers[0][1], 1e-15),
                accepted=accepted,
            )
            return None if whole is None else (whole[0], layers + whole[1])
        _note(layers, layer, gradients, point_below, level.delta)
        if layers[-1][1] > accepted:
            return None
        point, slope, level = point_below, layer.pull(level.delta), None
    return (point, layers) if point.shape == start.shape else None


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt().clamp_min(1e-300))


def _note(
    layers: list[tuple[str, float]],
    layer: rgap_record.Layer,
    gradients: dict[str, Tensor],
    point: Tensor,
    delta: Tensor,
) -> None:
    if isinstance(layer, rgap_record.Affine) and layer.name is not None:
        seen = rgap_record.weight_gradient(layer, gradients)
        layers.append((layer.name, float((layer.outer(point, delta) - seen).norm() / seen.norm())))


def _layer_input(
    layer: rgap_record.Affine, gradients: dict[str, Tensor], level: rgap_record.Level
) -> Tensor | None:
    """The layer's input, where its own equations determine it."""
    if layer.name is None:
        return None
    seen = rgap_record.weight_gradient(layer, gradients)
    delta, size = level.delta, float(seen.norm())
    if size == 0:
        return None
    # A linear layer's input is read off; a convolution's solves least squares.
    if layer.is_linear:
        return delta @ seen / (delta @ delta)
    hidden = bool((level.known == 0).any())
    if hidden or level.target.numel() + seen.numel() < math.prod(layer.inside):
        return None
    # Entries of the features above and of the gradient carry alike relative errors.
    forward = (level.known / level.scale).square()
    backward = seen.numel() / size**2

    def adjoint(z: Tensor, gradient: Tensor) -> Tensor:
        return layer.pull(forward * z) + layer.pull(delta, weight=backward * gradient)

    def normal(x: Tensor) -> Tensor:
        return adjoint(layer.push(x), layer.outer(x, delta))

    right = adjoint(level.target - layer.offset(), seen)
    if not rgap_record.is_determined(normal, layer.inside, like=delta):
        return None
    return rgap_record.solve_normal(normal, right, tolerance=1e-13, steps=5000)
