"""AUROC, the area under the receiver operating characteristic: how well scores rank a class."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...privacy.errors import InputError

__all__ = ["auroc"]


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Probability that a random positive scores above a random negative, ties counted half.

    By the Mann-Whitney statistic: with the mean ranks r of equal scores, P positives and N
    negatives, (sum of r over the positives - P (P + 1) / 2) / (P N).

    Args:
        scores: (B,), higher for the positive class.
        positive: (B,) truth values.

    Returns:
        A number in [0, 1]; NaN where one of the two classes is absent or a score is NaN.

    Raises:
        ValueError: shapes that differ.

    >>> auroc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))
    0.75
    """
    if scores.ndim != 1 or scores.shape != positive.shape:
        raise InputError(
            f"scores {tuple(scores.shape)} and positive {tuple(positive.shape)} must be (B,) each"
        )
    of_class = positive.bool().cpu()
    positives, count = int(of_class.sum()), len(of_class)
    if positives in (0, count) or bool(scores.isnan().any()):
        return math.nan
    _, level, size = torch.unique(
        scores.detach().cpu().double(), return_inverse=True, return_counts=True
    )
    rank = size.cumsum(0).double() - (size.double() - 1) / 2  # mean rank of each level, from 1
    above = float(rank[level[of_class]].sum()) - positives * (positives + 1) / 2
    return above / (positives * (count - positives))
