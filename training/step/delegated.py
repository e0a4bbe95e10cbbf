"""A round that does what another one does; who watches or changes it says only where it differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from ...privacy.batches.drawing import Scheme
from ..functions.purity import PureFunction
from .counts import Of
from .local_steps import LocalSteps
from .operations import Coef, Operations, P, V
from .parts import ClipNorm
from .public_numbers import PublicNumbers
from .values import Agents, Batch, Cohort, Edges, Per, Server, Value

__all__ = ["Delegated"]

_Of = TypeVar("_Of", bound=Value)


class Delegated(Operations):
    """The operations of another round, whose values that count as seen pass through here.

    Args:
        inner: the round that does the work.
    """

    def __init__(self, inner: Operations) -> None:
        self._inner, self._index = inner, inner._index
        self._drawn: list[Batch] = []
        self._cohorts: list[Cohort] = []
        self.agents, self.weights, self.active = inner.agents, inner.weights, inner.active

    def _seen(self, value: _Of) -> _Of:
        """What an operation is given that is sent, or counts as seen."""
        return value

    def _hidden(self, secret: Agents) -> Agents:
        """The secret that `bounded` is given."""
        return secret

    @property
    def index(self) -> int:
        """See `Round.index`."""
        return self._inner.index

    @property
    def weight_table(self) -> Tensor:
        """See `Operations.weight_table`."""
        return self._inner.weight_table

    @property
    def active_table(self) -> Tensor:
        """See `Operations.active_table`."""
        return self._inner.active_table

    @property
    def everybody(self) -> bool:
        """See `Operations.everybody`."""
        return self._inner.everybody

    def held(self, field: str, value: Agents) -> Agents:
        """See `Operations.held`."""
        return self._inner.held(field, value)

    def kept(self, old: Agents, new: Agents) -> Agents:
        """See `Operations.kept`."""
        return self._inner.kept(old, new)

    def initial(self, *, block: int = 0) -> Agents:
        """See `Round.initial`."""
        return self._inner.initial(block=block)

    def of_agents(self, table: Tensor) -> Agents:
        """See `Round.of_agents`."""
        return self._inner.of_agents(table)

    def of_edges(self, table: Tensor) -> Edges:
        """See `Round.of_edges`."""
        return self._inner.of_edges(table)

    def _public(self, asked: PublicNumbers, *, block: int) -> Agents:
        return self._inner.public(asked.seed, kind=asked.kind, same=asked.same, block=block)

    def draw(self, sampling_rate: float | None = None, *, per: str = Per.RECORD) -> Batch:
        """See `Round.draw`."""
        self._drawn.append(self._inner.draw(sampling_rate, per=per))
        return self._drawn[-1]

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
        seen = [tuple(self._seen(value) for value in point) for point in points]
        by = None if scale is None else self._seen(scale)
        parts: tuple[P, ...] = self._inner.clipped_sums(
            *seen, batch=batch, coefs=coefs, clip_norm=clip_norm, per=per, scale=by
        )
        return parts

    def _count(
        self,
        fn: PureFunction,
        point: Agents,
        *,
        batch: Batch,
        of: Of,
        released: tuple[Agents, ...],
    ) -> Agents:
        given = self._seen(point), [self._seen(value) for value in released]
        return self._inner.count(fn, given[0], batch=batch, of=of, released=given[1])

    def _clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        return self._inner.clipped_mean(
            self._seen(point), batch=batch, batch_size=batch_size, clip_norm=clip_norm
        )

    def _local_update(self, point: Agents, asked: LocalSteps) -> Agents:
        return self._inner.local_update(
            self._seen(point),
            steps=asked.steps,
            learning_rate=asked.learning_rate,
            batch=asked.batch,
            clip_norm=asked.clip_norm,
            momentum=asked.momentum,
            proximal=asked.proximal,
        )

    def cohort(self, rate: float, *, scheme: str = Scheme.POISSON) -> Cohort:
        """See `Round.cohort`."""
        self._cohorts.append(self._inner.cohort(rate, scheme=scheme))
        return self._cohorts[-1]

    def noise(
        self,
        like: V,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> V:
        """See `Round.noise`."""
        return self._inner.noise(like, std=std, factor=factor, known_to=known_to)

    def remembered(self, fresh: Agents, *past: Agents, row: Sequence[float]) -> Agents:
        """See `Round.remembered`."""
        return self._inner.remembered(fresh, *past, row=row)

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        return self._inner.broadcast(self._seen(value), kind=kind)

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        return self._inner.reply(self._seen(value), kind=kind)

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """See `Round.mix`."""
        return self._inner.mix(self._seen(value), kind=kind)

    def upload(self, value: Agents, *, kind: str) -> Server:
        """See `Round.upload`."""
        return self._inner.upload(self._seen(value), kind=kind)

    def download(self, value: Server, *, kind: str) -> Agents:
        """See `Round.download`."""
        return self._inner.download(self._seen(value), kind=kind)

    def _average(self, value: Agents) -> Server:
        return self._inner.average(value)

    def _average_of(self, value: Agents, cohort: Cohort) -> Server:
        return self._inner.average(value, cohort=cohort)

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        return self._inner.sum_in(value, weights=weights)

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        return self._inner.own(value)

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        return self._inner.spread(value)

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
        return self._inner.bounded(
            fn,
            self._hidden(secret),
            released=[self._seen(value) for value in released],
            private=[self._seen(value) for value in private],
            lipschitz=lipschitz,
            blame=blame,
        )

    def postprocess(self, fn: PureFunction, *values: Agents | Edges, block: int = 0) -> Agents:
        """See `Round.postprocess`."""
        return self._inner.postprocess(fn, *(self._seen(value) for value in values), block=block)

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """See `Round.project`."""
        return self._inner.project(self._seen(value), block=block)
