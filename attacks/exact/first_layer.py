"""Inputs that algebra gives away before any optimisation: the first linear layer.

For h = W x + b on the flattened input, one record's gradient of [W, b] is delta [x, 1]^T: rank 1,
and its right factor is the input. Phong et al. (2018), "Privacy-Preserving Deep Learning via
Additively Homomorphic Encryption", divide a row of W's gradient by b's entry.

    u s v^T = leading term of [dW, db],   x = v_x / v_b

Where we differ from the paper: the top singular vector uses every row at once, so noise is
averaged over the rows instead of divided by one entry; a leading value inside the noise's spectrum
(up to 1.05 noise_std (sqrt(rows) + sqrt(columns))) yields nothing rather than noise; a picture is
denoised, since its noise is known; and the estimate is drawn towards the box's centre (or a public
image) by the ratio of its variance to the prior's.

A recovered input is accepted by `residual`, which compares the gradient it would have sent with
the observation and does not know the truth.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...training.models.parameters import unflatten
from ..problem.observation import Observation, sent_gradients
from ..problem.problem import Problem
from .binary_vertices import first_linear, joint_of, parameter_name

PICTURE = 3  # dimensions of a picture: channels, height, width
_STANDS_OUT = 1.05  # times the noise's edge; the largest value of noise alone varies by 1 % of it


def first_linear_input(problem: Problem) -> Tensor | None:
    """The input of a batch of one, from the gradient of a first layer that is linear.

    Under noise it is drawn to the problem's prior image, or to the centre of the box.

    Returns:
        (1, *shape) input in normalised units, within the box; None where the batch has several
        records, the first layer is of another kind or has no bias, or its gradient does not stand
        out of the noise.

    >>> from overhear.attacks.problem.observation import observe
    >>> from overhear.attacks.problem.problem import Box
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> flat, x = torch.linspace(1, -1, 26), torch.tensor([[0.2, 0.9, 0.4]])
    >>> seen = observe(
    ...     model, flat, inputs=x, targets=torch.tensor([0]), clip_norm=0.1, noise_std=0.0,
    ...     generator=torch.Generator(),
    ... )
    >>> box = Box(low=torch.tensor(0.0), span=torch.tensor(1.0))
    >>> posed = Problem(observation=seen, model=model, box=box, shape=(3,), classes=2)
    >>> found = first_linear_input(posed)
    >>> round((found - x).abs().max().item(), 4)
    0.0
    """
    observation, box = problem.observation, problem.box
    if observation.records != 1 or (name := _layer(problem)) is None:
        return None
    # In one unit of noise; the input is the right factor of every intercept, so their rows stack.
    whitened = unflatten(problem.model, observation.whiten(observation.gradient))
    joint = joint_of(whitened, name).flatten(0, -2).double()
    _, values, right = torch.linalg.svd(joint, full_matrices=False)
    strength, direction = float(values[0]), right[0]
    edge = observation.noise_std * (math.sqrt(joint.shape[0]) + math.sqrt(joint.shape[1]))
    if strength <= _STANDS_OUT * edge or abs(float(direction[-1])) < 1e-12:
        return None
    found = (direction[:-1] / direction[-1]).reshape(problem.shape).to(box.span.dtype)
    error = observation.noise_std / (strength * abs(float(direction[-1])))
    risk = error**2
    if error > 0 and found.ndim == PICTURE and min(found.shape[1:]) > 1:
        found, risk, _ = denoise(found, error)
    drawn = _draw_to_prior(problem, found, error=error, risk=risk)
    return box.inputs(box.pixels(drawn).clamp(0, 1))[None]


def _layer(problem: Problem) -> str | None:
    """The name of the first layer, where it is linear."""
    seen = problem.observation
    return first_linear(problem.model, seen.points[0, 0, : seen.gradient.shape[1]], problem.shape)


def rounding_of_input(problem: Problem) -> float:
    """What rounding of messages may leave in `first_linear_input`, over the input's length.

    The input is a quotient by the gradient of the bias, and rounding is a share of the whole.
    """
    seen, name = problem.observation, _layer(problem)
    if name is None or seen.rounding == 0:
        return 0.0
    bias = unflatten(problem.model, seen.gradient)[parameter_name(name, "bias")]
    size = torch.linalg.vector_norm(seen.gradient)
    return seen.rounding * float(size / torch.linalg.vector_norm(bias).clamp_min(1e-300))


def residual(
    observation: Observation, model: nn.Module, *, inputs: Tensor, targets: Tensor
) -> float:
    """Relative residual ||g - o|| / ||o|| of the gradient that a candidate batch would have sent.

    Args:
        observation: supplies o, the model and the clip.
        model: network with logits as output.
        inputs: (B, *shape) candidate.
        targets: (B,) class indices.

    Returns:
        A number near 0 for the true batch where there is no noise, whatever the truth looks like.

    >>> from overhear.attacks.problem.observation import observe
    >>> model, x, y = nn.Linear(2, 2), torch.ones(1, 2), torch.tensor([0])
    >>> seen = observe(
    ...     model, torch.zeros(6), inputs=x, targets=y, clip_norm=1.0, noise_std=0.0,
    ...     generator=torch.Generator(),
    ... )
    >>> residual(seen, model, inputs=x, targets=y)
    0.0
    """
    candidate = sent_gradients(observation, model, inputs=inputs, targets=targets).detach()
    size = torch.linalg.vector_norm(observation.gradient).clamp_min(1e-300)
    return float(torch.linalg.vector_norm(candidate - observation.gradient) / size)


def _draw_to_prior(problem: Problem, found: Tensor, *, error: float, risk: float) -> Tensor:
    if error == 0:
        return found
    box, prior = problem.box, problem.prior_image
    target = box.inputs(torch.full_like(found, 0.5) if prior is None else prior).to(found)
    # v_x and v_b carry the same noise: the quotient's error grows with the input itself.
    noise = risk + error**2 * found.square()
    spread = box.span.square() / 12  # variance of a uniform value in the box
    return target + (found - target) * spread / (spread + noise)


_WEIGHTS = (0.06, 0.12, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PROBE = 0.1  # step of the divergence, in units of the noise


class Denoised(NamedTuple):
    """A picture, the mean squared error that is expected of it, and the weight that was chosen."""

    image: Tensor
    risk: float
    weight: float


def denoise(image: Tensor, noise_std: float) -> Denoised:
    """The picture of least estimated risk, among total variation of several weights and itself.

    Total variation (Rudin, Osher, Fatemi 1992) by scikit-image; its weight is the one of least
    risk by Stein's unbiased estimate, whose divergence is probed once (Ramani, Blu, Unser 2008):

        risk(f) = |f(y) - y|^2 / n - s^2 + 2 s^2 / n  div f(y)
        div f(y) ~ b^T (f(y + e b) - f(y)) / e

    A picture that is not smooth stays as it is.

    Args:
        image: (channels, height, width), in any unit.
        noise_std: of independent noise on every value, in the same unit, above 0.

    Returns:
        The picture in the image's type, with its risk in squared units, at least 0.

    >>> flat = torch.full((1, 16, 16), 0.5)
    >>> noisy = flat + 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
    >>> found = denoise(noisy, 0.1)
    >>> found.weight, round(float((found.image - flat).square().mean().sqrt()), 3)
    (6.0, 0.005)
    """
    from skimage.restoration import denoise_tv_chambolle

    seen = image.detach().cpu().double().movedim(0, -1).numpy() / noise_std
    probe = np.random.default_rng(0).choice([-1.0, 1.0], size=seen.shape)
    best, least, chosen = seen, 1.0, 0.0
    for weight in _WEIGHTS:
        smooth = denoise_tv_chambolle(seen, weight=weight, channel_axis=-1)
        moved = denoise_tv_chambolle(seen + _PROBE * probe, weight=weight, channel_axis=-1)
        divergence = float((probe * (moved - smooth)).sum()) / _PROBE
        risk = (float(np.square(smooth - seen).sum()) + 2 * divergence) / seen.size - 1
        if risk < least:
            best, least, chosen = smooth, risk, weight
    found = torch.from_numpy(np.ascontiguousarray(best)).movedim(-1, 0).to(image)
    return Denoised(found * noise_std, max(least, 0.0) * noise_std**2, chosen)
