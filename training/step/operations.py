"""What carries out the operations of a round: on tensors, on symbols, or watched.

`Round` documents every operation; here stand their signatures, and the checks that all who carry
them out share.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...privacy.batches.cohorts import scheme_of_cohort, size_of_cohort
from ...privacy.batches.drawing import Scheme
from ...privacy.errors import InputError
from ..functions.purity import PureFunction
from ..graphs.graph import Graph
from .counts import Of
from .local_steps import LocalSteps, checked_rate
from .memory import remembered
from .parts import ClipNorm, clip_norm_of
from .public_numbers import PublicKind, PublicNumbers
from .values import (
    Agents,
    Batch,
    Cohort,
    Edges,
    Per,
    Server,
    UndeclaredOperation,
    check_drawn,
    check_holder,
)

__all__ = ["Coef", "Operations", "P", "V", "reply_order"]

V = TypeVar("V", Agents, Edges, Server)
P = TypeVar("P", Agents, Edges)
Coef = float | tuple[float, ...]  # of a point, or of each of its blocks


class Operations(ABC):
    """The operations of one round."""

    agents: int
    weights: Edges  # (E, 1) mixing weights, public
    active: Agents  # (A, 1) 1 for each agent that takes part, 0 for an absent one; public
    _drawn: list[Batch]
    _cohorts: list[Cohort]
    _index: int
    _public_calls: int = 0

    @property
    @abstractmethod
    def index(self) -> int:
        """See `Round.index`."""

    @abstractmethod
    def initial(self, *, block: int = 0) -> Agents:
        """See `Round.initial`."""

    @abstractmethod
    def of_agents(self, table: Tensor) -> Agents:
        """See `Round.of_agents`."""

    @abstractmethod
    def of_edges(self, table: Tensor) -> Edges:
        """See `Round.of_edges`."""

    def public(
        self,
        seed: int,
        *,
        kind: str = PublicKind.UNIFORM,
        same: bool = False,
        block: int = 0,
    ) -> Agents:
        """See `Round.public`."""
        call, self._public_calls = self._public_calls, self._public_calls + 1
        asked = PublicNumbers.of(seed, kind=kind, same=same, round=self._index, call=call)
        return self._public(asked, block=block)

    @abstractmethod
    def _public(self, asked: PublicNumbers, *, block: int) -> Agents:
        """`public` after the checks that all kinds of round share."""

    @property
    @abstractmethod
    def weight_table(self) -> Tensor:
        """(E, 1) the mixing weights of all edges, in float64 on the CPU."""

    @property
    @abstractmethod
    def active_table(self) -> Tensor:
        """(A, 1) 1 for each agent that takes part, 0 for an absent one; float64 on the CPU."""

    @property
    @abstractmethod
    def everybody(self) -> bool:
        """Whether no agent is absent from the round."""

    @abstractmethod
    def held(self, field: str, value: Agents) -> Agents:
        """A value as a field of the state, where a public table is one like any other.

        Raises:
            InputError: its rows are no block of the run's.
        """

    @abstractmethod
    def kept(self, old: Agents, new: Agents) -> Agents:
        """What agents hold after the round: an absent one what it held before."""

    @abstractmethod
    def draw(self, sampling_rate: float | None = None, *, per: str = Per.RECORD) -> Batch:
        """See `Round.draw`."""

    def clipped_sums(
        self,
        *points: Any,
        batch: Batch,
        coefs: Sequence[Coef] = (1.0,),
        clip_norm: float | tuple[float, ...] | ClipNorm,
        per: str = Per.RECORD,
        scale: Agents | None = None,
        parts: Sequence[int] | None = None,
    ) -> Any:
        """See `Round.clipped_sums`."""
        of, within = Per(per), clip_norm_of(clip_norm, parts)
        check_drawn(batch, self._drawn, clipped=of)
        blocks = _split_points(points, coefs)
        how: dict[str, Any] = {} if scale is None else {"scale": scale}
        if scale is not None:
            check_holder("clipped_sums with scale", scale, Agents)
        sums = self._clipped_sums(blocks, batch=batch, coefs=coefs, clip_norm=within, per=of, **how)
        return sums if isinstance(points[0], tuple) else sums[0]

    @abstractmethod
    def _clipped_sums(
        self,
        points: Sequence[tuple[P, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: ClipNorm,
        per: Per,
        scale: Agents | None = None,
    ) -> tuple[P, ...]:
        """`clipped_sums` after the checks that both kinds of round share."""

    def count(
        self,
        fn: PureFunction,
        point: Agents,
        *,
        batch: Batch,
        of: str = Of.LOSS,
        released: Sequence[Agents] = (),
    ) -> Agents:
        """See `Round.count`."""
        what = Of(of)
        check_drawn(batch, self._drawn)
        for value in (point, *released):
            check_holder("count", value, Agents)
        return self._count(fn, point, batch=batch, of=what, released=tuple(released))

    @abstractmethod
    def _count(
        self,
        fn: PureFunction,
        point: Agents,
        *,
        batch: Batch,
        of: Of,
        released: tuple[Agents, ...],
    ) -> Agents:
        """`count` after the checks that all kinds of round share."""

    def clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        """See `Round.clipped_mean`."""
        check_drawn(batch, self._drawn)
        if not 0 < batch_size < math.inf:
            raise InputError(f"batch_size={batch_size} must be a positive number")
        ((only,),) = _split_points((point,), (1.0,))
        return self._clipped_mean(only, batch=batch, batch_size=batch_size, clip_norm=clip_norm)

    @abstractmethod
    def _clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        """`clipped_mean` after the checks that both kinds of round share."""

    def local_update(
        self,
        point: Agents,
        *,
        steps: int,
        learning_rate: float,
        batch: Batch | tuple[Batch, ...],
        clip_norm: float | None,
        momentum: float = 0.0,
        proximal: float = 0.0,
    ) -> Agents:
        """See `Round.local_update`."""
        check_holder("local_update", point, Agents)
        asked = LocalSteps.of(
            steps=steps,
            learning_rate=learning_rate,
            batch=batch,
            clip_norm=clip_norm,
            momentum=momentum,
            proximal=proximal,
            drawn=self._drawn,
        )
        return self._local_update(point, asked)

    @abstractmethod
    def _local_update(self, point: Agents, asked: LocalSteps) -> Agents:
        """`local_update` after the checks that all kinds of round share."""

    def cohort(self, rate: float, *, scheme: str = Scheme.POISSON) -> Cohort:
        """See `Round.cohort`."""
        share, drawn = checked_rate(rate), scheme_of_cohort(scheme)
        if share == 1.0:
            drawn = Scheme.POISSON  # everybody, however cohorts are drawn
        if drawn is not Scheme.POISSON:
            size_of_cohort(share, self.agents, scheme=drawn)
        if drawn.in_epochs and (self._index == 0 or self._cohorts):
            when = "the start draws" if self._index == 0 else "the step draws"
            several = " after another one" if self._cohorts else ""
            raise UndeclaredOperation(
                f"{when} a cohort of scheme={str(drawn)!r}{several}, and an epoch of these has one "
                "for each round from 1 on; draw it once and first, or use 'poisson' or 'fixed'"
            )
        if any(before.scheme.in_epochs for before in self._cohorts):
            raise UndeclaredOperation(
                "the step draws another cohort beside one of an epoch, which has one for each "
                "round; draw one alone, or use 'poisson' or 'fixed'"
            )
        cohort = Cohort(call=len(self._cohorts), rate=share, scheme=drawn)
        self._cohorts.append(cohort)
        return cohort

    @abstractmethod
    def noise(
        self,
        like: V,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> V:
        """See `Round.noise`."""

    def remembered(self, fresh: Agents, *past: Agents, row: Sequence[float]) -> Agents:
        """See `Round.remembered`; the noise alone, of as much of the past as the row speaks of."""
        return remembered(fresh, past, row=row)

    @abstractmethod
    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""

    @abstractmethod
    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """See `Round.mix`."""
        return self.sum_in(self.broadcast(value, kind=kind), weights=self.weights)

    @abstractmethod
    def upload(self, value: Agents, *, kind: str) -> Server:
        """See `Round.upload`."""

    @abstractmethod
    def download(self, value: Server, *, kind: str) -> Agents:
        """See `Round.download`."""

    def average(self, value: Agents, *, cohort: Cohort | None = None) -> Server:
        """See `Round.average`."""
        check_holder("average", value, Agents)
        if cohort is None:
            return self._average(value)
        if not isinstance(cohort, Cohort):
            raise UndeclaredOperation(
                f"round.average with a cohort of {type(cohort).__name__}: give what "
                "round.cohort(rate) returned"
            )
        if not any(cohort is mine for mine in self._cohorts):
            raise UndeclaredOperation(
                "a cohort of another round: its draws would be used again, but accounted as fresh; "
                "call round.cohort(rate) in every round"
            )
        return self._average_of(value, cohort)

    @abstractmethod
    def _average(self, value: Agents) -> Server:
        """The mean of all agents' rows."""

    @abstractmethod
    def _average_of(self, value: Agents, cohort: Cohort) -> Server:
        """The sum of the rows of a cohort over its expected size."""

    @abstractmethod
    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""

    @abstractmethod
    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""

    @abstractmethod
    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""

    @abstractmethod
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

    @abstractmethod
    def postprocess(self, fn: PureFunction, *values: Agents | Edges, block: int = 0) -> Agents:
        """See `Round.postprocess`."""

    @abstractmethod
    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """See `Round.project`."""


def reply_order(graph: Graph) -> Tensor:
    """(E,) for each edge d -> m the position of the edge m -> d, along which a reply came.

    Raises:
        ValueError: some link has no way back.
    """
    if not graph.symmetric:
        raise InputError(f"graph {graph.name!r} is directed: round.reply needs links both ways")
    return torch.from_numpy(np.lexsort((graph.receivers, graph.senders)))


def _split_points(points: Sequence[Any], coefs: Sequence[object]) -> list[tuple[Any, ...]]:
    """Points as tuples of blocks, one block where a point is a value, once they are checked.

    Raises:
        UndeclaredOperation: no point, holders or numbers of blocks that differ, or a coefficient
            that is no number.
        ValueError: a coefficient that is not finite, or another count than of points or blocks.
    """
    split = [point if isinstance(point, tuple) else (point,) for point in points]
    kinds = sorted({type(value).__name__ for point in split for value in point})
    if kinds not in (["Agents"], ["Edges"]):
        raise UndeclaredOperation(
            f"round.clipped_sums at points of {', '.join(kinds) or 'no value'}: give Agents, or "
            "Edges, for every point; a value of another holder has to be sent first"
        )
    if len({len(point) if isinstance(point, tuple) else None for point in points}) > 1:
        raise UndeclaredOperation(
            "round.clipped_sums at points of different blocks: every point has the same blocks"
        )
    for coef in coefs:
        numbers: tuple[Any, ...] = coef if isinstance(coef, tuple) else (coef,)
        wrong = [type(number).__name__ for number in numbers if not isinstance(number, int | float)]
        if wrong:
            raise UndeclaredOperation(
                f"round.clipped_sums with a coefficient of {wrong[0]}: coefs are public numbers"
            )
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"coefs={tuple(coefs)} must be finite; drop the point instead")
        if isinstance(coef, tuple) and split and len(coef) != len(split[0]):
            raise InputError(
                f"coefs={tuple(coefs)} for points of {len(split[0])} blocks: give one number for "
                "each block, or one for all of them"
            )
    if len(coefs) != len(points):
        raise InputError(
            f"coefs={tuple(coefs)} for {len(points)} points: give one number for each point"
        )
    return split
