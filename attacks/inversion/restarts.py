"""Several starts side by side under signed Adam, on a network that sharpens; stalled ones stop.

    for step = 0 .. N-1, f = step / N
        g = d/dx [distance(clip(grad_w(x)), o) + weight(f) * mean variation(x)]
            on the network whose ReLUs have width w = softness * .003^f
        m = .9 m + .1 sign g;   v = .999 v + .001 sign(g)^2
        x = clip(x - rate(f) * (m / (1 - .9^t)) / (sqrt(v / (1 - .999^t)) + 1e-8), 0, 1)

Adam is Kingma and Ba (2015), signs and the decay of the rate are of Geiping et al. (2020). From a
quarter of the steps on, eight times at even distances, a start stops where its loss is more than
half above the least and its ratio to the least has not fallen since it was last looked at.

Shape letters: B records, C classes, R starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...privacy.errors import within
from ..problem import problem as gradient_problem
from ..problem.problem import gradients_of, is_faster_together

# Smooth stand-ins for ReLU and max-pooling, so that a search sees where they switch.
#
# The gradient that a ReLU network sends jumps where an activation changes its sign: delta passes
# through the mask [z > 0]. Its slope in the pixels is blind to those jumps, and a search on it
# stops in the first set of masks where the residual is orthogonal to what the pixels can do within
# them. With the smooth function
#
#     s_w(z) = (z + sqrt(z^2 + w^2)) / 2,    s_w'(z) = (1 + z / sqrt(z^2 + w^2)) / 2
#
# in place of max(z, 0) the mask is a slope of width w, which the search follows; w is a fraction of
# the layer's root mean square and falls to nothing on the way (graduated non-convexity: Blake and
# Zisserman 1987, "Visual Reconstruction"). A maximum is max(a, b) = b + max(a - b, 0), pair by
# pair.
#
# `Smoothed` exchanges the functions while it is entered, whether a network calls them as modules or
# as functions; nothing else changes, the observation's own gradient was sent by the true network.

_TINY = 1e-30


class Smoothed(TorchFunctionMode):
    """Within it, ReLU, leaky ReLU and max-pooling are smooth.

    Attributes:
        width: of the transition in units of the root mean square of the layer's inputs; 0 leaves
            every function as it is. May be set between calls.

    >>> with Smoothed(1.0):
    ...     [round(value, 4) for value in torch.relu(torch.tensor([-1.0, 1.0])).tolist()]
    [0.2071, 1.2071]
    """

    def __init__(self, width: float) -> None:
        within("width", width, "[0, inf]", "0 leaves ReLU as it is")
        super().__init__()
        self.width = width

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        smooth = _STAND_INS.get(func) if self.width > 0 else None
        found = None if smooth is None else smooth(self.width, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


def _relu(width: float, input: Tensor, *_: Any, **__: Any) -> Tensor:  # inplace means nothing here
    return _ramp(width, input, size=_size(input))


def _leaky_relu(
    width: float, input: Tensor, negative_slope: float = 0.01, *_: Any, **__: Any
) -> Tensor:
    ramp = _ramp(width, input, size=_size(input))
    return negative_slope * input + (1 - negative_slope) * ramp


def _max_pool2d(
    width: float,
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """The tree of pairwise maxima; None for windows that overlap, are padded or incomplete."""
    (high, wide), steps = _pair(kernel_size), _pair(stride or kernel_size)
    rows, columns = input.shape[-2] // high * high, input.shape[-1] // wide * wide
    cut = (rows, columns) != tuple(input.shape[-2:])
    if (high, wide) != steps or _pair(padding) != (0, 0) or _pair(dilation) != (1, 1):
        return None
    if return_indices or (cut and ceil_mode):
        return None
    size, whole = _size(input), input[..., :rows, :columns]
    parts = [whole[..., i::high, j::wide] for i in range(high) for j in range(wide)]
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        pairs = zip(parts[::2], parts[1::2], strict=False)  # an odd one waits
        parts = [b + _ramp(width, a - b, size=size) for a, b in pairs] + odd
    return parts[0]


def _ramp(width: float, values: Tensor, *, size: Tensor) -> Tensor:
    return 0.5 * (values + torch.hypot(values, width * size))


def _size(values: Tensor) -> Tensor:
    """Root mean square, without derivative."""
    return values.detach().square().mean().sqrt() + _TINY


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    every = tuple(value)
    return (every[0], every[-1])


_STAND_INS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.relu: _relu,
    torch.relu_: _relu,
    torch.Tensor.relu: _relu,
    torch.Tensor.relu_: _relu,
    functional.relu: _relu,
    functional.leaky_relu: _leaky_relu,
    functional.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
}


SAVED_EVERY = 100
"""Steps between two checkpoints: seconds of work, against a millisecond for the file."""

_SHARP = 0.003
"""Share of the softness that is left at the last step."""

_GENTLE = 0.1
"""Share of the rate for a start that was known before the search."""

_BEHIND = 1.5
"""Loss over the least loss beyond which a start that does not catch up is stopped."""


@dataclass(kw_only=True, slots=True)
class Search:
    """Where the starts are; mutable, and all that a checkpoint needs.

    Attributes:
        pixels: (R, B, *shape) of every start, where stopped ones ended.
        soft: (R, B, C) logits.
        moments: four tensors: Adam's of the pixels and of the logits.
        running: (R,) booleans, on the CPU, so that no step waits for a device to tell them.
        ratios: (R,) loss over the least loss when last looked at, on the CPU; inf before.
        step: number of steps taken.
        taken: number of steps taken, summed over the starts.
        together: 1 where the starts run in one batch, 0 where not, -1 before that is measured.
    """

    pixels: Tensor
    soft: Tensor
    moments: tuple[Tensor, Tensor, Tensor, Tensor]
    running: Tensor
    ratios: Tensor
    step: int = 0
    taken: int = 0
    together: int = -1

    @classmethod
    def begin(cls, pixels: Tensor, soft: Tensor) -> Search:
        """A search that has not taken a step."""
        zeros = [torch.zeros_like(x) for x in (pixels, pixels, soft, soft)]
        return cls(
            pixels=pixels.clamp(0, 1),
            soft=soft.clone(),
            moments=(zeros[0], zeros[1], zeros[2], zeros[3]),
            running=torch.ones(len(pixels), dtype=torch.bool),
            ratios=torch.full((len(pixels),), torch.inf, dtype=torch.float64),
        )

    def to(self, device: torch.device) -> Search:
        """The same search on another device."""
        first, second, third, fourth = (m.to(device) for m in self.moments)
        return replace(
            self,
            pixels=self.pixels.to(device),
            soft=self.soft.to(device),
            moments=(first, second, third, fourth),
        )

    def tensors(self) -> dict[str, Tensor]:
        """What to keep of it."""
        kept = {f"moments.{k}": value for k, value in enumerate(self.moments)}
        counts = torch.tensor([self.step, self.taken, self.together])
        return {
            "pixels": self.pixels, "soft": self.soft, "running": self.running,
            "ratios": self.ratios, "counts": counts, **kept,
        }  # fmt: skip

    @classmethod
    def of(cls, kept: dict[str, Tensor]) -> Search:
        """The search that was kept."""
        step, taken, together = (int(n) for n in kept["counts"])
        return cls(
            pixels=kept["pixels"],
            soft=kept["soft"],
            moments=(
                kept["moments.0"], kept["moments.1"], kept["moments.2"], kept["moments.3"],
            ),
            running=kept["running"],
            ratios=kept["ratios"],
            step=step,
            taken=taken,
            together=together,
        )  # fmt: skip


def descend(
    problem: gradient_problem.Problem,
    search: Search,
    *,
    kept: int = 0,
    tick: Callable[[int], None],
    save: Callable[[], None] | None = None,
) -> None:
    """Take all of the preset's Adam steps that are left.

    Args:
        problem: what to explain.
        search: moved in place.
        kept: how many of the last starts were known: they never stop and move a tenth as far.
        tick: called with the number of the step.
        save: called every `SAVED_EVERY` steps.
    """
    # Slopes start where outputs that differ little have them; L-BFGS alone moves these.
    preset, joint = problem.preset, problem.labels is None and not problem.observation.slopes
    asked, distance = gradient_problem.asked_weight(problem), gradient_problem.distance_of(problem)
    looks = {preset.adam_steps * k // 8 for k in range(2, 8)} - {0}
    with Smoothed(preset.softness) as network:
        while search.step < preset.adam_steps:
            # The smoothed network sharpens with every step.
            done = search.step / preset.adam_steps
            network.width = preset.softness * _SHARP**done
            if search.together < 0:
                together = is_faster_together(problem, search.pixels, search.soft)
                search.together = int(together)
            # The objective of starts that still run.
            chosen = search.running.nonzero()[:, 0]
            pixels = search.pixels[chosen].requires_grad_()
            soft = search.soft[chosen].requires_grad_(joint)
            sent = gradients_of(problem, pixels, soft, together=search.together == 1)
            loss = distance(sent)
            weight = preset.tv_weight
            if preset.fade is not None:
                weight *= max(0.0, 1 - done / preset.fade)
            if (weight := max(weight, asked)) > 0:
                loss = loss + weight * gradient_problem.variations(problem, pixels)
            slopes = torch.autograd.grad(loss.sum(), [pixels, soft] if joint else [pixels])
            # A step of Adam, at a rate that falls three times.
            search.step += 1
            search.taken += len(chosen)
            rate = preset.step_size * 0.1 ** sum(done >= k / 8 for k in (3, 5, 7))
            # What was known is near already: full steps would throw it away.
            rates = torch.where(chosen < len(search.pixels) - kept, rate, _GENTLE * rate)
            shape = (-1, *(1 for _ in pixels.shape[1:]))
            step = rates.to(pixels).reshape(shape)
            moved = _adam(search, chosen, pixels, slopes[0], first=0, rate=step)
            search.pixels[chosen] = moved.clamp(0, 1)
            if joint:
                search.soft[chosen] = _adam(search, chosen, soft, slopes[1], first=2, rate=rate)
            if search.step in looks:
                _stop(search, chosen, loss.detach(), kept=kept)
            if save is not None and search.step % SAVED_EVERY == 0:
                save()
            tick(search.step)


def _adam(
    search: Search,
    chosen: Tensor,
    values: Tensor,
    slopes: Tensor,
    *,
    first: int,
    rate: float | Tensor,
) -> Tensor:
    """The values one step on; moments `first` and `first + 1` are moved in place."""
    signs = slopes.sign()
    means, squares = search.moments[first], search.moments[first + 1]
    mean = 0.9 * means[chosen] + 0.1 * signs
    square = 0.999 * squares[chosen] + 0.001 * signs.square()
    means[chosen], squares[chosen] = mean, square
    steps = search.step
    root = (square / (1 - 0.999**steps)).sqrt() + 1e-8
    return values.detach() - rate * (mean / (1 - 0.9**steps)) / root


def _stop(search: Search, chosen: Tensor, losses: Tensor, *, kept: int) -> None:
    """Stop the starts that are behind and fall no nearer to the best."""
    losses = losses.cpu()
    ratios = (losses / losses.min().clamp_min(1e-300)).double()
    stalled = (ratios > _BEHIND) & (ratios >= search.ratios[chosen])
    stalled &= chosen < len(search.running) - kept
    search.ratios[chosen] = ratios
    search.running[chosen[stalled]] = False
