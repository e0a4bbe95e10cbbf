"""A round made again in which all that counts as seen is what it was the first time.

The guarantee composes adaptively: in each round, given everything that was seen before, what is
seen next may differ between neighbouring data sets by the record's own contributions alone. So an
operation that sends a value, or counts it as seen, first says how far the value is from the one of
the first run, and then goes on with that one. What is left of every difference is the direct
influence of the records that were changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor

from ....training.functions.purity import PureFunction
from ....training.step.delegated import Delegated
from ....training.step.operations import Operations
from ....training.step.values import Agents, Edges, UndeclaredOperation, Value
from ...watching.on_host import placed

_Of = TypeVar("_Of", bound=Value)


class ForcedRound(Delegated):
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
        super().__init__(inner)
        self._given = given
        self.differences: list[Tensor] = []
        self.hides: list[bool] = []

    def _difference(self, value: Value) -> Value:
        """Note how far a value is from the one of the first run, which is returned."""
        at = len(self.differences)
        first = self._given[at] if at < len(self._given) else None
        if first is None or type(first) is not type(value) or first.base.shape != value.base.shape:
            raise UndeclaredOperation(
                "an operation is given another kind of value than in the first run"
            )
        first = placed(first, value.base.device)
        self.differences.append(value.base.double() - first.base.double())
        return first

    def _seen(self, value: _Of) -> _Of:
        first = self._difference(value)
        return type(value)(first.base, first.pick)

    def _hidden(self, secret: Agents) -> Agents:
        """It stays what it is, since the result hides it."""
        self._difference(secret)
        return secret

    def postprocess(self, fn: PureFunction, *values: Agents | Edges, block: int = 0) -> Agents:
        """See `Round.postprocess`."""
        self.hides.append(False)
        return super().postprocess(fn, *values, block=block)

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """See `Round.project`."""
        self.hides.append(False)
        return super().project(value, block=block)

    def bounded(self, fn: PureFunction, secret: Agents, **how: Any) -> Agents:
        """See `Round.bounded`."""
        self.hides.append(True)
        return super().bounded(fn, secret, **how)
