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
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...training.data.dataset import Examples
from ...training.engine.recording import GradientCall
from ..watching.result import Check
from ..watching.watched_round import WatchedRound
from ..watching.watched_run import WatchedRun
from .neighbours.chosen_records import Chosen, choose_records
from .neighbours.judge import Judge, Verdict
from .neighbours.replay import Change, Replay

_NAME = "sensitivity"
_RECORDS = 64
_MADE = 0.25  # for each pass that changes real records, passes that add made ones
_WORK = 1e9  # coordinates of per-example gradients, in all replays of a run
_CHANGED = 0.75  # of the agents in one replay; the others must not notice


class _Pass(NamedTuple):
    """One replay of all watched rounds: record `number` of each agent, real or made.

    Among `others` every agent holds made records alone, in batches of other sizes, and one more
    takes part.
    """

    made: bool
    number: int
    others: bool = False


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
    real = sum(not one.made for one in passes)
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
    return [*real, *(_Pass(True, i) for i in range(made)), _Pass(True, made, others=True)]


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
    compared, tested, replays = 0, set[tuple[int, bool, int]](), 0
    share = 0.0  # the largest influence of a made record over its bound
    for one in passes:
        for turn, watched in enumerate(run.rounds):
            if one.others and not watched.trace.has_contributions:
                continue
            every = _changes(watched, run, chosen, one, turn=turn)
            some = _some(every, agents=run.setting.graph.agents, generator=generator)
            world = _World({}, {})
            if one.others:
                sizes = {a: len(run.setting.shards[a].targets) for a in every}
                world = _World(
                    {a: chosen.shards[a] for a in every},
                    _batches(watched, sizes, generator=generator),
                )
            found = _judged(engine, judges[watched.number], watched, some, world)
            compared += found.compared
            # That of a real record is a statistic of the data, and would be told without noise.
            share = max(share, found.share if one.made else 0.0)
            replays += 1
            if found.fault:
                who, found = _culprit(run, watched, some, found, world)
                words = (
                    f"round {watched.number}, made again on neighbouring data: {who} {found.fault}."
                )
                return Check.exact(_NAME, words, tests=compared, passed=False)
            tested |= {(a, one.made, turn if one.made else one.number) for a in some}
    real = sum(not made for _, made, _ in tested)
    reach = ""
    if chosen.reach is not None:
        reach = " (gradients of {:.2g} to {:.3g} times the bound)".format(*chosen.reach)
    most = "no made one moves what has a bound"
    if share:
        most = f"the largest influence of a made one is {share:.3f} of its bound"
    words = (
        f"{real} real records and {len(tested) - real} made ones{reach} took part or did not in "
        f"the start and {len(run.rounds) - 1} rounds, made again {replays} times in all with all "
        f"randomness equal; none moves anything but what its trace says, and {most}"
    )
    return Check.exact(_NAME, f"{words}.", tests=compared)


def _changes(
    watched: WatchedRound, run: WatchedRun, chosen: Chosen, one: _Pass, *, turn: int
) -> dict[int, Change]:
    """The change of each agent in a round; none of agents whose batch was planted."""
    found = {}
    for agent in range(run.setting.graph.agents):
        made = chosen.near[agent] if one.others else chosen.made[agent]
        real = chosen.real[agent]
        if agent in watched.planted or not made or not real:
            continue
        # Each round adds another record, and in every round agents are at other sizes.
        at = (one.number * len(run.rounds) + turn + 7 * agent) % len(made)
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
) -> Verdict:
    """One replay, and what it shows; in another world against a replay without the changes."""
    try:
        found = engine.again(watched, changes, shards=world.shards, batches=world.batches)
        moved = engine.moved
        if world.shards:
            other = engine.again(watched, {}, shards=world.shards, batches=world.batches)
            found = found.beside(other)
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
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
