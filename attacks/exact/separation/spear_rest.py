"""Patterns of the last one or two records of a batch, from the directions of all others.

With G = [dW, db] = U S Y^T and D = U Q the directions, the images are the rows of Q^{-1} S Y^T, and
a row of Q^{-1} is orthogonal to the mixtures q of all other records:

    one missing     its row is known up to a factor, which the 1 of [x, 1] decides
    two missing     [x, 1] = Y S (c_0 + t c_1): a line, within the box a segment, on which the signs
                    of h = W x + b change at most m times: every stretch has one pattern

Shape letters: m units, n inputs, B records, F patterns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .spear_images import Direction
from .spear_spaces import ReluSpaces

_BEYOND = 1e-3  # of the box


def last_patterns(
    spaces: ReluSpaces, directions: Sequence[Direction], *, low: Tensor, span: Tensor
) -> Tensor:
    """(F, m) patterns that the missing records may have, F = 0 where none or more than two miss.

    Args:
        spaces: of one intercept.
        directions: of all records but one or two.
        low: (n,) least inputs.
        span: (n,) of the inputs.
    """
    records, nothing = len(spaces.values), torch.zeros(0, len(spaces.left), dtype=torch.bool)
    missing = records - len(directions)
    if not 1 <= missing <= 2:
        return nothing
    known = torch.stack([d.mixture for d in directions], dim=1) if directions else None
    free = torch.eye(records, dtype=spaces.left.dtype)
    if known is not None:
        free = torch.linalg.qr(known, mode="complete")[0][:, len(directions) :]
    images = spaces.right @ (spaces.values[:, None] * free)  # (n + 1, missing)
    last = images[-1]
    if float(last.norm()) <= 1e-12 * float(images.norm()):
        return nothing
    begin = images @ (last / last.square().sum())
    if missing == 1:
        return (spaces.weight @ begin > 0)[None]
    along = images @ torch.stack([-last[1], last[0]])
    along = along / along.norm().clamp_min(1e-300)
    ends = torch.stack([low - _BEYOND * span - begin[:-1], low + (1 + _BEYOND) * span - begin[:-1]])
    ends = (ends / torch.where(along[:-1] == 0, 1e-300, along[:-1])).sort(dim=0).values
    first, final = float(ends[0].max()), float(ends[1].min())
    if not first < final:
        return nothing
    base, slope = spaces.weight @ begin, spaces.weight @ along
    turns = -base / torch.where(slope == 0, 1e-300, slope)
    turns = turns[(turns > first) & (turns < final)].sort().values
    marks = torch.cat([turns.new_tensor([first]), turns, turns.new_tensor([final])])
    at = (marks[1:] + marks[:-1]) / 2
    return torch.unique(base + at[:, None] * slope > 0, dim=0)
