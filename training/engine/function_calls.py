"""Calls of the functions that a step gives to its round: done, kept, or done again.

On a device agents are taken together where `runs_batched` finds that the function lets them, and
one by one elsewhere; calls that are kept or replayed are always one an agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..device.memory import elements_at_once
from ..functions.batched import runs_batched
from ..functions.projection import same_bits
from ..functions.purity import PureFunction
from ..step.values import Agents, Edges
from .links import Links, of_agents

__all__ = ["Argument", "Calls", "FunctionCall", "KeptCalls", "ReplayedCalls", "called"]


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
    """Calls functions, and keeps nothing.

    Attributes:
        one_by_one: whether every agent needs a call of its own.
    """

    one_by_one = False

    def __call__(self, fn: PureFunction, values: Sequence[Tensor]) -> Tensor:
        """The result of one call."""
        return fn(*values)


class KeptCalls(Calls):
    """Calls functions, and keeps what they were given and what they returned.

    Attributes:
        calls: in their order.
    """

    one_by_one = True

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

    one_by_one = True
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


class Argument(NamedTuple):
    """What a function is given of a value.

    Attributes:
        value: of agents a row each, of edges for each agent the rows of its in-edges.
        others: of these only the rows that come from other agents.
    """

    value: Agents | Edges
    others: bool = False


def called(
    calls: Calls,
    fn: PureFunction,
    arguments: Sequence[Argument],
    *,
    links: Links,
    operation: str,
    width: int,
) -> Agents:
    """The results of a function for all agents that are here.

    Args:
        calls: makes the calls.
        fn: the function.
        arguments: what each agent's call is given.
        links: of the round.
        operation: of the round, for messages.
        width: of a result.

    Raises:
        UndeclaredOperation: a result that is no tensor (width,).
    """
    if _together(arguments[0].value.base.device, calls):
        found = _batched(fn, arguments, links=links, width=width)
        if found is not None:
            return found
    parts = [_by_agent(argument, links) for argument in arguments]
    rows = [calls(fn, list(given)) for given in zip(*parts, strict=True)]
    return of_agents(operation, rows, width=width)


def _together(device: torch.device, calls: Calls) -> bool:
    """Whether agents may be taken together."""
    return device.type != "cpu" and not calls.one_by_one


def _by_agent(argument: Argument, links: Links) -> list[Tensor]:
    """What each agent is given, each at an address of its own; see `Links.rows_by_receiver`."""
    value = argument.value
    if isinstance(value, Agents):
        return [row.clone() for row in value.rows]
    if not argument.others:
        return links.rows_by_receiver(value)
    rows = value.rows
    return [rows[at] for at in links.other_edges.split([n - 1 for n in links.in_degrees])]


def _batched(
    fn: PureFunction, arguments: Sequence[Argument], *, links: Links, width: int
) -> Agents | None:
    """The results for agents of equally many in-edges at once; None where fn cannot be batched."""
    like = arguments[0].value.base
    out = like.new_empty(len(links.mine), width)
    for group in links.neighbourhoods:
        shapes = [_shape(argument, edges=group.edges.shape[1]) for argument in arguments]
        # Nothing is read of what stands for their shapes.
        stand_ins = [
            like.new_empty(1).to(a.value.base.dtype).expand(1, *shape)
            for a, shape in zip(arguments, shapes, strict=True)
        ]
        if not runs_batched(fn, stand_ins):
            return None
        held = sum(torch.Size(shape).numel() for shape in shapes) + width
        most = max(elements_at_once(like.device) // held, 1)
        for agents, edges, others in zip(*(of.split(most) for of in group), strict=True):
            rows = [
                _gathered(argument, agents, others if argument.others else edges)
                for argument in arguments
            ]
            found = torch.func.vmap(fn)(*rows)
            if found.shape != (len(agents), width) or found.dtype != like.dtype:
                return None  # the loop says what is wrong with it
            out.index_copy_(0, agents, found)
    return Agents(out)


def _shape(argument: Argument, *, edges: int) -> tuple[int, ...]:
    """What a function gets of an argument for one agent."""
    wide = argument.value.base.shape[1]
    if isinstance(argument.value, Agents):
        return (wide,)
    return (edges - 1 if argument.others else edges, wide)


def _gathered(argument: Argument, agents: Tensor, edges: Tensor) -> Tensor:
    """An argument for some agents, (G, w) or (G, n, w): rows of their own, to write into."""
    value, at = argument.value, agents if isinstance(argument.value, Agents) else edges
    return value.base[at if value.pick is None else value.pick[at]]
