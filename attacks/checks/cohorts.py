"""Cohorts of a watched run: who the engine draws, and whether the rounds that ran had them.

A cohort is held to the laws of a batch, with agents in place of records. By coins each takes part
with probability p, independently of all others and of all other rounds (`sampler`). Of fixed size,
shuffled, or of one order, cohorts are what `schemes` tests of one holder's batches: their size, and
that an agent is in one of an epoch at most, exactly; who is in them by its distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.batches.cohorts import drawing_of_cohort
from ...privacy.batches.drawing import Scheme
from ...privacy.participation import Draws
from ...training.batches.sampler import Sampler
from ...training.step.values import Cohort
from ...training.tracing.linear_forms import Contributions
from ..watching.result import Finding
from ..watching.watched_run import WatchedRun
from .schemes import enough_rounds, test_schemes

_FEWEST_ROUNDS = 40
_VARIANCE = 25.0  # of an agent's participations, which decides how many rounds are drawn
_MOST_COINS = 2e4  # agents times rounds of coins, each of which has a stream of its own
_MOST_PLACES = 1e6  # agents times rounds of what is drawn for all of them together


class DrawnCohort(NamedTuple):
    """A cohort as declared, and who is in it in rounds 1, 2, and so on: (rounds, A)."""

    declared: Cohort
    members: NDArray[np.bool_]


def drawn_cohorts(found: Finding, run: WatchedRun) -> list[DrawnCohort]:
    """The cohorts that something is averaged under, in as many rounds as tests ask for.

    Args:
        found: where it is noted whether the rounds that ran had what the engine draws; nothing of
            that is left to chance.
        run: a watched run.
    """
    every = []
    for cohort in _declared(run):
        _note_recorded(found, run, cohort)
        rounds = max(_enough(cohort, run.setting.graph.agents), len(run.rounds))
        drawn = [run.engine.draw_cohort(cohort, round=t + 1) for t in range(rounds)]
        members = np.array([one.cpu().numpy().ravel() for one in drawn], dtype=np.bool_)
        every.append(DrawnCohort(cohort, members))
    return every


def test_drawn_cohorts(found: Finding, run: WatchedRun, every: Sequence[DrawnCohort]) -> None:
    """Note all tests of cohorts that are not by coins.

    Args:
        found: where they are noted.
        run: a watched run.
        every: cohorts; those by coins are left to others.
    """
    for cohort, members in every:
        drawn = drawing_of_cohort(
            Draws((), cohort.rate, str(cohort.scheme)), agents=members.shape[1]
        )
        if drawn is None:
            continue
        of = Sampler(drawn=(drawn,), order_seed=run.setting.order_seed)
        test_schemes(found, of, [members], call=cohort.call, rate=cohort.rate)


def cohort_words(every: Sequence[DrawnCohort]) -> str:
    """What cohorts were declared, after "batches were drawn at the declared ..."; or nothing.

    >>> every = [DrawnCohort(Cohort(call=0, rate=0.5, scheme=Scheme.FIXED), np.ones((100, 2)))]
    >>> cohort_words(every)
    ' and cohorts of agents as declared (fixed, 0.5 of them, in 100 rounds)'
    """
    declared = [(one.declared, len(one.members)) for one in every]
    coins = ", ".join(f"{c.rate:.4g}" for c, _ in declared if c.scheme is Scheme.POISSON)
    others = ", ".join(
        f"{c.scheme}, {c.rate:.4g} of them, in {rounds} rounds"
        for c, rounds in declared
        if c.scheme is not Scheme.POISSON
    )
    said = f" and secret cohorts of agents at the declared rates ({coins})" if coins else ""
    return f"{said} and cohorts of agents as declared ({others})" if others else said


def _declared(run: WatchedRun) -> list[Cohort]:
    """The cohorts that something is averaged under, as declared, by the order of their calls."""
    found = {
        g.cohort: Cohort(call=g.cohort, rate=g.drawn.cohort, scheme=Scheme(g.drawn.scheme))
        for watched in run.rounds
        for g in watched.trace.groups
        if isinstance(g, Contributions) and g.cohort is not None
    }
    return [found[call] for call in sorted(found)]


def _note_recorded(found: Finding, run: WatchedRun, cohort: Cohort) -> None:
    for watched in run.rounds:
        if cohort.call >= len(watched.recorded.cohorts):
            continue
        again = run.engine.draw_cohort(cohort, round=watched.number)
        same = bool((again.cpu() == watched.recorded.cohorts[cohort.call].cpu()).all())
        what = f"cohort {cohort.call} of round {watched.number} is not what the engine draws"
        found.exact(same, what)


def _enough(cohort: Cohort, agents: int) -> int:
    """Rounds that tell a cohort from another, as far as time allows."""
    variance = cohort.rate * (1.0 - cohort.rate)
    wanted, most = _VARIANCE / variance if variance else 0.0, _MOST_COINS
    drawn = drawing_of_cohort(Draws((), cohort.rate, str(cohort.scheme)), agents=agents)
    if drawn is not None:
        wanted, most = max(wanted, enough_rounds([drawn])), _MOST_PLACES
    return math.ceil(max(_FEWEST_ROUNDS, min(wanted, most / agents)))
