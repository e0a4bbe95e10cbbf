"""A round that keeps what it draws and computes, as checks, audits and attacks need it.

Kept is a value for each column of the round's trace but its messages, which taps hear: gradients
(`contributions`), noise before it is scaled, and what counts as known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from ...privacy.batches.sampling import Per
from ..device.precision import elements_at_once, on_device
from ..step.operations import OPERATIONS, CarryOut, Coef, How, Values, read_by_others
from ..step.purity import PureFunction
from ..step.script import runs_batched, same_bits
from ..step.values import SERVER, Agents, Batch, ClipNorm, Edges, LocalSteps, Server, Value
from ..tracing.linear_forms import Group, Known
from .links import Links, by_coordinate, of_agents, stacked
from .randomness import NoiseAsked, NoiseMaker

# Calls of the functions that a step gives to its round: done, kept, or done again.
#
# On a device agents are taken together where `runs_batched` finds that the function lets them, and
# one by one elsewhere; calls that are kept or replayed are always one an agent.


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


_KNOWN = {"initial", "public", "postprocess", "project"}  # whose results count as known


class GradientCall(NamedTuple):
    """What one call of `clipped_sums` or `clipped_mean` was asked for.

    Attributes:
        models: (P, M, D) the different points, their blocks side by side.
        owners: (rows,) for each contribution its position in M.
        holders: (rows,) for each contribution the agent whose batch it sums over.
        coefs: (P,) numbers, or (D,) tensors where blocks differ.
        batch: the call of `draw`.
        clip_norm: bound on an example's vector, or on its parts, or on the mean; None where nothing
            is clipped.
        mean_of: the divisor where a batch's mean is clipped; None where its records are.
        per: whether the vector of each record is clipped, or the sum of each user's.
        scales: (rows,) what each vector is divided by before it is clipped; None where by nothing.
    """

    models: Tensor
    owners: Tensor
    holders: Tensor
    coefs: tuple[float | Tensor, ...]
    batch: int
    clip_norm: ClipNorm
    mean_of: float | None = None
    per: Per = Per.RECORD
    scales: Tensor | None = None


class WholeCall(NamedTuple):
    """What one call of `local_update`, or of `average` for a cohort, was asked for.

    Attributes:
        operation: its name.
        batches: the calls of `draw` that it takes; none where it takes all data, or no batch.
    """

    operation: str
    batches: tuple[int, ...] = ()


class CountCall(NamedTuple):
    """What one call of `count` was asked for."""

    batch: int


Call = GradientCall | WholeCall | CountCall | None  # None where `bounded` made the rows


class LocalCall(NamedTuple):
    """What one call of `local_update` began with.

    Attributes:
        start: (A, D) the models.
        asked: its steps.
    """

    start: Tensor
    asked: LocalSteps


class MeanOf(NamedTuple):
    """What one call of `clipped_mean` is asked for.

    Attributes:
        batch_size: the divisor of the sum.
        clip_norm: bound on the mean; None where nothing is clipped.
    """

    batch_size: float
    clip_norm: float | None


class AddedNoise(NamedTuple):
    """What one call of `noise` gave, and what it was asked for.

    Attributes:
        rows: (rows, D) the noise as the step adds it.
        std: standard deviation of a source.
        factor: (rows, sources) how much of each source enters each row; None is one source a row.
        active: (rows,) whose holder takes part, and makes noise; None where every one does.
    """

    rows: Tensor
    std: float
    factor: Tensor | None
    active: Tensor | None = None


@dataclass
class Recorded:
    """What a round drew and computed, in the order of the trace's columns; for checks and attacks.

    Attributes:
        contributions: the rows of each part that `clipped_sums`, `count`, `clipped_mean`,
            `local_update` or `bounded` gave, and what an `average` took of a cohort.
        calls: for each of `contributions` the call that made it; None for what `bounded` made.
        asked: what `local_update` and `clipped_mean` were asked for, from before they did it.
        local: by position in `contributions` what a call of `local_update` began with.
        noise: the standard normal rows of each call of `noise`, before any factor.
        added: what each call of `noise` gave, after any factor.
        makers: for each row of `noise` the agents that must make it in a deployment: those that
            hold a row which it enters; nobody where the server does.
        batches: for each call of `draw` and each agent the positions drawn from its shard, None
            where a planted batch took their place.
        cohorts: (A, 1) for each call of `cohort` 1 for the agents that took part.
        known: the rows of each initial value and each result of `postprocess` or `project`.
        given: the values that operations were given which count as seen or are sent, and the
            secrets and fixed arguments of `bounded`, as `RoundRecord.given` has their rows.
        arguments: for each operation with a function the positions in `given` of what it was given.
        functions: calls the functions of `postprocess`, `project` and `bounded`; it keeps nothing
            unless it is given as `KeptCalls`.
    """

    contributions: list[Tensor] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    asked: list[LocalSteps | MeanOf] = field(default_factory=list)
    local: dict[int, LocalCall] = field(default_factory=dict)
    noise: list[Tensor] = field(default_factory=list)
    added: list[AddedNoise] = field(default_factory=list)
    makers: list[list[frozenset[int]]] = field(default_factory=list)
    batches: list[list[Tensor | None]] = field(default_factory=list)
    cohorts: list[Tensor] = field(default_factory=list)
    known: list[Tensor] = field(default_factory=list)
    given: list[Value] = field(default_factory=list)
    arguments: list[range] = field(default_factory=list)
    functions: Calls = field(default_factory=Calls)

    def known_of(self, groups: Iterable[Group], before: Iterable[Tensor]) -> list[Tensor]:
        """The rows of each group of known values of a round, and what there is beside those.

        Args:
            groups: the columns of its trace, which has the numbers of public tables.
            before: of each field of the state that it began with the rows.
        """
        given, found = iter([*before, *self.known]), list[Tensor]()
        for group in groups:
            if isinstance(group, Known):
                held = next(given, None) if group.table is None else group.table
                found += [] if held is None else [held]
        return [*found, *given]


class KeptNoise:
    """Randomness whose noise is kept as it is made.

    Args:
        randomness: where the noise comes from.
        recorded: gets a copy of every call's rows.
    """

    def __init__(self, randomness: NoiseMaker, recorded: Recorded) -> None:
        self._randomness, self._recorded = randomness, recorded

    def normal(self, **asked: Unpack[NoiseAsked]) -> Tensor:
        """See `SecretRandomness.normal`."""
        z = self._randomness.normal(**asked)
        self._recorded.noise.append(z.clone())
        return z


class Recording:
    """Wrapped around a round, it keeps what is done and what comes out.

    Nothing is computed again. Batches are kept by whoever draws them, and noise by `KeptNoise`,
    which the round draws it from.

    Args:
        recorded: filled by it.
        links: those of the round, without ranks: what is kept is what all agents drew.
        sizes: coordinates of each block.
    """

    def __init__(self, recorded: Recorded, *, links: Links, sizes: Sequence[int]) -> None:
        self._recorded, self._links, self._sizes = recorded, links, tuple(sizes)

    def __call__(self, carry_out: CarryOut, name: str, values: Values, how: How) -> Any:
        """See `Operations.wrap`."""
        # What it was asked for, from before it is done.
        recorded, first = self._recorded, len(self._recorded.given)
        recorded.given += read_by_others(name, values, how)
        if OPERATIONS[name].calls:
            recorded.arguments.append(range(first, len(recorded.given)))
        if name == "clipped_mean":
            recorded.asked.append(MeanOf(how["batch_size"], how["clip_norm"]))
        elif name == "local_update":
            recorded.asked.append(values[1])
        elif name == "noise":
            recorded.makers.append(makers(self._holders(values[0]), how["factor"]))

        # Then what it gave: known values, noise, or contributions with the call behind each.
        made = carry_out(name, values, how)
        if name in _KNOWN:
            recorded.known.append(made.rows.clone())
        elif name == "noise":
            self._add_noise(made, *values, std=how["std"], factor=how["factor"])
        elif name == "clipped_sums":
            call = self._sums_call(values, **how)
            recorded.contributions += [part.rows.clone() for part in made]
            recorded.calls += [call] * len(made)
        elif name == "clipped_mean":
            asked = {"batch": how["batch"], "clip_norm": how["clip_norm"]}
            call = self._sums_call((values,), coefs=(1.0,), **asked)
            self._contribute(made.rows, call._replace(mean_of=how["batch_size"]))
        elif name == "count":
            self._contribute(made.rows, CountCall(how["batch"].call))
        elif name == "local_update":
            point, asked = values
            recorded.local[len(recorded.contributions)] = LocalCall(point.rows.clone(), asked)
            batches = tuple(batch.call for batch in asked.batches)
            self._contribute(made.rows, WholeCall(name, batches))
        elif name == "average" and how.get("cohort") is not None:
            rows: Tensor = values[0].rows
            taking = on_device(recorded.cohorts[how["cohort"].call], rows.device, rows.dtype)
            self._contribute(rows * taking, WholeCall(name))
        elif name == "bounded":
            self._contribute(made.rows, None)
        return made

    def _contribute(self, rows: Tensor, call: Call) -> None:
        self._recorded.contributions.append(rows.clone())
        self._recorded.calls.append(call)

    def _add_noise(self, made: Value, like: Value, *, std: float, factor: Tensor | None) -> None:
        active = None
        if not self._links.everybody and not isinstance(like, Server):
            active = self._links.active[self._holders(like)]
        self._recorded.added.append(AddedNoise(made.rows.clone(), std, factor, active))

    def _sums_call(
        self,
        points: Sequence[tuple[Any, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: ClipNorm,
        per: Per = Per.RECORD,
        scale: Agents | None = None,
    ) -> GradientCall:
        models, owners = stacked(points, sizes=self._sizes, links=self._links)
        holders = self._holders(points[0][0])
        return GradientCall(
            models=models.clone(),
            owners=torch.tensor(owners, device=models.device),
            holders=holders,
            coefs=tuple(by_coordinate(coef, sizes=self._sizes, like=models) for coef in coefs),
            batch=batch.call,
            clip_norm=clip_norm,
            per=per,
            scales=None if scale is None else scale.rows.to(models.dtype)[:, 0][holders].clone(),
        )

    def _holders(self, value: Value) -> Tensor:
        """(rows,) who holds each row."""
        if isinstance(value, Edges):
            return self._links.receivers
        device = self._links.receivers.device
        if isinstance(value, Server):
            return torch.tensor([SERVER], device=device)
        return torch.arange(self._links.agents, device=device)


def makers(holders: Tensor, factor: Tensor | None) -> list[frozenset[int]]:
    """For each source of a noise call the agents that hold a row which it enters.

    Args:
        holders: (rows,) who holds each row; the server counts as nobody.

    >>> makers(torch.tensor([0, 2]), torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.5, 2.0]]))
    [frozenset({0}), frozenset({0, 2}), frozenset({2})]
    """
    held = holders.tolist()
    if factor is None:
        rows = [[row] for row in range(len(held))]
    else:
        rows = [column.nonzero().flatten().tolist() for column in factor.T]
    return [frozenset(held[row] for row in of) - {SERVER} for of in rows]
