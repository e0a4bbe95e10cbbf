"""A round on real tensors, all agents in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .clipping import clipped_rows
from .drawn import Sources, Taken, makers
from .gradients import ClippedSums
from .links import Links
from .randomness import SecretRandomness
from .round import Batch, Coef, P, Round, V, refuse_captured, reply_order
from .transcript import Message, Tap
from .values import SERVER, Agents, Edges, Server, UndeclaredOperation, Value, check_holder

__all__ = ["DrawBatch", "Examples", "Links", "Sources", "Taken", "TensorRound"]


class Examples(NamedTuple):
    """Inputs (B, *shape) and integer targets (B,) of one agent."""

    inputs: Tensor
    targets: Tensor


DrawBatch = Callable[[int, int, float | None], Examples]  # (call, agent, sampling rate)


class TensorRound(Round):
    """One round of a run.

    Args:
        links: the graph.
        index: the number of the round; 0 is the start.
        initial: (D,) the public initial model, its blocks side by side.
        sizes: coordinates of each block, which add up to D; one block of all D by default.
        gradients: the gradient layout.
        draw: gives an agent's batch for a call of `draw`.
        randomness: where noise comes from.
        projection: the task's, for `round.project`; None where there is no task.
        taps: called with every message before it is delivered.
        sources: filled with what was drawn, where given.
    """

    def __init__(
        self,
        links: Links,
        *,
        index: int,
        initial: Tensor,
        gradients: ClippedSums,
        draw: DrawBatch,
        randomness: SecretRandomness,
        sizes: Sequence[int] | None = None,
        projection: Callable[[Tensor], Tensor] | None = None,
        taps: Sequence[Tap] = (),
        sources: Sources | None = None,
    ) -> None:
        self._links, self._index = links, index
        self._sizes = (len(initial),) if sizes is None else tuple(sizes)
        self._initial = initial.split(self._sizes)
        self._gradients, self._draw, self._randomness = gradients, draw, randomness
        self._taps, self._sources = taps, sources
        if projection is not None:
            self._projection = projection
        self._noises = self._sends = 0
        self._drawn: list[Batch] = []
        self._records: list[list[Examples]] = []
        self.agents = links.agents
        self.weights = Edges(links.weights)

    @property
    def index(self) -> int:
        """The number of the round."""
        return self._index

    def initial(self, *, block: int = 0) -> Agents:
        """See `Round.initial`."""
        self._width(block)
        return self._keep_known(Agents(self._initial[block].expand(self.agents, -1)))

    def _width(self, block: int) -> int:
        if not 0 <= block < len(self._sizes):
            raise ValueError(f"block={block} must lie in 0..{len(self._sizes) - 1}")
        return self._sizes[block]

    def draw(self, sampling_rate: float | None = None) -> Batch:
        """See `Round.draw`."""
        call = len(self._drawn)
        batch = Batch(call=call, sampling_rate=sampling_rate)
        self._drawn.append(batch)
        self._records.append(
            [self._draw(call, agent, sampling_rate) for agent in range(self.agents)]
        )
        return batch

    def _clipped_sums(
        self,
        points: Sequence[tuple[P, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: float | None,
    ) -> tuple[P, ...]:
        kind = type(points[0][0])
        sums = self._sums(points, batch=batch, coefs=coefs, clip_norm=clip_norm)
        parts = sums.split(self._sizes, dim=1)
        if self._sources is not None:
            self._sources.contributions += [part.clone() for part in parts]
            taken = self._taken(points, batch=batch, coefs=coefs, clip_norm=clip_norm)
            self._sources.taken += [taken] * len(parts)
        return tuple(kind(part) for part in parts)

    def _taken(
        self,
        points: Sequence[tuple[P, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: float | None,
    ) -> Taken:
        models, owners = _stacked([self._joined(point) for point in points])
        return Taken(
            models=models.clone(),
            owners=owners,
            holders=self._holders(points[0][0]),
            coefs=tuple(self._by_coordinate(coef) for coef in coefs),
            batch=batch.call,
            clip_norm=clip_norm,
        )

    def _holders(self, value: Value) -> Tensor:
        """(rows,) who holds each row."""
        if isinstance(value, Edges):
            return self._links.receivers
        device = self._links.receivers.device
        if isinstance(value, Server):
            return torch.tensor([SERVER], device=device)
        return torch.arange(self.agents, device=device)

    def _sums(
        self,
        points: Sequence[tuple[P, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: float | None,
    ) -> Tensor:
        models, owners = _stacked([self._joined(point) for point in points])
        holders = self._holders(points[0][0])
        return self._gradients.clipped_sums(
            models,
            (owners, holders),
            self._records[batch.call],
            clip_norm=clip_norm,
            coefficients=[self._by_coordinate(coef) for coef in coefs],
        )

    def _by_coordinate(self, coef: Coef) -> float | Tensor:
        """A coefficient as one number, or as (D,) where its blocks differ."""
        if not isinstance(coef, tuple):
            return coef
        if len(set(coef)) == 1:
            return coef[0]
        like = self._initial[0]
        return torch.cat([like.new_full((n,), c) for n, c in zip(self._sizes, coef, strict=True)])

    def _clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        sums = self._sums(((point,),), batch=batch, coefs=(1.0,), clip_norm=None)
        means = clipped_rows(sums / batch_size, clip_norm)
        if self._sources is not None:
            self._sources.contributions.append(means.clone())
            taken = self._taken(((point,),), batch=batch, coefs=(1.0,), clip_norm=clip_norm)
            self._sources.taken.append(taken._replace(mean_of=batch_size))
        return type(point)(means)

    def _joined(self, point: tuple[P, ...]) -> Value:
        """The blocks of a point side by side, (rows, D)."""
        widths = tuple(value.base.shape[1] for value in point)
        if widths != self._sizes:
            raise UndeclaredOperation(
                f"round.clipped_sums at a point of blocks of widths {widths}: the gradient is "
                f"clipped with respect to all of {self._sizes}, in this order"
            )
        if len(point) == 1:
            return point[0]
        if all(_same_pick(value, point[0]) for value in point):
            return Value(torch.cat([value.base for value in point], dim=1), point[0].pick)
        return Value(torch.cat([value.rows for value in point], dim=1))

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
            self._sources.makers.append(makers(self._holders(like), factor))
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
        check_holder("broadcast", value, Agents)
        rows = value.rows
        every = torch.arange(self.agents, device=rows.device)
        self._send(kind, rows=rows, senders=every, links=self._links.outgoing)
        return Edges(rows, self._links.senders)

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        check_holder("reply", value, Edges)
        if self._links.back is None:
            reply_order(self._links.graph)
        rows = value.rows
        self._send(kind, rows=rows, senders=self._links.receivers, links=self._links.replies)
        return Edges(rows, self._links.back)

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """See `Round.mix`."""
        return self.sum_in(self.broadcast(value, kind=kind), weights=self.weights)

    def upload(self, value: Agents, *, kind: str) -> Server:
        """See `Round.upload`."""
        check_holder("upload", value, Agents)
        rows = value.rows
        every = torch.arange(self.agents, device=rows.device)
        links = torch.stack([every, torch.full_like(every, SERVER)], dim=1)
        self._send(kind, rows=rows, senders=every, links=links)
        return Server(rows.mean(dim=0, keepdim=True))

    def download(self, value: Server, *, kind: str) -> Agents:
        """See `Round.download`."""
        check_holder("download", value, Server)
        rows = value.rows
        every = torch.arange(self.agents, device=rows.device)
        only = torch.zeros_like(every)  # one row for all agents
        links = torch.stack([only, every], dim=1)
        self._send(kind, rows=rows, senders=torch.full_like(every[:1], SERVER), links=links)
        return Agents(rows, only)

    def average(self, value: Agents) -> Server:
        """See `Round.average`."""
        check_holder("average", value, Agents)
        return Server(value.rows.mean(dim=0, keepdim=True))

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        check_holder("sum_in", value, Edges)
        by = torch.ones_like(self._links.weights) if weights is None else weights.rows
        return Agents(self._links.combine(value.base, by, value.pick))

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        check_holder("own", value, Edges)
        loops = self._links.loops
        return Agents(value.base[loops if value.pick is None else value.pick[loops]])

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        check_holder("spread", value, Agents)
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
        check_holder("bounded", secret, Agents)
        for value in released:
            check_holder("bounded", value, Edges)
        for held in private:
            check_holder("bounded", held, Agents)
        refuse_captured(fn, "bounded")
        others = self._links.receivers != self._links.senders
        counts = [n - 1 for n in self._links.spans]
        seen = [value.rows[others].split(counts) for value in released]
        own = secret.rows
        rows = [
            fn(own[i], *(s[i] for s in seen), *(p.rows[i] for p in private))
            for i in range(self.agents)
        ]
        result = _of_agents("bounded", rows, width=own.shape[1])
        if self._sources is not None:
            self._sources.contributions.append(result.rows.clone())
            self._sources.taken.append(None)
        return result

    def postprocess(
        self, fn: Callable[..., Tensor], *values: Agents | Edges, block: int = 0
    ) -> Agents:
        """See `Round.postprocess`."""
        for value in values:
            check_holder("postprocess", value, Agents, Edges)
        refuse_captured(fn, "postprocess")
        parts = [
            self._links.blocks(v.rows) if isinstance(v, Edges) else tuple(v.rows) for v in values
        ]
        rows = [fn(*p) for p in zip(*parts, strict=True)]
        return self._keep_known(_of_agents("postprocess", rows, width=self._width(block)))

    def _keep_known(self, value: Agents) -> Agents:
        if self._sources is not None:
            self._sources.known.append(value.rows.clone())
        return value


def _of_agents(operation: str, rows: list[Tensor], *, width: int) -> Agents:
    """What a function gave for each agent: all coordinates, for which noise is counted."""
    wrong = [tuple(row.shape) for row in rows if tuple(row.shape) != (width,)]
    if wrong:
        raise UndeclaredOperation(
            f"the function of round.{operation} returned shape {wrong[0]}; it must return "
            f"({width},)"
        )
    return Agents(torch.stack(rows))


def _stacked(points: Sequence[Value]) -> tuple[Tensor, Tensor]:
    """The points as models (K, M, D), and for each row of their values its position in M."""
    first = points[0]
    shared = all(_same_pick(point, first) for point in points)
    models = [point.base if shared else point.rows for point in points]
    pick = first.pick if shared else None
    owners = torch.arange(len(models[0]), device=models[0].device) if pick is None else pick
    return models[0][None] if len(models) == 1 else torch.stack(models), owners


def _same_pick(one: Value, other: Value) -> bool:
    if len(one.base) != len(other.base):
        return False
    if one.pick is None or other.pick is None:
        return one.pick is other.pick
    return one.pick is other.pick or torch.equal(one.pick, other.pick)
