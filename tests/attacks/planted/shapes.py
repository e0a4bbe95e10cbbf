"""Faults of the noise's law: cut tails, grids, few digits, copies within a row, other laws."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from tests.attacks.planted.planted import Faults, Kind, Origin
from tests.attacks.planted.seams import changed_draws

fault = Faults(Kind.NOISE_SHAPE)
_INFINITE = "epsilon is infinite."


def _as(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], AbstractContextManager]:
    return lambda: changed_draws(lambda z, at: change(z))


def _second_half_copied(z: torch.Tensor) -> torch.Tensor:
    half = z.shape[1] // 2
    return torch.cat([z[:, :half], z[:, :half], z[:, 2 * half :]], dim=1)


def _fifth_copied(z: torch.Tensor) -> torch.Tensor:
    fifth = z.shape[1] // 5
    return torch.cat([z[:, :fifth], z[:, :fifth], z[:, 2 * fifth :]], dim=1)


def _on_grid(step: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda z: (z / step).round() * step


def _standardised(z: torch.Tensor) -> torch.Tensor:
    centred = z - z.mean(dim=1, keepdim=True)
    return centred / centred.square().mean(dim=1, keepdim=True).sqrt()


def _levels(z: torch.Tensor) -> torch.Tensor:
    """(rows, width) of where each normal value lies in (0, 1)."""
    return torch.special.ndtr(z.double()).clamp(1e-12, 1 - 1e-12)


def _uniform(z: torch.Tensor) -> torch.Tensor:
    """Variance 1, on [-sqrt 3, sqrt 3]."""
    return (2.0 * _levels(z) - 1.0) * math.sqrt(3.0)


def _laplace(z: torch.Tensor) -> torch.Tensor:
    """Of scale 1/2, hence of variance 1/2."""
    u = _levels(z) - 0.5
    return -0.5 * u.sign() * torch.log1p(-2.0 * u.abs())


fault(
    "noise repeated in a row",
    f"The difference of two coordinates has no noise: {_INFINITE}",
    Origin.FIRST,
)(_as(_second_half_copied))
fault(
    "noise of two values",
    f"A sum that is off the grid of two values is seen: {_INFINITE}",
    Origin.FIRST,
)(_as(torch.sign))
fault(
    "a fifth of the noise copied",
    f"The difference of two fifths of a message has no noise: {_INFINITE}",
    Origin.OUTSIDE,
)(_as(_fifth_copied))
fault(
    "noise clamped at 3 deviations",
    "A value beyond the clamp rules a candidate out, about one coordinate in 370 "
    f"lies at it: {_INFINITE}",
    Origin.OUTSIDE,
)(_as(lambda z: z.clamp(-3.0, 3.0)))
fault(
    "noise clamped at 4 deviations",
    f"The same, with one coordinate in 16,000 at the clamp: {_INFINITE}",
    Origin.OUTSIDE,
    statistical=True,
)(_as(lambda z: z.clamp(-4.0, 4.0)))
fault(
    "noise in float16",
    f"A candidate that leaves noise of more digits is ruled out: {_INFINITE}",
    Origin.OUTSIDE,
)(_as(lambda z: z.half()))
fault(
    "noise on a lattice",
    f"A candidate that leaves noise off the lattice is ruled out: {_INFINITE}",
    Origin.OUTSIDE,
)(_as(_on_grid(2.0**-10)))
fault(
    "uniform noise",
    f"A value outside of the interval rules a candidate out: {_INFINITE}",
    Origin.OUTSIDE,
)(_as(_uniform))
fault(
    "Laplace noise",
    "Of half the variance: each coordinate alone loses up to twice the sensitivity, "
    "and 15.2 stands for epsilon 8 by the variance alone.",
    Origin.OUTSIDE,
)(_as(_laplace))
fault(
    "tails cut at 3.5 deviations",
    f"One coordinate in 2,150 lies at the cut, none beyond: {_INFINITE}",
    Origin.HOLDOUT,
)(_as(lambda z: z.clamp(-3.5, 3.5)))
fault(
    "noise standardised by row",
    "Mean and length of every row of noise are what they are expected to be, exactly, "
    f"so each message is an equation in what it holds: {_INFINITE}",
    Origin.HOLDOUT,
)(_as(_standardised))
fault(
    "noise of 8 bits",
    f"Noise has 255 values, and a sum is seen between them: {_INFINITE}",
    Origin.HOLDOUT,
)(_as(lambda z: _on_grid(2.0**-5)(z).clamp(-127 / 32, 127 / 32)))
