"""What a run consists of, apart from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...privacy.batches.patterns import EVERY, turn_words
from ...privacy.errors import InputError, within
from .. import batches
from ..data.store import Held
from ..graphs.graph import Topology
from ..models.tasks import Task
from ..step.script import Operation


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
        turns: whose turn it is in which round; None where every round may be anybody's.
        order_seed: of the orders of shuffled cohorts, in [0, 2^64); public.
        users: of each agent the number of each record's user, (n,) int64; None where nobody says.
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
    sampler: batches.Sampler | None = None
    turns: batches.Participation | None = None
    order_seed: int = 0
    users: Sequence[Tensor] | None = None

    def __post_init__(self) -> None:
        """Check that every agent has data, whose it is, and that the rate is a probability."""
        if len(self.shards) != self.graph.agents:
            raise InputError(
                f"{len(self.shards)} shards for {self.graph.agents} agents; give one to each"
            )
        if self.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"dtype={self.dtype} must be torch.float32 or torch.float64: every figure rests on "
                "float32 as the coarsest arithmetic of a run"
            )
        within("sampling_rate", self.sampling_rate, "[0, 1]", "did you mean batch_size?")
        if self.turns is not None:
            self.turns.check(
                [shard.size for shard in self.shards],
                sampling_rate=self.sampling_rate,
                alone=self.sampler is None,
            )
        if self.users is not None:
            batches.check_users_of(self.users, [shard.size for shard in self.shards])

    @property
    def batches_words(self) -> str | None:
        """How batches are drawn, and what counts as public; None of plain Poisson batches."""
        if self.turns is not None:
            return turn_words(self.turns.pattern, self.turns.coin)
        return None if self.sampler is None else self.sampler.words(self.sampling_rate)

    @property
    def turns_digest(self) -> str | None:
        """What `Engine.restore` asks for where a run is in turns; None where it is not."""
        return None if self.turns is None else self.turns.digest

    def kept(self) -> batches.ParticipationCheck:
        """What a run holds its batches against, so that no record is drawn out of its turn."""
        sizes = [shard.size for shard in self.shards]
        return batches.ParticipationCheck(
            EVERY if self.turns is None else self.turns.pattern, records=sizes
        )

    def users_of(self, agent: int) -> Tensor:
        """(n,) the number of the user of each of an agent's records.

        Raises:
            ValueError: nobody says.
        """
        if self.users is None:
            raise InputError(batches.NO_USERS)
        return self.users[agent]

    def whose(self, agent: int, positions: Tensor | None) -> Tensor | None:
        """The users of an agent's records at positions; None where nobody says."""
        if self.users is None or positions is None:
            return None
        return self.users[agent][positions]

    def check_users(self, script: Sequence[Operation]) -> None:
        """Refuse a round by user where nobody says whose a record is, or batches are not Poisson.

        Raises:
            ValueError: it draws or clips by user.
        """
        if (self.users is None or self.sampler is not None) and batches.needs_users(script):
            self.check_by_user()

    def check_by_user(self) -> None:
        """Refuse to draw or clip by user: nobody says whose a record is, or how it is drawn.

        Raises:
            ValueError: either is so.
        """
        if self.users is not None and self.sampler is None:
            return
        if self.users is None:
            raise InputError(batches.NO_USERS)
        raise InputError(
            "the step draws or clips by user, which has no bound with batches that are not Poisson"
        )
