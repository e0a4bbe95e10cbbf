"""Agents whose data make them contribute a vector of our choosing, or none at all.

What an agent contributes at unit "agent" is clipped as one vector, so that it can hold one canary
in a run:

    in     gradients along +-u, so long that the vector before clipping has 1 to 1,000 clip norms
    out    no gradient, as of an agent without data; or the opposite vector (replace-one)

The engine's own local steps, clipping, cohorts, noise and messages do the rest. The sign is drawn
afresh for every release and round; directions of two agents are orthogonal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...training.engine.recording import MeanOf, Recorded
from ...training.gradients.clipping import Coefficient
from ...training.gradients.gradients import Batch, ClippedSums, Indices
from ...training.step.values import LocalSteps
from .canaries import Directions

_LEAST = 1e-12  # of a change by a unit gradient, below which no gradient makes it as long as wished


class Sent(NamedTuple):
    """What the hosts were made to contribute to one operation of a round.

    Attributes:
        holders: (rows,) the agent whose data each row is of.
        signs: (rows,) of its vector, 1 or -1; that of an agent without a canary counts nowhere.
    """

    holders: np.ndarray
    signs: np.ndarray


class PlantedAgents:
    """Gradients of a run in which some agents hold canaries in place of their data.

    It takes the place of the run's own gradients in an engine, which still give those of all other
    agents.

    Args:
        own: the run's.
        directions: one for each host.
        part: by host 1 where its canary is in, -1 for the opposite vector, 0 for no data.
        norms: by host, of its vector before clipping, in clip norms.
        generator: of the signs.

    Attributes:
        recorded: of the round that runs; set before it.
        calls: what was planted in this round, in the order of its operations.
    """

    def __init__(
        self,
        own: ClippedSums,
        *,
        directions: Directions,
        part: Mapping[int, int],
        norms: Mapping[int, float],
        generator: np.random.Generator,
    ) -> None:
        self._own, self._generator = own, generator
        self._at = {host: j for j, host in enumerate(part)}
        self._part, self._norms = part, norms
        self._vectors = [directions.vector(j) for j in range(len(self._at))]
        self.recorded = Recorded()
        self.calls: list[Sent] = []

    def begin(self, recorded: Recorded) -> None:
        """A round begins, of which this is the record."""
        self.recorded, self.calls = recorded, []

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Batch],
        *,
        clip_norm: float | None,
        coefficients: Sequence[Coefficient] = (1.0,),
        pairs_of_run: int | None = None,
    ) -> Tensor:
        """See `PairGradients.clipped_sums`.

        Raises:
            ValueError: single records are clipped, or no gradient makes a vector of this length.
        """
        if clip_norm is not None or not self.recorded.asked:
            raise InputError(
                "canaries that are all data of an agent need vectors that are clipped as a whole, "
                "and this step clips single records"
            )
        owners, holders = (torch.as_tensor(of, dtype=torch.int64).cpu() for of in pairs)
        # A local update asks for gradients in each of its steps; its vector is one.
        asked, first = self.recorded.asked[-1], len(self.recorded.asked) > len(self.calls)
        if first:
            signs = self._generator.integers(2, size=len(holders)) * 2 - 1
            self.calls.append(Sent(holders.numpy(), signs))
        planted = [e for e, d in enumerate(holders.tolist()) if d in self._at]
        made = models.new_zeros(len(holders), models.shape[-1])
        others = torch.tensor([e for e in range(len(holders)) if e not in set(planted)])
        if len(others):
            others = others.long()
            made[others.to(made.device)] = self._own.clipped_sums(
                models,
                (owners[others], holders[others]),
                batches,
                clip_norm=None,
                coefficients=coefficients,
                pairs_of_run=pairs_of_run,
            )
        for e in planted:
            host = int(holders[e])
            length = self._part[host] * self._norms[host] * int(self.calls[-1].signs[e])
            length *= _gradient(asked, len(batches[host][1]))
            made[e] = (length * self._vectors[self._at[host]]).to(made)
        return made


def unit_change(asked: LocalSteps) -> float:
    """What the model changes by along a gradient that is 1 in every step.

    Raises:
        ValueError: (nearly) nothing, so that no canary can be planted.

    >>> from overhear.training.step.values import ALL
    >>> unit_change(LocalSteps(steps=3, learning_rate=0.5, batch=ALL, clip_norm=1.0))
    -1.5
    """
    change = direction = 0.0
    for _ in range(asked.steps):
        direction = asked.momentum * direction + 1.0 + asked.proximal * change
        change -= asked.learning_rate * direction
    if not math.isfinite(change) or abs(change) < _LEAST:
        raise InputError(
            f"local steps that a gradient of 1 moves by {change:.3g} in all can hold no canary; "
            "audit with another learning rate or proximal term"
        )
    return change


def _gradient(asked: LocalSteps | MeanOf, records: int) -> float:
    """The sum of gradients whose vector, before clipping, is one clip norm long."""
    bound = asked.clip_norm
    if bound is None:
        raise InputError("a vector that is not clipped has no bound, so there is nothing to audit")
    if isinstance(asked, MeanOf):
        return bound * asked.batch_size
    return bound / unit_change(asked) * max(1, records)
