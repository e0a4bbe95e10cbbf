"""Whether the observation speaks for an image, or the public guess takes its place.

Under noise an image x with n pixels replaces the prior image x0 where one of two tests says so, r
being the whitened residual (without noise, where the truth leaves nothing, any gain will do, unless
the search plainly failed):

- Mallows' C_p: r(x0) - r(x) > 2 n, x0 under any label. Fitting noise alone buys n; the error it
  leaves is another n.
- For a batch of one, where the total variation lets fewer than n degrees of freedom through: the
  observation is split into two with independent noise, o + a s w and o - (s / a) w with s the
  noise_std and w standard normal (Robins and van der Vaart 2006). The image found from the first
  half must explain the second better than x0 does under any label, by two standard deviations.

Shape letters: B records, C classes, D parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..exact.stages import FIRST_LAYER, solve_exactly
from ..problem.objective import cosine_distance, whitened_residual
from ..problem.observation import sent_gradients
from ..problem.problem import Found, Problem
from .optimisation import optimise
from .power import SPLIT

_FAILED = 0.3
"""Cosine distance at which a search without noise, whose truth has 0, found nothing."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kept:
    """What is left of a batch that was found.

    Attributes:
        pixels: (B, *shape), the prior image where the observation does not speak for another.
        supported: (B,) whether it does.
        reached: distance of what was found, as `distance_left` gives it.
    """

    pixels: Tensor
    supported: tuple[bool, ...]
    reached: float


def fall_back(problem: Problem, found: Found, generator: torch.Generator) -> Kept:
    """Put the prior image where the observation does not speak for the image found.

    Args:
        problem: the posed problem.
        found: what a stage found.
        generator: of the split of the observation.
    """
    seen, prior = problem.observation, problem.prior_image
    reached = distance_left(problem, found.pixels, found.labels)
    needed = 2 * math.prod(problem.shape) if seen.is_noisy else 0.0
    pixels, supported = found.pixels.clone(), [True] * seen.records
    failed = not seen.is_noisy and _angle_left(problem, found) > _FAILED
    if prior is not None:
        for record in range(seen.records):
            gain = _distance_without(problem, found, record) - reached
            supported[record] = gain > needed or (
                seen.records == 1
                and gain > 0
                and _explains_held_out(problem, prior, generator, stage=found.stage)
            )
            supported[record] = supported[record] and not failed
            if not supported[record]:
                pixels[record] = prior
    return Kept(pixels=pixels, supported=tuple(supported), reached=reached)


def _angle_left(problem: Problem, found: Found) -> float:
    """One minus the cosine between what was found would send and what was observed."""
    return float(cosine_distance(_sent(problem, found.pixels, found.labels), problem.observation))


def distance_left(problem: Problem, pixels: Tensor, labels: Tensor) -> float:
    """The whitened residual of a batch under noise, else the preset's distance."""
    candidate = _sent(problem, pixels, labels)
    if problem.observation.is_noisy:
        return float(whitened_residual(candidate, problem.observation))
    return float(problem.preset.objective(candidate, problem.observation))


def _distance_without(problem: Problem, found: Found, record: int) -> float:
    """The same with the prior image in place of a record, under the label that suits it best.

    An image that undoes a wrong label beats the prior image under it without resembling anything.
    """
    assert problem.prior_image is not None  # noqa: S101 # the caller looked
    pixels, labels = found.pixels.clone(), found.labels.clone()
    pixels[record] = problem.prior_image
    distances = []
    for label in range(problem.classes) if problem.observation.is_noisy else [int(labels[record])]:
        labels[record] = label
        distances.append(distance_left(problem, pixels, labels))
    return min(distances)


def _sent(problem: Problem, pixels: Tensor, labels: Tensor) -> Tensor:
    """(K, D) gradients of a batch with hard labels."""
    inputs = problem.box.inputs(pixels)
    return sent_gradients(
        problem.observation, problem.model, inputs=inputs, targets=labels
    ).detach()


def _explains_held_out(
    problem: Problem, prior: Tensor, generator: torch.Generator, *, stage: str
) -> bool:
    """Whether an image found from one half of the observation explains the other half."""
    seen = problem.observation
    if not seen.is_noisy:
        return False
    noise = torch.randn(seen.gradient.shape, generator=generator, dtype=seen.gradient.dtype)
    noise = noise.to(seen.gradient)
    noise = torch.linalg.cholesky(seen.covariance.double()).to(noise) @ noise
    once = replace(problem.preset, starts=1)
    first = replace(
        seen,
        gradient=seen.gradient + SPLIT * noise,
        covariance=seen.covariance * (1 + SPLIT**2),
    )
    second = replace(
        seen,
        gradient=seen.gradient - noise / SPLIT,
        covariance=seen.covariance * (1 + 1 / SPLIT**2),
    )
    posed = replace(problem, observation=first, preset=once)
    again = solve_exactly(posed, generator) if stage == FIRST_LAYER else None
    found = again if isinstance(again, Found) else optimise(posed, generator, progress=None)
    candidate = _sent(problem, found.pixels, found.labels)
    # Under much noise the label is wrong, and an image that undoes a wrong label beats the prior
    # image under it without resembling anything: the prior image may choose its label.
    classes = torch.arange(problem.classes, device=prior.device)
    every = torch.stack([_sent(problem, prior[None], k[None]) for k in classes])
    residuals = whitened_residual(every, second)  # (C,)
    public = every[residuals.argmin()]
    gain = residuals.min() - whitened_residual(candidate, second)
    # Given the first half, the gain is normal with twice the whitened distance of the two.
    deviation = 2 * torch.linalg.vector_norm(second.whiten(candidate - public)) / second.noise_std
    return bool(gain > 2 * deviation)
