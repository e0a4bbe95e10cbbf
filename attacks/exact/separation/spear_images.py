"""The direction and the image that belong to one pattern of active units.

In the terms of `relu_spaces`, with U and Y the column and row spaces of [dW, db] (singular values
S), a record's direction d and its image x solve linear systems once its pattern is known:

    U q = 0 where inactive, U q = V^T r where active                        q up to a factor
    rows of Q^{-1} S Y^T = s [x, 1]                                         if all B are known
    [x, 1] = Y g, [a, 1] in the row space of [dV, dc],
        a = 0 where inactive, a = h where active                            for one alone

Each comes with the error that the rounding of the observation lets expect; a system that leaves
two solutions open within it gives none.

Shape letters: m units, n inputs, B records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .spear_spaces import ReluSpaces


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Direction:
    """The one direction that fits a pattern."""

    pattern: Tensor  # (m,) True where active
    mixture: Tensor  # (B,) q of norm 1, its sign open
    error: float  # of q, from the measured noise
    decisive: float  # largest leverage of a unit: at 1 the direction hangs on that unit alone


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Image:
    """The one image that fits a pattern."""

    inputs: Tensor  # (n,)
    error: float  # predicted root mean square
    sign: float | None  # of the direction, where all records are known; else None


def find_direction(spaces: ReluSpaces, pattern: Tensor) -> Direction | None:
    """The direction of a pattern, None where the pattern has none or leaves several open.

    Args:
        spaces: of one intercept.
        pattern: (m,) True where active.
    """
    # The null vector (q, f) of U q = 0 where inactive and U q = V^T R f where active.
    records = len(spaces.values)
    back = torch.where(pattern[:, None], -spaces.back, 0.0)
    left, sizes, right = torch.linalg.svd(
        torch.cat([spaces.left, back], dim=1), full_matrices=False
    )
    if len(sizes) < right.shape[1]:
        return None
    z = right[-1]
    size = float(z[:records].norm())
    if size < 1e-6:
        return None
    q = z[:records] / size
    noise = float(torch.linalg.vector_norm(q * spaces.noise))
    residual = float(sizes[-1]) / size
    rival = float(torch.linalg.vector_norm(right[-2, :records] * spaces.noise))
    if residual > max(30 * noise, 1e-12) or float(sizes[-2]) < 10 * max(noise, rival, residual):
        return None
    spread = right[:-1, :records].square().sum(dim=1) / sizes[:-1].square()
    return Direction(
        pattern=pattern,
        mixture=q,
        error=max(noise, residual) * float(spread.sum().sqrt()),
        decisive=float(left[:, :-1].square().sum(dim=1).max()),
    )


def find_images(spaces: ReluSpaces, directions: Sequence[Direction]) -> list[Image | None]:
    """The image of each direction, None where only all records together would give it.

    Args:
        spaces: of one intercept.
        directions: of distinct patterns.
    """
    if len(directions) == len(spaces.values):
        together = _all_images(spaces, directions)
        if together is not None:
            return list(together)
    return [_single_image(spaces, direction) for direction in directions]


def _all_images(spaces: ReluSpaces, directions: Sequence[Direction]) -> list[Image] | None:
    """Images by the inverse of all B mixtures."""
    mixtures = torch.stack([direction.mixture for direction in directions], dim=1)  # (B, B)
    sizes = torch.linalg.svdvals(mixtures)
    if float(sizes[-1]) < 1e-9:
        return None
    inverse = torch.linalg.inv(mixtures)
    rows = inverse @ (spaces.values[:, None] * spaces.right.T)  # (B, n + 1)
    scales = rows[:, -1]
    if float(scales.abs().min()) == 0:
        return None
    inputs = rows[:, :-1] / scales[:, None]
    reach = torch.linalg.vector_norm(inverse, dim=1)  # (B,)
    errors = torch.tensor([direction.error for direction in directions]).to(inputs)
    # A wrong q_k mixes image k into the others; and the rows themselves are rounded.
    mixed = reach[:, None] * errors * (scales[None] / scales[:, None]) * torch.cdist(inputs, inputs)
    rounding = spaces.noise[-1] * spaces.values[-1] * reach / scales.abs()
    size = 1 + torch.linalg.vector_norm(inputs, dim=1) / math.sqrt(inputs.shape[1])
    total = torch.linalg.vector_norm(mixed, dim=1) + rounding * size
    total = total / math.sqrt(inputs.shape[1])
    return [
        Image(inputs=x, error=float(e), sign=math.copysign(1.0, float(s)))
        for x, e, s in zip(inputs, total, scales, strict=True)
    ]


def _single_image(spaces: ReluSpaces, direction: Direction) -> Image | None:
    """The image whose activations on the pattern are those of one vector of dV's row space."""
    if spaces.activations is None:
        return None
    pattern, records = direction.pattern, len(spaces.values)
    if len(pattern) < 2 * records:
        return None
    responses = spaces.weight @ spaces.right  # (m, B): h = responses g
    rows = torch.cat(
        [torch.where(pattern[:, None], -responses, 0.0), spaces.activations[:-1]], dim=1
    )
    unit = torch.cat([spaces.right[-1], -spaces.activations[-1]])
    _, sizes, right = torch.linalg.svd(torch.cat([rows, unit[None]]), full_matrices=False)
    z = right[-1]
    scale = float(spaces.right[-1] @ z[:records])
    noise = torch.cat(
        [spaces.noise * torch.linalg.matrix_norm(spaces.weight, ord=2), spaces.activation_noise]
    )
    own, rival = (float(torch.linalg.vector_norm(v * noise)) for v in (z, right[-2]))
    if scale == 0 or float(sizes[-2]) < 10 * max(own, rival):
        return None
    inputs = (spaces.right[:-1] @ z[:records]) / scale
    # The residual's size per equation, carried through the other singular vectors.
    freedom = max(len(rows) - 2 * records, 1)
    residual = max(float(sizes[-1]), own, 1e-15 * float(sizes[0])) / math.sqrt(freedom)
    spread = right[:-1, :records].square().sum(dim=1) / sizes[:-1].square().clamp_min(1e-300)
    norm = math.sqrt(inputs.numel())
    error = residual * float(spread.sum().sqrt()) / abs(scale)
    size = 1 + float(inputs.norm()) / norm
    return Image(inputs=inputs, error=error * size / norm, sign=None)
