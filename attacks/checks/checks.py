"""The checks of an audit that need no canary, on one watched run of the real engine."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...training.algorithms.algorithm import Bound
from ...training.data.store import Store, blocks
from ...training.engine.engine import Engine
from ...training.engine.randomness import SecretRandomness
from ...training.engine.recording import Recorded, ReplayedCalls
from ...training.engine.setting import Setting
from ...training.tracing.linear_forms import NoiseSources
from ...training.tracing.trace import AlgorithmTrace
from .noise_residuals import residual_check
from .noise_streams import stream_check
from .result import Check
from .sampler import sampler_check
from .secrecy import secrecy_check
from .sensitivity import sensitivity_check, value_check
from .watched_run import WatchedRun, chosen_rounds, placed, traces_of, watch

# Messages: every message and end state equals A G + B z + known, to float rounding.
#
# A comes from the trace, G from an oracle that shares nothing with what trains, z and the known
# values as the run recorded them. A clip of the batch in place of the records, a mean by the
# realised batch size or a release whose noise is left out shows in the first round that has one.

_NAME = "messages"


def message_check(run: WatchedRun) -> Check:
    """Compare every message and end state of a run with its row.

    Returns:
        Passed if no difference is longer than rounding of what is added up may account for: 64
        units in the norm of each part, and the root of a unit in a gradient's own.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME, run.mismatch)
    rows, wrong, worst, first = 0, 0, 0.0, ""
    # What is left of every message without its noise, in units of what rounding may leave.
    for watched, residuals in zip(run.rounds, run.residuals, strict=True):
        for residual in residuals:
            left = (residual.value - residual.recorded_noise(watched)).norm(dim=1).numpy()
            allowed = residual.rounding.numpy()
            share = np.divide(left, allowed, out=np.zeros_like(left), where=allowed > 0)
            share[(allowed == 0) & (left > 0) | ~np.isfinite(left)] = np.inf
            rows += len(left)
            wrong += int((share > 1).sum())
            worst = max(worst, float(share.max(initial=0.0)))
            if not first and (share > 1).any():
                at = int((share > 1).argmax())
                first = (
                    f"in round {watched.number} {residual.names[at]} is off by {left[at]:.2g}, "
                    f"where rounding accounts for {allowed[at]:.2g}"
                )
    compared = (
        f"{rows} messages and end states of {len(run.rounds) - 1} rounds and the start were "
        "compared with the sum of their gradients by an independent oracle, their recorded noise "
        "and what is known"
    )
    if run.bounded_contributions:
        compared += f" ({run.bounded_contributions} values of `bounded` taken as recorded)"
    found = (
        f"{wrong} differ, first: {first}"
        if wrong
        else f"none differs by more than rounding, the largest by {worst:.1g} of it"
    )
    return Check.exact(_NAME, f"{compared}; {found}.", tests=rows, passed=not wrong)


# Functions: what `postprocess`, `project` and `bounded` are given depends on its inputs alone.
#
# A trace does not run these functions. One that held a clean gradient, or counted its calls, would
# be accounted for as if it did not. So each watched round is made again under the same noise, from
# the state that it began with, while every agent has a record less in every batch, and each
# function is handed what it was given the first time: then it must return the same, bit for bit.

_NAME_FUNCTIONS = "functions"


def function_check(run: WatchedRun) -> Check:
    """Make the run again on neighbouring data, and every function's result from the same inputs.

    Returns:
        Passed if each function returned the same, and was called as often.
    """
    made, named = 0, dict[str, int]()
    for watched in run.rounds:
        made += len(watched.calls)
        for call in watched.calls:
            named[call.name] = named.get(call.name, 0) + 1
    if not made:
        words = "the step gives its rounds no function, so nothing was looked at."
        return Check.exact(_NAME_FUNCTIONS, words, tests=0)
    fault = _fault(run)
    words = (
        f"{made} calls of {', '.join(sorted(named))} were made again, with what they were given, "
        "in a run whose batches have a record less"
    )
    words += f"; {fault}" if fault else "; each returned the same, bit for bit"
    return Check.exact(_NAME_FUNCTIONS, f"{words}.", tests=made, passed=not fault)


class _OneRecordLess(Engine):
    """An engine whose batches lack a record; one that would be empty has a record instead."""

    def draw_batch(self, *, agent: int, **how: Any) -> Tensor:
        """See `Engine.draw_batch`."""
        drawn = super().draw_batch(agent=agent, **how)
        if len(drawn):
            return drawn[1:]
        return torch.arange(min(1, len(self.setting.shards[agent].targets)))


def _fault(run: WatchedRun) -> str:
    """What the second run did otherwise; empty where nothing."""
    engine = _OneRecordLess(run.setting, run.bound, randomness=run.randomness)
    for watched in run.rounds:
        replayed = ReplayedCalls(placed(watched.calls, run.setting.device))
        recorded = Recorded(functions=replayed)
        try:
            run.again(engine, watched, recorded=recorded)
        except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
            return f"round {watched.number} fails on other records: {error}"
        if replayed.different:
            return f"round {watched.number}: {_named(replayed, agents=run.setting.graph.agents)}"
        if replayed.made != len(watched.calls):
            return (
                f"round {watched.number} calls functions {replayed.made} times on other records, "
                f"not {len(watched.calls)} times"
            )
    return ""


def _named(replayed: ReplayedCalls, *, agents: int) -> str:
    """The functions whose results differ, each with the first agent where it does."""
    first: dict[str, int] = {}
    for at in replayed.different:
        first.setdefault(replayed.kept[at].name, at % agents)
    parts = [f"{name} (agent {agent})" for name, agent in first.items()]
    named = ", ".join(parts[:-1]) + " and " * (len(parts) > 1) + parts[-1]
    return (
        f"{named} returned something else for the same inputs, so it depends on something besides "
        "them"
    )


# Records: a record is in a batch at most once, and in the store as often as in its source.
#
# The unit of privacy is a record at a position of one agent's shard. What stands there twice by a
# fault (a batch that is padded with a record that it holds, a record that two agents were dealt, a
# row of the store that was copied over another) moves every sum twice as far as was accounted for.
#
# Two people may have equal records, and then nothing is wrong: each is at a position of its own. So
# equal records count as a fault where the store holds more of them than the source that it was
# dealt from, or, where no source is known, at all; and are told in words where the source has as
# many.

_NAME_RECORDS = "records"
_NAMED = 3  # places of one record in words


class _Place(NamedTuple):
    agent: int
    position: int


def record_check(run: WatchedRun, *, source: Store | None = None) -> Check:
    """Look for positions that a batch holds twice, and for records that the store does.

    Args:
        source: all records that the agents' shards were dealt from, once each; None where it is
            not known, and then no two records may be equal.

    Returns:
        Passed if no batch holds a position twice, and no record is stored more often than it is in
        the source, nor any that it does not have, nor one of it left out.
    """
    batches, repeated = 0, ""
    for watched in run.rounds:
        for call, drawn in enumerate(watched.recorded.batches):
            for agent, at in enumerate(drawn):
                if at is None:
                    continue
                batches += 1
                position = _twice(at)
                if position is not None and not repeated:
                    repeated = (
                        f"batch {call} of agent {agent} in round {watched.number} holds record "
                        f"{position} {int((at == position).sum())} times"
                    )
    # Records that are equal, beside how often the source has them.
    stored = _places(run.setting.shards)
    equal = {key: places for key, places in stored.items() if len(places) > 1}
    fault, told = _against(stored, equal, source)
    records = sum(len(places) for places in stored.values())
    words = f"the positions of {batches} batches and {records} records in the store were looked at"
    faults = [of for of in (repeated, fault) if of]
    if faults:
        words += f"; {'; '.join(faults)}"
    else:
        words += f"; no batch holds a position twice, and {told}"
    tests = batches + records
    return Check.exact(_NAME_RECORDS, f"{words}.", tests=tests, passed=not faults)


def _twice(at: torch.Tensor) -> int | None:
    """A position that a batch holds more than once."""
    positions, counts = at.unique(return_counts=True)
    return int(positions[counts > 1][0]) if bool((counts > 1).any()) else None


def _against(
    stored: dict[bytes, list[_Place]], equal: dict[bytes, list[_Place]], source: Store | None
) -> tuple[str, str]:
    """What is wrong with the store; and what is told where nothing is."""
    if source is None:
        if not equal:
            return "", "no two records are equal"
        return (
            f"{_where(next(iter(equal.values())))} are equal ({_extra(equal)} more records are "
            "equal to another one), and no source says that there are so many",
            "",
        )
    # Each record is stored as often as the source has it, and none is left out.
    had = {key: len(places) for key, places in _places([source]).items()}
    for key, places in stored.items():
        if len(places) > had.get(key, 0):
            times = had.get(key, 0)
            return (
                f"{_where(places)}: stored {len(places)} times, and {times} times in the source",
                "",
            )
    missing = sum(had.values()) - sum(len(places) for places in stored.values())
    if missing:
        return f"{missing} records of the source are in no agent's store", ""
    if not equal:
        return "", "each record of the source is stored once"
    return "", (
        f"each record of the source is stored as often as it is there: {_extra(equal)} are equal "
        f"to another one ({_where(next(iter(equal.values())))}), and who has several of them is "
        "protected for each by itself"
    )


def _extra(equal: dict[bytes, list[_Place]]) -> int:
    return sum(len(places) - 1 for places in equal.values())


def _where(places: Sequence[_Place]) -> str:
    some = [f"record {of.position} of agent {of.agent}" for of in places[:_NAMED]]
    return " and ".join(some) + (" and others" if len(places) > _NAMED else "")


def _places(shards: Sequence[Store]) -> dict[bytes, list[_Place]]:
    """Where each record is, by its content: inputs and target."""
    found: dict[bytes, list[_Place]] = {}
    for agent, shard in enumerate(shards):
        for position, key in enumerate(_contents(shard)):
            found.setdefault(key, []).append(_Place(agent, position))
    return found


def _contents(shard: Store) -> Iterator[bytes]:
    for block in blocks(shard):
        rows = block.inputs.detach().cpu().flatten(1).contiguous().numpy()
        for row, target in zip(rows, block.targets.cpu().tolist(), strict=True):
            yield hashlib.blake2b(row.tobytes() + f" {target}".encode(), digest_size=16).digest()


# Knowledge: an agent that makes noise is declared to know it.
#
# In a deployment a source of noise is made by every agent that holds a row which it enters, each
# from the same seed. Here each of them makes it again from the seed alone; then the trace must
# count it among those who know it, or its figure takes noise for secret that an adversary
# subtracts. Noise of another size is the same noise: residuals and streams look at sizes.

_NAME_KNOWLEDGE = "knowledge"
_NAMED_KNOWLEDGE = 4  # agents named in words


def knowledge_check(run: WatchedRun) -> Check:
    """Let the makers of every source make it again, and look for them among its knowers.

    Returns:
        Passed if all of them are declared to know what they make.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME_KNOWLEDGE, run.mismatch)
    pairs, other, first = 0, 0, ""
    undeclared: dict[int, int] = {}
    # Each source is made again from its seed, to the same bits.
    for watched in run.rounds:
        groups = [g for g in watched.trace.groups if isinstance(g, NoiseSources)]
        made = zip(groups, watched.recorded.noise, watched.recorded.makers, strict=True)
        for call, (group, z, makers) in enumerate(made):
            again = run.randomness.normal(
                round=watched.number,
                call=call,
                rows=list(range(len(z))),
                width=z.shape[1],
                dtype=z.dtype,
                device=run.setting.device,
            ).cpu()
            for row, (agents, knowers) in enumerate(zip(makers, group.known_to, strict=True)):
                pairs += len(agents)
                is_same = torch.equal(again[row], z[row])
                # Draws that agree in sign wherever neither is 0 differ in size alone.
                other += not is_same and bool((again[row] * z[row] < 0).any())
                # A maker that is not declared to know a source could subtract it unseen.
                for agent in sorted(agents - knowers):
                    undeclared[agent] = undeclared.get(agent, 0) + 1
                    first = first or (
                        f"agent {agent} makes source {row} of noise call {call} in round "
                        f"{watched.number}, which is declared known to {_who(knowers)}"
                    )
    words = f"{pairs} pairs of an agent and a source of noise that it makes were looked at"
    if undeclared:
        words += f"; {_who(frozenset(undeclared))} can subtract noise declared unknown: {first}"
    if other:
        words += f"; {other} sources are not what their seed gives, so their makers would not agree"
    if not pairs:
        words = "no agent makes noise in these rounds: the server does, so nothing was looked at"
    elif not undeclared and not other:
        words += "; each is made again from its seed, and all who can are declared to know it"
    passed = not undeclared and not other
    return Check.exact(_NAME_KNOWLEDGE, f"{words}.", tests=pairs, passed=passed)


def _who(agents: frozenset[int]) -> str:
    if not agents:
        return "no one"
    some = ", ".join(str(agent) for agent in sorted(agents)[:_NAMED_KNOWLEDGE])
    many = "s" if len(agents) > 1 else ""
    return f"agent{many} {some}" + (
        f" and {len(agents) - _NAMED_KNOWLEDGE} more" * (len(agents) > _NAMED_KNOWLEDGE)
    )


def engine_checks(
    setting: Setting,
    bound: Bound,
    *,
    rounds: int,
    generator: np.random.Generator | None = None,
    traces: AlgorithmTrace | None = None,
    randomness: SecretRandomness | None = None,
    source: Store | None = None,
    watched_so_far: Callable[[int], None] | None = None,
) -> list[Check]:
    """All checks of the engine that need no canary, in an order that a reader can follow.

    Messages, residuals, streams, secrecy, sampler, knowledge, functions, values, records,
    sensitivity.

    Messages are compared in the run's own precision, and once more in double precision, where
    rounding hides next to nothing; one check covers both. Neighbouring data are replayed in double
    precision alone.

    Args:
        bound: the algorithm with its numbers, at the noise of the run.
        rounds: how many to watch: the first two, the last, and others by chance.
        generator: chooses rounds; of the system's entropy when None.
        traces: of all rounds of the run, at its noise; as many as are watched, and made here, when
            None. The noise of all of them is looked at.
        randomness: of the system's entropy when None.
        source: all records that the shards were dealt from; see `record_check`.
        watched_so_far: called after each round of the first run that is watched, with their number.
    """
    # The rounds that are watched, at the run's own noise.
    own, chance = randomness or SecretRandomness(), generator or np.random.default_rng()
    traces = traces or traces_of(bound, setting, rounds=rounds)
    some = functools.partial(
        chosen_rounds, rounds, planned=sum(count for _, count in traces.rounds), generator=chance
    )
    run = watch(
        setting, bound, rounds=some(), traces=traces, randomness=own, kept_so_far=watched_so_far
    )
    messages = message_check(run)
    found = [
        residual_check(run),
        stream_check(setting, bound, traces, randomness=own, generator=chance),
        secrecy_check(run, traces),
        sampler_check(run),
        knowledge_check(run),
        function_check(run),
        value_check(run),
        record_check(run, source=source),
    ]
    # Sharp checks need double precision, in which some rounds run once more; one run is kept.
    if setting.dtype is not torch.float64:
        del run
        precise = replace(setting, dtype=torch.float64)
        run = watch(
            precise, bound, rounds=some(), traces=traces, randomness=randomness, seconds=0.0
        )
        # A fault in the run's own precision is told first; else the sharper run decides.
        messages = message_check(run) if messages.passed else messages
    vars(run).pop("residuals", None)  # which nothing reads again
    return [messages, *found, sensitivity_check(run)]
