"""The scripts that a run has to follow, and whether a step does the same when it is traced again.

A run that was planned follows the scripts of the plan's trace. An engine that is used by itself
traces each round before it is carried out, unless it has done so already.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from ...privacy.batches.patterns import EVERY, Pattern, entry_words
from ...privacy.batches.sampling import Drawing
from ...privacy.errors import InputError, UnsupportedView
from ..batches import Participation, Sampler, needs_users
from ..data.partition import check_cap
from ..data.store import Held, check_copies
from ..graphs.graph import Graph, Topology
from ..graphs.participation import ReducedGraph
from ..step.floor import NO_FLOOR, Floor
from ..step.perform import histories_of, perform
from ..step.script import Operation, UnplannedOperation
from ..step.values import Agents
from .round_trace import RoundTrace
from .traced_round import UNLOOKED, RepeatedRound, TracedRound

Step = Callable[..., Any]
Lines = tuple[Operation, ...]


class _PlannedSetting(Protocol):
    """What of a run a figure rests on, beside its rounds; as `Setting` says it."""

    @property
    def graph(self) -> Topology: ...
    @property
    def sampling_rate(self) -> float: ...
    @property
    def shards(self) -> Sequence[Held]: ...
    @property
    def sampler(self) -> Sampler | None: ...
    @property
    def turns(self) -> Participation | None: ...
    @property
    def users(self) -> Sequence[Tensor] | None: ...


class Scripts(Protocol):
    """What a run follows."""

    @property
    def start(self) -> Lines:
        """Of the start."""
        ...

    def check_setting(self, setting: _PlannedSetting) -> None:
        """Refuse a run that is not the planned one."""
        ...

    @property
    def by_user(self) -> bool:
        """Whether some round is known to draw or clip by user."""
        ...

    @property
    def draws_users(self) -> bool:
        """Whether every batch is known to be drawn by user."""
        ...

    def of(self, index: int, state: Any) -> Lines:
        """Of a round that begins with a state."""
        ...

    def floor_of(self, index: int, state: Any) -> Floor:
        """What a round needs of its public values; of the start where `index` is 0."""
        ...


class Basis(NamedTuple):
    """How a record comes into the batches of a run: what its figures rest on.

    Attributes:
        sampling_rate: of the run.
        pattern: in which rounds one record may take part.
        drawn: how each agent draws its batches; each record on its own where None.
        most_of_user: records of one user at one agent, where the figures are about users.
        disjoint: whether a record counts as held by one agent alone.
    """

    sampling_rate: float
    pattern: Pattern = EVERY
    drawn: tuple[Drawing, ...] | None = None
    most_of_user: int | None = None
    disjoint: bool = True


class PlannedScripts:
    """The scripts of a trace.

    Args:
        rounds: of the rounds, in turn.
        last: the last round that was planned.
        floors: what the start and each of `rounds` need of their public values.
        unclipped: whether no sum of data has a bound.
    """

    def __init__(
        self,
        start: Lines,
        rounds: Sequence[Lines],
        *,
        last: int,
        graph: Topology | ReducedGraph,
        floors: Sequence[Floor],
        unclipped: bool = False,
    ) -> None:
        self._unclipped = unclipped
        self.start, self._last, self._graph = start, last, graph
        self._basis: Basis | None = None  # where there are figures of the run
        self._floors = tuple(floors)
        kept: dict[Lines, Lines] = {}  # rounds that do the same share one script
        self._rounds = [kept.setdefault(one, one) for one in rounds]

    def of(self, index: int, state: Any) -> Lines:
        """The script of a round; what its state holds is compared with it.

        Raises:
            UnplannedOperation: no such round was traced.
        """
        del state
        if index > self._last:
            raise UnplannedOperation(
                f"round {index} was not planned: {self._last} rounds were; plan more"
            )
        return self._rounds[(index - 1) % len(self._rounds)]

    def floor_of(self, index: int, state: Any) -> Floor:
        """What a round needs of its public values; of the start where `index` is 0."""
        del state
        return self._floors[1 + (index - 1) % len(self._rounds) if index else 0]

    @property
    def rounds(self) -> Sequence[Lines]:
        """Of the rounds, in turn."""
        return self._rounds

    @property
    def by_user(self) -> bool:
        """Whether some round draws or clips by user."""
        return any(map(needs_users, (self.start, *set(self._rounds))))

    @property
    def draws_users(self) -> bool:
        """Whether every batch is drawn by user."""
        every = (entry for script in (self.start, *set(self._rounds)) for entry in script)
        drawn = [entry for entry in every if entry.operation == "draw"]
        return bool(drawn) and all(needs_users([one]) for one in drawn)

    def resting_on(self, basis: Basis, *, finite: bool = True) -> PlannedScripts:
        """The same for batches that are drawn so, for which there are figures.

        Where none of them is finite, and nothing is clipped, rounding makes none too small.
        """
        found = copy.copy(self)
        found._basis = basis
        if self._unclipped and not finite:
            found._floors = (NO_FLOOR,) * len(self._floors)
        return found

    def check_setting(self, setting: _PlannedSetting) -> None:
        """Refuse a run on another graph, or of batches that are drawn otherwise than planned.

        Of records it sees what costs nothing: that two agents are given the same ones as a whole.
        Single records at two agents, or twice at one, are for who deals them to say.
        """
        graph = setting.graph
        if isinstance(self._graph, ReducedGraph) or not _same_links(graph, self._graph):
            raise InputError(
                f"graph {graph.name!r} of {graph.agents} agents is not the planned one, "
                f"{self._graph.name!r} of {self._graph.agents}; plan the run that is to be done"
            )
        if self._basis is None:
            return
        # What figures rest on: the rate, the batches, the cap of a user, records nobody shares.
        planned, turns = self._basis, setting.turns
        if setting.sampling_rate != planned.sampling_rate:
            raise InputError(
                f"sampling_rate={setting.sampling_rate} is not the planned "
                f"{planned.sampling_rate}; plan the run that is to be done"
            )
        _check_batches(setting.sampler, planned.drawn)
        if planned.most_of_user is not None:
            for users in setting.users or ():
                check_cap(users, planned.most_of_user)
        if planned.disjoint:
            check_copies(setting.shards)
        found = EVERY if turns is None else turns.pattern
        if found != planned.pattern:
            raise InputError(
                f"records take part {found.words} of the setting, and the plan is of records that "
                f"take part {planned.pattern.words}: give it turns=turns_of(pattern, shards, ...) "
                "of the planned pattern"
            )
        if turns is not None and turns.rounds != self._last:
            raise InputError(
                f"turns of {turns.rounds} rounds are not those of the {self._last} planned ones; "
                "make them of the run that is to be done"
            )


class ScriptsOnDemand:
    """The scripts of an algorithm without a plan, each traced when its round comes.

    Args:
        init: the start, with every number bound.
        step: the step likewise.
    """

    def __init__(self, init: Step, step: Step, *, graph: Topology) -> None:
        self._init, self._step, self._graph = init, with_copies(step), graph
        self._known: dict[Any, TracedCall] = {}

    @property
    def start(self) -> Lines:
        """The script of the start."""
        return self._start.script

    @functools.cached_property
    def _start(self) -> TracedCall:
        traced = TracedRound(self._graph.at(0), index=0)
        begun = perform(with_copies(self._init), traced, number=0)
        record = traced.finish(begun.state)
        return TracedCall(0, None, begun.script, begun.state, record.floor, record.secrets)

    def check_setting(self, setting: _PlannedSetting) -> None:
        """Any: each round is traced as it is done."""

    @property
    def by_user(self) -> bool:
        """Whether the start does; of rounds it shows when they come."""
        return needs_users(self.start)

    @property
    def draws_users(self) -> bool:
        """Nothing is known of rounds that are yet to come."""
        return False

    def of(self, index: int, state: Any) -> Lines:
        """The script of a round that begins with the public tensors of a state."""
        return self._traced(index, state).script

    def floor_of(self, index: int, state: Any) -> Floor:
        """What a round needs of its public values; of the start where `index` is 0."""
        return self._traced(index, state).floor if index else self._start.floor

    def _traced(self, index: int, state: Any) -> TracedCall:
        graph = self._graph.at(index)
        public = {n: v for n, v in state._asdict().items() if isinstance(v, Tensor)}
        key = (graph, *(v.cpu().numpy().tobytes() for v in public.values()))
        if key not in self._known:
            # A traced state has the blocks of the fields.
            begin = self._start.after._replace(**public)
            one, call = trace_round(self._step, begin, graph=graph, index=index)
            secrets, of = self._start.secrets, self._graph
            (floor,) = floors_of(self._step, [call], graph=of, rounds=index, secrets=secrets)
            call = call._replace(floor=floor)
            if one.record.reads_index:
                return call
            self._known[key] = call
        return self._known[key]


class TracedCall(NamedTuple):
    """One round that was traced: what it began with, and what it did.

    Attributes:
        number: of the round.
        before: the state that it began with.
        script: all that it did.
        after: the state that it returned.
        floor: what it needs of its public values.
        secrets: fields of the returned state that hold data without noise.
    """

    number: int
    before: Any
    script: Lines
    after: Any
    floor: Floor
    secrets: frozenset[str]


def trace_round(
    step: Step,
    state: Any,
    *,
    graph: Graph,
    index: int,
    secrets: frozenset[str] = frozenset(),
    rounds: int = 1,
) -> tuple[RoundTrace, TracedCall]:
    """One round from a state whose Agents are known, as rows and as a call.

    Fields that are `secrets` hold data that as many rounds may have carried without noise.
    """
    traced = TracedRound(graph, index=index)
    histories = histories_of(state)
    fields = {
        name: traced.known(
            state_column(name),
            block=value.rows.block,
            history=name in histories,
            secret_rounds=rounds if name in secrets else 0,
        )
        if isinstance(value, Agents)
        else value
        for name, value in state._asdict().items()
    }
    done = perform(step, traced, number=index, state=type(state)(**fields))
    round_trace = RoundTrace(traced.finish(done.state))
    found = round_trace.record.floor, round_trace.record.secrets
    return round_trace, TracedCall(index, state, done.script, done.state, *found)


def floors_of(
    step: Step,
    calls: Sequence[TracedCall],
    *,
    graph: Topology | ReducedGraph,
    rounds: int,
    secrets: frozenset[str] = frozenset(),
) -> list[Floor]:
    """The floors of calls, once fields that hold data without noise count as data.

    Args:
        step: on copies of what it was given.
        calls: of rounds.
        secrets: such fields of the start.
    """
    found, held = list(calls), secrets.union(*(call.secrets for call in calls))
    counted = frozenset[str]()
    while held > counted:  # what is made of these fields may be in others after the round
        counted = held
        found = [
            trace_round(
                step,
                call.before,
                graph=graph.at(call.number),
                index=call.number,
                secrets=counted,
                rounds=rounds,
            )[1]
            for call in calls
        ]
        held = counted.union(*(call.secrets for call in found))
    return [call.floor for call in found]


def state_column(field: str) -> str:
    """What the columns of a field of the state that a round begins with are called."""
    return f"state {field}"


def check_repeats(
    init: Step,
    step: Step,
    start: Lines,
    calls: Sequence[TracedCall],
    *,
    graph: Topology | ReducedGraph,
) -> None:
    """Trace everything twice more, backwards and forwards, and compare.

    Raises:
        UnsupportedView: a round does not do the same again.
    """
    for order in (reversed(calls), iter(calls)):
        own, again = with_copies(step), RepeatedRound(graph.at(0), index=0)
        same = perform(with_copies(init), again, number=0).script == start
        for number, before, script, *_ in order:
            held = {
                n: Agents(UNLOOKED) for n, v in before._asdict().items() if isinstance(v, Agents)
            }
            again = RepeatedRound(graph.at(number), index=number)
            repeated = perform(own, again, number=number, state=before._replace(**held))
            same = same and script == repeated.script
        if not same:
            raise UnsupportedView(
                "the step does something else when it is traced again, so that what it will do in "
                "a run is not known: it keeps something from call to call, or uses what is not "
                "given to it; keep what changes in the state, as a public tensor"
            )


def _same_links(one: Topology, other: Topology) -> bool:
    """Whether two topologies have the same weights and agents in every round."""
    pairs = {(one.at(0), other.at(0)), *zip(one.graphs, other.graphs, strict=False)}

    def same(a: Graph, b: Graph) -> bool:
        alike = a.agents == b.agents and a.absent == b.absent
        return a is b or (alike and np.array_equal(a.weights, b.weights))

    return len(one.graphs) == len(other.graphs) and all(same(a, b) for a, b in pairs)


def _check_batches(sampler: Sampler | None, planned: tuple[Drawing, ...] | None) -> None:
    """Refuse batches of another scheme, of another size, or of other numbers of records."""
    if sampler is not None and type(sampler) is not Sampler:
        raise InputError(
            f"the setting's sampler is a {type(sampler).__name__}, of whose batches nothing is "
            "known; give it a Sampler of the planned batches"
        )
    drawn = None if sampler is None else tuple(sampler.drawn)
    if drawn == planned:
        return
    pairs = zip(drawn or [None], planned or [None], strict=False)
    found, wanted = next((one, other) for one, other in pairs if one != other)
    remedy = "leave its sampler out" if planned is None else "give it a Sampler of these"
    raise InputError(
        f"the setting draws {entry_words(found)}, and the plan is of {entry_words(wanted)}: "
        f"{remedy}, or plan the run that is to be done"
    )


def with_copies(function: Step) -> Step:
    """The function with copies of the tensors, arrays and lists that are bound to it."""
    if not isinstance(function, functools.partial):
        return function
    keywords = {name: _copied(value) for name, value in function.keywords.items()}
    return functools.partial(with_copies(function.func), *map(_copied, function.args), **keywords)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if type(value) is tuple and any(isinstance(one, Tensor | np.ndarray | list) for one in value):
        return tuple(_copied(one) for one in value)
    return value
