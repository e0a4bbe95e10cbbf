"""Run a step on symbols instead of tensors, round by round: what its rounds are made of.

A step that does the same in every round is traced once. One that reads the number of the round, or
whose state carries public tensors that change, is traced in every round; on a sequence of graphs
every graph is traced by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.view.view import UnsupportedView
from ..graphs.graph import Graph, Topology
from ..step.values import Agents, UndeclaredOperation
from .equivalent_rounds import EarlierRounds, repeats
from .round_trace import RoundTrace
from .traced_round import TracedRound

Step = Callable[..., Any]


class AlgorithmTrace(NamedTuple):
    """Traces of the start and of the rounds, in their order, each with how many rounds it is."""

    start: RoundTrace
    rounds: Sequence[tuple[RoundTrace, int]]


def trace(init: Step, step: Step, *, graph: Topology, rounds: int) -> AlgorithmTrace:
    """Run `init` and `step` on symbols: every message as linear forms over gradients and noise.

    A step that reads `round.index`, or whose state carries public tensors that change, is traced
    in every round; otherwise one trace counts for all rounds on the same graph.

    Raises:
        UnsupportedView: two rounds on the same graph differ although neither their number nor
            their state does.
        UndeclaredOperation: the step does what no operation declares.
    """
    if rounds < 1:
        raise InputError(f"rounds={rounds} must be at least 1")
    # The start, which may send messages of its own.
    first = TracedRound(graph.at(0), index=0)
    state = init(first)
    start = RoundTrace(first.finish(state))

    # Each graph twice, if there are so many rounds. A step that reads the round's number, or
    # carries public tensors that change, has no two rounds alike, and every round is traced.
    period, turns, after = len(graph.graphs), list[RoundTrace](), state
    for index in range(1, 2 * period + 1):
        if (index - 1) % period >= rounds:
            continue
        # A graph's second turn is traced as its last: a step that counts rounds in secret shows it.
        number = index if index <= period else rounds - (rounds - index) % period
        before = after
        one, after = _trace_round(step, before, graph=graph.at(index), index=number)
        if one.record.reads_index or not _same_public(before, after):
            every = _every_round(step, state, graph=graph, rounds=rounds)
            return AlgorithmTrace(start, [(round_, 1) for round_ in every])
        if index > period and not repeats(turns[index - period - 1].record, one.record):
            raise UnsupportedView(
                "the step differs between rounds without reading round.index: keep what changes in "
                "the state, as a public tensor, or read round.index"
            )
        turns.append(one)

    # The same round again and again, or the graphs in turn.
    if period == 1:
        return AlgorithmTrace(start, [(turns[0], rounds)])
    return AlgorithmTrace(start, [(turns[index % period], 1) for index in range(rounds)])


def _every_round(step: Step, state: Any, *, graph: Topology, rounds: int) -> list[RoundTrace]:
    """Each round by itself; one that repeats an earlier one is the same object."""
    found, earlier = list[RoundTrace](), EarlierRounds()
    for index in range(1, rounds + 1):
        one, state = _trace_round(step, state, graph=graph.at(index), index=index)
        found.append(earlier.matched(one, graph.at(index)))
    return found


def state_column(field: str) -> str:
    """What the columns of a field of the state that a round begins with are called."""
    return f"state {field}"


def _trace_round(step: Step, state: Any, *, graph: Graph, index: int) -> tuple[RoundTrace, Any]:
    """One round from a state whose Agents are known, and the state that it returns."""
    traced = TracedRound(graph, index=index)
    fields = {
        name: traced.known(state_column(name), block=value.rows.block)
        if isinstance(value, Agents)
        else value
        for name, value in state._asdict().items()
    }
    end = step(type(state)(**fields), traced)
    record = traced.finish(end)
    _check_same_fields(state, end)
    return RoundTrace(record), end


def _check_same_fields(before: Any, after: Any) -> None:
    """Refuse a state of other fields than the one that it follows."""
    kinds = [
        {name: "Agents" if isinstance(value, Agents) else "Tensor" for name, value in held}
        for held in (before._asdict().items(), after._asdict().items())
    ]
    if list(kinds[0].items()) != list(kinds[1].items()):
        raise UndeclaredOperation(
            f"the step was given a state of {kinds[0]} and returned one of {kinds[1]}; init and "
            "step return the same NamedTuple"
        )


def _same_public(before: Any, after: Any) -> bool:
    pairs = zip(before, after, strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))
