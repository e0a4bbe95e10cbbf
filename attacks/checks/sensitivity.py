"""Sensitivity: one record moves what enters each noise by at most its declared bound.

The watched rounds are made again with all randomness equal, once for each record of every agent
that is chosen: the record takes part where it did not, or the other way round, or one more stands
in the store. All that was seen is held fixed, so what is left of each difference is that record's
whole influence. By the trace of the round it must be

    A dG    with |dG_i| <= bound_i in each call that the record's owner contributes to,
            and dG_i = 0 in every other

and nothing else anywhere: not in another agent's gradients, in what a function is given, in the
noise, in which other records a batch holds, in the operations, nor in a later round. Then each call
keeps its bound by itself, and all of them together the joint sensitivity that the trace has for
them. No statistics: one record that does otherwise fails the check.

Source: replay of training on neighbouring data (arXiv 2602.17454).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from traceback import clear_frames
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import NotFiniteError
from ...training.data.store import Examples
from ...training.engine.recording import GradientCall
from ...training.models.parameters import flatten
from ...training.step.floor import INITIAL, MOST_LOST, UNIT, Floor
from ...training.step.values import Edges, Value
from ...training.tracing.linear_forms import Contributions, Known
from .chosen_records import Chosen, choose_records
from .recording import RecordedColumns, Residuals, WatchedRound
from .replayed_round import Change, Judge, Replay, Verdict, same_numbers
from .result import Check
from .watched_run import WatchedRun

_NAME = "sensitivity"
_RECORDS = 64
_MADE = 0.25  # for each pass that changes real records, passes that add made ones
_WORK = 1e9  # coordinates of per-example gradients, in all replays of a run
_CHANGED = 0.75  # of the agents in one replay; the others must not notice


class _Pass(NamedTuple):
    """One replay of all watched rounds: record `number` of each agent, real or made.

    Among `others` every agent holds made records alone, in batches of other sizes, and one more
    takes part. Where `far`, made ones are outliers in every other round, which the engine may
    refuse.
    """

    made: bool
    number: int
    others: bool = False
    far: bool = False


class _World(NamedTuple):
    """Shards and batches of agents whose records are all others; none where they are not."""

    shards: Mapping[int, Examples]
    batches: Mapping[int, Tensor]


def sensitivity_check(
    run: WatchedRun, *, records: int = _RECORDS, generator: np.random.Generator | None = None
) -> Check:
    """Make every watched round again on neighbouring data.

    Args:
        run: a watched run; in double precision rounding hides next to nothing, in single precision
            a tenth of a bound is left to a ReLU that rounding opens.
        records: how many real ones to change at least, shared among the agents. A pass over all
            watched rounds changes one of each agent, and costs what the rounds cost. There are at
            least one pass with real records, one with made ones and one (twice) among made ones
            alone; beyond these as many as 1e9 coordinates of per-example gradients allow.
        generator: picks records; of the system's entropy when None.

    Returns:
        Passed if no record moves anything by more than its bound, or where it has no part.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME, run.mismatch)
    own = generator or np.random.default_rng()
    passes = _passes(run, records)
    rounds = [watched for watched in run.rounds if watched.trace.has_contributions]
    if not rounds or not any(len(shard.targets) for shard in run.setting.shards):
        words = "no watched round touches a record, so nothing was looked at."
        return Check.exact(_NAME, words, tests=0)
    real = sum(not pass_.made for pass_ in passes)
    chosen = choose_records(
        run, each=real, made=max(2, (len(passes) - real) * len(rounds)), generator=own
    )
    return _check(run, chosen, passes, generator=own)


def _passes(run: WatchedRun, records: int) -> list[_Pass]:
    """As many as the records ask for and the work allows; the last costs twice as much."""
    wanted = math.ceil(records / run.setting.graph.agents)
    affordable = _WORK / max(1.0, sum(map(_work, run.rounds)))
    count = max(1, min(wanted, int(affordable / (1 + _MADE))))
    made = max(1, round(_MADE * count))
    real = [_Pass(False, i) for i in range(count)]
    own = [_Pass(True, i, far=i == made - 1) for i in range(made)]
    return [*real, *own, _Pass(True, made, others=True)]


def _work(watched: WatchedRound) -> float:
    """Coordinates of the per-example gradients of a round."""
    total = 0.0
    calls = zip(watched.recorded.contributions, watched.recorded.calls, strict=True)
    for made, call in calls:
        if isinstance(call, GradientCall):
            sizes = [0 if at is None else len(at) for at in watched.recorded.batches[call.batch]]
            total += made.shape[1] * sum(sizes[holder] for holder in call.holders.tolist())
    return total


def _check(
    run: WatchedRun, chosen: Chosen, passes: list[_Pass], *, generator: np.random.Generator
) -> Check:
    judges = {watched.number: Judge(watched) for watched in run.rounds}
    engine = Replay(run)
    compared, tested, replays, refused = 0, set[tuple[int, bool, int]](), 0, 0
    share = 0.0  # the largest influence of a made record over its bound
    for pass_ in passes:
        for turn, watched in enumerate(run.rounds):
            if pass_.others and not watched.trace.has_contributions:
                continue
            # The round again with some records changed, and all else equal, noise included.
            every = _changes(watched, run, chosen, pass_, turn=turn)
            some = _some(every, agents=run.setting.graph.agents, generator=generator)
            world = _World({}, {})
            if pass_.others:
                sizes = {a: len(run.setting.shards[a].targets) for a in every}
                world = _World(
                    {a: chosen.shards[a] for a in every},
                    _batches(watched, sizes, generator=generator),
                )
            judge = judges[watched.number]
            found = _judged(engine, judge, watched, some, world, refuses=pass_.far)
            if found.refused:  # and tried no more: the round would be made under the same noise
                engine, refused = Replay(run), refused + 1
                continue
            compared += found.compared
            # In another world the sums are those of its records, whatever else a batch holds.
            if engine.elsewhere is not None and not found.fault:
                compared += run.setting.graph.agents
                if off := Residuals(engine.setting).fault(engine.elsewhere):
                    words = f"round {watched.number}, made again on other records: {off}."
                    return Check.exact(_NAME, words, tests=compared, passed=False)
            # That of a real record is a statistic of the data, and would be told without noise.
            share = max(share, found.share if pass_.made else 0.0)
            replays += 1
            # One fault ends the check, once it is known whose it is.
            if found.fault:
                who, found = _culprit(run, watched, some, found, world)
                words = (
                    f"round {watched.number}, made again on neighbouring data: {who} {found.fault}."
                )
                return Check.exact(_NAME, words, tests=compared, passed=False)
            tested |= {(a, pass_.made, turn if pass_.made else pass_.number) for a in some}
    real = sum(not made for _, made, _ in tested)
    reach = ""
    if chosen.reach is not None:
        reach = " (gradients of {:.2g} to {:.3g} times the bound)".format(*chosen.reach)
    beyond = "; outliers of any size were among these" if any(chosen.outliers) else ""
    if refused:
        beyond += f", and {refused} rounds ended where a gradient was not finite"
    most = "no made one moves what has a bound"
    if share:
        most = f"the largest influence of a made one is {share:.3f} of its bound"
    words = (
        f"{real} real records and {len(tested) - real} made ones{reach} took part or did not in "
        f"the start and {len(run.rounds) - 1} rounds, made again {replays} times in all with all "
        f"randomness equal; none moves anything but what its trace says, and {most}{beyond}"
    )
    return Check.exact(_NAME, f"{words}.", tests=compared)


def _changes(
    watched: WatchedRound, run: WatchedRun, chosen: Chosen, one: _Pass, *, turn: int
) -> dict[int, Change]:
    """The change of each agent in a round; none of agents whose batch was planted."""
    found = {}
    for agent in range(run.setting.graph.agents):
        made = chosen.near[agent] if one.others else chosen.made[agent]
        if far := one.far and (len(run.rounds) - turn) % 2 == 1:
            made = chosen.outliers[agent] or made
        real = chosen.real[agent]
        if agent in watched.planted or not made or not real:
            continue
        # Each round adds another record, and in every round agents are at other sizes.
        at = (one.number * len(run.rounds) + turn + 7 * agent) % len(made)
        if far:  # all agents alike, so that most rounds go on to their end
            at = round(turn * (len(made) - 1) / max(len(run.rounds) - 1, 1))
        position = None if one.made else real[one.number % len(real)]
        found[agent] = Change(position, made[at])
    return found


def _batches(
    watched: WatchedRound, sizes: Mapping[int, int], *, generator: np.random.Generator
) -> dict[int, Tensor]:
    """Batches of other sizes: of some agents none, of some about twice as many as were drawn."""
    found = {}
    for agent, records in sizes.items():
        drawn = [len(at) for at in (of[agent] for of in watched.recorded.batches) if at is not None]
        kind = generator.integers(4)
        if kind == 0:
            found[agent] = torch.zeros(0, dtype=torch.int64)
        elif kind == 1:
            size = min(records, 2 * max(drawn, default=0) + 8)
            found[agent] = torch.from_numpy(np.sort(generator.permutation(records)[:size]))
    return found


def _some(
    every: Mapping[int, Change], *, agents: int, generator: np.random.Generator
) -> dict[int, Change]:
    """The changes of most agents, so that the others show what is not theirs."""
    if agents == 1 or len(every) < 2:
        return dict(every)
    kept = [agent for agent in every if generator.random() < _CHANGED]
    return {agent: every[agent] for agent in kept or list(every)[:1]}


def _judged(
    engine: Replay,
    judge: Judge,
    watched: WatchedRound,
    changes: Mapping[int, Change],
    world: _World,
    *,
    refuses: bool = False,
) -> Verdict:
    """One replay, and what it shows; in another world against a replay without the changes.

    Where `refuses`, the engine may end the round with the words that a number is not finite.
    """
    try:
        found = engine.again(watched, changes, shards=world.shards, batches=world.batches)
        moved = engine.moved
        if world.shards:
            other = engine.again(watched, {}, shards=world.shards, batches=world.batches)
            found = found.beside(other)
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        clear_frames(error.__traceback__)  # the round keeps the error, and so all that it computed
        if refuses and isinstance(error, NotFiniteError):
            return Verdict("", None, 0.0, 0, refused=True)
        return Verdict(f"makes the round do something else, or fail: {error}", None, 0.0, 1)
    if moved:
        return Verdict(f"changes which other records are in {moved}", None, 0.0, 1)
    return judge.verdict(found, frozenset(changes))


def _culprit(
    run: WatchedRun,
    watched: WatchedRound,
    changes: Mapping[int, Change],
    found: Verdict,
    world: _World,
) -> tuple[str, Verdict]:
    """Who did it: the same round once more without a change, then with one record's at a time."""
    judge = Judge(watched)
    unchanged = _judged(Replay(run), judge, watched, {}, _World({}, {}))
    if unchanged.fault:
        return "nothing was changed, and something besides the recorded state", unchanged
    for agent, change in changes.items():
        alone = _judged(Replay(run), judge, watched, {agent: change}, world)
        if alone.fault:
            return _named(agent, change), alone
    if found.agent is not None and found.agent in changes:
        return _named(found.agent, changes[found.agent]), found
    return "a record that was changed, here or in a round before,", found


def _named(agent: int, change: Change) -> str:
    if change.position is None:
        return f"a record more of agent {agent}"
    return f"record {change.position} of agent {agent}"


# Values: what counts as known is what its trace says, and not merely what was recorded.
#
# A trace counts the models at which gradients are taken, what functions are given and what they
# return as known: noisy values, or functions of such. A round that handed a function a clean
# gradient in place of the noisy one would look as it should in every message, because what the
# function made of it is believed. So each of these values is formed again: what an operation was
# given from the gradients, the noise and the messages that its row names; what a function was
# called with from that; what the round went on with from what the function returned; the initial
# model from the setting. What a function returns is formed again by the check of functions.
#
# Beside known values that are too large for noise which comes in late, floats lose that noise, and
# the engine stops. So their norms are measured again and compared with the floor of the trace.

_NAME_VALUES = "values"


def value_check(run: WatchedRun) -> Check:
    """Form every value that counts as known again.

    Returns:
        Passed if what operations were given differs from its row by no more than rounding, what
        functions were called with and returned not at all, and no noise is lost in rounding.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME_VALUES, run.mismatch)
    compared, wrong, first = 0, 0, ""
    for watched in run.rounds:
        for fault, count in _faults(run, watched):
            compared += count
            wrong += bool(fault)
            first = first or (fault and f"in round {watched.number} {fault}")
    words = (
        f"{compared} values that count as known were formed again: what gradients are taken at, "
        "what is sent, what functions are given and return"
    )
    words += f"; {wrong} differ, first: {first}" if wrong else "; none differs"
    return Check.exact(_NAME_VALUES, f"{words}.", tests=compared, passed=not wrong)


def _faults(run: WatchedRun, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """For each thing that is compared what is wrong, if something is, and how many values."""
    recorded, traced = watched.recorded, watched.trace.record.given
    yield (
        "operations are given more values, or fewer, than in the trace"
        if len(traced) != len(recorded.given)
        else "",
        1,
    )
    columns = RecordedColumns(watched)
    for place, (rows, value) in enumerate(zip(traced, recorded.given, strict=False)):
        yield _unexplained(columns, rows, value, place=place), len(value.base)
    yield from _functions(run, watched)
    yield from _floor(run.engine.scripts.floor_of(watched.number, None), watched)


def _floor(floor: Floor, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """Whether the round's late noise is large enough beside its known values."""
    norms, eps = dict[str, float](), 0.0
    groups = [group for group in watched.trace.groups if isinstance(group, Known)]
    for group, rows in zip(groups, watched.known, strict=False):
        if group.what in floor.names:
            norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max()
            norms[group.what] = max(norms.get(group.what, 0.0), float(norm))
            norms[UNIT] = max(norms.get(UNIT, 0.0), float(rows.shape[1]) ** 0.5)
            eps = torch.finfo(rows.dtype).eps
    if floor.parts:
        lost = floor.mu_lost(norms, eps=eps)
        what = f"its noise is lost beside {floor.worst(norms, eps=eps).what}, which adds {lost:.2g}"
        yield "" if lost <= MOST_LOST else f"{what} to mu", len(norms)


def _unexplained(columns: RecordedColumns, rows: object, value: Value, *, place: int) -> str:
    """How far a value is from its row."""
    found = value.base.double().numpy()
    unit = max(columns.unit, torch.finfo(value.base.dtype).eps)
    allowed = 64 * unit * np.linalg.norm(found, axis=1)
    if isinstance(rows, Tensor):
        expected = rows.double().numpy()
    else:
        expected = columns.value(rows, width=found.shape[1])
        allowed = allowed + columns.rounding(rows)
    if expected.shape != found.shape:
        return f"value {place + 1} that an operation is given has another shape than in its trace"
    left = np.linalg.norm(found - expected, axis=1)
    wrong = ~(left <= allowed)
    if not wrong.any():
        return ""
    at = int(wrong.argmax())
    return (
        f"value {place + 1} that an operation is given is off in row {at} by {left[at]:.2g} of "
        f"{np.linalg.norm(found[at]):.2g}, where rounding accounts for {allowed[at]:.2g}"
    )


def _functions(run: WatchedRun, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """What functions were called with and returned, and what the round went on with."""
    agents, recorded, graph = (
        run.setting.graph.agents,
        watched.recorded,
        run.setting.graph.at(watched.number),
    )
    yield from _initial(run, watched)
    each = [watched.calls[i : i + agents] for i in range(0, len(watched.calls), agents)]
    results = _results(watched)
    if not len(each) == len(recorded.arguments) == len(results):
        yield "functions are called more often, or more rarely, than operations name them", 1
        return
    # The round goes on with what a function returned, which saw what it was given.
    for calls, arguments, (went_on, hides) in zip(each, recorded.arguments, results, strict=True):
        values = [recorded.given[at] for at in arguments]
        same = len(calls) == len(went_on) and all(
            same_numbers(call.output, row) for call, row in zip(calls, went_on, strict=True)
        )
        what = f"{calls[0].name} returned another value than the round goes on with"
        yield "" if same else what, agents
        for agent, call in enumerate(calls):
            mine = graph.receivers == agent
            edges = np.flatnonzero(mine & (graph.senders != agent) if hides else mine)
            expected = [_given(v, agent, edges, like=call.output) for v in values]
            same = len(expected) == len(call.inputs) and all(
                same_numbers(a, b) for a, b in zip(expected, call.inputs, strict=True)
            )
            what = f"{call.name} (agent {agent}) is called with another value than it is given"
            yield "" if same else what, len(expected)


def _given(value: Value, agent: int, edges: np.ndarray, *, like: Tensor) -> Tensor:
    """What a function of an agent gets of a value."""
    rows = value.rows
    mine = rows[torch.from_numpy(edges)] if isinstance(value, Edges) else rows[agent]
    return mine.to(like.dtype)


def _results(watched: WatchedRound) -> list[tuple[Tensor, bool]]:
    """What the round went on with of each function, and whether that hides a secret."""
    known, calls = iter(watched.recorded.known), iter(watched.recorded.calls)
    made, of_state = iter(watched.recorded.contributions), len(watched.before)
    found = list[tuple[Tensor, bool]]()
    for group in watched.trace.groups:
        if isinstance(group, Contributions):
            rows = next(made)
            if next(calls) is None:
                found.append((rows, True))
        elif isinstance(group, Known):
            if of_state:
                of_state -= 1
                continue
            if group.table is not None:  # public: its numbers are the trace's
                continue
            rows = next(known)
            if group.what != INITIAL and group.public is None:
                found.append((rows, False))
    return found


def _initial(run: WatchedRun, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """The initial model is the public one, and public random numbers are those of their seed."""
    of_state, task = len(watched.before), run.setting.task
    groups = [g for g in watched.trace.groups if isinstance(g, Known) and g.table is None]
    public = (task.initial() if task else flatten(run.setting.model)).detach().cpu()
    blocks = public.split(task.dimensions) if task else (public,)
    for group, rows in zip(groups[of_state:], watched.recorded.known, strict=True):
        if group.what == INITIAL:
            expected = blocks[group.block].to(rows.dtype).expand(len(rows), -1)
            same = same_numbers(rows, expected)
            yield "" if same else "the initial model is not the public one", len(rows)
        elif group.public is not None:
            asked = group.public._replace(round=watched.number)  # one trace may stand for more
            expected = asked.rows(range(len(rows)), width=rows.shape[1]).to(rows.dtype)
            same = same_numbers(rows, expected)
            yield "" if same else "public random numbers are not those of their seed", len(rows)
