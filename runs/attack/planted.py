"""Which public records an attack plants, and what the others say before anything is attacked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...attacks.scoring.metrics import blind_guess
from ...attacks.scoring.prior_hit_rate import prior_hit_rate, rebuilt_threshold
from ...privacy.errors import InputError
from ...training.data.load import Dataset


@dataclass(frozen=True, kw_only=True, slots=True)
class Public:
    """Public test records: those that are planted, and what the others say beforehand.

    Attributes:
        images, labels: what is planted, normalised.
        prior: the mean of the others, normalised.
        threshold: MSE at which an image counts as rebuilt.
        guessed: how often a guess without any message does, at most.
    """

    images: Tensor
    labels: Tensor
    prior: Tensor
    threshold: float
    guessed: float


def plant(data: Dataset, count: int) -> Public:
    """The first public test record of each class in turn, and what the other ones say.

    Args:
        data: supplies the public test records.
        count: how many to plant.

    Raises:
        ValueError: there are not so many.
    """
    seen: dict[int, int] = {}
    rank = []
    for label in data.test_targets.tolist():
        rank.append(seen.get(label, 0))
        seen[label] = rank[-1] + 1
    order = sorted(range(len(rank)), key=lambda i: (rank[i], int(data.test_targets[i])))[:count]
    if len(order) < count:
        raise InputError(f"images={count} is more than the {len(order)} public test records")
    at = torch.tensor(order)
    others = torch.ones(len(rank), dtype=torch.bool)
    others[at] = False
    prior = blind_guess(data.test_inputs[others])
    pixels = data.pixels(data.test_inputs[others]).clamp(0, 1)
    guess = data.pixels(prior).clamp(0, 1)
    threshold = rebuilt_threshold(pixels, guess)
    return Public(
        images=data.test_inputs[at],
        labels=data.test_targets[at],
        prior=prior,
        threshold=threshold,
        guessed=prior_hit_rate(pixels, guess, threshold=threshold) if len(pixels) > 3 else 1.0,
    )
