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
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..privacy.accounting.accountant import composed_epsilon
from ..privacy.errors import InputError, within
from ..privacy.guarantee import EAVESDROPPER, FINAL_MODELS, Statement, Unit, neighbour
from ..privacy.participation import Event, poisson
from ..privacy.view.steered import heard_by, late_age, late_mu, steered_plan
from .accounts.accounted_run import AccountedRun
from .algorithms import ALGORITHMS
from .data.load import Dataset
from .exposure.dense_rounds import DenseRound, contributions_of, streamed_view
from .exposure.guarantees import equal_epsilon
from .graphs.graph import Graph
from .tracing.trace import AlgorithmTrace

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
    subject: AccountedRun,
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
    # All rounds together are one Gaussian release.
    mu = steered_plan(
        graph.weights, victim=victim, heard=heard, rounds=subject.rounds, final_models=final_models
    ).mu
    epsilon = 0.0
    if mu != 0:
        epsilon = equal_epsilon(statement, noise_multiplier / mu, rounds=1, rate=1.0)
    late, age = None, None if agent is None else late_age(graph.weights, victim=victim, heard=heard)
    # Messages of neighbours alone: rounds one by one, amplified by sampling, bound it too.
    if not final_models and agent is not None:
        late = late_mu(graph.weights, victim=victim, heard=heard)
        rounds = 0 if age is None else subject.rounds - age
        amplified = 0.0
        if rounds > 0 and late > 0:
            noise, rate = noise_multiplier / late, subject.sampling_rate
            amplified = equal_epsilon(statement, noise, rounds=rounds, rate=rate)
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
        sampling_rate: of a batch.
        victim: the agent that holds the record.
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
    """Hops that a message of the victim takes to each agent; None where it never arrives."""
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


# When steered figures hold: hypotheses about the step, the model and the data, each a refusal.
#
#     the step    x_i <- sum_j W_ij (x_j - (eta / B) (sum over the batch of clip(grad) + noise_j))
#     the loss    of one score a.x: then a clipped gradient is phi(a.x) a with phi rising, no
#     steeper
#                 than the loss's derivative, and a batch of n moves points apart by no more than
#                 max(1, (eta / B) n beta - 1), beta = |a|^2 sup l''
#     so          (eta / B) n beta <= 2 makes every agent's step 1-Lipschitz
#
# n is the most records that any batch of any agent may hold; of Poisson batches that is all that an
# agent may hold, not the expected number. |a| is bounded by a public number that code enforces, the
# constant feature of the bias among the features.

_SECOND = {"cross-entropy": 0.25, "squared": 2.0}  # sup l'' of a score's loss
_ROUNDING = 1e-9
# An overflow turns a clipped gradient into 0, which no convex function does. Scores get there, in
# steps that float32 can tell apart, from models of 1e12 on.
_MOST_CLIPPED = 1e4


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearModel:
    """What is known of a model and its data.

    Attributes:
        network: its name, "linear" of one layer with a bias.
        loss: "cross-entropy", "squared", ..; None where something else is learned.
        outputs: numbers that the network returns.
        feature_norm: public bound on the norm of a record's features, which code enforces; None
            where there is none.
        most_records: public bound on the records of any agent, likewise.
        batch_size: B, the public normaliser.
        full_precision: whether gradients are calculated in float32 at least.
        own_noise: whether every agent draws fresh noise that nobody else knows.
    """

    network: str
    loss: str | None
    outputs: int
    feature_norm: float | None
    most_records: int | None
    batch_size: float
    full_precision: bool = True
    own_noise: bool = True

    @property
    def curvature(self) -> float:
        """beta, the largest curvature of one record's loss.

        Two classes are one score: the difference of both outputs, whose features are (a, -a).

        >>> LinearModel(network="linear", loss="cross-entropy", outputs=2, feature_norm=1.0,
        ...     most_records=100, batch_size=5.0).curvature
        1.0
        """
        squared = (self.feature_norm or math.inf) ** 2 + 1.0
        return _SECOND[self.loss or ""] * squared * (2.0 if self.loss == "cross-entropy" else 1.0)


def step_limit(model: LinearModel) -> float:
    """The largest learning rate at which every agent's step is 1-Lipschitz: 2 B / (n beta)."""
    return 2.0 * model.batch_size / ((model.most_records or math.inf) * model.curvature)


def refusal(
    subject: AccountedRun, model: LinearModel, *, statement: Statement, traces: AlgorithmTrace
) -> str | None:
    """Why no steered figure is proven of a run, in a clause; None where every hypothesis holds.

    Args:
        model: its model, loss and data.
        traces: of the subject, at any noise.
    """
    return (
        _of_statement(statement, subject)
        or _of_step(subject)
        or _of_model(model)
        or _of_size(subject, model)
        or _of_rates(subject)
        or _of_trace(subject, traces)
    )


def _of_statement(statement: Statement, subject: AccountedRun) -> str | None:
    if statement.unit is not Unit.RECORD or statement.holders or statement.records_per_person > 1:
        return (
            f"the bound is about one record of one agent, and the figure about {_about(statement)}"
        )
    if subject.drawn is not None:
        return "batches are not Poisson, so one record more changes who else is drawn"
    if subject.clip_norm is None:
        return "nothing is clipped"
    if subject.clip_norm > _MOST_CLIPPED:
        return (
            f"clip_norm={subject.clip_norm:g} is above {_MOST_CLIPPED:g}: models may come to where "
            "float32 rounds by steps of its own, or a gradient overflows and counts as 0"
        )
    if statement.accountant.kind != "upper bound":
        return f"accountant='{statement.accountant}' is no upper bound"
    return None


def _about(statement: Statement) -> str:
    if statement.records_per_person > 1 and statement.unit is Unit.RECORD:
        return f"{statement.records_per_person} records of one person besides"
    return statement.about


def _of_step(subject: AccountedRun) -> str | None:
    """Which algorithms take the step of the bound, with noise that each agent makes alone."""
    if subject.missing or not isinstance(subject.graph, Graph) or subject.graph.absent:
        return "the graph changes, or agents may be missing"
    if subject.algorithm is not ALGORITHMS.get(subject.algorithm.name):
        return "the algorithm is not one of those whose step was checked"
    return subject.algorithm.unsteered(subject.settings)


def _of_model(model: LinearModel) -> str | None:
    if model.network != "linear":
        return f"model {model.network!r} is not linear, so its loss is not convex"
    if model.loss not in _SECOND:
        return f"loss {model.loss!r} is no smooth convex loss of one score"
    if model.loss == "cross-entropy" and model.outputs != 2:
        return (
            f"clipping softmax of {model.outputs} classes loses convexity; two classes are one "
            "score"
        )
    if model.loss == "squared" and model.outputs != 1:
        return f"least squares of {model.outputs} outputs have several scores"
    if not model.full_precision:
        return "gradients are calculated in low precision"
    if not model.own_noise:
        return "the noise comes from a seed that somebody may know"
    return None


def _of_size(subject: AccountedRun, model: LinearModel) -> str | None:
    if model.feature_norm is None:
        return "no public norm bounds the features; set [data] feature_norm"
    if model.most_records is None:
        return "no public number bounds the records of an agent; set [data] most_records"
    limit = step_limit(model)
    if not subject.largest_rate <= limit:
        largest = "the largest " if isinstance(subject.learning_rate, tuple) else ""
        return (
            f"{largest}learning_rate={subject.largest_rate:g} is above {limit:.4g}, 2 B / (n beta) "
            f"with B {model.batch_size:g}, n {model.most_records}, beta {model.curvature:g}"
        )
    return None


def _of_rates(subject: AccountedRun) -> str | None:
    """What was added at one rate would be moved away by the noise of a round with a smaller one."""
    if isinstance(subject.learning_rate, tuple):
        return (
            "the learning rate changes from round to round, and with it the noise in the models, "
            "which the bound takes to be equal; give learning_rate one number"
        )
    return None


def _of_trace(subject: AccountedRun, traces: AlgorithmTrace) -> str | None:
    """Whether the traced step is the recursion of the bound, number by number."""
    graph = subject.graph
    agents = graph.agents
    if len(traces.rounds) != 1 or traces.start.messages:
        return "rounds differ, or the start sends something"
    # The one round, open and closed, and the final models, over the agents' own data.
    part = traces.rounds[0][0]
    one = DenseRound.of(part, EAVESDROPPER, range(agents), closed=False)
    points = DenseRound.of(part, EAVESDROPPER, range(agents), closed=True).seen
    unit = np.eye(agents)
    seen = one.seen
    ends = DenseRound.of(part, FINAL_MODELS, range(agents), closed=False).carried
    if any(part.shape != (agents, agents) for part in (*seen, *ends)):
        return "a round sends more than one message of each agent"
    models = points.carried[agents:]  # where gradients are taken, behind the messages
    if models.shape != unit.shape or np.abs(models - unit).max() > _ROUNDING:
        return "gradients are not taken at the mixed models alone"
    # A message is the model, a share of the agent's own sum, and noise of its own.
    share, noise = seen.contributions[0, 0], seen.noise[0, 0]
    wanted = (unit, share * unit, noise * unit)
    weights = graph.weights if isinstance(graph, Graph) else unit
    for got, ended, want in zip(seen, ends, wanted, strict=True):
        scale = max(float(np.abs(want).max()), 1e-300)
        if np.abs(got - want).max() > _ROUNDING * scale:
            return "a message is not a model less its own clipped sum and noise"
        if np.abs(ended - weights @ want).max() > _ROUNDING * scale:
            return "models are not the mixed messages"
    return None


# Inputs of bounded norm, by a public bound that data do not decide.

_MARGIN = 1e-6  # of the bound, for the rounding of float32


def with_feature_norm(data: Dataset, norm: float) -> Dataset:
    """The same data set with every record's inputs shortened to a norm, where they are longer.

    Training, test and validation records alike, each by itself: whether one is shortened tells
    nothing of another.

    Args:
        data: in memory.
        norm: public bound on the L2 norm of all inputs of a record, after normalisation, > 0.

    Raises:
        ValueError: a norm out of range, or records that are not in memory.
    """
    within("feature_norm", norm, "(0, inf)")
    if data.store is not None:
        raise InputError(
            f"feature_norm={norm:g} of {data.name!r}, whose records are not in memory: shorten "
            "them in the file, or leave feature_norm out"
        )
    if data.columns:
        data = replace(data, columns=())  # its numbers are no longer those of the table
    kept = data.validation
    return replace(
        data,
        inputs=_shortened(data.inputs, norm),
        test_inputs=_shortened(data.test_inputs, norm),
        validation=None if kept is None else kept._replace(inputs=_shortened(kept.inputs, norm)),
        notes=(*data.notes, f"Inputs are shortened to norm {norm:g}, a public bound."),
    )


def _shortened(inputs: Tensor, norm: float) -> Tensor:
    """Rows no longer than the norm, calculated in double precision."""
    rows = inputs.flatten(1).double()
    if not bool(torch.isfinite(rows).all()):
        raise InputError("feature_norm needs inputs that are finite numbers")
    # Twice: squares of tiny or huge inputs may not be floats, so lengths are relative first.
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-300)
    lengths = largest * (rows / largest).norm(dim=1, keepdim=True)
    share = (norm * (1.0 - _MARGIN) / lengths).clamp_max(1.0)
    return (rows * share).float().reshape(inputs.shape).contiguous()
