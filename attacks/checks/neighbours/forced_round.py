"""A round made again in which all that counts as seen is what it was the first time.

The guarantee composes adaptively: in each round, given everything that was seen before, what is
seen next may differ between neighbouring data sets by the record's own contributions alone. So an
operation that sends a value, or counts it as seen, first says how far the value is from the one of
the first run, and then goes on with that one. What is left of every difference is the direct
influence of the records that were changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from ....training.functions.purity import PureFunction
from ....training.step.operations import Coef, Operations, P, V
from ....training.step.values import Agents, Batch, Edges, Server, UndeclaredOperation, Value

__all__ = ["ForcedRound"]

_Of = TypeVar("_Of", bound=Value)


class ForcedRound(Operations):
    """Does what another round does, with the values that a first run had.

    Args:
        inner: the round that does the work.
        given: what the operations of the first run were given, `Recorded.given`.

    Attributes:
        differences: for each of `given` how far the value was from it, in the rows of its base.
        hides: for each operation with a function whether its first argument is a secret, which
            stays what it is.
    """

    def __init__(self, inner: Operations, *, given: Sequence[Value]) -> None:
        self._inner, self._given = inner, given
        self._drawn: list[Batch] = []
        self.differences: list[Tensor] = []
        self.hides: list[bool] = []
        self.agents, self.weights = inner.agents, inner.weights

    def _difference(self, value: Value) -> Value:
        """Note how far a value is from the one of the first run, which is returned."""
        at = len(self.differences)
        first = self._given[at] if at < len(self._given) else None
        if first is None or type(first) is not type(value) or first.base.shape != value.base.shape:
            raise UndeclaredOperation(
                "an operation is given another kind of value than in the first run"
            )
        self.differences.append(value.base.double() - first.base.double())
        return first

    def _forced(self, value: _Of) -> _Of:
        first = self._difference(value)
        return type(value)(first.base, first.pick)

    # Operations that send a value, or count it as seen.

    def _clipped_sums(
        self,
        points: Sequence[tuple[P, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: float | None,
    ) -> tuple[P, ...]:
        forced = [tuple(self._forced(value) for value in point) for point in points]
        parts: tuple[P, ...] = self._inner.clipped_sums(
            *forced, batch=batch, coefs=coefs, clip_norm=clip_norm
        )
        return parts

    def _clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        return self._inner.clipped_mean(
            self._forced(point), batch=batch, batch_size=batch_size, clip_norm=clip_norm
        )

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        return self._inner.broadcast(self._forced(value), kind=kind)

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """See `Round.reply`."""
        return self._inner.reply(self._forced(value), kind=kind)

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """See `Round.mix`."""
        return self._inner.mix(self._forced(value), kind=kind)

    def upload(self, value: Agents, *, kind: str) -> Server:
        """See `Round.upload`."""
        return self._inner.upload(self._forced(value), kind=kind)

    def download(self, value: Server, *, kind: str) -> Agents:
        """See `Round.download`."""
        return self._inner.download(self._forced(value), kind=kind)

    def postprocess(self, fn: PureFunction, *values: Agents | Edges, block: int = 0) -> Agents:
        """See `Round.postprocess`."""
        self.hides.append(False)
        return self._inner.postprocess(fn, *(self._forced(v) for v in values), block=block)

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """See `Round.project`."""
        self.hides.append(False)
        return self._inner.project(self._forced(value), block=block)

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
        """See `Round.bounded`; the secret stays what it is, since the result hides it."""
        self._difference(secret)
        self.hides.append(True)
        return self._inner.bounded(
            fn,
            secret,
            released=[self._forced(value) for value in released],
            private=[self._forced(value) for value in private],
            lipschitz=lipschitz,
            blame=blame,
        )

    # Operations whose result stays where it is, or that take nothing private.

    @property
    def index(self) -> int:
        """The number of the round."""
        return self._inner.index

    @property
    def weight_table(self) -> Tensor:
        """(E, 1) the mixing weights of all edges."""
        return self._inner.weight_table

    def initial(self, *, block: int = 0) -> Agents:
        """See `Round.initial`."""
        return self._inner.initial(block=block)

    def of_agents(self, table: Tensor) -> Agents:
        """See `Round.of_agents`."""
        return self._inner.of_agents(table)

    def of_edges(self, table: Tensor) -> Edges:
        """See `Round.of_edges`."""
        return self._inner.of_edges(table)

    def draw(self, sampling_rate: float | None = None) -> Batch:
        """See `Round.draw`."""
        self._drawn.append(self._inner.draw(sampling_rate))
        return self._drawn[-1]

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

    def average(self, value: Agents) -> Server:
        """See `Round.average`."""
        return self._inner.average(value)

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """See `Round.sum_in`."""
        return self._inner.sum_in(value, weights=weights)

    def own(self, value: Edges) -> Agents:
        """See `Round.own`."""
        return self._inner.own(value)

    def spread(self, value: Agents) -> Edges:
        """See `Round.spread`."""
        return self._inner.spread(value)
