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

Of several ways to search, that one is taken whose image from the first half explains the second
best.

Shape letters: B records, C classes, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..problem.objective import cosine_distance, whitened_residual
from ..problem.observation import Observation, sent_gradients
from ..problem.problem import Found, Problem
from .power import SPLIT

Search = Callable[[Problem], Found]
"""A way to find a batch, of the whole observation or of a half of it."""

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


def fall_back(
    problem: Problem,
    found: Found,
    generator: torch.Generator,
    *,
    search: Search,
    held: bool | None = None,
) -> Kept:
    """Put the prior image where the observation does not speak for the image found.

    Args:
        problem: the posed problem.
        found: what a stage found.
        generator: of the split of the observation.
        search: how it was found.
        held: whether what `search` finds in one half explains the other, where that is known.
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
                and (best_of(problem, [search], generator)[1] if held is None else held)
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


def best_of(
    problem: Problem, searches: Sequence[Search], generator: torch.Generator
) -> tuple[int, bool]:
    """Which way to search explains a half of the observation best from the other half.

    Args:
        problem: of one record.
        searches: at least one.
        generator: of the split.

    Returns:
        Its index, and whether it explains that half better than the prior image, by two standard
        deviations; never without noise or without a prior image.
    """
    seen, prior = problem.observation, problem.prior_image
    if not seen.is_noisy or (prior is None and len(searches) == 1):
        return 0, False
    noise = torch.randn(seen.gradient.shape, generator=generator, dtype=seen.gradient.dtype)
    noise = noise.to(seen.gradient)
    noise = torch.linalg.cholesky(seen.covariance.double()).to(noise) @ noise
    first, second = (
        replace(
            seen,
            gradient=seen.gradient + part * noise,
            covariance=seen.covariance * (1 + part**2),
        )
        for part in (SPLIT, -1 / SPLIT)
    )
    posed = replace(problem, observation=first, preset=replace(problem.preset, starts=1))
    every = [search(posed) for search in searches]
    sent = torch.stack([_sent(problem, one.pixels, one.labels) for one in every])  # (S, K, D)
    left = whitened_residual(sent, second)
    at = int(left.argmin())
    return at, prior is not None and _explains(problem, prior, sent[at], second)


def _explains(problem: Problem, prior: Tensor, sent: Tensor, second: Observation) -> bool:
    """Whether (K, D) gradients explain an observation better than those of the prior image."""
    # Under much noise the label is wrong, and an image that undoes a wrong label beats the prior
    # image under it without resembling anything: the prior image may choose its label.
    classes = torch.arange(problem.classes, device=prior.device)
    every = torch.stack([_sent(problem, prior[None], k[None]) for k in classes])
    residuals = whitened_residual(every, second)  # (C,)
    public = every[residuals.argmin()]
    gain = residuals.min() - whitened_residual(sent, second)
    # Given the first half, the gain is normal with twice the whitened distance of the two.
    deviation = 2 * torch.linalg.vector_norm(second.whiten(sent - public)) / second.noise_std
    return bool(gain > 2 * deviation)
