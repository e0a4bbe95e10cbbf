"""Functions: what `postprocess`, `project` and `bounded` are given depends on its inputs alone.

A trace does not run these functions. One that held a clean gradient, or counted its calls, would be
accounted for as if it did not. So each watched round is made again under the same noise, from the
state that it began with, while every agent has a record less in every batch, and each function is
handed what it was given the first time: then it must return the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...training.engine.engine import Engine
from ...training.engine.function_calls import ReplayedCalls
from ...training.engine.recording import Recorded
from ..watching.on_host import placed
from ..watching.result import Check
from ..watching.watched_run import WatchedRun

_NAME = "functions"


def function_check(run: WatchedRun) -> Check:
    """Make the run again on neighbouring data, and every function's result from the same inputs.

    Args:
        run: a watched run.

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
        return Check.exact(_NAME, words, tests=0)
    fault = _fault(run)
    words = (
        f"{made} calls of {', '.join(sorted(named))} were made again, with what they were given, "
        "in a run whose batches have a record less"
    )
    words += f"; {fault}" if fault else "; each returned the same, bit for bit"
    return Check.exact(_NAME, f"{words}.", tests=made, passed=not fault)


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
    return _and([f"{name} (agent {agent})" for name, agent in first.items()]) + (
        " returned something else for the same inputs, so it depends on something besides them"
    )


def _and(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + " and " * (len(parts) > 1) + parts[-1]
