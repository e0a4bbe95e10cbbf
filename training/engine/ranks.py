"""Ranks: which agents each process of a run holds.

A agents are spread over R ranks of a `torch.distributed` process group, contiguously: rank r holds
the agents r A // R, ..., (r + 1) A // R - 1. So the edges that end at a rank's agents follow one
another too, and a rank's rows of any value are a slice of what one process would hold.

Ranks share the work of a simulation. They are no line of trust: every rank knows the root of all
noise, and a mean over the agents brings every agent's row to every rank. Rows cross the group's
connections as they are, so the network between machines must be a private one. A secret that all
ranks were started with says who is a rank (`secret.py`), and hides the root on its way.

Noise that cancels between agents is made for full attendance, so no run goes on without a rank: a
rank that does not answer in time ends the run on all others, with `MissingRank`.

What a secret that all ranks were started with says: that a rank wrote this.

Without a secret (empty) anybody can say it, and a signature is no more than a checksum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ...privacy.errors import InputError
from ..algorithms.algorithm import Bound, check_blocks, check_weights
from ..graphs.graph import Topology


class MissingRank(RuntimeError):
    """A rank did not answer in time, or its process is gone."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ranks:
    """This process among those that run the agents.

    Attributes:
        agents: A, of the whole run.
        rank: this process, in 0..size-1.
        size: R, how many processes there are.
        timeout: seconds that an exchange of rows may take.
        group: the process group; None is the default one.
        hosts: where each rank runs, in words; nothing where that need not be said.
        secret: which all ranks were started with and nobody else knows; empty if there is none.

    Raises:
        ValueError: a rank without an agent, or a number out of range.

    >>> ranks = Ranks(agents=10, rank=1, size=4)
    >>> list(ranks.mine), ranks.names(3)
    ([2, 3, 4], 'rank 3 of 4 (agents 7..9)')
    """

    agents: int
    rank: int
    size: int
    timeout: float = 60.0
    group: dist.ProcessGroup | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        """Check that every rank has an agent."""
        if not 1 <= self.size <= self.agents:
            raise InputError(
                f"size={self.size} must lie in [1, {self.agents}], so that each rank has one of "
                f"the {self.agents} agents; start fewer ranks"
            )
        if not 0 <= self.rank < self.size:
            raise InputError(f"rank={self.rank} must lie in [0, {self.size - 1}]")
        if not 0 < self.timeout < math.inf:
            raise InputError(f"timeout={self.timeout} must be a finite number of seconds > 0")

    @classmethod
    def joined(
        cls,
        agents: int,
        *,
        timeout: float = 60.0,
        group: dist.ProcessGroup | None = None,
        hosts: tuple[str, ...] = (),
        secret: bytes = b"",
    ) -> Ranks:
        """The ranks of a process group that is initialised.

        Args:
            agents: A.
            timeout: seconds that an exchange may take.
            group: the process group; None is the default one.
            hosts: where each rank runs, in words.
            secret: of all ranks.

        Raises:
            RuntimeError: there is no process group.
        """
        if not dist.is_initialized():
            raise RuntimeError(
                "there is no process group; call torch.distributed.init_process_group first, or "
                "start the command with torchrun"
            )
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        return cls(
            agents=agents,
            rank=rank,
            size=size,
            timeout=timeout,
            group=group,
            hosts=hosts,
            secret=secret,
        )

    def share(self, rank: int) -> range:
        """The agents of a rank."""
        return range(rank * self.agents // self.size, (rank + 1) * self.agents // self.size)

    @property
    def mine(self) -> range:
        """The agents of this rank."""
        return self.share(self.rank)

    @property
    def peers(self) -> tuple[int, ...]:
        """The other ranks, ascending."""
        return tuple(rank for rank in range(self.size) if rank != self.rank)

    def names(self, rank: int) -> str:
        """A rank and its agents in words."""
        held = self.share(rank)
        agents = f"agent {held[0]}" if len(held) == 1 else f"agents {held[0]}..{held[-1]}"
        where = f" on {self.hosts[rank]}" if self.hosts else ""
        return f"rank {rank} of {self.size} ({agents}{where})"

    @property
    def over_nccl(self) -> bool:
        """Whether the group exchanges CUDA tensors by NCCL."""
        return dist.get_backend(self.group) == "nccl"

    def check_device(self, device: torch.device) -> None:
        """Refuse a device whose tensors the group does not exchange.

        Gloo serves every device, by way of the host.

        Raises:
            ValueError: another device than CUDA with NCCL.
        """
        if self.over_nccl and device.type != "cuda":
            raise InputError(
                f"device={device} does not fit the backend 'nccl', which exchanges cuda tensors; "
                "initialise the group with 'gloo', or run on cuda"
            )


def check_fit(bound: Bound, graph: Topology, *, blocks: int, ranks: Ranks | None) -> None:
    """Refuse weights, blocks or ranks that are not those of the algorithm and the graph.

    Raises:
        ValueError: they are not.
    """
    check_weights(graph, bound.weights)
    check_blocks(bound, blocks)
    if ranks is not None and ranks.agents != graph.agents:
        raise InputError(
            f"ranks of {ranks.agents} agents for a graph of {graph.agents}; give both the same"
        )
