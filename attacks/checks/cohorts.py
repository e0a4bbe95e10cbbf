"""Secret cohorts of a watched run: who the engine draws, and whether the rounds that ran had them.

A cohort is held to the laws of a batch, with agents in place of records: each takes part with
probability p, independently of all others and of all other rounds.
"""

from __future__ import annotations

import numpy as np

from ...privacy.batches.drawing import Scheme
from ...training.step.values import Cohort
from ...training.tracing.linear_forms import Contributions
from ..watching.result import Finding
from ..watching.watched_run import WatchedRun

__all__ = ["cohorts_of", "declared_cohorts", "note_recorded"]


def declared_cohorts(run: WatchedRun) -> list[Cohort]:
    """The cohorts that something is averaged under, as declared, by the order of their calls.

    Args:
        run: a watched run.
    """
    found = {
        g.cohort: Cohort(call=g.cohort, rate=g.drawn.cohort, scheme=Scheme(g.drawn.scheme))
        for watched in run.rounds
        for g in watched.trace.groups
        if isinstance(g, Contributions) and g.cohort is not None
    }
    return [found[call] for call in sorted(found)]


def note_recorded(found: Finding, run: WatchedRun, cohort: Cohort) -> None:
    """Note whether the cohorts of the rounds that ran are those that the engine draws.

    Args:
        found: where it is noted; nothing is left to chance.
        run: a watched run.
        cohort: as declared.
    """
    for watched in run.rounds:
        if cohort.call >= len(watched.recorded.cohorts):
            continue
        again = run.engine.draw_cohort(cohort, round=watched.number)
        same = bool((again.cpu() == watched.recorded.cohorts[cohort.call].cpu()).all())
        what = f"cohort {cohort.call} of round {watched.number} is not what the engine draws"
        found.note(1.0 if same else 0.0, tests=1, what=what)


def cohorts_of(run: WatchedRun, cohort: Cohort, *, rounds: int) -> np.ndarray:
    """(rounds, A) who is in the cohorts of rounds 1, 2, and so on, as the engine draws them.

    Args:
        run: a watched run.
        cohort: as declared.
        rounds: how many.
    """
    drawn = [
        run.engine.draw_cohort(cohort, round=t + 1).cpu().numpy().ravel() for t in range(rounds)
    ]
    return np.array(drawn, dtype=bool)
