"""Run a step on symbols instead of tensors, round by round: what its rounds are made of.

A step that does the same in every round is traced once. One that reads the number of the round, or
whose state carries public tensors that change, is traced in every round; on a sequence of graphs
every graph is traced by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.view.view import UnsupportedView
from ..graphs.graph import Topology
from ..step.perform import Performed, perform
from .equivalent_rounds import EarlierRounds, repeats
from .round_trace import RoundTrace
from .scripts import PlannedScripts, Step, TracedCall, check_repeats, trace_round, with_copies
from .traced_round import TracedRound


class AlgorithmTrace(NamedTuple):
    """Traces of the start and of the rounds, in their order, each with how many rounds it is.

    `scripts` are what a run of the same algorithm has to follow.
    """

    start: RoundTrace
    rounds: Sequence[tuple[RoundTrace, int]]
    scripts: PlannedScripts


def trace(init: Step, step: Step, *, graph: Topology, rounds: int) -> AlgorithmTrace:
    """Run `init` and `step` on symbols: every message as linear forms over gradients and noise.

    A step that reads `round.index`, or whose state carries public tensors that change, is traced
    in every round; otherwise one trace counts for all rounds on the same graph. Then all of it is
    done twice more, backwards and forwards, on copies of what the step was given: a step that
    keeps something from call to call does not do the same again.

    Raises:
        UnsupportedView: two rounds on the same graph differ although neither their number nor
            their state does, or a round differs when it is traced again.
        UndeclaredOperation: the step does what no operation declares.
    """
    if rounds < 1:
        raise InputError(f"rounds={rounds} must be at least 1")
    # The start, which may send messages of its own.
    own = with_copies(step)
    first = TracedRound(graph.at(0), index=0)
    begun = perform(with_copies(init), first, number=0)
    start = RoundTrace(first.finish(begun.state))
    state = begun.state

    # Each graph twice, if there are so many rounds. A step that reads the round's number, or
    # carries public tensors that change, has no two rounds alike, and every round is traced.
    period, turns, after = len(graph.graphs), list[RoundTrace](), state
    calls = list[TracedCall]()
    for index in range(1, 2 * period + 1):
        if (index - 1) % period >= rounds:
            continue
        # A graph's second turn is traced as its last: a step that counts rounds in secret shows it.
        number = index if index <= period else rounds - (rounds - index) % period
        before = after
        one, call = trace_round(own, before, graph=graph.at(index), index=number)
        after = call.after
        if one.record.reads_index or not _same_public(before, after):
            return _every_round(init, step, begun, start, graph=graph, rounds=rounds)
        calls.append(call)
        if index > period and not (
            repeats(turns[index - period - 1].record, one.record)
            and calls[index - period - 1].does_as(call)
        ):
            raise UnsupportedView(
                "the step differs between rounds without reading round.index: keep what changes in "
                "the state, as a public tensor, or read round.index"
            )
        turns.append(one)
    check_repeats(init, step, begun.script, calls, graph=graph)
    scripts = PlannedScripts(begun.script, [call.script for call in calls[:period]])

    # The same round again and again, or the graphs in turn.
    if period == 1:
        return AlgorithmTrace(start, [(turns[0], rounds)], scripts)
    return AlgorithmTrace(start, [(turns[index % period], 1) for index in range(rounds)], scripts)


def _every_round(
    init: Step, step: Step, begun: Performed, start: RoundTrace, *, graph: Topology, rounds: int
) -> AlgorithmTrace:
    """Each round by itself; one that repeats an earlier one is the same object."""
    found, earlier, calls = list[RoundTrace](), EarlierRounds(), list[TracedCall]()
    own, state = with_copies(step), begun.state
    for index in range(1, rounds + 1):
        one, call = trace_round(own, state, graph=graph.at(index), index=index)
        calls.append(call)
        state = call.after
        found.append(earlier.matched(one, graph.at(index)))
    check_repeats(init, step, begun.script, calls, graph=graph)
    scripts = PlannedScripts(begun.script, [call.script for call in calls], last=rounds)
    return AlgorithmTrace(start, [(round_, 1) for round_ in found], scripts)


def _same_public(before: Any, after: Any) -> bool:
    pairs = zip(before, after, strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))
