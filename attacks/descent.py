"""The search for a batch whose gradient is the observed one: signed Adam, L-BFGS, several starts.

    minimise  distance(clip(grad(x)), o) + weight * mean total variation(x)     x on the unit box

Starts run side by side under Adam, batched or one by one, whichever a trial step finds faster;
L-BFGS then takes them one by one, best first, and stops at the first that solves. The start with
the least objective is kept; the truth is never consulted.

Shape letters: B records, C classes, D parameters, R starts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.func import vmap

from .exact import first_linear_input
from .objective import squared_distance
from .observation import Observation, sent_gradients
from .presets import Preset
from .prior import Box, total_variation

Progress = Callable[[int, int], None]
"""f(step, total), called after each optimiser step."""

_PRIOR_FACTOR = 1.5
"""Weight of the total variation over what noise and signal alone give; see `_asked_weight`."""

_SOLVED = 1e-10
"""Squared distance over the observation's squared norm at which no further start is tried."""


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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """A batch, how it was found and at what cost."""

    pixels: Tensor  # (B, *shape)
    labels: Tensor  # (B,)
    iterations: int
    stage: str


def first_layer(problem: Problem) -> Tensor | None:
    """The input that the first layer's gradient gives away, (1, *shape) in normalised units."""
    prior = None if problem.prior_image is None else problem.box.inputs(problem.prior_image)
    return first_linear_input(
        problem.observation,
        problem.model,
        input_shape=problem.shape,
        box=problem.box,
        prior_image=prior,
    )


def finishes(preset: Preset, observation: Observation) -> bool:
    """Whether L-BFGS runs: never on a likelihood under noise, which Adam's precision serves."""
    return preset.newton_steps > 0 and not (preset.follow_noise and observation.is_noisy)


def optimise(problem: Problem, generator: torch.Generator, *, progress: Progress | None) -> Found:
    """The start with the least objective after Adam and L-BFGS, as far as the preset has them."""
    preset = problem.preset
    starts = _starts(problem, generator)  # (R, B, *shape)
    logits = _label_starts(problem, generator, starts=len(starts))
    total = preset.adam_steps + preset.newton_steps * len(starts)
    taken = 0

    def tick(step: int) -> None:
        if progress is not None:
            progress(min(step, total), total)

    if preset.adam_steps:
        starts, logits = _signed_adam(problem, starts, logits, tick=tick)
        taken += preset.adam_steps * len(starts)
    finish = finishes(preset, problem.observation)
    best: tuple[float, Tensor, Tensor] | None = None
    order = _scores(problem, starts, logits).argsort() if preset.adam_steps else range(len(starts))
    for count, index in enumerate(order):
        pixels, soft = starts[index], logits[index]
        if finish:
            done = preset.adam_steps + count * preset.newton_steps
            further = functools.partial(_tick_after, tick, done)
            pixels, soft, steps = _newton(problem, pixels, soft, tick=further)
            taken += steps
        # L-BFGS minimises another distance than Adam: what Adam left stays in the running.
        ends = [(pixels, soft), (starts[index], logits[index])] if finish else [(pixels, soft)]
        for end, end_soft in ends:
            end = end.clamp(0, 1)
            score = float(_scores(problem, end[None], end_soft[None]))
            if best is None or score < best[0]:
                best = (score, end, end_soft)
        if finish and _is_solved(problem, pixels, soft):
            break
    tick(total)
    assert best is not None  # noqa: S101 # there is at least one start
    return Found(
        pixels=best[1],
        labels=best[2].argmax(dim=-1) if problem.labels is None else problem.labels,
        iterations=taken,
        stage="optimisation",
    )


def _starts(problem: Problem, generator: torch.Generator) -> Tensor:
    shape = (problem.preset.starts, problem.observation.records, *problem.shape)
    # A grey picture with a tenth of noise: a start inside the box, where activations are alive.
    noise = torch.randn(shape, generator=generator, dtype=problem.box.span.dtype)
    starts = 0.45 + 0.1 * noise
    if not problem.preset.follow_noise or not problem.observation.is_noisy:
        return starts
    known = []
    if problem.prior_image is not None:
        known.append(problem.prior_image.expand(shape[1:]))
    if problem.preset.exact and (inputs := first_layer(problem)) is not None:
        known.append(problem.box.pixels(inputs))
    return torch.cat([starts, *(pixels[None] for pixels in known)])


def _label_starts(problem: Problem, generator: torch.Generator, *, starts: int) -> Tensor:
    """(R, B, C) logits of labels to optimise, or one-hot rows of known ones."""
    shape = (starts, problem.observation.records, problem.classes)
    dtype = problem.box.span.dtype
    if problem.labels is None:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return nn.functional.one_hot(problem.labels, problem.classes).to(dtype).expand(shape)


def gradients_of(problem: Problem, pixels: Tensor, soft: Tensor, *, together: bool) -> Tensor:
    """(R, K, D) gradients that the candidates would have sent."""
    known = problem.labels is not None
    targets = soft if known else soft.softmax(dim=-1)

    def one(x: Tensor, y: Tensor) -> Tensor:
        return sent_gradients(problem.observation, problem.model, inputs=x, targets=y)

    inputs = problem.box.inputs(pixels)
    if together and len(inputs) > 1:
        return vmap(one)(inputs, targets)
    return torch.stack([one(x, y) for x, y in zip(inputs, targets, strict=True)])


def _distance(problem: Problem, gradients: Tensor) -> Tensor:
    """(R,) the preset's distance; with declared noise, squared and in units of the signal."""
    if problem.preset.follow_noise and problem.observation.is_noisy:
        return squared_distance(gradients, problem.observation) / (2 * _signal(problem))
    return problem.preset.objective(gradients, problem.observation)


def squared_size(observation: Observation) -> float:
    """Squared norm of the observed gradients, in the units of `squared_distance`."""
    return float(observation.whiten(observation.gradient).square().sum())


def _signal(problem: Problem) -> float:
    """Squared norm of the gradient under the noise, at least one coordinate's noise."""
    seen = problem.observation
    energy = squared_size(seen) - seen.gradient.numel() * seen.noise_std**2
    if seen.clip_norm is not None:
        energy = min(energy, seen.clip_norm**2)
    return max(energy, seen.noise_std**2, 1e-300)


def _asked_weight(problem: Problem) -> float:
    """Weight of the mean total variation that the declared noise asks for.

    With `_distance` in units of the signal, a log-posterior weighs the prior by noise over signal
    per pixel. The factor is a compromise found on one photo and six digits at noise .001 to .03; a
    proper Laplace prior would have 14 for photos, and its mode is far too flat.
    """
    if not problem.preset.follow_noise:
        return 0.0
    pixels = problem.observation.records * math.prod(problem.shape)
    return _PRIOR_FACTOR * problem.observation.noise_std**2 / _signal(problem) * pixels


def _mean_variation(pixels: Tensor) -> Tensor:
    """(R,) mean total variation per pixel; 0 for records that are not pictures."""
    if pixels.ndim < 5:
        return pixels.new_zeros(len(pixels))
    return total_variation(pixels).sum(dim=1) / pixels[0].numel()


def _scores(problem: Problem, pixels: Tensor, soft: Tensor) -> Tensor:
    """(R,) what the choice among starts goes by."""
    distance = _distance(problem, gradients_of(problem, pixels, soft, together=False)).detach()
    return distance + _asked_weight(problem) * _mean_variation(pixels)


def _signed_adam(
    problem: Problem, starts: Tensor, logits: Tensor, *, tick: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    preset = problem.preset
    pixels = starts.clone().clamp_(0, 1).requires_grad_()
    soft = logits.clone().requires_grad_(problem.labels is None)
    free = [pixels, soft] if problem.labels is None else [pixels]
    adam = torch.optim.Adam(free, lr=preset.step_size)
    total = preset.adam_steps
    decay = torch.optim.lr_scheduler.MultiStepLR(
        adam, milestones=[total * k // 8 for k in (3, 5, 7)], gamma=0.1
    )
    asked = _asked_weight(problem)
    together = _is_faster_together(problem, pixels, soft)
    for step in range(total):
        weight = preset.tv_weight
        if preset.fade is not None:
            weight *= max(0.0, 1 - step / (preset.fade * total))
        weight = max(weight, asked)
        loss = _distance(problem, gradients_of(problem, pixels, soft, together=together))
        if weight > 0:
            loss = loss + weight * _mean_variation(pixels)
        slopes = torch.autograd.grad(loss.sum(), free)
        for value, slope in zip(free, slopes, strict=True):
            value.grad = slope.sign()
        adam.step()
        decay.step()
        with torch.no_grad():
            pixels.clamp_(0, 1)
        tick(step + 1)
    return pixels.detach(), soft.detach()


def _is_faster_together(problem: Problem, pixels: Tensor, soft: Tensor) -> bool:
    """Whether one batched second backward beats one per start, by trying both."""
    if len(pixels) == 1:
        return False
    seconds = []
    for together in (True, False):
        best = math.inf
        for _ in range(2):  # the first call pays for set-up
            begin = perf_counter()
            gradients = gradients_of(problem, pixels, soft, together=together)
            torch.autograd.grad(_distance(problem, gradients).sum(), pixels)
            best = min(best, perf_counter() - begin)
        seconds.append(best)
    return seconds[0] < seconds[1]


def _newton(
    problem: Problem, start: Tensor, logits: Tensor, *, tick: Callable[[int], None]
) -> tuple[Tensor, Tensor, int]:
    """L-BFGS with strong Wolfe line search from one start, until it solves or stalls."""
    pixels = start.clone().requires_grad_()
    soft = logits.clone().requires_grad_(problem.labels is None)
    free = [pixels, soft] if problem.labels is None else [pixels]
    optimiser = torch.optim.LBFGS(
        free,
        max_iter=20,
        history_size=50,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    size = squared_size(problem.observation) or 1.0

    def closure() -> Tensor:
        optimiser.zero_grad()
        gradients = gradients_of(problem, pixels[None], soft[None], together=False)
        # In units of the observation: L-BFGS's first step and its tolerances assume values near 1.
        loss = squared_distance(gradients, problem.observation)[0] / size
        loss.backward()
        return loss

    # Optimised labels reach a one-hot row only in the limit: the last digits would cost minutes.
    enough = _SOLVED if problem.labels is None else 1e-14
    last, step = math.inf, 0
    for step in range(1, problem.preset.newton_steps + 1):
        value = optimiser.step(closure).item()
        tick(step)
        if value < enough or not math.isfinite(value) or (step > 3 and value > last * 0.999):
            break
        last = value
    return pixels.detach(), soft.detach(), step


def _is_solved(problem: Problem, pixels: Tensor, soft: Tensor) -> bool:
    gradients = gradients_of(problem, pixels[None], soft[None], together=False)
    left = float(squared_distance(gradients.detach(), problem.observation)[0])
    return left < _SOLVED * squared_size(problem.observation)


def _tick_after(tick: Callable[[int], None], done: int, step: int) -> None:
    """Count a step on top of those of earlier stages."""
    tick(done + step)
