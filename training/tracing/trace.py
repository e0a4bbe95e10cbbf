"""Run a step on symbols instead of tensors, round by round: what its rounds are made of.

A step that does the same in every round is traced once. One that reads the number of the round, or
whose state carries public tensors that change, is traced in every round; on a sequence of graphs
every graph is traced by itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...privacy.batches.sampling import Per, Scheme
from ...privacy.errors import InputError, UnsupportedView, check_real, within
from ...privacy.guarantee import Unit
from ...privacy.participation import Draws, Reach
from ..graphs.graph import Graph, GraphSequence, Topology
from ..graphs.participation import ReducedGraph, number_of_sets, reduced, sets_missing
from ..step.final_release import FinalRelease
from ..step.operations import OPERATIONS, Apart
from ..step.perform import perform
from ..step.script import Operation
from .equivalent_rounds import EarlierRounds, is_equivalent, scale_between
from .linear_forms import Contributions
from .record import RoundRecord
from .round_trace import RoundTrace
from .scripts import (
    PlannedScripts,
    Step,
    TracedCall,
    check_repeats,
    floors_of,
    trace_round,
    with_copies,
)
from .traced_round import TracedRound

# Scripts of steps from whose rounds agents may be missing although nobody knew it beforehand.


_PLAIN = {"state", "+", "-", "*", "/", "return"}  # what a script has beside operations
_OF_ANYBODY = _PLAIN | {name for name, of in OPERATIONS.items() if of.apart is Apart.NOTHING}
_WITHOUT_LINKS = _PLAIN | {name for name, of in OPERATIONS.items() if of.apart < Apart.LINKS}
_HANDLES = ("Agents", "Edges", "Server")
_REMEDY = (
    "use round.weights, or a table of round.of_edges, as weights of what is received alone "
    "(round.mix, round.sum_in, round.postprocess), or leave missing out"
)

_Value = tuple[object, ...]


def alike_agents(scripts: Sequence[Sequence[Operation]], same: frozenset[int]) -> frozenset[int]:
    """Those of the `same` agents that change places with each other, by all scripts of a run."""
    return same if interchangeable(scripts) else frozenset()


def interchangeable(scripts: Sequence[Sequence[Operation]]) -> bool:
    """Whether nothing in scripts can tell two agents apart: no link, no table and no factor.

    Every operation then does to each agent what it does to any other, and a sum over agents does
    not depend on their order. So a run with agents renamed is the run of the renamed agents.
    """
    return all(
        entry.operation in _OF_ANYBODY
        and ("Edges", "weights") not in _values(entry.given)
        and (entry.operation == "return" or not _holds_table(entry.given))
        and (entry.operation != "noise" or not _is_shared(entry))
        for script in scripts
        for entry in script
    )


def _values(given: object) -> Iterator[_Value]:
    """The values that an operation was given, each by kind and number."""
    if not isinstance(given, tuple):
        return
    if len(given) == 2 and given[0] in _HANDLES and not isinstance(given[1], float):
        yield given
    for one in given:
        yield from _values(one)


def _holds_table(given: object) -> bool:
    if hasattr(given, "digest"):
        return True
    return isinstance(given, tuple) and any(map(_holds_table, given))


def _is_shared(noise: Operation) -> bool:
    """Whether noise has sources or knowers of its own, which need not be alike for all agents."""
    given = dict(noise.given)
    return any(given.get(name) is not None for name in ("factor", "known_to"))


def uses_links(scripts: Sequence[Sequence[Operation]]) -> bool:
    """Whether some operation may look at who is joined with whom."""
    return not all(entry.operation in _WITHOUT_LINKS for script in scripts for entry in script)


def check_weights(script: Sequence[Operation]) -> None:
    """Refuse weights that do more than to weigh what arrives: who is missing changes them.

    Raises:
        UnsupportedView: they scale or make something else.
    """
    weights: set[_Value] = {("Edges", "weights")}
    for number, entry in enumerate(script):
        given = dict(entry.given)
        if entry.operation == "of_edges":
            weights.add(("Edges", number))
        if weights.isdisjoint(_values(entry.given)):
            continue
        if entry.operation == "own":  # of each agent the weight of itself
            weights.add(("Agents", number))
        elif entry.operation == "sum_in":
            if given.get("value 0") in weights:
                raise UnsupportedView(f"the step adds up weights: {_REMEDY}")
        elif entry.operation not in ("postprocess", "bounded"):
            raise UnsupportedView(
                f"the step uses weights in {entry.operation!r}, and they change where agents are "
                f"missing, which no one knows when noise is made: {_REMEDY}"
            )


def check_unaware(
    whole: Sequence[Sequence[Operation]], part: Sequence[Sequence[Operation]], away: frozenset[int]
) -> None:
    """Refuse a step that knows who is missing by more than the weights of what it receives.

    Args:
        whole: the scripts of a start and of rounds, with everybody there.
        part: the same without those who are missing.

    Raises:
        UnsupportedView: the scripts differ.
    """
    same = len(whole) == len(part)
    for one, other in zip(whole, part, strict=False):
        same = same and len(one) == len(other)
        for a, b in zip(one, other, strict=False):
            same = same and (a == b or a.operation == b.operation == "of_edges")
    if not same:
        who = ", ".join(str(a) for a in sorted(away))
        raise UnsupportedView(
            f"the step does something else where agents {who} are missing, which no one knows when "
            f"noise is made: {_REMEDY}"
        )


# Beyond these, squares and products of public numbers leave the range of double precision, and a
# record's part of a row is taken for rounding, or its noise for none.
LEAST_MULTIPLIER, MOST_MULTIPLIER = 1e-8, 1e20


class AlgorithmTrace(NamedTuple):
    """Traces of the start and of the rounds, in their order, each with how many rounds it is.

    Attributes:
        start: of the start.
        rounds: of the rounds, each with how many rounds it is.
        noise_multiplier: at which noise it was made; None where nobody said, so that it shows what
            is sent and gives no figure.
        scripts: what a run of the same algorithm has to follow.
        release: which fields of the state leave after the last round, by name.
        without: where agents may be missing from rounds, sets of those that are and the trace of
            the same rounds without them.
        alike: agents that change places with each other in these sets, of which some stand for all.
    """

    start: RoundTrace
    rounds: Sequence[tuple[RoundTrace, int]]
    noise_multiplier: float | None
    scripts: PlannedScripts
    release: FinalRelease
    without: Sequence[tuple[frozenset[int], AlgorithmTrace]] = ()
    alike: frozenset[int] = frozenset()

    def per_multiplier(self, mu: float) -> float:
        """A mu of this trace times its noise multiplier: the joint sensitivity.

        Without noise nothing finite would be left of it, so it is infinite where it is not 0.

        Raises:
            ValueError: nobody said at which noise multiplier the trace was made.
        """
        if self.noise_multiplier is None:
            raise InputError(
                "the trace does not say at which noise multiplier it was made, so no figure "
                "follows from it; give trace(..., noise_multiplier=...)"
            )
        if self.noise_multiplier == 0:
            return math.inf if mu > 0 else mu
        return mu * self.noise_multiplier


def trace(
    init: Step,
    step: Step,
    *,
    graph: Topology | ReducedGraph,
    rounds: int,
    noise_multiplier: float | None,
    release: FinalRelease | None = None,
    again: bool = True,
) -> AlgorithmTrace:
    """Run `init` and `step` on symbols: every message as linear forms over gradients and noise.

    A step that reads `round.index`, or whose state carries public tensors that change, is traced
    in every round; otherwise one trace counts for all rounds on the same graph. Then all of it is
    done twice more, backwards and forwards, on copies of what the step was given: a step that
    keeps something from call to call does not do the same again.

    Args:
        init: with every number given.
        step: likewise.
        noise_multiplier: at which noise the two add theirs, noise_std / clip_norm; None where
            only what is sent matters, and no figure is asked for.
        release: which fields of the state leave after the last round; all where None.
        again: whether all is done again and compared; without it only figures may be asked for, of
            a step that is traced with other numbers and compared.

    Raises:
        ValueError: fewer than one round, a noise multiplier that is not that of the step, or a
            field that the state does not have.
        UnsupportedView: two rounds on the same graph differ although neither their number nor
            their state does, or a round differs when it is traced again.
        UndeclaredOperation: the step does what no operation declares.
    """
    within("rounds", rounds, "[1, inf)")
    check_noise(noise_multiplier, init, step)
    # The start, which may send messages of its own.
    own = with_copies(step)
    first = TracedRound(graph.at(0), index=0)
    begun = perform(with_copies(init), first, number=0)
    start = RoundTrace(first.finish(begun.state))
    state = begun.state
    release = FinalRelease.everything(state) if release is None else release.of(state)

    # Each graph twice, if there are so many rounds. A step that reads the round's number, or
    # carries public tensors that change, has no two rounds alike, and every round is traced.
    # A graph's second turn is traced as its last: a step that counts rounds in secret shows it.
    turns, calls, after = dict[Graph, RoundTrace](), dict[Graph, TracedCall](), state
    every, in_turn, by_turn = list[TracedCall](), list[tuple[RoundTrace, int]](), list[TracedCall]()
    for of, number in _turns(graph, rounds):
        before = after
        one, call = trace_round(own, before, graph=of, index=number)
        after = call.after
        if one.record.reads_index or not _same_public(before, after):
            earlier, own, after = EarlierRounds(), with_copies(step), state
            for index in range(1, rounds + 1):  # one that repeats an earlier one is the same object
                one, call = trace_round(own, after, graph=graph.at(index), index=index)
                after = call.after
                by_turn.append(call)
                in_turn.append((earlier.matched(one, graph.at(index)), 1))
            every = by_turn
            break
        every.append(call)
        if of in turns and not (
            is_equivalent(turns[of].record, one.record) and calls[of].script == call.script
        ):
            raise UnsupportedView(
                "the step differs between rounds without reading round.index: keep what changes in "
                "the state, as a public tensor, or read round.index"
            )
        turns.setdefault(of, one)
        calls.setdefault(of, call)
    if again:
        check_repeats(init, step, begun.script, every, graph=graph)
    # The same round again and again, or the graphs in turn.
    if not by_turn:
        period = min(rounds, len(graph.graphs))
        by_turn = [calls[graph.at(index)] for index in range(1, period + 1)]
        each = 1 if len(graph.graphs) > 1 else rounds
        in_turn = [(turns[graph.at(index)], each) for index in range(1, rounds // each + 1)]
    secrets = start.record.secrets
    scripts = PlannedScripts(
        begun.script,
        [call.script for call in by_turn],
        last=rounds,
        graph=graph,
        floors=[
            start.record.floor,
            *floors_of(own, by_turn, graph=graph, rounds=rounds, secrets=secrets),
        ],
        unclipped=_never_clips(start.record, *[of.record for of, _ in in_turn]),
    )
    return AlgorithmTrace(start, in_turn, noise_multiplier, scripts, release)


def with_missing(
    found: AlgorithmTrace,
    init: Step,
    step: Step,
    *,
    graph: Graph | GraphSequence,
    missing: int,
    victim: int | None = None,
    same: frozenset[int] = frozenset(),
) -> AlgorithmTrace:
    """A trace with those of its rounds from which agents are missing, whom nobody knew of.

    Each set of missing agents is traced. Only of agents that nothing in the start and the rounds
    tells apart, `interchangeable`, one set a number is traced: any other one is that one with
    agents renamed.

    Args:
        found: with everybody there.
        init: as it was traced.
        missing: the most agents that are missing from a round.
        victim: in no set of them; None where nobody is named.
        same: agents that neither an adversary's name nor how they draw batches tells apart.

    Raises:
        ValueError: too many sets.
        UnsupportedView: what the step does, other than to weigh what it receives, depends on who
            is missing.
    """
    rounds = sum(count for _, count in found.rounds)
    scripts = [found.scripts.start, *found.scripts.rounds]
    alike = alike_agents(scripts, same)
    number_of_sets(graph, missing, alike=alike, victim=victim)
    for script in found.scripts.rounds:
        check_weights(script)
    without = list[tuple[frozenset[int], AlgorithmTrace]]()
    for away in sets_missing(graph.agents, missing, alike=alike, victim=victim):
        for reduced_graph in reduced(graph, away, links=uses_links(scripts)):
            algorithm_trace = trace(
                init,
                step,
                graph=reduced_graph,
                rounds=rounds,
                noise_multiplier=found.noise_multiplier,
                release=found.release,
            )
            check_unaware(
                scripts, [algorithm_trace.scripts.start, *algorithm_trace.scripts.rounds], away
            )
            without.append((away, algorithm_trace))
    return found._replace(without=tuple(without), alike=alike)


def _turns(graph: Topology | ReducedGraph, rounds: int) -> list[tuple[Graph, int]]:
    """Of every graph the first round that uses it, and then of those with several the last."""
    period = len(graph.graphs)
    first = {graph.at(index): index for index in range(min(rounds, period), 0, -1)}
    last = {graph.at(i): i for i in range(max(1, rounds - period + 1), rounds + 1)}
    every = sorted(first.items(), key=lambda turn: turn[1])
    return [*every, *((of, last[of]) for of, index in every if last[of] > index)]


def check_noise(noise_multiplier: float | None, *functions: Step) -> None:
    """Refuse a noise multiplier that is none, or that is not what the functions were given.

    Args:
        noise_multiplier: of the run; None where no figure is asked for.
        functions: a start and a step. Numbers bound by `functools.partial` can be read.

    Raises:
        ValueError: a multiplier out of range, or another one than noise_std / clip_norm.
        TypeError: a multiplier that is no number.
    """
    if noise_multiplier is None:
        return
    check_real("noise_multiplier", noise_multiplier)
    if noise_multiplier != 0 and not LEAST_MULTIPLIER <= noise_multiplier <= MOST_MULTIPLIER:
        raise InputError(
            f"noise_multiplier={noise_multiplier!r:.40} must be 0, or from {LEAST_MULTIPLIER:g} to "
            f"{MOST_MULTIPLIER:g}: beyond that rounding decides what a message shows"
        )
    for function in functions:
        given = function.keywords if isinstance(function, functools.partial) else {}
        std, clip_norm = given.get("noise_std"), given.get("clip_norm")
        if std is None or clip_norm is None:  # says nothing, or does not clip
            continue
        if not math.isclose(std, noise_multiplier * clip_norm, rel_tol=1e-9):
            raise InputError(
                f"noise_multiplier={noise_multiplier:g} is not that of a step with noise_std="
                f"{std:g} and clip_norm={clip_norm:g}, which is {std / clip_norm:g}; the figure "
                "would be that of another noise"
            )


def _never_clips(*records: RoundRecord) -> bool:
    """Whether there are sums of data, and none has a bound."""
    bounds = [g.bounds for of in records for g in of.groups if isinstance(g, Contributions)]
    return bool(bounds) and bool(np.isinf(np.concatenate(bounds)).all())


def _same_public(before: Any, after: Any) -> bool:
    pairs = zip(before, after, strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))


def refer_to(reference: AlgorithmTrace, other: AlgorithmTrace) -> None:
    """Set `scale_of` in the rounds of another trace that are the reference's but for a scale.

    Their mu is that number times mu there, for every adversary and victim, and is found once.
    """
    for (like, _), (one, _) in zip(reference.rounds, other.rounds, strict=False):
        if one.scale_of is None and (by := scale_between(like.record, one.record)) is not None:
            one.scale_of = like, by
        if one.scale_of is not None and (base := one.scale_of[0].scale_of) is not None:
            one.scale_of = base[0], base[1] * one.scale_of[1]
    for (_, without), (_, others) in zip(reference.without, other.without, strict=False):
        refer_to(without, others)


class Part(NamedTuple):
    """The trace of `rounds` rounds from `first` on."""

    trace: RoundTrace
    first: int
    rounds: int

    @property
    def base(self) -> RoundTrace:
        """The trace whose mu is looked at: of the rounds that differ by a scale, the first."""
        return self.trace if self.trace.scale_of is None else self.trace.scale_of[0]

    @property
    def factor(self) -> float:
        """Mu of these rounds over mu of the base."""
        return 1.0 if self.trace.scale_of is None else self.trace.scale_of[1]


def parts_of(traces: AlgorithmTrace) -> list[Part]:
    """The start and the rounds, those that touch data."""
    parts, first = [Part(traces.start, 0, 1)], 1
    for one, count in traces.rounds:
        parts.append(Part(one, first, count))
        first += count
    return [part for part in parts if part.trace.has_contributions]


# A traced run as all data of an agent act on it, or all records of a user.
#
# Unit "agent": an agent's data become nothing, or other data; the agent itself stays in the graph,
# sends what the step sends and makes its noise. What a record takes part in and what an agent does
# differ in two facts:
#
#     bound           of a vector that is clipped as a whole to C: it lies in a ball of radius C
#                     around 0, where it is without data; a record moves it by up to 2 C
#     participation   an agent takes part in all batches of every round, so that all its
#                     contributions of a round are one event, and sampling of records amplifies
#                     nothing; a secret cohort does
#
# Unit "user": where single records are clipped, its k records act one by one, which the accountant
# sees to. Where the sum of a user's gradients is clipped, they act as one:
#
#     bound           the user adds one vector of length C to what the others add
#     participation   by its own coin where whole users are drawn. Where records are, the vector is
#                     made of those that were: with probability 1 - (1 - q)^k there is any
#
# Everything else of a trace, above all what is seen, is the same.


def at_unit(traces: AlgorithmTrace, unit: Unit, *, records: int | None = None) -> AlgorithmTrace:
    """The trace with contributions bounded for a unit.

    Args:
        traces: of a run, as its step was traced.
        unit: whose data are hidden.
        records: of a user at most; needed where sums of users are clipped.

    Raises:
        ValueError: nobody says how many records a user may have.
        UnsupportedView: records or users are clipped, so that nothing bounds what an agent sends.
    """
    parts = [traces.start, *(part for part, _ in traces.rounds)]
    if unit is Unit.RECORD or (unit is Unit.USER and not any(map(clips_users, parts))):
        return traces
    known: dict[int, RoundTrace] = {}

    def as_unit(group: Contributions) -> Contributions:
        return _of_agents(group) if unit is Unit.AGENT else _of_users(group, records)

    def of(part: RoundTrace) -> RoundTrace:
        if id(part) not in known:
            groups = [as_unit(g) if isinstance(g, Contributions) else g for g in part.groups]
            made = RoundTrace(replace(part.record, groups=groups), unit=unit)
            known[id(part)] = made
            if part.scale_of is not None:  # bounds are halved in both
                made.scale_of = (of(part.scale_of[0]), part.scale_of[1])
        return known[id(part)]

    rounds = [(of(part), count) for part, count in traces.rounds]
    without = tuple((away, at_unit(one, unit, records=records)) for away, one in traces.without)
    return traces._replace(start=of(traces.start), rounds=rounds, without=without)


def clips_users(part: RoundTrace) -> bool:
    """Whether the sums of users are clipped in a round."""
    return any(isinstance(g, Contributions) and g.users is not None for g in part.groups)


def _of_users(group: Contributions, records: int | None) -> Contributions:
    """How all records of a user act; one by one, as in the trace, where single ones are clipped."""
    if group.users is None:
        return group
    if records is None:
        raise InputError("records, the most of any user, is missing where their sums are clipped")
    coins = records if group.users is Per.RECORD else 1
    return replace(
        group,
        bounds=0.5 * group.bounds,
        reach=Reach.SUM,
        draws=Draws((group.sampling_rate,) * coins, whole=True),
    )


def _of_agents(group: Contributions) -> Contributions:
    if group.users is not None and np.isfinite(group.bounds).all():
        raise UnsupportedView(
            "at unit='agent' all that an agent sends in a round is clipped as one vector, and "
            "per='user' clips the sums of single users: use round.clipped_mean or "
            "round.local_update, or unit='user'"
        )
    if group.reach is not Reach.BALL and np.isfinite(group.bounds).all():
        raise UnsupportedView(
            "at unit='agent' all that an agent sends in a round is clipped as one vector, and "
            "round.clipped_sums clips single records: use round.clipped_mean or "
            "round.local_update, or unit='record'"
        )
    return replace(
        group,
        bounds=0.5 * group.bounds,
        reach=Reach.SUM,
        batch=0,
        sampling_rate=None,
        draws=_of_an_agent(group.drawn),
    )


def _of_an_agent(draws: Draws) -> Draws:
    """How all data of an agent take part: the coin of a cohort is the agent's own.

    At unit "record" other records have it, too.
    """
    if draws.scheme != Scheme.POISSON:
        return draws._replace(rates=())
    return Draws((draws.cohort,) if draws.cohort < 1.0 else ())
