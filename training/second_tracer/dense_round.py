"""The operations of a round on dense linear forms, and what crosses links meanwhile.

Written from the documentation of the operations alone, beside the tracer whose figures it checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.sampling import Per, Scheme
from ..graphs.graph import Graph
from ..step.operations import Coef, Of, Operations, PublicNumbers, reply_order
from ..step.purity import PureFunction
from ..step.values import (
    NUMBERS,
    Agents,
    Batch,
    ClipNorm,
    Cohort,
    Edges,
    LocalSteps,
    Server,
    Value,
    whole_of,
)

# Dense linear forms: rows of a value over contributions and over sources of noise.
#
# What is known to everybody is left out, as it protects nobody and shows nothing. Beside every
# coefficient stands the sum of what it was added up from, in absolute value: a coefficient that is
# a rounding error of that sum counts as zero.

Array = NDArray[np.float64]
_ROUNDING = 1e-13  # of what a coefficient was added up from


class NotAnswered(Exception):
    """The second tracer has no answer, and says why."""


class Kind:
    """What a contribution is made of."""

    SUM = "clipped examples, added"
    USERS = "clipped users, added"
    BALL = "one clipped vector"


class Contribution(NamedTuple):
    """A vector that depends on the data of one agent.

    Attributes:
        owner: the agent.
        batches: the calls of `draw` of its round that it is made from; none where all data are.
        rate: the probability that a record is in one of these batches; None for the run's own.
        kind: one of `Kind`.
        users: whether its batch is one of whole users.
        bound: what its clipped vectors are at most, by norm.
        round: in which it is made.
        cohort: the probability that its agent takes part in a trusted sum, which nobody sees; None
            where that is decided by no coin.
    """

    owner: int
    batches: tuple[int, ...]
    rate: float | None
    kind: str
    users: bool
    bound: float
    round: int
    cohort: float | None = 1.0


@dataclass(slots=True)
class Sources:
    """The columns of all rows: parts of contributions, and sources of noise.

    Attributes:
        contributions: by number.
        columns: (number of a contribution, block) for a part of it; the agents that know it for
            a source of noise.
    """

    contributions: list[Contribution] = field(default_factory=list)
    columns: list[tuple[int, int] | frozenset[int]] = field(default_factory=list)

    def contribute(self, one: Contribution, blocks: Sequence[int]) -> list[int]:
        """Add a contribution; the columns of its blocks, which are named."""
        self.contributions.append(one)
        number, first = len(self.contributions) - 1, len(self.columns)
        self.columns += [(number, block) for block in blocks]
        return list(range(first, len(self.columns)))

    def noise(self, known_to: frozenset[int]) -> int:
        """Add a source of noise; its column."""
        self.columns.append(known_to)
        return len(self.columns) - 1


class Rows:
    """Rows of linear forms, in one block of a point."""

    __slots__ = ("block", "made_of", "of")

    def __init__(self, of: Array, made_of: Array, block: int = 0) -> None:
        self.of, self.made_of, self.block = of, made_of, block

    @classmethod
    def at(cls, columns: list[int], *, block: int = 0, by: float = 1.0) -> Self:
        """A row for each column, with `by` in it and nothing else; -1 stands for no column."""
        of = np.zeros((len(columns), max(columns, default=-1) + 1))
        for row, column in enumerate(columns):
            if column >= 0:
                of[row, column] = by
        return cls(of, np.abs(of), block)

    @property
    def cleaned(self) -> Array:
        """The coefficients, without what is a rounding error."""
        return np.where(np.abs(self.of) > _ROUNDING * self.made_of, self.of, 0.0)

    def wide(self, columns: int) -> Array:
        """The same with so many columns."""
        return np.pad(self.cleaned, ((0, 0), (0, columns - self.of.shape[1])))

    def through(self, matrix: Array) -> Rows:
        """Public combinations of the rows."""
        return Rows(matrix @ self.of, np.abs(matrix) @ self.made_of, self.block)

    def of_table(self, table: Tensor) -> Rows:
        """A public table, which everybody knows, as rows of the same block."""
        return zeros(len(table), self.block)

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, pick: Any) -> Rows:
        chosen = np.asarray(pick, dtype=np.int64)
        return Rows(self.of[chosen], self.made_of[chosen], self.block)

    def _plus(self, other: object, sign: float) -> Rows:
        if isinstance(other, Tensor):  # a public table
            return self
        if not isinstance(other, Rows) or len(other) != len(self) or other.block != self.block:
            raise NotAnswered("it adds values that do not fit")
        width = max(self.of.shape[1], other.of.shape[1])
        wide = [_widened(one, width) for one in (self.of, other.of, self.made_of, other.made_of)]
        return Rows(wide[0] + sign * wide[1], wide[2] + wide[3], self.block)

    def __add__(self, other: object) -> Rows:
        return self._plus(other, 1.0)

    __radd__ = __add__

    def __sub__(self, other: object) -> Rows:
        return self._plus(other, -1.0)

    def __rsub__(self, other: object) -> Rows:
        return (self * -1.0) + other

    def __mul__(self, factor: Any) -> Rows:
        by = factor.detach().cpu().numpy() if isinstance(factor, Tensor) else np.asarray(factor)
        by = np.asarray(by, dtype=np.float64)
        if by.ndim not in (0, 2) or (by.ndim == 2 and by.shape != (len(self), 1)):
            raise NotAnswered(f"it scales rows by a table of shape {by.shape}")
        return Rows(self.of * by, self.made_of * np.abs(by), self.block)

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A public tensor on the left of `*`, `+` or `-`."""
        name = getattr(func, "__name__", "").strip("_").removeprefix("r")
        left, right = args[0], args[1]
        rows, table = (right, left) if isinstance(right, Rows) else (left, right)
        if name == "mul":
            return rows * table
        if name == "add":
            return rows
        if name == "sub":
            return rows if rows is left else rows * -1.0
        raise NotAnswered(f"it gives rows to torch.{name}")


def zeros(rows: int, block: int = 0) -> Rows:
    """What is known to everybody."""
    return Rows(np.zeros((rows, 0)), np.zeros((rows, 0)), block)


def _widened(table: Array, width: int) -> Array:
    return np.pad(table, ((0, 0), (0, width - table.shape[1])))


def bound_of(clip_norm: float | None) -> float:
    """A bound on a vector's norm; infinite where nothing is clipped."""
    return math.inf if clip_norm is None else float(clip_norm)


class Message(NamedTuple):
    """Rows that somebody sees, or that count as seen by everybody.

    Attributes:
        rows: what is in them.
        parties: of each row the agents that send or receive it; None where it crosses no link and
            counts as seen by every adversary.
    """

    rows: Rows
    parties: tuple[frozenset[int], ...] | None


class DenseRound(Operations):
    """One round, on dense linear forms.

    Args:
        number: of the round, from 1; 0 is the start.
        sources: gets the columns that the round adds.

    Attributes:
        seen: messages, and what counts as seen, in their order.
        asked_number: whether the step asked for the number of the round.
    """

    def __init__(self, graph: Graph, *, number: int, sources: Sources) -> None:
        self.agents, self._graph, self._index, self._sources = graph.agents, graph, number, sources
        self.weights, self.active = Edges(self.weight_table), Agents(self.active_table)
        self.seen: list[Message] = []
        self.asked_number = False

    @property
    def index(self) -> int:
        """See `Round.index`."""
        self.asked_number = True
        return self._index

    @property
    def weight_table(self) -> Tensor:
        """See `Operations.weight_table`."""
        return torch.from_numpy(self._graph.edge_weights.copy())[:, None]

    @property
    def active_table(self) -> Tensor:
        """See `Operations.active_table`."""
        return torch.from_numpy(self._graph.active.astype(np.float64))[:, None]

    @property
    def everybody(self) -> bool:
        """See `Operations.everybody`."""
        return bool(self._graph.active.all())

    def _there(self) -> np.ndarray[Any, Any]:
        return self._graph.active.astype(np.float64)

    def held(self, field: str, value: Agents) -> Agents:
        """See `Operations.held`."""
        del field
        return Agents(_rows(value))

    def kept(self, old: Agents, new: Agents) -> Agents:
        """See `Operations.kept`."""
        there = np.diag(self._there())
        stays = np.eye(self.agents) - there
        return Agents(_rows(new).through(there) + _rows(old).through(stays))

    def initial(self, *, block: int = 0) -> Agents:
        """See `Round.initial`."""
        return Agents(zeros(self.agents, block))

    def of_agents(self, table: Tensor) -> Agents:
        """See `Round.of_agents`."""
        return Agents(table)

    def public(self, asked: PublicNumbers, *, block: int) -> Agents:
        """See `Round.public`."""
        del asked  # everybody knows them
        return Agents(zeros(self.agents, block))

    def of_edges(self, table: Tensor) -> Edges:
        """See `Round.of_edges`."""
        return Edges(table)

    def _owners(self, like: Value) -> list[int]:
        """Who holds each row; -1 is the server."""
        if isinstance(like, Server):
            return [-1]
        return list(range(self.agents)) if isinstance(like, Agents) else self._receivers

    @property
    def _receivers(self) -> list[int]:
        return [int(receiver) for receiver in self._graph.receivers]

    @property
    def _senders(self) -> list[int]:
        return [int(sender) for sender in self._graph.senders]

    def _counts_as_seen(self, *values: Value) -> None:
        self.seen += [Message(_rows(value), None) for value in values if not _is_public(value)]

    def _contribute(
        self,
        points: Sequence[Value],
        batches: Sequence[Batch],
        *,
        kind: str,
        clip_norm: ClipNorm,
        blocks: Sequence[int] | None = None,
    ) -> list[Rows]:
        """A contribution for each row of a point, with a part in each of its blocks.

        The blocks are those of the points unless others are named. What is clipped in parts is
        clipped whole, to the root of the sum of their squared bounds.
        """
        whole = whole_of(clip_norm)
        of_blocks = blocks or [_rows(point).block for point in points]
        rates = [batch.sampling_rate for batch in batches]
        # In any of several batches, each drawn on its own; the run's own rate is not known here.
        if len(batches) > 1 and any(rate is not None for rate in rates):
            raise NotAnswered("local steps take batches at rates of their own")
        # Each active owner contributes once, with a column for each block.
        columns: list[list[int]] = []
        for owner in self._owners(points[0]):
            if not self._graph.active[owner]:
                columns.append([-1] * len(of_blocks))
                continue
            contribution = Contribution(
                owner=owner,
                batches=tuple(batch.call for batch in batches),
                rate=rates[0] if rates else 1.0,
                kind=kind,
                users=any(batch.per is Per.USER for batch in batches),
                bound=bound_of(whole),
                round=self._index,
            )
            columns.append(self._sources.contribute(contribution, of_blocks))
        return [
            Rows.at([of[at] for of in columns], block=block) for at, block in enumerate(of_blocks)
        ]

    def clipped_sums(
        self,
        *points: tuple[Any, ...],
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: ClipNorm,
        per: Per,
        scale: Agents | None = None,
    ) -> tuple[Any, ...]:
        """See `Round.clipped_sums`; the parts of each block."""
        del coefs  # the combination is clipped as one vector, whatever they are
        self._counts_as_seen(*([] if scale is None else [scale]))
        for point in points:
            self._counts_as_seen(*point)
        kind = Kind.USERS if per is Per.USER else Kind.SUM
        first = points[0]
        made = self._contribute(first, [batch], kind=kind, clip_norm=clip_norm)
        return tuple(type(part)(rows) for part, rows in zip(first, made, strict=True))

    def clipped_mean(
        self, point: Any, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> Any:
        """See `Round.clipped_mean`."""
        del batch_size
        self._counts_as_seen(point)
        (made,) = self._contribute([point], [batch], kind=Kind.BALL, clip_norm=clip_norm)
        return type(point)(made)

    def count(
        self, fn: PureFunction, point: Agents, *, batch: Batch, of: Of, released: tuple[Agents, ...]
    ) -> Agents:
        """See `Round.count`."""
        del fn, of  # of each record a number in [0, 1], whatever they are
        self._counts_as_seen(point, *released)
        how: dict[str, Any] = {"kind": Kind.SUM, "clip_norm": 1.0, "blocks": [NUMBERS]}
        (made,) = self._contribute([point], [batch], **how)
        return Agents(made)

    def local_update(self, point: Agents, asked: LocalSteps) -> Agents:
        """See `Round.local_update`."""
        self._counts_as_seen(point)
        batches = asked.batches
        (made,) = self._contribute([point], batches, kind=Kind.BALL, clip_norm=asked.clip_norm)
        return Agents(made)

    def noise(
        self,
        like: Any,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> Any:
        """See `Round.noise`."""
        owners = self._owners(like)
        table = np.eye(len(owners)) if factor is None else factor.detach().cpu().double().numpy()
        knowing = known_to or [  # an absent agent has the seed of what it shares
            frozenset(owners[row] for row in np.flatnonzero(of)) - {-1} for of in table.T
        ]
        there = [owner < 0 or bool(self._graph.active[owner]) for owner in owners]
        table = np.where(np.array(there)[:, None], table, 0.0)  # and makes none itself
        sources = [self._sources.noise(frozenset(who)) for who in knowing]
        return type(like)(Rows.at(sources, block=_block(like)).through(float(std) * table))

    def _send(self, value: Value, parties: Sequence[frozenset[int]]) -> None:
        """Messages of the rows whose parties are more than one, or any agent and the server."""
        if _is_public(value):
            return
        sent = [row for row, of in enumerate(parties) if of]
        self.seen.append(Message(_rows(value)[sent], tuple(parties[row] for row in sent)))

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        del kind  # a name
        hear = [{j} for j in range(self.agents)]
        for receiver, sender in zip(self._receivers, self._senders, strict=True):
            hear[sender].add(receiver)
        self._send(value, [frozenset(of) if len(of) > 1 else frozenset() for of in hear])
        return Edges(_rows(value)[self._senders])

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        del kind  # a name
        pairs = zip(self._receivers, self._senders, strict=True)
        self._send(value, [frozenset({d, m}) if d != m else frozenset() for d, m in pairs])
        return Edges(_rows(value)[reply_order(self._graph).numpy()])

    def upload(self, value: Agents, *, kind: str) -> Server:
        """See `Round.upload`."""
        del kind  # a name
        there = self._graph.active
        self._send(value, [frozenset({j} if there[j] else ()) for j in range(self.agents)])
        return self.average(value)

    def download(self, value: Server, *, kind: str) -> Agents:
        """See `Round.download`."""
        del kind  # a name
        self._send(value, [frozenset(range(self.agents))])
        return Agents(_rows(value)[[0] * self.agents])

    def average(self, value: Agents, *, cohort: Cohort | None = None) -> Server:
        """See `Round.average`."""
        there = self._there()
        if cohort is None:
            return Server(_rows(value).through(there[None] / max(there.sum(), 1.0)))
        # A contribution that counts or not, by a coin of its agent, is another one than itself.
        rate = cohort.rate if cohort.scheme is Scheme.POISSON else None
        rows, columns = _rows(value), self._sources.columns
        masked = np.zeros((len(rows), 0))
        for column in np.flatnonzero(rows.cleaned.any(axis=0)):
            part = columns[column]
            if not isinstance(part, tuple):
                raise NotAnswered("a cohort's sum holds noise")
            one = self._sources.contributions[part[0]]._replace(cohort=rate)
            (at,) = self._sources.contribute(one, [part[1]])
            masked = np.pad(masked, ((0, 0), (0, at + 1 - masked.shape[1])))
            masked[:, at] = rows.of[:, column]
        made = Rows(masked, np.abs(masked), rows.block)
        return Server(made.through(there[None] / (cohort.rate * self.agents)))

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        by = np.ones(len(self._receivers)) if weights is None else _table(weights)[:, 0]
        matrix = np.zeros((self.agents, len(self._receivers)))
        matrix[self._receivers, np.arange(len(self._receivers))] = by
        return Agents(_rows(value).through(matrix))

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        pairs = enumerate(zip(self._receivers, self._senders, strict=True))
        loops = {d: at for at, (d, m) in pairs if d == m}
        picked = [loops[agent] for agent in range(self.agents)]
        if _is_public(value):
            return Agents(value.rows[picked])
        return Agents(_rows(value)[picked])

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        if _is_public(value):
            return Edges(value.rows[self._receivers])
        return Edges(_rows(value)[self._receivers])

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
        """See `Round.bounded`."""
        del fn, blame
        for fixed in private:  # what holds data and no noise is no other than the secret
            if not _is_public(fixed):
                bare = [at for at, of in enumerate(_rows(fixed).cleaned) if self._is_bare(of)]
                self.seen.append(Message(_rows(fixed)[bare], None))
        for one in released:  # the rows that other agents sent, and not those of the self-loops
            if not _is_public(one):
                others = [
                    at
                    for at, (d, m) in enumerate(zip(self._receivers, self._senders, strict=True))
                    if d != m
                ]
                self.seen.append(Message(_rows(one)[others], None))
        # Each owner's value moves by the Lipschitz constant times what its contributions do.
        columns, rows = [], _rows(secret)
        for owner, of in enumerate(rows.cleaned):
            held = [(column, abs(of[column])) for column in np.flatnonzero(of)]
            if not held:
                columns.append(-1)
                continue
            parts = [(self._sources.columns[column], by) for column, by in held]
            made = [
                (self._sources.contributions[part[0]], by)
                for part, by in parts
                if isinstance(part, tuple)
            ]
            if len(made) < len(parts) or len({one.batches for one, _ in made}) != 1:
                raise NotAnswered("a bounded function is given more than sums of one batch")
            first = made[0][0]
            bound = lipschitz * math.fsum(by * one.bound for one, by in made)
            moved = first._replace(owner=owner, bound=bound)
            columns += self._sources.contribute(moved, [rows.block])
        return Agents(Rows.at(columns, block=rows.block))

    def _is_bare(self, row: Array) -> bool:
        held = [self._sources.columns[column] for column in np.flatnonzero(row)]
        return bool(held) and all(isinstance(one, tuple) for one in held)

    def postprocess(self, fn: PureFunction, *values: Agents | Edges, block: int = 0) -> Agents:
        """See `Round.postprocess`."""
        del fn
        self._counts_as_seen(*values)
        return Agents(zeros(self.agents, block))

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """See `Round.project`."""
        self._counts_as_seen(value)
        return Agents(zeros(self.agents, block))


def _is_public(value: Value) -> bool:
    return isinstance(value.base, Tensor)


def _table(value: Value) -> np.ndarray[Any, Any]:
    if not _is_public(value):
        raise NotAnswered("it weighs by what is not public")
    return np.asarray(value.rows.detach().cpu().double().numpy())


def _rows(value: Value) -> Rows:
    rows = value.rows
    return zeros(len(rows)) if isinstance(rows, Tensor) else rows


def _block(value: Value) -> int:
    return 0 if _is_public(value) else value.base.block
