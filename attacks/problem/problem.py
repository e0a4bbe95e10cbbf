"""What a candidate batch would have sent, how far that is from the observation, and what it costs.

    score(x) = distance(clip(grad(x)), o) + weight * mean variation(x)

Shape letters: B records, C classes, D parameters, K intercepts, R starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import process_time

import torch
from torch import Tensor, nn
from torch.func import vmap

from .objective import squared_distance
from .observation import Observation, sent_gradients
from .presets import Preset
from .prior import Box, colour_variation, total_variation

Progress = Callable[[int, int], None]
"""f(step, total), called after each optimiser step."""

_PRIOR_FACTOR, _PRIOR_POWER, _PRIOR_RANGE = 0.66, 0.7, (1.0, 14.0)
"""Weight of the variation over what noise and signal alone give; see `asked_weight`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """What every stage needs, in one floating-point type."""

    observation: Observation
    model: nn.Module
    preset: Preset
    box: Box
    shape: tuple[int, ...]
    classes: int
    labels: Tensor | None  # (B,), None where they are optimised
    prior_image: Tensor | None  # (*shape), on the unit box

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem in another floating-point type."""
        seen, prior = self.observation, self.prior_image
        return replace(
            self,
            observation=replace(
                seen,
                gradient=seen.gradient.to(dtype),
                points=seen.points.to(dtype),
                coefs=tuple(c.to(dtype) if isinstance(c, Tensor) else c for c in seen.coefs),
            ),
            box=Box(low=self.box.low.to(dtype), span=self.box.span.to(dtype)),
            prior_image=None if prior is None else prior.to(dtype),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """A batch, how it was found and at what cost."""

    pixels: Tensor  # (B, *shape)
    labels: Tensor  # (B,)
    iterations: int
    stage: str


def gradients_of(problem: Problem, pixels: Tensor, soft: Tensor, *, together: bool) -> Tensor:
    """(R, K, D) gradients that (R, B, *shape) candidates with (R, B, C) logits would have sent."""
    targets = soft if problem.labels is not None else soft.softmax(dim=-1)

    def one(x: Tensor, y: Tensor) -> Tensor:
        return sent_gradients(problem.observation, problem.model, inputs=x, targets=y)

    inputs = problem.box.inputs(pixels)
    if together and len(inputs) > 1:
        return vmap(one)(inputs, targets)
    return torch.stack([one(x, y) for x, y in zip(inputs, targets, strict=True)])


def distances(problem: Problem, gradients: Tensor) -> Tensor:
    """(R,) the preset's distance; with declared noise, squared and in units of the signal."""
    if problem.preset.follow_noise and problem.observation.is_noisy:
        return squared_distance(gradients, problem.observation) / (2 * _signal(problem))
    return problem.preset.objective(gradients, problem.observation)


def variations(problem: Problem, pixels: Tensor) -> Tensor:
    """(R,) mean variation per pixel of (R, B, *shape); 0 for records that are not pictures."""
    if len(problem.shape) != 3:
        return pixels.new_zeros(len(pixels))
    of = colour_variation if problem.preset.colour else total_variation
    return of(pixels).sum(dim=1) / pixels[0].numel()


def scores(problem: Problem, pixels: Tensor, soft: Tensor) -> Tensor:
    """(R,) what the choice among starts goes by: the true network, no prior but the noise's."""
    sent = gradients_of(problem, pixels, soft, together=False)
    return distances(problem, sent).detach() + asked_weight(problem) * variations(problem, pixels)


def asked_weight(problem: Problem) -> float:
    """Weight of the mean variation that the declared noise asks for.

    With `distances` in units of the signal, a log-posterior weighs the prior by noise over signal
    per pixel, times the scale of the prior: 14 for the variation of photos. But the mode of a
    posterior is flatter than its mean, the more so the less the gradient says: the factor falls
    with the noise on as many coordinates as there are pixels, by a rule found on four photos at
    noise .001 and .01.
    """
    seen = problem.observation
    if not problem.preset.follow_noise or not seen.is_noisy:
        return 0.0
    signal, variance = _signal(problem), seen.noise_std**2
    pixels = seen.records * math.prod(problem.shape)
    ratio = math.sqrt(pixels * variance / signal)
    low, high = _PRIOR_RANGE
    factor = min(max(_PRIOR_FACTOR / ratio**_PRIOR_POWER, low), high)
    return factor * variance / signal * pixels


def squared_size(observation: Observation) -> float:
    """Squared norm of the observed gradients, in the units of `squared_distance`."""
    return float(observation.whiten(observation.gradient).square().sum())


def is_faster_together(problem: Problem, pixels: Tensor, soft: Tensor) -> bool:
    """Whether one batched second backward beats one per start, by trying both.

    Batching wins on small networks, where calls cost more than arithmetic, and loses on batches of
    clipped records, whose convolutions are grouped already.
    """
    if len(pixels) == 1:
        return False
    asked = pixels.detach().requires_grad_()
    seconds = []
    for together in (True, False):
        best = math.inf
        for _ in range(2):  # the first call pays for set-up
            begin = process_time()
            gradients = gradients_of(problem, asked, soft.detach(), together=together)
            torch.autograd.grad(distances(problem, gradients).sum(), asked)
            best = min(best, process_time() - begin)
        seconds.append(best)
    return seconds[0] < seconds[1]


def _signal(problem: Problem) -> float:
    """Squared norm of the gradient under the noise, at least one coordinate's noise."""
    seen = problem.observation
    energy = squared_size(seen) - seen.gradient.numel() * seen.noise_std**2
    if seen.clip_norm is not None:
        energy = min(energy, seen.clip_norm**2)
    return max(energy, seen.noise_std**2, 1e-300)
