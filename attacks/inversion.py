"""Gradient inversion: the batch whose gradient, sent through the same clip, explains an observation.

    labels   = given | read from the last layer | optimised beside the inputs
    exact    : x from the first linear layer; kept if its gradient has the observed one as its own
    optimise : minimise  distance(clip(grad(x)), o) + weight * total variation(x)  from several starts
    choose   : the start with the least objective
    fall back: an image the gradient does not speak for becomes the public prior image

Everything that is decided here is decided from the observation. The rule of the last step is
Mallows' C_p: with noise, an image with n pixels replaces the prior image where the whitened residual
falls by more than 2 n, since n is what fitting noise alone buys and another n is its error.

Shape letters: B records, C classes, D parameters, R starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.func import vmap

from .exact import first_linear_input, residual
from .labels import recover_labels
from .objective import squared_distance
from .observation import Observation, sent_gradient
from .presets import PRESETS, Preset
from .prior import Box, build_box, total_variation

_PRIOR_FACTOR = float(__import__("os").environ.get("TVF", "1.5"))

Progress = Callable[[int, int], None]
"""f(step, total), called after each optimiser step."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reconstruction:
    """A batch that explains an observation.

    Attributes:
        inputs: (records, *shape) in normalised units, inside the bounds.
        labels: (records,) class indices.
        objective: what the chosen start reached, without prior terms; comparable within one preset.
        iterations: optimiser steps that were taken, over all starts.
        stage: "exact", "optimisation", or "prior" where every image is the prior image.
        supported: (records,) booleans: False where the image is the prior image.
    """

    inputs: Tensor
    labels: Tensor
    objective: float
    iterations: int
    stage: str
    supported: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Problem:
    """What every stage needs, in one floating-point type."""

    observation: Observation
    model: nn.Module
    preset: Preset
    box: Box
    shape: tuple[int, ...]
    classes: int
    labels: Tensor | None  # (B,), None where they are optimised
    prior_image: Tensor | None  # (*shape), on the unit box


def reconstruct(
    observation: Observation,
    model: nn.Module,
    *,
    preset: str | Preset,
    input_shape: Sequence[int],
    classes: int,
    bounds: tuple[Tensor, Tensor],
    generator: torch.Generator,
    labels: Tensor | None = None,
    prior_image: Tensor | None = None,
    progress: Progress | None = None,
) -> Reconstruction:
    """Rebuild a batch from its gradient.

    Args:
        observation: one batch's gradient as an onlooker estimates it.
        model: network with logits (B, C) as output; its parameters are taken from `observation`.
        preset: a name in `PRESETS`, or settings.
        input_shape: shape of one record, channels first.
        classes: number of classes C.
        bounds: (low, high) of the normalised inputs: scalars or per channel.
        generator: source of the starts.
        labels: (records,) labels where the attacker knows them.
        prior_image: (*input_shape) public guess in normalised units, such as the mean public image:
            what an image falls back to. Without it nothing falls back.
        progress: called with (step, total).

    Returns:
        The reconstruction.

    Raises:
        ValueError: the preset is unknown, or a shape disagrees with the observation.

    Examples:
        >>> from overhear.attacks.observation import observe
        >>> model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(1, 3)
        >>> flat = torch.cat([p.flatten() for p in model.parameters()])
        >>> seen = observe(
        ...     model, flat, inputs=x, targets=torch.tensor([1]), clip_norm=1.0, noise_std=0.0,
        ...     generator=torch.Generator(),
        ... )
        >>> found = reconstruct(
        ...     seen, model, preset="matched", input_shape=(3,), classes=2,
        ...     bounds=(torch.tensor(0.0), torch.tensor(1.0)), generator=torch.Generator(),
        ... )
        >>> found.stage, found.labels.tolist(), round((found.inputs - x).abs().max().item(), 4)
        ('exact', [1], 0.0)
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r} is unknown; choose one of {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    problem = _pose(
        observation,
        model,
        preset=preset,
        shape=tuple(input_shape),
        classes=classes,
        bounds=bounds,
        labels=labels,
        prior_image=prior_image,
    )
    found = _solve_exactly(problem) if preset.exact else None
    if found is None:
        found = _optimise(problem, generator, progress=progress)
    return _fall_back(problem, found, dtype=observation.gradient.dtype)


def _pose(
    observation: Observation,
    model: nn.Module,
    *,
    preset: Preset,
    shape: tuple[int, ...],
    classes: int,
    bounds: tuple[Tensor, Tensor],
    labels: Tensor | None,
    prior_image: Tensor | None,
) -> _Problem:
    if labels is not None and labels.shape != (observation.records,):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} must be ({observation.records},), "
            "one per record of the observation"
        )
    if prior_image is not None and tuple(prior_image.shape) != shape:
        raise ValueError(f"prior_image of shape {tuple(prior_image.shape)} must be {shape}")
    # Noise hides what float64 adds; L-BFGS without it stalls at float32's rounding.
    finish = preset.newton_steps > 0 and not (preset.follow_noise and observation.noise_std > 0)
    dtype = torch.float64 if finish else torch.float32
    box = build_box(bounds, shape, dtype=dtype)
    posed = Observation(
        gradient=observation.gradient.to(dtype),
        model=observation.model.to(dtype),
        noise_std=observation.noise_std,
        clip_norm=observation.clip_norm,
        records=observation.records,
    )
    if labels is None and not preset.joint_labels:
        labels = recover_labels(posed, model, classes=classes)
    if prior_image is not None:
        prior_image = box.pixels(prior_image.to(dtype)).clamp(0, 1)
    return _Problem(
        observation=posed,
        model=model,
        preset=preset,
        box=box,
        shape=shape,
        classes=classes,
        labels=labels,
        prior_image=prior_image,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Found:
    pixels: Tensor  # (B, *shape)
    labels: Tensor  # (B,)
    iterations: int
    stage: str


def _solve_exactly(problem: _Problem) -> _Found | None:
    """The first linear layer's input, where its gradient is the observed one."""
    if problem.labels is None or problem.observation.noise_std > 0:
        return None
    inputs = _first_layer(problem)
    if inputs is None:
        return None
    left = residual(
        problem.observation, problem.model, inputs=inputs, targets=problem.labels
    )
    # float32 gradients leave about 1e-6; a wrong input leaves about 1.
    if left > 1e-4:
        return None
    return _Found(
        pixels=problem.box.pixels(inputs), labels=problem.labels, iterations=0, stage="exact"
    )


def _first_layer(problem: _Problem) -> Tensor | None:
    prior = None if problem.prior_image is None else problem.box.inputs(problem.prior_image)
    return first_linear_input(
        problem.observation,
        problem.model,
        input_shape=problem.shape,
        box=problem.box,
        prior_image=prior,
    )


def _optimise(
    problem: _Problem, generator: torch.Generator, *, progress: Progress | None
) -> _Found:
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
    finish = preset.newton_steps > 0 and not (preset.follow_noise and problem.observation.noise_std)
    best: tuple[float, Tensor, Tensor] | None = None
    order = _scores(problem, starts, logits).argsort() if preset.adam_steps else range(len(starts))
    for count, index in enumerate(order):
        pixels, soft = starts[index], logits[index]
        if finish:
            pixels, soft, steps = _newton(
                problem,
                pixels,
                soft,
                tick=lambda step, done=preset.adam_steps + count * preset.newton_steps: tick(
                    done + step
                ),
            )
            taken += steps
        pixels = pixels.clamp(0, 1)
        score = float(_scores(problem, pixels[None], soft[None]))
        if best is None or score < best[0]:
            best = (score, pixels, soft)
        if finish and _is_solved(problem, pixels, soft):
            break
    tick(total)
    assert best is not None  # noqa: S101 # there is at least one start
    return _Found(
        pixels=best[1],
        labels=best[2].argmax(dim=-1) if problem.labels is None else problem.labels,
        iterations=taken,
        stage="optimisation",
    )


def _starts(problem: _Problem, generator: torch.Generator) -> Tensor:
    shape = (problem.preset.starts, problem.observation.records, *problem.shape)
    # A grey picture with a tenth of noise: a start inside the box, where activations are alive.
    noise = torch.randn(shape, generator=generator, dtype=problem.box.span.dtype)
    starts = 0.45 + 0.1 * noise
    if not problem.preset.follow_noise or problem.observation.noise_std == 0:
        return starts
    known = []
    if problem.prior_image is not None:
        known.append(problem.prior_image.expand(shape[1:]))
    if problem.preset.exact and (inputs := _first_layer(problem)) is not None:
        known.append(problem.box.pixels(inputs))
    return torch.cat([starts, *(pixels[None] for pixels in known)])


def _label_starts(problem: _Problem, generator: torch.Generator, *, starts: int) -> Tensor:
    """(R, B, C) logits of labels to optimise, or one-hot rows of known ones."""
    shape = (starts, problem.observation.records, problem.classes)
    dtype = problem.box.span.dtype
    if problem.labels is None:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return nn.functional.one_hot(problem.labels, problem.classes).to(dtype).expand(shape)


def _gradients(problem: _Problem, pixels: Tensor, soft: Tensor, *, together: bool) -> Tensor:
    """(R, D) gradients that the candidates would have sent."""
    known = problem.labels is not None
    targets = soft if known else soft.softmax(dim=-1)

    def one(x: Tensor, y: Tensor) -> Tensor:
        return sent_gradient(
            problem.model,
            problem.observation.model,
            inputs=x,
            targets=y,
            clip_norm=problem.observation.clip_norm,
        )

    inputs = problem.box.inputs(pixels)
    if together and len(inputs) > 1:
        return vmap(one)(inputs, targets)
    return torch.stack([one(x, y) for x, y in zip(inputs, targets, strict=True)])


def _distance(problem: _Problem, gradients: Tensor) -> Tensor:
    """(R,) the preset's distance; with declared noise, squared and in units of the signal."""
    if problem.preset.follow_noise and problem.observation.noise_std > 0:
        return squared_distance(gradients, problem.observation) / (2 * _signal(problem))
    return problem.preset.objective(gradients, problem.observation)


def _signal(problem: _Problem) -> float:
    """Squared norm of the gradient under the noise, at least one coordinate's noise."""
    seen = problem.observation
    energy = float(seen.gradient.square().sum()) - len(seen.gradient) * seen.noise_std**2
    if seen.clip_norm is not None:
        energy = min(energy, seen.clip_norm**2)
    return max(energy, seen.noise_std**2, 1e-300)


def _asked_weight(problem: _Problem) -> float:
    """Weight of the mean total variation that the declared noise asks for.

    With `_distance` in units of the signal, a log-posterior weighs the prior by noise over signal
    per pixel. The factor is tuned on photos and digits at four noise levels; a proper Laplace prior
    would have 14 for photos, and its mode is far too flat.
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


def _scores(problem: _Problem, pixels: Tensor, soft: Tensor) -> Tensor:
    """(R,) what the choice among starts goes by."""
    distance = _distance(problem, _gradients(problem, pixels, soft, together=False)).detach()
    return distance + _asked_weight(problem) * _mean_variation(pixels)


def _signed_adam(
    problem: _Problem, starts: Tensor, logits: Tensor, *, tick: Callable[[int], None]
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
        loss = _distance(problem, _gradients(problem, pixels, soft, together=together))
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


def _is_faster_together(problem: _Problem, pixels: Tensor, soft: Tensor) -> bool:
    """Whether one batched second backward beats one per start, by trying both."""
    if len(pixels) == 1:
        return False
    seconds = []
    for together in (True, False):
        best = math.inf
        for _ in range(2):  # the first call pays for set-up
            begin = perf_counter()
            gradients = _gradients(problem, pixels, soft, together=together)
            torch.autograd.grad(_distance(problem, gradients).sum(), pixels)
            best = min(best, perf_counter() - begin)
        seconds.append(best)
    return seconds[0] < seconds[1]


def _newton(
    problem: _Problem, start: Tensor, logits: Tensor, *, tick: Callable[[int], None]
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
    size = float(problem.observation.gradient.square().sum()) or 1.0

    def closure() -> Tensor:
        optimiser.zero_grad()
        gradients = _gradients(problem, pixels[None], soft[None], together=False)
        # In units of the observation: L-BFGS's first step and its tolerances assume values near 1.
        loss = squared_distance(gradients, problem.observation)[0] / size
        loss.backward()
        return loss

    last, step = math.inf, 0
    for step in range(1, problem.preset.newton_steps + 1):
        value = optimiser.step(closure).item()
        tick(step)
        if value < 1e-14 or not math.isfinite(value) or (step > 3 and value > last * 0.999):
            break
        last = value
    return pixels.detach(), soft.detach(), step


def _is_solved(problem: _Problem, pixels: Tensor, soft: Tensor) -> bool:
    gradients = _gradients(problem, pixels[None], soft[None], together=False)
    left = float(squared_distance(gradients.detach(), problem.observation)[0])
    return left < 1e-10 * float(problem.observation.gradient.square().sum())


def _fall_back(problem: _Problem, found: _Found, *, dtype: torch.dtype) -> Reconstruction:
    """Put the prior image where the observation does not speak for the image found."""
    seen, prior = problem.observation, problem.prior_image
    soft = nn.functional.one_hot(found.labels, problem.classes).to(found.pixels.dtype)

    def distance(pixels: Tensor) -> float:
        known = _gradients(problem, pixels[None], _as_logits(problem, soft)[None], together=False)
        if seen.noise_std > 0:
            return float(squared_distance(known.detach(), seen)[0]) / seen.noise_std**2
        return float(problem.preset.objective(known.detach(), seen)[0])

    reached = distance(found.pixels)
    needed = 2 * math.prod(problem.shape) if seen.noise_std > 0 else 0.0
    pixels, supported = found.pixels.clone(), [True] * seen.records
    if prior is not None:
        for record in range(seen.records):
            without = found.pixels.clone()
            without[record] = prior
            supported[record] = distance(without) - reached > needed
            if not supported[record]:
                pixels[record] = prior
    return Reconstruction(
        inputs=problem.box.inputs(pixels).to(dtype),
        labels=found.labels,
        objective=reached,
        iterations=found.iterations,
        stage=found.stage if any(supported) else "prior",
        supported=tuple(supported),
    )


def _as_logits(problem: _Problem, one_hot: Tensor) -> Tensor:
    """One-hot rows in the form `_gradients` expects: logits where labels are optimised."""
    return one_hot if problem.labels is not None else one_hot * 1e4
