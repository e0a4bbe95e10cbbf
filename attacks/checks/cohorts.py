"""Secret cohorts of a watched run: who the engine draws, and whether the rounds that ran had them.

A cohort is held to the laws of a batch, with agents in place of records: each takes part with
probability p, independently of all others and of all other rounds.
"""

from __future__ import annotations

import numpy as np

from ...training.tracing.linear_forms import Contributions
from ..watching.result import Finding
from ..watching.watched_run import WatchedRun

__all__ = ["cohorts_of", "note_recorded", "rates_of_cohorts"]


def rates_of_cohorts(run: WatchedRun) -> dict[int, float]:
    """By call of `cohort` the declared rate of those that something is averaged under.

    Args:
        run: a watched run.
    """
    return {
        g.cohort: g.drawn.cohort
        for watched in run.rounds
        for g in watched.trace.groups
        if isinstance(g, Contributions) and g.cohort is not None
    }


def note_recorded(found: Finding, run: WatchedRun, *, call: int, rate: float) -> None:
    """Note whether the cohorts of the rounds that ran are those that the engine draws.

    Args:
        found: where it is noted; nothing is left to chance.
        run: a watched run.
        call: of `cohort` within a round.
        rate: that is declared.
    """
    for watched in run.rounds:
        if call >= len(watched.recorded.cohorts):
            continue
        again = run.engine.draw_cohort(round=watched.number, call=call, rate=rate)
        same = bool((again.cpu() == watched.recorded.cohorts[call].cpu()).all())
        what = f"cohort {call} of round {watched.number} is not what the engine draws"
        found.note(1.0 if same else 0.0, tests=1, what=what)


def cohorts_of(run: WatchedRun, *, call: int, rate: float, rounds: int) -> np.ndarray:
    """(rounds, A) who is in the cohorts of rounds 1, 2, and so on, as the engine draws them.

    Args:
        run: a watched run.
        call: of `cohort` within a round.
        rate: that is declared.
        rounds: how many.
    """
    drawn = [
        run.engine.draw_cohort(round=t + 1, call=call, rate=rate).cpu().numpy().ravel()
        for t in range(rounds)
    ]
    return np.array(drawn, dtype=bool)
