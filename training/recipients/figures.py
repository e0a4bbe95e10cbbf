"""What final models, or an agent some hops away, tell of one record of one agent.

Two figures that are not the closed one stand beside it:

    as if alone   nobody else's gradients depend on the record: the view of what is sent alone, with
                  all other contributions held fixed. An estimate, never a guarantee: other agents'
                  data can be such that the closed figure is reached (docs/recipients.md).
    steered       proven where every agent's step is 1-Lipschitz (`hypotheses`), by
                  `privacy.view.steered`: of the whole run without amplification, or for an agent
                  that is not given final models round by round, with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ...privacy.accounting.accountant import composed_epsilon
from ...privacy.accounting.accountant import epsilon as epsilon_of
from ...privacy.adversary import FINAL_MODELS, neighbour
from ...privacy.guarantee import Statement
from ...privacy.participation import Event, poisson
from ...privacy.view.steered import heard_by, late_age, late_mu, steered_mu
from ..accounts.subject import Subject
from ..exposure.dense_rounds import contributions_of, streamed_view
from ..graphs.graph import Graph
from ..tracing.trace import AlgorithmTrace

__all__ = ["Steered", "as_if_alone", "distances", "steered"]

_DIGITS = 3  # of a round's share, rounded up, so that equal rounds are counted together
_MOST_WORK = 3e9  # multiplications of a view of all rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Steered:
    """A proven figure of a recipient.

    Attributes:
        mu: of the whole run at noise multiplier 1, for a record in every round.
        late: of one round's batch at noise multiplier 1; None where final models are seen.
        epsilon: the smaller of the two figures.
    """

    mu: float
    late: float | None
    epsilon: float


def steered(
    subject: Subject,
    *,
    statement: Statement,
    noise_multiplier: float,
    victim: int,
    agent: int | None,
    final_models: bool,
) -> Steered:
    """The proven figure where every hypothesis of `hypotheses.refusal` holds.

    Args:
        subject: the run.
        statement: what epsilon is said of.
        noise_multiplier: of the run.
        agent: that hears its neighbours; None for final models alone.
        final_models: whether these are seen.
    """
    graph = subject.graph
    assert isinstance(graph, Graph)  # noqa: S101 - as the hypotheses say
    heard: Collection[int] = () if agent is None else heard_by(graph.weights, [agent])
    mu = steered_mu(
        graph.weights,
        victim=victim,
        heard=heard,
        rounds=subject.rounds,
        final_models=final_models,
    )

    def spent(multiplier: float, rounds: int, rate: float) -> float:
        return epsilon_of(
            noise_multiplier=multiplier,
            delta=statement.delta,
            rounds=rounds,
            sampling_rate=rate,
            adjacency=statement.adjacency,
            accountant=statement.accountant,
        )

    epsilon = 0.0 if mu == 0 else spent(noise_multiplier / mu, 1, 1.0)
    late, age = None, None if agent is None else late_age(graph.weights, victim=victim, heard=heard)
    if not final_models and agent is not None:
        late = late_mu(graph.weights, victim=victim, heard=heard)
        rounds = 0 if age is None else subject.rounds - age
        amplified = 0.0
        if rounds > 0 and late > 0:
            amplified = spent(noise_multiplier / late, rounds, subject.sampling_rate)
        epsilon = min(epsilon, amplified)
    return Steered(mu=mu, late=late, epsilon=epsilon)


def as_if_alone(
    traces: AlgorithmTrace,
    *,
    statement: Statement,
    noise_multiplier: float,
    sampling_rate: float,
    victim: int,
    agent: int | None,
) -> float | None:
    """Epsilon as if nobody else's gradients depended on the record; None where it takes too long.

    That view costs M, rounds x rounds, and M <= diag(lam) for the sums lam of the rows of |M|: so
    with everybody else's gradients fixed it is no worse than rounds of joint sensitivity lam^.5.

    Args:
        traces: of the run at noise multiplier 1.
        statement: what epsilon is said of.
        noise_multiplier: of the run.
        sampling_rate: of a batch.
        victim: the agent that holds the record.
        agent: that hears its neighbours; None for final models alone.
    """
    shares = shares_alone(traces, victim=victim, agent=agent)
    if shares is None:
        return None
    if any(map(math.isinf, shares)):
        return math.inf
    counted = Counter(_rounded_up(share) for share in shares)
    events = {
        Event(noise_multiplier / share, poisson(sampling_rate)): count
        for share, count in counted.items()
        if share > 0
    }
    if not events:
        return 0.0
    return composed_epsilon(events, delta=statement.delta, adjacency=statement.adjacency)


def shares_alone(traces: AlgorithmTrace, *, victim: int, agent: int | None) -> list[float] | None:
    """Square roots of lam, one a round, at noise multiplier 1; None where that takes too long."""
    rounds = sum(count for _, count in traces.rounds)
    agents = traces.start.record.agents
    if rounds * float(agents) ** 2 * rounds > _MOST_WORK:
        return None
    who = FINAL_MODELS if agent is None else neighbour(agent)
    view = streamed_view(traces, who, victims=[victim], closed=False, ended=agent is None)
    if view.leaks(victim):
        return [math.inf]
    parts = [traces.start, *(part for part, count in traces.rounds for _ in range(count))]
    bounds = np.array([b for part in parts for b in contributions_of(part, [victim])[2]])
    M = np.abs(view.information(victim)) * np.outer(bounds, bounds)
    rows = M.sum(axis=1)
    of = view.rounds(victim)
    shares = (float(np.sqrt(rows[of == number].sum())) for number in np.unique(of))
    return [traces.per_multiplier(share) for share in shares]


def distances(graph: Graph, victim: int) -> list[int | None]:
    """Hops that a message of the victim takes to each agent; None where it never arrives.

    >>> from overhear.training import build_graph
    >>> distances(build_graph("ring", 6), 0)
    [0, 1, 2, 3, 2, 1]
    """
    found: list[int | None] = [None] * graph.agents
    reached, hops = {victim}, 0
    while reached:
        for agent in reached:
            found[agent] = hops
        linked = zip(graph.receivers.tolist(), graph.senders.tolist(), strict=True)
        reached = {to for to, by in linked if by in reached and found[to] is None}
        hops += 1
    return found


def _rounded_up(share: float) -> float:
    if share <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(share)) - _DIGITS + 1)
    return math.ceil(share / unit) * unit
