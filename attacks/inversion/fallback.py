"""Whether the observation speaks for an image, or the public guess takes its place.

What an exact stage proves to be the record stands. Else, without noise, where the truth leaves
nothing of the gradient, an image replaces the prior image x0 if it leaves less of it than x0 does
under any label, by the preset's distance, and the search did not plainly fail. A single image that
a search found has to leave less than a fifth of what x0 leaves, of the whole and parameter by
parameter, each by its own length: a search with hundreds of free pixels takes away half of it and
more at places that are farther from the truth than x0 is.
docs/attacks.md has the counts from which the fifth was taken.

Under noise an image x with n pixels replaces x0 where one of two tests says so, r being the
whitened residual:

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

from ...training.models.parameters import unflatten
from ..exact.stages import Proof, proof_of
from ..problem.objective import cosine_distance, whitened_residual
from ..problem.observation import Observation, sent_gradients
from ..problem.problem import Found, Problem
from .power import SPLIT

Search = Callable[[Problem], Found]
"""A way to find a batch, of the whole observation or of a half of it."""

_FAILED = 0.3
"""Cosine distance at which a search without noise, whose truth has 0, found nothing."""

_FAILED_ALONE = 0.1
"""The same of a single image."""

_LEFT = 0.2
"""Share of the prior image's distance that a single image may leave without noise."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Remainder:
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
) -> Remainder:
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
    pixels, supported = found.pixels.clone(), [True] * seen.records
    if prior is not None:
        for record in range(seen.records):
            if not seen.is_noisy:
                supported[record] = _explains_more(problem, found, record)
            else:
                gain = _distance_without(problem, found, record) - reached
                supported[record] = gain > 2 * math.prod(problem.shape) or (
                    seen.records == 1
                    and gain > 0
                    and (best_of(problem, [search], generator)[1] if held is None else held)
                )
            if not supported[record]:
                pixels[record] = prior
    return Remainder(pixels=pixels, supported=tuple(supported), reached=reached)


def _explains_more(problem: Problem, found: Found, record: int) -> bool:
    """Whether a gradient without noise speaks for an image, against the prior image."""
    if proof_of(found.stage) is Proof.RECORD:  # by its own certificate, whatever else is left
        return True
    seen, ours = problem.observation, _sent(problem, found.pixels, found.labels)
    alone = seen.records == 1
    if float(cosine_distance(ours, seen)) > (_FAILED_ALONE if alone else _FAILED):
        return False
    guesses = _without(problem, found, record)
    if not alone:
        return _distance(problem, ours) < min(_distance(problem, guess) for guess in guesses)
    return all(
        left(problem, ours) < _LEFT * min(left(problem, guess) for guess in guesses)
        for left in (_distance, _by_layer)
    )


def _by_layer(problem: Problem, sent: Tensor) -> float:
    """Mean cosine distance of the parameters' gradients, by their numbers of entries.

    One large entry, as of a task's own variables, hides in the whole what weights say of an image.
    """
    total, entries = 0.0, 0
    theirs = unflatten(problem.model, problem.observation.gradient)
    for name, ours in unflatten(problem.model, sent).items():
        norm = torch.linalg.vector_norm(theirs[name])
        if norm > 0:
            size = (torch.linalg.vector_norm(ours) * norm).clamp_min(torch.finfo(ours.dtype).tiny)
            total += ours.numel() * (1 - float((ours * theirs[name]).sum() / size))
            entries += ours.numel()
    return total / max(entries, 1)


def distance_left(problem: Problem, pixels: Tensor, labels: Tensor) -> float:
    """The whitened residual of a batch under noise, else the preset's distance."""
    return _distance(problem, _sent(problem, pixels, labels))


def says_more(problem: Problem, image: Tensor, label: Tensor) -> bool:
    """Whether a public image explains one record's observation better than the prior image.

    Args:
        problem: of one record, with a prior image; any image explains those of several.
        image: (*shape) in normalised units.
        label: () its class; the prior image may have any.
    """
    if problem.prior_image is None or problem.observation.records != 1:
        return True
    pixels = problem.box.pixels(image.to(problem.box.span)).clamp(0, 1)[None]
    labels = label.to(pixels.device)[None]
    of = Found(pixels=pixels, labels=labels, iterations=0, stage="prior")
    return distance_left(problem, pixels, labels) < _distance_without(problem, of, 0)


def _distance(problem: Problem, sent: Tensor) -> float:
    if problem.observation.is_noisy:
        return float(whitened_residual(sent, problem.observation))
    return float(problem.preset.objective(sent, problem.observation))


def _distance_without(problem: Problem, found: Found, record: int) -> float:
    """The same with the prior image in place of a record, under the label that suits it best."""
    return min(_distance(problem, sent) for sent in _without(problem, found, record))


def _without(problem: Problem, found: Found, record: int) -> list[Tensor]:
    """What is sent with the prior image in place of a record, under each label that is possible.

    An image that undoes a wrong label beats the prior image under it without resembling anything.
    Of one gradient of a cross-entropy without noise the last layer tells the label.
    """
    assert problem.prior_image is not None  # noqa: S101 # the caller looked
    seen, sent = problem.observation, list[Tensor]()
    pixels, labels = found.pixels.clone(), found.labels.clone()
    pixels[record] = problem.prior_image
    told = not seen.is_noisy and (
        seen.records > 1 or (seen.is_plain and problem.labels is not None)
    )
    for label in [int(labels[record])] if told else range(problem.classes):
        labels[record] = label
        sent.append(_sent(problem, pixels, labels))
    return sent


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
