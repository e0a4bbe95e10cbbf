"""A round on symbols: every operation as linear forms over what was drawn, known or sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...privacy.batches.sampling import Per
from ...privacy.errors import UndeclaredOperation
from ...privacy.participation import Draws, Reach
from ..graphs.graph import Graph
from ..step import operations
from ..step.floor import INITIAL, RANDOM, RESULT
from ..step.purity import PureFunction
from ..step.values import (
    NUMBERS,
    SERVER,
    Agents,
    Batch,
    ClipNorm,
    Cohort,
    Edges,
    LocalSteps,
    Parts,
    Server,
    Value,
    check_parameters,
    check_table,
    checked_number,
    whole_of,
)
from .arguments import checked_clip_norm, checked_factor, checked_knowers, makers_of
from .linear_forms import Known, LinearForms, NoiseSources, chosen, combined, only_of, weighted
from .record import GRADIENTS_AT, Recorder, RoundRecord


class TracedRound(operations.Operations):
    """A round that computes what its values are made of, and no value."""

    def __init__(self, graph: Graph, *, index: int = 1) -> None:
        self._graph, self._index = graph, index
        self._receivers, self._senders = graph.receivers, graph.senders
        self.agents = graph.agents
        self.weights, self.active = Edges(self.weight_table), Agents(self.active_table)
        self._record = Recorder()

    def do(self, name: str, values: operations.Values, how: operations.How) -> Any:
        """See `Operations.do`; what others may read is noted."""
        self._record.note_given(*operations.read_by_others(name, values, how))
        return super().do(name, values, how)

    @property
    def index(self) -> int:
        """The number of the round; reading it is noted."""
        self._record.reads_index = True
        return self._index

    def known(
        self,
        what: str,
        *,
        block: int = 0,
        made_of: Sequence[Value] = (),
        history: bool = False,
        secret_rounds: int = 0,
        public: operations.PublicNumbers | None = None,
    ) -> Agents:
        """A value that the closure counts as known, one row an agent."""
        start = self._record.width
        inputs = [
            (value.rows.matrix, self._holders(value))
            for value in made_of
            if self._record.is_private(value, what)
        ]
        made = Known(
            start=start,
            size=self.agents,
            what=what,
            block=block,
            inputs=inputs,
            history=history,
            secret_rounds=secret_rounds,
            public=public,
        )
        return Agents(self._record.add(made))

    def initial(self, *, block: int = 0) -> Agents:
        """See `Round.initial`."""
        check_parameters(block)
        return self.known(INITIAL, block=block)

    def of_agents(self, table: Tensor) -> Agents:
        """See `Round.of_agents`; public, so it is no column."""
        check_table(table, rows=self.agents, of="agent")
        return Agents(table.detach().double())

    def of_edges(self, table: Tensor) -> Edges:
        """See `Round.of_edges`; public, so it is no column."""
        check_table(table, rows=len(self._receivers), of="edge")
        return Edges(table.detach().double())

    def public(self, asked: operations.PublicNumbers, *, block: int) -> Agents:
        """See `Round.public`."""
        return self.known(RANDOM, block=block, public=asked)

    @property
    def weight_table(self) -> Tensor:
        """(E, 1) the mixing weights of all edges."""
        return torch.from_numpy(self._graph.edge_weights.copy())[:, None]

    @property
    def active_table(self) -> Tensor:
        """(A, 1) 1 for each agent that takes part, as far as is known when noise is made."""
        return torch.from_numpy(self._graph.announced.astype(np.float64))[:, None]

    @property
    def everybody(self) -> bool:
        """See `Operations.everybody`."""
        return not self._graph.absent

    def held(self, field: str, value: Agents) -> Agents:
        """See `Operations.held`; how wide it is shows in a run."""
        del field
        return Agents(self._record.rows(value, "state"))

    def kept(self, old: Agents, new: Agents) -> Agents:
        """See `Operations.kept`."""
        active = self._graph.active
        return Agents(chosen(active, self._record.rows(new, "state"), old.rows))

    def clipped_sums(
        self,
        *points: tuple[operations.P, ...],
        batch: Batch,
        coefs: Sequence[operations.Coef],
        clip_norm: ClipNorm,
        per: Per = Per.RECORD,
        scale: Agents | None = None,
        reach: Reach = Reach.SUM,
    ) -> tuple[operations.P, ...]:
        """See `Round.clipped_sums`; the parts of each block."""
        del coefs  # public; the bound is on the combination, whatever they are
        self._record.take((batch.call,), per=per)
        # The models count as seen, so that gradients at them are functions of the batch alone.
        blocks = self._blocks(points)
        for point in points:
            for value in point:
                self._record.count_as_seen(value, GRADIENTS_AT)
        if scale is not None:
            if self._record.rows(scale, "clipped_sums").block != NUMBERS:
                raise UndeclaredOperation(
                    "round.clipped_sums with a scale that is not one number an agent: give what "
                    "round.of_agents((A, 1)), or a function with block=NUMBERS, made"
                )
            self._record.count_as_seen(scale, "scale of what is clipped")

        kind, owners = type(points[0][0]), self._holders(points[0][0])
        here, apart = self._graph.active[owners], isinstance(clip_norm, Parts)
        bound = checked_clip_norm(whole_of(clip_norm))
        rows = self._record.clipped(
            batch,
            blocks,
            owners=owners,
            here=here,
            bound=bound,
            reach=reach,
            per=per,
            scaled=scale is not None or apart,
        )
        return tuple(kind(part) for part in rows)

    def count(
        self,
        fn: PureFunction,
        point: Agents,
        *,
        batch: Batch,
        of: operations.Of,
        released: tuple[Agents, ...],
    ) -> Agents:
        """See `Round.count`."""
        del fn, of  # each record's number is clipped to [0, 1], whatever the function makes of it
        self._record.take((batch.call,))
        if self._record.rows(point, "count").block:
            raise UndeclaredOperation("round.count at other values than parameters: give a model")
        self._record.count_as_seen(point, "model at which records are counted")
        for value in released:
            self._record.count_as_seen(value, "released input of count")
        here, owners = self._graph.active, np.arange(self.agents)
        how: dict[str, Any] = {"owners": owners, "here": here, "bound": 1.0}
        (rows,) = self._record.clipped(batch, [NUMBERS], reach=Reach.SUM, per=Per.RECORD, **how)
        return Agents(rows)

    def clipped_mean(
        self, point: operations.P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> operations.P:
        """See `Round.clipped_mean`."""
        del batch_size
        bound = checked_clip_norm(clip_norm)
        (mean,) = self.clipped_sums(
            (point,),
            batch=batch,
            coefs=(1.0,),
            clip_norm=None if bound is None else 2.0 * bound,
            reach=Reach.BALL,
        )
        return mean

    def local_update(self, point: Agents, asked: LocalSteps) -> Agents:
        """See `Round.local_update`."""
        # The start counts as seen; from there to the end everything is the agent's own.
        self._record.take(tuple(batch.call for batch in asked.batches))
        block = self._record.rows(point, "local_update").block
        if block:
            raise UndeclaredOperation("round.local_update of dual variables: it takes parameters")
        self._record.count_as_seen(point, "model at which local steps begin")
        bound = math.inf if asked.clip_norm is None else 2.0 * asked.clip_norm  # the diameter
        return self._record.contributed(
            self._graph.active,
            bounds=np.full(self.agents, bound),
            batch=asked.call,
            draws=Draws(tuple(batch.sampling_rate for batch in asked.batches)),
            reach=Reach.BALL,
        )

    def _blocks(self, points: Sequence[tuple[operations.P, ...]]) -> list[int]:
        """The blocks of a point, the same for every point and each of them once."""
        every = [[self._record.rows(v, "clipped_sums").block for v in point] for point in points]
        if any(blocks != every[0] for blocks in every) or len(set(every[0])) < len(every[0]):
            raise UndeclaredOperation(
                f"round.clipped_sums at points of blocks {every}: every point has the same "
                "blocks, each of them once"
            )
        return every[0]

    def noise(
        self,
        like: operations.V,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> operations.V:
        """See `Round.noise`."""
        # Who knows each source: unless it is said, the holders of the rows that it enters.
        rows = self._record.rows(like, "noise")
        count, holders = rows.shape[0], self._holders(like)
        remedy = "the deviation of the noise, 0 for none"
        std = checked_number("std", std, least=0.0, most=math.inf, remedy=remedy)
        mixing = None if factor is None else checked_factor(factor, rows=count)
        if known_to is not None:
            sources = count if mixing is None else mixing.shape[1]
            known_to = checked_knowers(known_to, sources=sources, agents=self.agents)
        else:
            known_to = makers_of(holders, mixing)

        # A column for each source, and rows that mix them.
        start = self._record.width
        unit = self._record.add(
            NoiseSources(start=start, known_to=list(known_to), block=rows.block)
        )
        # An absent agent makes no noise; the server is always there.
        here = (holders == SERVER) | self._graph.active[holders]
        noise = unit if mixing is None else combined(mixing, unit)
        return type(like)(only_of(here, noise) * std)

    def remembered(self, fresh: Agents, *past: Agents, row: Sequence[float]) -> Agents:
        """See `Round.remembered`: one sum, in place of one for each round of the past."""
        every = [self._record.rows(value, "remembered") for value in (fresh, *past)]
        weights = [1.0 / row[0], *(-one / row[0] for one in row[1:])]
        return Agents(weighted(weights, every))

    def _holders(self, value: Value) -> np.ndarray:
        if isinstance(value, Server):
            return np.array([SERVER])
        return self._receivers if isinstance(value, Edges) else np.arange(self.agents)

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        self._graph.check_links("round.broadcast")
        crosses = self._receivers != self._senders
        links = np.c_[self._senders[crosses], self._receivers[crosses]]
        rows = self._record.rows(value, "broadcast")
        sent = self._record.send(rows, kind=kind, senders=np.arange(self.agents), links=links)
        return Edges(sent, torch.from_numpy(self._senders.copy()))

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        crosses = np.flatnonzero(self._receivers != self._senders)
        links = np.c_[crosses, self._senders[crosses]]
        rows = self._record.rows(value, "reply")
        sent = self._record.send(rows, kind=kind, senders=self._receivers, links=links)
        return Edges(sent, operations.reply_order(self._graph))

    def upload(self, value: Agents, *, kind: str) -> Server:
        """See `Round.upload`."""
        every, here = np.arange(self.agents), np.flatnonzero(self._graph.active)
        links = np.c_[here, np.full(len(here), SERVER)]
        rows = self._record.rows(value, "upload")
        return self._mean(self._record.send(rows, kind=kind, senders=every, links=links))

    def download(self, value: Server, *, kind: str) -> Agents:
        """See `Round.download`."""
        here = np.flatnonzero(self._graph.active)
        links = np.c_[np.zeros_like(here), here]
        rows = self._record.rows(value, "download")
        sent = self._record.send(rows, kind=kind, senders=np.array([SERVER]), links=links)
        return Agents(sent, torch.zeros(self.agents, dtype=torch.int64))

    def average(self, value: Agents, *, cohort: Cohort | None = None) -> Server:
        """See `Round.average`."""
        if cohort is None:
            return self._mean(self._record.rows(value, "average"))
        # Rows that hold nothing but the agent's own data are 0 where it does not take part.
        what = "an average under a secret cohort"
        if self._graph.absent:
            raise UndeclaredOperation(
                f"{what} in a round from which agents are absent by a public list, or may be "
                "missing: nothing is known of both together; leave one of the two out"
            )
        found = self._record.bounds_of_secret(value, what)
        if not found.centred:
            raise UndeclaredOperation(
                "round.average of a bounded function under a secret cohort: it need not be 0 "
                "without data; average clipped contributions"
            )
        drawn = self._record.contributed(
            self._graph.active,
            bounds=found.bounds,
            batch=found.batch,
            draws=Draws(found.draws.rates, cohort.rate, str(cohort.scheme)),
            cohort=cohort.call,
            block=value.rows.block,
            reach=found.reach,
        )
        share = np.full((1, self.agents), 1.0 / (cohort.rate * self.agents))
        return Server(combined(share, self._record.rows(drawn, "average")))

    def _mean(self, rows: LinearForms) -> Server:
        of = max(1, int(self._graph.announced.sum()))  # as many as noise was made for
        return Server(combined(self._graph.active[None, :] / of, rows))

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        from scipy.sparse import csr_array

        rows = self._record.rows(value if weights is None else value * weights, "sum_in")
        if weights is not None and self._graph.unannounced:
            self._record.check_received(rows)
        edges, ends = np.arange(len(self._receivers)), np.arange(self.agents + 1)
        starts = np.searchsorted(self._receivers, ends)  # edges are sorted by receiver
        return Agents(combined(csr_array((np.ones(len(edges)), edges, starts)), rows))

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        return Agents(value.rows[np.flatnonzero(self._receivers == self._senders)])

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        return Edges(value.rows, torch.from_numpy(self._receivers.copy()))

    def bounded(
        self,
        fn: PureFunction,
        secret: Agents,
        *,
        released: Sequence[Edges] = (),
        private: Sequence[Agents] = (),
        lipschitz: float,
        blame: str,
    ) -> Agents:
        """See `Round.bounded`; what the function does matters to a run alone."""
        # What others released counts as seen; private arguments are held fixed, behind noise.
        del fn
        for held in private:
            if self._record.is_private(held, "bounded"):
                self._record.count_bare_as_seen(held.rows, "private input of bounded")
        others = np.flatnonzero(self._receivers != self._senders)
        for value in released:
            if self._record.is_private(value, "bounded"):
                self._record.close("released input of bounded", value.rows[others])

        # Data of the secret's owner, of the same batch, and heuristic from here on.
        remedy = "the bound on how far the function stretches its secret"
        lipschitz = checked_number("lipschitz", lipschitz, least=0.0, most=math.inf, remedy=remedy)
        secret_bounds = self._record.bounds_of_secret(
            secret, "bounded", absent=bool(self._graph.absent)
        )
        self._record.blames.append(blame)
        return self._record.contributed(
            self._graph.active,
            bounds=lipschitz * secret_bounds.bounds,
            batch=secret_bounds.batch,
            draws=secret_bounds.draws,
            blame=blame,
            block=secret.rows.block,
            reach=secret_bounds.reach,
        )

    def postprocess(self, fn: PureFunction, *values: Agents | Edges, block: int = 0) -> Agents:
        """See `Round.postprocess`; what the function does matters to a run alone."""
        del fn
        return self._postprocessed(*values, block=block)

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """See `Round.project`."""
        return self._postprocessed(value, block=block)

    def _postprocessed(self, *values: Agents | Edges, block: int) -> Agents:
        for value in values:
            self._record.count_as_seen(value, "input of postprocess")
        return self.known(RESULT, block=block, made_of=values)

    def finish(self, state: Any) -> RoundRecord:
        """The record of the round, once the step has returned its state."""
        return self._record.finish(state, agents=self.agents, absent=self._graph.absent)


class _Unlooked:
    """Rows of which nobody asks what they are made of: all that is made of them is such, too."""

    def of_table(self, *_: object) -> _Unlooked:
        return self

    __add__ = __sub__ = __mul__ = __getitem__ = of_table


UNLOOKED = _Unlooked()


class RepeatedRound(TracedRound):
    """A round that was traced before, done again for its script alone.

    A step sees no row, so what it does cannot depend on what rows are made of. What an operation
    refuses follows from what scripts hold: one that was traced and has the same script is refused
    nothing, and one with another script is no repetition.
    """

    def do(self, name: str, values: operations.Values, how: operations.How) -> Any:
        """Of each operation that makes rows, a value of the kind that it makes."""
        if name in ("draw", "cohort", "of_agents", "of_edges"):  # tokens, and public numbers
            return self._carry_out(name, values, how)
        if name == "clipped_sums":
            return tuple(type(point)(UNLOOKED) for point in values[0])
        if name in ("clipped_mean", "noise"):
            return type(values[0])(UNLOOKED)
        if name in ("upload", "average"):
            return Server(UNLOOKED)
        return (Edges if name in ("broadcast", "reply", "spread") else Agents)(UNLOOKED)

    def held(self, field: str, value: Agents) -> Agents:
        """See `Operations.held`."""
        del field
        return value

    def kept(self, old: Agents, new: Agents) -> Agents:
        """See `Operations.kept`."""
        del old
        return new
