"""A round on real tensors, of all agents or of those that a rank holds.

    A agents   D parameters   E directed edges, self-loops included, sorted by (receiver, sender)

With ranks, values hold the rows of this rank's agents, or of the edges that end at them; a value
of the server has its row on every rank. Noise is seeded by the row's number among all rows, so a
row has the same noise wherever it is made.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...privacy.batches.sampling import Per
from ...privacy.errors import InputError, UndeclaredOperation
from ..data.store import Examples
from ..device.precision import on_device
from ..gradients.counts import Counts
from ..gradients.gradients import ClippedSums
from ..gradients.whole_vectors import clipped, local_change, sums_of
from ..step.floor import INITIAL, MOST_LOST, NO_FLOOR, RANDOM, RESULT, TABLE, UNIT, Floor
from ..step.operations import Coef, Of, Operations, P, PublicNumbers, V, checked_scale, reply_order
from ..step.purity import PureFunction
from ..step.script import no_projection, projection
from ..step.values import (
    ALL,
    NUMBERS,
    Agents,
    Batch,
    ClipNorm,
    Cohort,
    Edges,
    LocalSteps,
    Parts,
    Quantile,
    Server,
    Value,
    check_parameters,
    check_table,
)
from .exchange import Arrivals, Ranks, fetch, gather
from .links import Gathered, Links, Outbox, by_coordinate, stacked
from .randomness import NoiseMaker
from .recording import Argument, Calls, called
from .transcript import Tap

# Public values of a round, compared with its floor before noise that is too small for them leaves.
#
# Looked at are models that earlier rounds released, the initial one, and results of functions of
# what was released, by the largest norm of a row. Ranks look at the largest of all ranks, so that
# all of them stop or none. A round whose trace asks for nothing looks at nothing.


class NoiseBelowRounding(InputError):
    """Float rounding beside large public values would be seen through the noise of a round."""


class PublicValues:
    """The public values of one round so far.

    Args:
        floor: of the round.
        round: its number; 0 is the start.
        tensors: the names of the parameter tensors, each with its number of values.
        ranks: this process among the others, if there are some.
    """

    def __init__(
        self,
        floor: Floor,
        *,
        round: int,
        tensors: Sequence[tuple[str, int]] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self._floor, self._round, self._tensors, self._ranks = floor, round, tensors, ranks
        self._names, self._norms = floor.names, dict[str, float]()

    def note(self, what: str, rows: Tensor) -> None:
        """Look at values of a name, before anything is made of them.

        Raises:
            NoiseBelowRounding: they are too large for the noise of the round.
        """
        if what not in self._names:
            return
        largest = self._of_all_ranks(torch.linalg.vector_norm(rows.detach(), dim=1).max()[None])
        norms, eps = self._norms, torch.finfo(rows.dtype).eps
        norms[what] = max(norms.get(what, 0.0), float(largest.max()))
        norms[UNIT] = max(norms.get(UNIT, 0.0), math.sqrt(rows.shape[1]))
        if not (lost := self._floor.mu_lost(norms, eps=eps)) <= MOST_LOST:
            raise NoiseBelowRounding(self._sentence(what, rows.detach(), lost))

    def _of_all_ranks(self, numbers: Tensor) -> Tensor:
        """(ranks, n) the numbers (n,) of each rank, on every rank."""
        if self._ranks is None:
            return numbers[None]
        shares = [range(rank, rank + 1) for rank in range(self._ranks.size)]
        return gather(numbers[None], shares=shares, ranks=self._ranks)

    def _sentence(self, what: str, rows: Tensor, lost: float) -> str:
        """What is too large for which noise, and what helps."""
        eps, kind = torch.finfo(rows.dtype).eps, str(rows.dtype).removeprefix("torch.")
        worst = self._floor.worst(self._norms, eps=eps)
        # The largest number of all ranks, which all of them say.
        mine = rows.abs().flatten()
        at = mine.argmax()
        found = self._of_all_ranks(torch.stack([mine[at].double(), at.double()])).tolist()
        value, place = max(found)
        tensor = self._tensor(int(place) % rows.shape[1], rows)
        step = eps * 2.0 ** math.floor(math.log2(value)) if 0 < value < math.inf else math.inf
        hidden = (
            f"noise of deviation {worst.deviation:.3g} a coordinate"
            if worst.deviation
            else "noise that others know or share, and none of the row's own,"
        )
        return (
            f"round {self._round} was stopped before its noise left: {hidden} comes in after data "
            f"were added to {what}, whose largest number is {value:g} ({tensor}), "
            f"where {kind} has steps of {step:.3g}; over all coordinates this rounding adds "
            f"{lost:.2g} to mu, and {MOST_LOST:.2g} is the most: add the noise to the clipped sum "
            "first, before any other term, or centre the target, so that the model is small"
        )

    def _tensor(self, at: int, rows: Tensor) -> str:
        """Where a coordinate is."""
        if sum(size for _, size in self._tensors) == rows.shape[1]:
            for name, size in self._tensors:
                if at < size:
                    return f"{name!r}"
                at -= size
        return f"coordinate {at}"


# (call, sampling rate, what has a coin) -> a batch for each agent that is here
DrawBatch = Callable[[int, float | None, Per], Sequence[Examples]]
UsersOf = Callable[[int], Sequence[Tensor | None]]  # of the records of the batches of a call
TakeAll = Callable[[], Sequence[Examples]]  # of each agent that is here
DrawCohort = Callable[[Cohort], Tensor]  # (agents that are here, 1): whether each takes part


class Drawing(NamedTuple):
    """What gives a round its records and cohorts.

    Attributes:
        draw: the agents' batches for a call of `draw`.
        users_of: whose the records of a batch are.
        take_all: all records of the agents.
        draw_cohort: who takes part for a call of `cohort`.
    """

    draw: DrawBatch
    users_of: UsersOf
    take_all: TakeAll
    draw_cohort: DrawCohort


def _no_counts() -> Counts:
    raise UndeclaredOperation("round.count outside of a run: there is no network to ask")


class AllRounds(NamedTuple):
    """What is the same in every round of a run.

    Attributes:
        initial: (D,) the public initial model, its blocks side by side.
        sizes: coordinates of each block, which add up to D.
        gradients: the gradient layout.
        projection: the task's, for `round.project`.
        counts: gives what counts records; there is none outside of a run.
    """

    initial: Tensor
    sizes: Sequence[int]
    gradients: ClippedSums
    projection: Callable[[Tensor], Tensor] = no_projection
    counts: Callable[[], Counts] = _no_counts


class TensorRound(Operations):
    """One round of a run.

    Args:
        links: the graph, and which part of it is here.
        every: what is the same in all rounds.
        index: the number of the round; 0 is the start.
        drawing: gives records and cohorts.
        randomness: where noise comes from.
        calls: calls the functions that a step gives, so that a check may watch them.
        taps: called with every message before it is delivered.
        public: compares public values with the floor of the round; nothing where None.
    """

    def __init__(
        self,
        links: Links,
        every: AllRounds,
        *,
        index: int,
        drawing: Drawing,
        randomness: NoiseMaker,
        calls: Calls | None = None,
        taps: Sequence[Tap | Gathered] = (),
        public: PublicValues | None = None,
    ) -> None:
        self._links, self._every, self._index = links, every, index
        self._sizes = tuple(every.sizes)
        self._initial = every.initial.split(self._sizes)
        self._gradients, self._drawing, self._randomness = every.gradients, drawing, randomness
        self._called = calls or Calls()
        self._outbox = Outbox(links, round=index, taps=taps)
        self._noise_calls = 0
        self._public_values = public or PublicValues(NO_FLOOR, round=index)
        self._records: list[Sequence[Examples]] = []
        self._taking_part: list[Tensor] = []
        self.agents = links.agents
        self.weights = Edges(links.weights.double())  # public numbers keep float64
        self.active = Agents(links.active_here.double()[:, None])

    @property
    def index(self) -> int:
        """The number of the round."""
        return self._index

    def initial(self, *, block: int = 0) -> Agents:
        """See `Round.initial`."""
        check_parameters(block)
        self._checked_width(block)
        self._public_values.note(INITIAL, self._initial[block][None])
        return Agents(self._initial[block].expand(len(self._links.mine), -1))

    def _checked_width(self, block: int) -> int:
        if block == NUMBERS:
            return 1
        if not 0 <= block < len(self._sizes):
            raise InputError(f"block={block} must lie in 0..{len(self._sizes) - 1}")
        return self._sizes[block]

    def of_agents(self, table: Tensor) -> Agents:
        """See `Round.of_agents`."""
        check_table(table, rows=self.agents, of="agent")
        return Agents(self._of_table(table, self._links.mine))

    def public(self, asked: PublicNumbers, *, block: int) -> Agents:
        """See `Round.public`."""
        rows = asked.rows(self._links.mine, width=self._checked_width(block))
        like = self._initial[0]
        held = on_device(rows, like.device, like.dtype)
        self._public_values.note(RANDOM, held)
        return Agents(held)

    def of_edges(self, table: Tensor) -> Edges:
        """See `Round.of_edges`."""
        check_table(table, rows=len(self._links.graph.receivers), of="edge")
        return Edges(self._of_table(table, self._links.edges))

    def _of_table(self, table: Tensor, mine: range) -> Tensor:
        """The rows that are here, in the precision of the run; factors keep float64."""
        like, own = self._initial[0], table.detach()[mine.start : mine.stop]
        kind = torch.float64 if table.shape[1] == 1 else like.dtype
        rows = on_device(own, like.device, kind)
        self._public_values.note(TABLE, rows)
        return rows

    @property
    def weight_table(self) -> Tensor:
        """(E, 1) the mixing weights of all edges."""
        return torch.from_numpy(self._links.graph.edge_weights.copy())[:, None]

    @property
    def active_table(self) -> Tensor:
        """(A, 1) 1 for each agent that takes part."""
        return torch.from_numpy(self._links.graph.active.copy()).double()[:, None]

    @property
    def everybody(self) -> bool:
        """See `Operations.everybody`."""
        return self._links.everybody

    def held(self, field: str, value: Agents) -> Agents:
        """See `Operations.held`; factors are in float64, and tables may have any width."""
        width = value.rows.shape[1]
        if width not in (self._sizes[:1] if field == "x" else (*self._sizes, 1)):
            raise InputError(
                f"state field {field!r} has rows of {width} numbers, and the model has "
                f"{' and '.join(map(str, self._sizes))}; give round.of_agents as many columns"
            )
        return Agents(value.rows.to(self._initial[0].dtype))

    def kept(self, old: Agents, new: Agents) -> Agents:
        """See `Operations.kept`."""
        return Agents(torch.where(self._links.active_here[:, None], new.rows, old.rows))

    def _of_active(self, value: V) -> V:
        """Rows of which those that an absent agent holds are 0; the server is always there."""
        if self._links.everybody or isinstance(value, Server):
            return value
        here, on_links = self._links.active_here, isinstance(value, Edges)
        held = here[self._links.receivers_here] if on_links else here
        rows: Tensor = value.rows
        return type(value)(torch.where(held[:, None], rows, torch.zeros_like(rows)))

    def draw(self, batch: Batch) -> Batch:
        """See `Round.draw`."""
        self._records.append(self._drawing.draw(batch.call, batch.sampling_rate, batch.per))
        return batch

    def clipped_sums(
        self,
        *points: tuple[P, ...],
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: ClipNorm,
        per: Per,
        scale: Agents | None = None,
    ) -> tuple[P, ...]:
        """See `Round.clipped_sums`; the parts of each block."""
        kind = type(points[0][0])
        how: dict[str, Any] = {"batch": batch, "clip_norm": clip_norm, "per": per}
        sums = self._sums(points, coefs=coefs, scale=scale, **how)
        parts = sums.split(self._sizes, dim=1)
        return tuple(self._of_active(kind(part)) for part in parts)

    def _rows_in_all(self, value: Value) -> int:
        """How many rows there are of all agents."""
        if isinstance(value, Server):
            return 1
        return self._links.edge_shares[-1].stop if isinstance(value, Edges) else self.agents

    def _row_numbers(self, value: Value) -> range:
        """The numbers of the rows that are here among those of all agents."""
        if isinstance(value, Server):
            return range(1)
        return self._links.edges if isinstance(value, Edges) else self._links.mine

    def _sums(
        self,
        points: Sequence[tuple[P, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: ClipNorm,
        per: Per = Per.RECORD,
        scale: Agents | None = None,
        as_one: bool = False,
    ) -> Tensor:
        """Clipped sums; `as_one` where the caller clips them whole, and nothing here is."""
        # Whose model, and whose records, each row is of.
        models, owners = stacked(points, sizes=self._sizes, links=self._links)
        links, on_links = self._links, isinstance(points[0][0], Edges)
        users = self._drawing.users_of(batch.call) if per is Per.USER else None
        holders = links.on_host(links.receivers_here) if on_links else list(range(len(owners)))
        records = self._records[batch.call]
        if isinstance(clip_norm, Parts) and sum(clip_norm.sizes) != models.shape[-1]:
            raise InputError(
                f"parts={clip_norm.sizes} of round.clipped_sums have {sum(clip_norm.sizes)} "
                f"coordinates, and a vector has {models.shape[-1]}"
            )
        if isinstance(clip_norm, Parts | Quantile):  # one by one
            users = users or [torch.arange(len(of.targets)) for of in records]
        made = functools.partial(
            sums_of(self._gradients, users, as_one=as_one),
            batches=records,
            clip_norm=clip_norm,
            pairs_of_run=self._rows_in_all(points[0][0]),
        )
        weights = [by_coordinate(coef, sizes=self._sizes, like=models) for coef in coefs]
        if scale is None:
            return made(models, (owners, holders), coefficients=weights)
        # clip(g / c), row by row: who divides has a number of its own.
        by = checked_scale(scale.rows)
        out = models.new_zeros(len(owners), models.shape[-1])
        for row, (owner, holder) in enumerate(zip(owners, holders, strict=True)):
            divided = [weight / by[holder] for weight in weights]
            out[row] = made(models, ([owner], [holder]), coefficients=divided)[0]
        return out

    def count(
        self, fn: PureFunction, point: Agents, *, batch: Batch, of: Of, released: tuple[Agents, ...]
    ) -> Agents:
        """See `Round.count`."""
        rows = point.rows
        if rows.shape[1] != self._sizes[0] or len(self._sizes) > 1:
            raise UndeclaredOperation("round.count of a task with dual variables, or at no model")
        given = [self._as_given(value).rows for value in released]
        of_batches = self._every.counts().of_batches
        found = of_batches(fn, rows, self._records[batch.call], of=of, released=given)
        return self._of_active(Agents(found))

    def clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        """See `Round.clipped_mean`."""
        sums = self._sums(((point,),), batch=batch, coefs=(1.0,), clip_norm=clip_norm, as_one=True)
        return self._of_active(type(point)(clipped(self._gradients, sums / batch_size, clip_norm)))

    def local_update(self, point: Agents, asked: LocalSteps) -> Agents:
        """See `Round.local_update`."""
        if len(self._sizes) > 1:
            raise UndeclaredOperation(
                "round.local_update for a task with dual variables: it takes the parameters of a "
                "task without them"
            )
        changed = local_change(
            point.rows,
            asked,
            records=lambda of: self._drawing.take_all() if of is ALL else self._records[of.call],
            gradients=self._gradients,
            pairs_of_run=self.agents,
        )
        return self._of_active(Agents(changed))

    def cohort(self, cohort: Cohort) -> Cohort:
        """See `Round.cohort`."""
        self._taking_part.append(self._drawing.draw_cohort(cohort))
        return cohort

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
        # Drawn by the row's number among all rows; noise that is mixed needs every source.
        rows, here, call = like.rows, self._row_numbers(like), self._noise_calls
        self._noise_calls += 1
        z = self._randomness.normal(
            round=self._index,
            call=call,
            rows=list(here if factor is None else range(factor.shape[1])),
            width=rows.shape[1],
            dtype=rows.dtype,
            device=rows.device,
        )
        if factor is not None:
            if len(factor) != (every := self._rows_in_all(like)):
                raise InputError(f"factor of shape {tuple(factor.shape)} must have {every} rows")
            # In float64, because correlated noise cancels; and whole on every rank, because a
            # product of fewer rows rounds otherwise.
            mixed = on_device(factor, z.device, torch.float64) @ z.double()
            made = type(like)((mixed[here.start : here.stop] * std).to(z.dtype))
            return self._of_active(made)
        return self._of_active(type(like)(z.mul_(std)))

    def _brought_here(self, rows: Tensor, plan: Arrivals | None) -> Tensor:
        """The rows that this rank's receivers get; all of them without ranks."""
        ranks = self._links.ranks
        return rows if ranks is None or plan is None else fetch(rows, plan, ranks=ranks)

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        rows = self._outbox.tell("broadcast", value, kind=kind)
        return Edges(self._brought_here(rows, self._links.broadcasts), self._links.broadcast_rows)

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        if self._links.reply_rows is None:
            reply_order(self._links.graph)
        rows = self._outbox.tell("reply", value, kind=kind)
        return Edges(self._brought_here(rows, self._links.replies), self._links.reply_rows)

    def upload(self, value: Agents, *, kind: str) -> Server:
        """See `Round.upload`."""
        return self._mean(self._outbox.tell("upload", value, kind=kind))

    def download(self, value: Server, *, kind: str) -> Agents:
        """See `Round.download`."""
        return Agents(self._outbox.tell("download", value, kind=kind), self._links.server_rows)

    def average(self, value: Agents, *, cohort: Cohort | None = None) -> Server:
        """See `Round.average`."""
        rows: Tensor = value.rows
        if cohort is None:
            return self._mean(rows)
        taking = on_device(self._taking_part[cohort.call], rows.device, rows.dtype)
        return self._mean(rows * taking) * (1.0 / cohort.rate)

    def _mean(self, rows: Tensor) -> Server:
        """The mean over all agents, of the same rows in the same order on every rank."""
        ranks, shares = self._links.ranks, self._links.agent_shares
        every = rows if ranks is None else gather(rows, shares=shares, ranks=ranks)
        if not self._links.everybody:
            present = every[self._links.active_positions]
            return Server(present.sum(dim=0, keepdim=True) / max(1, len(present)))
        return Server(every.contiguous().mean(dim=0, keepdim=True))

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        by = torch.ones_like(self._links.weights) if weights is None else weights.rows
        return Agents(self._links.weighted_sums(value.base, by.to(value.base.dtype), value.pick))

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        loops = self._links.self_loops
        return Agents(value.base[loops if value.pick is None else value.pick[loops]])

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        return Edges(value.rows, self._links.receivers_here)

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
        """See `Round.bounded`; bound and blame matter to the trace alone."""
        del lipschitz, blame
        # For each agent its own row and what each of its neighbours released to it.
        given = [
            Argument(secret),
            *(Argument(self._as_given(value), others=True) for value in released),
            *(Argument(self._as_given(value)) for value in private),
        ]
        made = called(
            self._called,
            fn,
            given,
            links=self._links,
            operation="bounded",
            width=secret.base.shape[1],
        )
        return self._of_active(made)

    def postprocess(self, fn: PureFunction, *values: Agents | Edges, block: int = 0) -> Agents:
        """See `Round.postprocess`."""
        return self._postprocessed(fn, *values, block=block)

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """See `Round.project`; a projection that gives another result each time is refused."""
        return self._postprocessed(projection(self._every.projection), value, block=block)

    def _as_given(self, value: Any) -> Any:
        """A value as a function gets it: public numbers, too, in the precision of the run."""
        return type(value)(value.base.to(self._initial[0].dtype), value.pick)

    def _postprocessed(self, pure: PureFunction, *values: Agents | Edges, block: int) -> Agents:
        made = called(
            self._called,
            pure,
            [Argument(self._as_given(value)) for value in values],
            links=self._links,
            operation="postprocess",
            width=self._checked_width(block),
        )
        self._public_values.note(RESULT, made.rows)
        return made
