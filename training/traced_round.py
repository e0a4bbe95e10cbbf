"""A round on unit sources: every operation as rows over what was drawn, known or sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .graph import Graph
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
from .sources import Contributions, Group, Known, Messages, NoiseSources, SourceRows

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What a round sent and returned, over its columns.

    Attributes:
        groups: the columns, in the order in which the step made them.
        closure: rows that count as seen, each with the reason.
        end_state: the rows of every value of the returned state, by field.
        blames: why the view is heuristic; empty when it is not.
        reads_index: whether the step looked at the number of the round.
        agents: the number of agents.
    """

    groups: Sequence[Group]
    closure: Sequence[tuple[str, csr_array]]
    end_state: dict[str, csr_array]
    blames: Sequence[str]
    reads_index: bool
    agents: int


class TracedRound(Round):
    """A round on unit sources."""

    def __init__(self, graph: Graph, *, index: int = 1) -> None:
        from scipy.sparse import csr_array

        self._graph, self._index = graph, index
        self._csr = csr_array
        self._receivers, self._senders = graph.receivers, graph.senders
        self.agents = graph.agents
        self.weights = Edges(torch.from_numpy(graph.edge_weights.copy())[:, None])
        self._groups: list[Group] = []
        self._width = 0
        self._closure: list[tuple[str, csr_array]] = []
        self._blames: list[str] = []
        self._reads_index = False
        self._drawn: list[Batch] = []

    @property
    def index(self) -> int:
        """The number of the round; reading it is noted."""
        self._reads_index = True
        return self._index

    def _add(self, group: Group) -> SourceRows:
        self._groups.append(group)
        self._width += group.size
        ones, rows = np.ones(group.size), np.arange(group.size)
        shape = (group.size, self._width)
        return SourceRows(self._csr((ones, (rows, group.start + rows)), shape=shape), self)

    def _rows(self, value: Agents | Edges, operation: str) -> SourceRows:
        if not isinstance(value, Agents | Edges) or not isinstance(value.rows, SourceRows):
            raise UndeclaredOperation(
                f"round.{operation} takes Agents or Edges that the round's operations made, not "
                f"{type(value).__name__}"
            )
        if value.rows.trace is not self:
            raise UndeclaredOperation(
                f"round.{operation} of a value of another round: carry it in the state that the "
                "step returns"
            )
        return value.rows

    def _see(self, value: Agents | Edges, why: str) -> None:
        if self._is_private(value, why):
            self._closure.append((why, value.base.matrix))

    def _is_private(self, value: Agents | Edges, operation: str) -> bool:
        """Whether a value is made of sources, of this round; public tensors need no closure."""
        if isinstance(value, Agents | Edges) and isinstance(value.base, Tensor):
            return False
        self._rows(value, operation)
        return True

    def known(self, what: str) -> Agents:
        """A value that the closure counts as known, one row an agent."""
        return Agents(self._add(Known(start=self._width, size=self.agents, what=what)))

    def initial(self) -> Agents:
        """See `Round.initial`."""
        return self.known("initial model")

    def draw(self, sampling_rate: float | None = None) -> Batch:
        """See `Round.draw`."""
        batch = Batch(call=len(self._drawn), sampling_rate=sampling_rate)
        self._drawn.append(batch)
        return batch

    def clipped_sums(self, points: V, *, batch: Batch, clip_norm: float | None) -> V:
        """See `Round.clipped_sums`."""
        rows = self._rows(points, "clipped_sums")
        check_drawn(batch, self._drawn)
        self._see(points, "model at which gradients are taken")
        owners = self._receivers if isinstance(points, Edges) else np.arange(self.agents)
        bounds = np.full(rows.shape[0], math.inf if clip_norm is None else float(clip_norm))
        return type(points)(
            self._add(
                Contributions(
                    start=self._width,
                    owners=owners,
                    bounds=bounds,
                    batch=batch.call,
                    sampling_rate=batch.sampling_rate,
                )
            )
        )

    def noise(
        self,
        like: V,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> V:
        """See `Round.noise`."""
        rows = self._rows(like, "noise").shape[0]
        holders = self._receivers if isinstance(like, Edges) else np.arange(self.agents)
        mixing = None if factor is None else factor.detach().cpu().double().numpy()
        if known_to is None:
            if mixing is None:
                known_to = [frozenset({int(h)}) for h in holders]
            else:
                known_to = [frozenset(holders[np.flatnonzero(c)].tolist()) for c in mixing.T]
        unit = self._add(NoiseSources(start=self._width, known_to=list(known_to)))
        if mixing is None:
            return type(like)(unit * std)
        if mixing.shape != (rows, len(known_to)):
            raise ValueError(f"factor of shape {mixing.shape} must be ({rows}, {len(known_to)})")
        return type(like)(SourceRows(self._csr(self._csr(mixing) @ unit.matrix), self) * std)

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        crosses = self._receivers != self._senders
        sent = self._add(
            Messages(
                start=self._width,
                kind=kind,
                rows=self._rows(value, "broadcast").matrix,
                senders=np.arange(self.agents),
                links=np.c_[self._senders[crosses], self._receivers[crosses]],
            )
        )
        return Edges(sent, torch.from_numpy(self._senders.copy()))

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        crosses = np.flatnonzero(self._receivers != self._senders)
        sent = self._add(
            Messages(
                start=self._width,
                kind=kind,
                rows=self._rows(value, "reply").matrix,
                senders=self._receivers,
                links=np.c_[crosses, self._senders[crosses]],
            )
        )
        return Edges(sent, reply_order(self._graph))

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """See `Round.mix`."""
        return self.sum_in(self.broadcast(value, kind=kind), weights=self.weights)

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        rows = self._rows(value if weights is None else value * weights, "sum_in").matrix
        edges = np.arange(len(self._receivers))
        gather = self._csr((np.ones(len(edges)), (self._receivers, edges)))
        return Agents(SourceRows(self._csr(gather @ rows), self))

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        return Agents(value.rows[np.flatnonzero(self._receivers == self._senders)])

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        return Edges(value.base, torch.from_numpy(self._receivers.copy()))

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
        """See `Round.bounded`."""
        refuse_captured(fn, "bounded")
        for held in private:
            self._is_private(held, "bounded")
        rows = self._rows(secret, "bounded").matrix
        others = np.flatnonzero(self._receivers != self._senders)
        for value in released:
            if self._is_private(value, "bounded"):
                self._closure.append(("released input of bounded", value.rows[others].matrix))
        bounds, batches = np.zeros(rows.shape[0]), set[tuple[int, float | None]]()
        explained = np.zeros(rows.shape[0])
        for g in self._groups:
            if isinstance(g, Contributions) and g.start < rows.shape[1]:
                block = abs(rows[:, g.start : g.start + g.size])
                if not block.nnz:
                    continue
                at = block.tocoo().coords
                if (g.owners[at[1]] != at[0]).any():
                    raise UndeclaredOperation("the secret of bounded holds another agent's data")
                bounds += block @ g.bounds[: block.shape[1]]
                explained += np.diff(self._csr(block).indptr)
                batches.add((g.batch, g.sampling_rate))
        if (explained != np.diff(rows.indptr)).any() or len(batches) != 1:
            raise UndeclaredOperation(
                "the secret of bounded must be made of clipped sums of one batch alone, without "
                "noise, messages or known values"
            )
        self._blames.append(blame)
        ((batch, rate),) = batches
        return Agents(
            self._add(
                Contributions(
                    start=self._width,
                    owners=np.arange(self.agents),
                    bounds=lipschitz * bounds,
                    batch=batch,
                    sampling_rate=rate,
                    blame=blame,
                )
            )
        )

    def postprocess(self, fn: Callable[..., Tensor], *values: Agents | Edges) -> Agents:
        """See `Round.postprocess`."""
        refuse_captured(fn, "postprocess")
        for value in values:
            self._see(value, "input of postprocess")
        return self.known("result of postprocess")

    def finish(self, state: Any) -> RoundRecord:
        """The record of the round, once the step has returned its state."""
        end: dict[str, csr_array] = {}
        for name, value in state._asdict().items():
            if isinstance(value, Agents):
                end[f"state {name} at the end of the round"] = self._rows(value, "state").matrix
            elif not isinstance(value, Tensor):
                raise UndeclaredOperation(
                    f"state field {name!r} holds {type(value).__name__}; a state is a NamedTuple "
                    "of Agents and public tensors"
                )
        return RoundRecord(
            groups=self._groups,
            closure=self._closure,
            end_state=end,
            blames=list(dict.fromkeys(self._blames)),
            reads_index=self._reads_index,
            agents=self.agents,
        )
