"""Calls of the functions that a step gives to its round: done, kept, or done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..functions.projection import same_bits
from ..functions.purity import PureFunction

__all__ = ["Calls", "FunctionCall", "KeptCalls", "ReplayedCalls"]


class FunctionCall(NamedTuple):
    """One call, which is for one agent.

    Attributes:
        name: of the function.
        inputs: what it was given.
        output: what it returned.
    """

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor


class Calls:
    """Calls functions, and keeps nothing."""

    def __call__(self, fn: PureFunction, values: Sequence[Tensor]) -> Tensor:
        """The result of one call."""
        return fn(*values)


class KeptCalls(Calls):
    """Calls functions, and keeps what they were given and what they returned.

    Attributes:
        calls: in their order.
    """

    def __init__(self) -> None:
        self.calls: list[FunctionCall] = []

    def __call__(self, fn: PureFunction, values: Sequence[Tensor]) -> Tensor:
        """The result of one call; a function may write into what it is given."""
        inputs = tuple(value.clone() for value in values)
        found = fn(*values)
        if isinstance(found, Tensor):
            self.calls.append(FunctionCall(fn.name, inputs, found.clone()))
        return found


@dataclass
class ReplayedCalls(Calls):
    """Calls functions on what was kept in another run, twice, and compares what they return.

    The round goes on with what was kept, so each call is compared by itself.

    Attributes:
        kept: the calls of the other run.
        made: how many calls there were so far.
        different: the numbers of the calls, from 0, whose result was another.
    """

    kept: Sequence[FunctionCall]

    def __post_init__(self) -> None:
        """Begin at the first call."""
        self.made = 0
        self.different: list[int] = []

    def __call__(self, fn: PureFunction, values: Sequence[Tensor]) -> Tensor:
        """The result that was kept; beyond the last call that of the function."""
        at = self.made
        self.made += 1
        if at >= len(self.kept):
            return fn(*values)
        call = self.kept[at]
        # Twice, so that what turns from call to call shows, after however many it comes back.
        found = [fn(*(value.clone() for value in call.inputs)) for _ in range(2)]
        same = all(isinstance(one, Tensor) and same_bits(one, call.output) for one in found)
        if fn.name != call.name or not same:
            self.different.append(at)
        return call.output.clone()
