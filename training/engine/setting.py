"""What a run consists of, apart from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ...privacy.errors import InputError
from ..batches.sampler import Sampler
from ..data.store import Held
from ..graphs.graph import Topology
from ..models.tasks import Task

__all__ = ["Setting"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a run consists of, apart from its numbers.

    Attributes:
        graph: the topology and its weights, for all rounds or round by round.
        model: the network, with the public initial parameters.
        shards: each agent's records, in memory or as rows of a store.
        sampling_rate: probability that a record is in a batch.
        device: where the run computes.
        dtype: torch.float32 or torch.float64.
        layout: gradient layout.
        task: what is minimised in place of the model's cross-entropy; the model, whose parameters
            are its first block, is what the metrics evaluate.
        repeats: whether a device is to compute the same bits again, as evaluation runs promise.
        sampler: draws batches that are not Poisson; each record is drawn on its own where None.
        order_seed: of the orders of shuffled cohorts, in [0, 2^64); public.
    """

    graph: Topology
    model: nn.Module
    shards: Sequence[Held]
    sampling_rate: float
    device: torch.device
    dtype: torch.dtype = torch.float32
    layout: str = "auto"
    task: Task | None = None
    repeats: bool = False
    sampler: Sampler | None = None
    order_seed: int = 0

    def __post_init__(self) -> None:
        """Check that every agent has data and that the rate is a probability."""
        if len(self.shards) != self.graph.agents:
            raise InputError(
                f"{len(self.shards)} shards for {self.graph.agents} agents; give one to each"
            )
        if not 0 <= self.sampling_rate <= 1:
            raise InputError(
                f"sampling_rate={self.sampling_rate} must lie in [0, 1]; did you mean batch_size?"
            )
