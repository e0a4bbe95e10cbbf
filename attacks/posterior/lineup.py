"""A lineup: the victim's record among others that were drawn like it, ranked by what was observed.

The record is a random one of a public pool, and so are the others of its lineup: given the lineup,
each of its k records is the victim's with probability 1 / k, and the ranking does not know which.
Whatever is released with mu-GDP, no ranking puts the victim's first with more than the probability
that `reconstruction_bound` gives for a prior of 1 / k.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..problem.observation import Observation
from .candidates import Candidates, distances

SIZES = (10, 100, 1000)


def sizes_for(pool: int) -> tuple[int, ...]:
    """The sizes of lineups that a pool of so many records, the victim's among them, allows.

    >>> sizes_for(250)
    (10, 100)
    """
    return tuple(size for size in SIZES if size <= pool)


def ranks(
    observation: Observation,
    model: nn.Module,
    *,
    pool: Candidates,
    victim: int,
    generator: torch.Generator,
) -> Mapping[int, int]:
    """Rank of the victim's record in a lineup of each size, 1 for the first.

    Args:
        model: network with logits (B, C) as output; its parameters are taken from `observation`.
        pool: records drawn at random from public ones.
        victim: index of the victim's record in the pool; itself a random one.
        generator: draws the others of each lineup and decides between equal distances.

    Returns:
        size -> rank, for each size that the pool allows.

    Raises:
        ValueError: the observation is of several records.
    """
    others = torch.randperm(len(pool), generator=generator)
    others = others[others != victim]
    sizes = sizes_for(len(pool))
    if not sizes:
        return {}
    order = torch.cat([torch.tensor([victim]), others[: max(sizes) - 1]])
    far = distances(observation, model, pool.at(order)).cpu()
    return {size: _rank(far[:size], generator) for size in sizes}


def _rank(far: Tensor, generator: torch.Generator) -> int:
    """Rank of the first by distance, a random one of those that share it."""
    before, equal = int((far < far[0]).sum()), int((far == far[0]).sum())
    return 1 + before + int(torch.randint(equal, (1,), generator=generator))
