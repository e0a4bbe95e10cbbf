"""What a candidate batch would have sent, how far that is from the observation, and what it costs.

    score(x) = distance(clip(grad(x)), o) + weight * mean variation(x)

Shape letters: B records, C classes, D parameters, K intercepts, R starts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from .imprint import Imprint
from .objective import squared_distance
from .observation import HOST, Observation, sent_gradients
from .presets import PRESETS, Preset
from .prior import Box, colour_variation, total_variation

_PRIOR_FACTOR, _PRIOR_POWER, _PRIOR_RANGE = 0.66, 0.7, (1.0, 14.0)
"""Weight of the variation over what noise and signal alone give; see `asked_weight`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """What every stage needs, in one floating-point type and on one device.

    Steps in float32 are taken on `device`; all else is computed where the tensors lie, which is
    there too if it has float64.
    """

    observation: Observation
    model: nn.Module
    box: Box
    shape: tuple[int, ...]
    classes: int
    preset: Preset = PRESETS["matched"]
    labels: Tensor | None = None  # (B,), None where they are optimised
    prior_image: Tensor | None = None  # (*shape), on the unit box
    device: torch.device = HOST
    imprints: tuple[Imprint, ...] = ()  # of models that were crafted, as far as any were

    def to(
        self, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Problem:
        """The same problem on another device, or in another floating-point type."""
        prior, labels, model = self.prior_image, self.labels, self.model
        if device is not None and device != self.box.span.device:
            model = copied(model).to(device)  # for its buffers; its parameters are not read
        if dtype is not None:
            model = with_buffers(model, dtype)
        return replace(
            self,
            observation=self.observation.to(device=device, dtype=dtype),
            model=model,
            box=self.box.to(device=device, dtype=dtype),
            labels=None if labels is None else labels.to(device),
            prior_image=None if prior is None else prior.to(device, dtype),
        )


def with_buffers(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A network whose buffers are of a type, as the values are that it is called with."""
    numbers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if all(buffer.dtype == dtype for buffer in numbers):
        return model
    return copied(model).to(dtype=dtype)


def copied(model: nn.Module) -> nn.Module:
    """A copy of a network whose parameters are not read.

    `torch.func.functional_call` leaves the tensors of a transform that has ended in a layer that
    stands twice, and these cannot be copied: zeros stand for them.

    >>> layer = nn.Linear(2, 2)
    >>> model = nn.Sequential(layer, layer)
    >>> values = {name: p.detach() for name, p in model.named_parameters()}
    >>> def loss(values):
    ...     return torch.func.functional_call(model, values, (torch.ones(1, 2),)).sum()
    >>> _ = torch.func.grad(loss)(values)
    >>> sum(p.numel() for p in copied(model).parameters())
    6
    """
    left = [p for p in model.parameters() if not isinstance(p, nn.Parameter)]
    return copy.deepcopy(model, {id(p): nn.Parameter(p.new_zeros(p.shape)) for p in left})


def home_of(device: torch.device) -> torch.device:
    """Where that is computed which needs float64: the device, or the CPU if it has none.

    >>> home_of(torch.device("cuda", 1)), home_of(torch.device("mps"))
    (device(type='cuda', index=1), device(type='cpu'))
    """
    return HOST if device.type == "mps" else device


class Certified(NamedTuple):
    """Records of a batch, each by itself: (F, *shape) normalised inputs, and their labels (F,)."""

    inputs: Tensor
    labels: Tensor


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


def distance_of(problem: Problem) -> Callable[[Tensor], Tensor]:
    """The preset's distance of (R, K, D) gradients, (R,).

    With declared noise it is squared and in units of the signal, which is read from the device
    here, once.
    """
    seen = problem.observation
    if problem.preset.follow_noise and seen.is_noisy:
        unit = 2 * _signal(problem)
        return lambda gradients: squared_distance(gradients, seen) / unit
    return lambda gradients: problem.preset.objective(gradients, seen)


def variations(problem: Problem, pixels: Tensor) -> Tensor:
    """(R,) mean variation per pixel of (R, B, *shape); 0 for records that are not pictures."""
    if len(problem.shape) != 3:
        return pixels.new_zeros(len(pixels))
    of = colour_variation if problem.preset.colour else total_variation
    return of(pixels).sum(dim=1) / pixels[0].numel()


def scores(problem: Problem, pixels: Tensor, soft: Tensor) -> Tensor:
    """(R,) what the choice among starts goes by: the true network, no prior but the noise's."""
    sent = gradients_of(problem, pixels, soft, together=False)
    return distance_of(problem)(sent).detach() + asked_weight(problem) * variations(problem, pixels)


def asked_weight(problem: Problem) -> float:
    """Weight of the mean variation that the declared noise asks for; without noise what stays.

    With `distances` in units of the signal, a log-posterior weighs the prior by noise over signal
    per pixel, times the scale of the prior: 14 for the variation of photos. But the mode of a
    posterior is flatter than its mean, the more so the less the gradient says: the factor falls
    with the noise on as many coordinates as there are pixels, by a rule found on four photos at
    noise .001 and .01.
    """
    seen = problem.observation
    preset = problem.preset
    if not preset.follow_noise:
        return 0.0
    if not seen.is_noisy:
        return preset.tv_weight if preset.fade is None else 0.0
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

    Batching wins on small networks and on GPUs, where calls cost more than arithmetic, and loses on
    batches of clipped records, whose convolutions are grouped already. A batch that the device has
    no memory for has lost.
    """
    if len(pixels) == 1:
        return False
    asked, distance = pixels.detach().requires_grad_(), distance_of(problem)
    # Of a GPU the process's own time says how long it took to ask.
    clock = process_time if asked.device.type == "cpu" else perf_counter
    seconds = []
    for together in (True, False):
        best = math.inf
        for _ in range(2):  # the first call pays for set-up
            begin = clock()
            try:
                gradients = gradients_of(problem, asked, soft.detach(), together=together)
                (slope,) = torch.autograd.grad(distance(gradients).sum(), asked)
            except torch.OutOfMemoryError:
                if not together:
                    raise
                break
            float(slope.sum())  # waits for the device
            best = min(best, clock() - begin)
        seconds.append(best)
    return seconds[0] < seconds[1]


def _signal(problem: Problem) -> float:
    """Squared norm of the gradient under the noise, at least one coordinate's noise."""
    seen = problem.observation
    energy = squared_size(seen) - seen.gradient.numel() * seen.noise_std**2
    if seen.clip_norm is not None:
        energy = min(energy, seen.clip_norm**2)
    return max(energy, seen.noise_std**2, 1e-300)
