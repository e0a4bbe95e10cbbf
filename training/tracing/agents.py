"""A traced run as all data of an agent act on it: the unit "agent".

An agent's data become nothing, or other data; the agent itself stays in the graph, sends what the
step sends and makes its noise. What a record takes part in and what an agent does differ in two
facts:

    bound           of a vector that is clipped as a whole to C: it lies in a ball of radius C
                    around 0, where it is without data; a record moves it by up to 2 C
    participation   an agent takes part in all batches of every round, so that all its
                    contributions of a round are one event, and sampling of records amplifies
                    nothing; a secret cohort does

Everything else of a trace, above all what is seen, is the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...privacy.batches.drawing import Scheme
from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import Unit
from ...privacy.participation import Draws, Reach
from .linear_forms import Contributions
from .round_trace import RoundTrace
from .trace import AlgorithmTrace

__all__ = ["at_unit"]


def at_unit(traces: AlgorithmTrace, unit: Unit) -> AlgorithmTrace:
    """The trace with contributions bounded for a unit.

    Args:
        traces: of a run, as its step was traced.
        unit: whose data are hidden.

    Raises:
        UnsupportedView: single records are clipped, so that nothing bounds what an agent sends.

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
    if unit is not Unit.AGENT:
        return traces
    known: dict[int, RoundTrace] = {}

    def of(part: RoundTrace) -> RoundTrace:
        if id(part) not in known:
            groups = [_of_agents(g) if isinstance(g, Contributions) else g for g in part.groups]
            made = RoundTrace(replace(part.record, groups=groups), unit=unit)
            known[id(part)] = made
            if part.scale_of is not None:  # bounds are halved in both
                made.scale_of = (of(part.scale_of[0]), part.scale_of[1])
        return known[id(part)]

    rounds = [(of(part), count) for part, count in traces.rounds]
    without = tuple((away, at_unit(one, unit)) for away, one in traces.without)
    return traces._replace(start=of(traces.start), rounds=rounds, without=without)


def _of_agents(group: Contributions) -> Contributions:
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
