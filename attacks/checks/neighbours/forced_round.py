"""A round made again in which all that counts as seen is what it was the first time.

The guarantee composes adaptively: in each round, given everything that was seen before, what is
seen next may differ between neighbouring data sets by the record's own contributions alone. So an
operation that sends a value, or counts it as seen, first says how far the value is from the one of
the first run, and then goes on with that one. What is left of every difference is the direct
influence of the records that were changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ....training.step.operations import OPERATIONS, CarryOut, How, Readers, Values
from ....training.step.values import UndeclaredOperation, Value
from ...watching.on_host import placed


class ForcedRound:
    """Wrapped around a round, it gives every operation the values that a first run had.

    Args:
        given: what the operations of the first run were given, `Recorded.given`.

    Attributes:
        differences: for each of `given` how far the value was from it, in the rows of its base.
        hides: for each operation with a function whether its first argument is a secret, which
            stays what it is.
    """

    def __init__(self, given: Sequence[Value]) -> None:
        self._given = given
        self.differences: list[Tensor] = []
        self.hides: list[bool] = []

    def __call__(self, carry_out: CarryOut, name: str, values: Values, how: How) -> Any:
        """See `Operations.wrap`."""
        row = OPERATIONS[name]
        if row.calls:
            self.hides.append(row.hides)
        if row.readers is not Readers.HOLDER:
            secret = values[:2] if row.hides else ()  # and its function
            self._first_of(secret)
            values = (*secret, *self._first_of(values[len(secret) :]))
            how = {key: self._first_of(one) for key, one in how.items()}
        return carry_out(name, values, how)

    def _first_of(self, given: Any) -> Any:
        """The same with the values of the first run; how far each was from these is noted."""
        if type(given) in (tuple, list):
            return type(given)(map(self._first_of, given))
        if not isinstance(given, Value):
            return given
        at = len(self.differences)
        first = self._given[at] if at < len(self._given) else None
        if first is None or type(first) is not type(given) or first.base.shape != given.base.shape:
            raise UndeclaredOperation(
                "an operation is given another kind of value than in the first run"
            )
        first = placed(first, given.base.device)
        self.differences.append(given.base.double() - first.base.double())
        return type(given)(first.base, first.pick)
