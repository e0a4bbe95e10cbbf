"""A traced run as all data of an agent act on it, or all records of a user.

Unit "agent": an agent's data become nothing, or other data; the agent itself stays in the graph,
sends what the step sends and makes its noise. What a record takes part in and what an agent does
differ in two facts:

    bound           of a vector that is clipped as a whole to C: it lies in a ball of radius C
                    around 0, where it is without data; a record moves it by up to 2 C
    participation   an agent takes part in all batches of every round, so that all its
                    contributions of a round are one event, and sampling of records amplifies
                    nothing; a secret cohort does

Unit "user": where single records are clipped, its k records act one by one, which the accountant
sees to. Where the sum of a user's gradients is clipped, they act as one:

    bound           the user adds one vector of length C to what the others add
    participation   by its own coin where whole users are drawn. Where records are, the vector is
                    made of those that were: with probability 1 - (1 - q)^k there is any

Everything else of a trace, above all what is seen, is the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...privacy.batches.drawing import Scheme
from ...privacy.errors import InputError, UnsupportedView
from ...privacy.guarantee import Unit
from ...privacy.participation import Draws, Reach
from ..step.values import Per
from .linear_forms import Contributions
from .round_trace import RoundTrace
from .trace import AlgorithmTrace

__all__ = ["at_unit", "clips_users"]


def at_unit(traces: AlgorithmTrace, unit: Unit, *, records: int | None = None) -> AlgorithmTrace:
    """The trace with contributions bounded for a unit.

    Args:
        traces: of a run, as its step was traced.
        unit: whose data are hidden.
        records: of a user at most; needed where sums of users are clipped.

    Raises:
        ValueError: nobody says how many records a user may have.
        UnsupportedView: records or users are clipped, so that nothing bounds what an agent sends.

    >>> from overhear.training import ALGORITHMS, bind, build_graph
    >>> from overhear.training.tracing.trace import trace
    >>> known = ALGORITHMS["dp-dpsgd"]
    >>> run = bind(known, known.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=1.0,
    ...     batch_size=1.0)
    >>> traces = trace(run.init, run.step, graph=build_graph("ring", 4), rounds=9,
    ...     noise_multiplier=1.0)
    >>> at_unit(traces, Unit.AGENT)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    overhear...UnsupportedView: at unit='agent' all that an agent sends in a round is clipped as ...
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
