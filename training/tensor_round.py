"""A round on real tensors, all agents in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .gradients import PairGradients
from .graph import Graph
from .randomness import SecretRandomness
from .round import (
    Agents,
    Batch,
    Edges,
    Round,
    UndeclaredOperation,
    V,
    check_drawn,
    refuse_captured,
    reply_order,
)
from .transcript import Message, Tap

_DENSE_ENTRIES = 64 * 64  # above this, mixing is a sparse product


class Examples(NamedTuple):
    """Inputs (B, *shape) and integer targets (B,) of one agent."""

    inputs: Tensor
    targets: Tensor


DrawBatch = Callable[[int, int, float | None], Examples]  # (call, agent, sampling rate)


@dataclass
class Sources:
    """What a round drew and computed, in the order of the trace's columns; for checks."""

    contributions: list[Tensor] = field(default_factory=list)
    noise: list[Tensor] = field(default_factory=list)
    known: list[Tensor] = field(default_factory=list)


class Links:
    """The edges of a graph as tensors on a device, made once for all rounds."""

    def __init__(self, graph: Graph, *, device: torch.device, dtype: torch.dtype) -> None:
        self.graph = graph
        self.agents = graph.agents
        self.receivers = torch.from_numpy(graph.receivers.copy()).to(device)
        self.senders = torch.from_numpy(graph.senders.copy()).to(device)
        self.weights = torch.from_numpy(graph.edge_weights.copy()).to(device, dtype)[:, None]
        self.loops = torch.nonzero(self.receivers == self.senders).flatten()
        self.spans = torch.from_numpy(graph.degrees).tolist()
        crosses = self.receivers != self.senders
        self.outgoing = torch.stack([self.senders[crosses], self.receivers[crosses]], dim=1)
        self.replies = torch.stack([torch.nonzero(crosses).flatten(), self.senders[crosses]], dim=1)
        self.back = reply_order(graph).to(device) if graph.symmetric else None

    def blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Split (E, .) rows into one (n_i, .) block for each receiver."""
        return rows.split(self.spans)

    def combine(self, rows: Tensor, weights: Tensor, pick: Tensor | None) -> Tensor:
        """For each receiver the weighted sum of its in-edges' rows, base[pick]: (A, D)."""
        edges = torch.arange(len(self.receivers), device=rows.device) if pick is None else pick
        index = torch.stack([self.receivers, edges])
        shape = (self.agents, rows.shape[0])
        matrix = torch.sparse_coo_tensor(index, weights[:, 0], shape, check_invariants=False)
        if self.agents * rows.shape[0] <= _DENSE_ENTRIES:
            return matrix.to_dense() @ rows
        return torch.sparse.mm(matrix.coalesce(), rows)


class TensorRound(Round):
    """One round of a run.

    Args:
        links: the graph.
        index: the number of the round; 0 is the start.
        initial: (D,) the public initial model.
        gradients: the gradient layout.
        draw: gives an agent's batch for a call of `draw`.
        randomness: where noise comes from.
        taps: called with every message before it is delivered.
        sources: filled with what was drawn, where given.
    """

    def __init__(
        self,
        links: Links,
        *,
        index: int,
        initial: Tensor,
        gradients: PairGradients,
        draw: DrawBatch,
        randomness: SecretRandomness,
        taps: Sequence[Tap] = (),
        sources: Sources | None = None,
    ) -> None:
        self._links, self._index, self._initial = links, index, initial
        self._gradients, self._draw, self._randomness = gradients, draw, randomness
        self._taps, self._sources = taps, sources
        self._noises = self._sends = 0
        self._drawn: list[Batch] = []
        self._records: list[list[Examples]] = []
        self.agents = links.agents
        self.weights = Edges(links.weights)

    @property
    def index(self) -> int:
        """The number of the round."""
        return self._index

    def initial(self) -> Agents:
        """See `Round.initial`."""
        return self._keep_known(Agents(self._initial.expand(self.agents, -1)))

    def draw(self, sampling_rate: float | None = None) -> Batch:
        """See `Round.draw`."""
        call = len(self._drawn)
        batch = Batch(call=call, sampling_rate=sampling_rate)
        self._drawn.append(batch)
        self._records.append(
            [self._draw(call, agent, sampling_rate) for agent in range(self.agents)]
        )
        return batch

    def clipped_sums(self, points: V, *, batch: Batch, clip_norm: float | None) -> V:
        """See `Round.clipped_sums`."""
        check_drawn(batch, self._drawn)
        if isinstance(points, Edges):
            owners = points.pick
            if owners is None:
                owners = torch.arange(len(self._links.receivers), device=points.base.device)
            pairs = (owners, self._links.receivers)
        else:
            every = torch.arange(self.agents, device=points.base.device)
            pairs = (every if points.pick is None else points.pick, every)
        sums = self._gradients.clipped_sums(
            points.base, pairs, self._records[batch.call], clip_norm=clip_norm
        )
        if self._sources is not None:
            self._sources.contributions.append(sums.clone())
        return type(points)(sums)

    def noise(
        self,
        like: V,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> V:
        """See `Round.noise`; who knows a source matters to the trace alone."""
        del known_to
        rows, call = like.rows, self._noises
        self._noises += 1
        count = rows.shape[0] if factor is None else factor.shape[1]
        z = self._randomness.normal(
            round=self._index,
            call=call,
            rows=list(range(count)),
            width=rows.shape[1],
            dtype=rows.dtype,
            device=rows.device,
        )
        if self._sources is not None:
            self._sources.noise.append(z.clone())
        if factor is not None:  # float64, because correlated noise cancels
            z = (factor.to(z.device, torch.float64) @ z.double()).to(z.dtype)
        return type(like)(z.mul_(std))

    def _send(self, kind: str, *, rows: Tensor, senders: Tensor, links: Tensor) -> None:
        message = Message(
            round=self._index, call=self._sends, kind=kind, senders=senders, links=links, rows=rows
        )
        self._sends += 1
        for tap in self._taps:
            tap(message)

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        rows = value.rows
        every = torch.arange(self.agents, device=rows.device)
        self._send(kind, rows=rows, senders=every, links=self._links.outgoing)
        return Edges(rows, self._links.senders)

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        if self._links.back is None:
            reply_order(self._links.graph)
        rows = value.rows
        self._send(kind, rows=rows, senders=self._links.receivers, links=self._links.replies)
        return Edges(rows, self._links.back)

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """See `Round.mix`."""
        return self.sum_in(self.broadcast(value, kind=kind), weights=self.weights)

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        by = torch.ones_like(self._links.weights) if weights is None else weights.rows
        return Agents(self._links.combine(value.base, by, value.pick))

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        loops = self._links.loops
        return Agents(value.base[loops if value.pick is None else value.pick[loops]])

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        return Edges(value.rows, self._links.receivers)

    def bounded(
        self,
        fn: Callable[..., Tensor],
        secret: Agents,
        *,
        released: Sequence[Edges] = (),
        private: Sequence[Agents] = (),
        lipschitz: float,
        blame: str,
    ) -> Agents:
        """See `Round.bounded`; bound and blame matter to the trace alone."""
        del lipschitz, blame
        others = self._links.receivers != self._links.senders
        counts = [n - 1 for n in self._links.spans]
        blocks = [value.rows[others].split(counts) for value in released]
        refuse_captured(fn, "bounded")
        result = self._of_agents(
            "bounded",
            [
                fn(secret.rows[i], *(b[i] for b in blocks), *(p.rows[i] for p in private))
                for i in range(self.agents)
            ],
        )
        if self._sources is not None:
            self._sources.contributions.append(result.rows.clone())
        return result

    def postprocess(self, fn: Callable[..., Tensor], *values: Agents | Edges) -> Agents:
        """See `Round.postprocess`."""
        parts = [
            self._links.blocks(v.rows) if isinstance(v, Edges) else tuple(v.rows) for v in values
        ]
        refuse_captured(fn, "postprocess")
        return self._keep_known(
            self._of_agents("postprocess", [fn(*p) for p in zip(*parts, strict=True)])
        )

    def _of_agents(self, operation: str, rows: list[Tensor]) -> Agents:
        """What a function gave for each agent: all D coordinates, for which noise is counted."""
        width = self._initial.shape[0]
        wrong = [tuple(row.shape) for row in rows if tuple(row.shape) != (width,)]
        if wrong:
            raise UndeclaredOperation(
                f"the function of round.{operation} returned shape {wrong[0]}; it must return "
                f"({width},)"
            )
        return Agents(torch.stack(rows))

    def _keep_known(self, value: Agents) -> Agents:
        if self._sources is not None:
            self._sources.known.append(value.rows.clone())
        return value
