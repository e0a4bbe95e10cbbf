"""Sketches: 64 numbers of a clipped vector, by which it is told from another one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_BUCKETS = 64
_AT_ONCE = 1 << 16  # columns in float64


def sketch(parts: Sequence[Tensor], clip: float) -> Tensor:
    """(B, 64) of rows that are clipped: in bucket b the sum of +-r_d over d = b mod 64.

    The square of its length is that of the row but for a deviation of sqrt(2 / 64). It is linear
    in the clipped row, so differences are as long, too (Charikar, Chen and Farach-Colton 2002).

    Args:
        parts: (B, ...) tensors that are laid end to end.
        clip: the bound on the length of a row.

    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> [round(float(one), 3) for one in sketch([rows], 1.0).norm(dim=1)]
    [1.0, 0.5]
    """
    flat = [one.detach().reshape(len(one), math.prod(one.shape[1:])) for one in parts]
    rows, width = len(flat[0]), sum(one.shape[1] for one in flat)
    # Public and the same for all: honest mistakes are looked for, by two who share no secret.
    signs = torch.from_numpy(
        2.0 * np.random.default_rng(width).integers(0, 2, width, dtype=np.int8) - 1.0
    )
    found = torch.zeros(rows, _BUCKETS, dtype=torch.float64)
    squares, at = torch.zeros(rows, dtype=torch.float64), 0
    for one in flat:
        for columns in one.split(_AT_ONCE, dim=1):
            values = columns.cpu().double()
            to = torch.arange(at, at + values.shape[1])
            found.index_add_(1, to % _BUCKETS, values * signs[to])
            squares += values.square().sum(dim=1)
            at += values.shape[1]
    if math.isfinite(clip):
        found *= (clip / squares.sqrt().clamp(min=clip))[:, None]
    return found
