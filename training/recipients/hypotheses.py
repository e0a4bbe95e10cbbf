"""When steered figures hold: hypotheses about the step, the model and the data, each a refusal.

    the step    x_i <- sum_j W_ij (x_j - (eta / B) (sum over the batch of clip(grad) + noise_j))
    the loss    of one score a.x: then a clipped gradient is phi(a.x) a with phi rising, no steeper
                than the loss's derivative, and a batch of n moves points apart by no more than
                max(1, (eta / B) n beta - 1), beta = |a|^2 sup l''
    so          (eta / B) n beta <= 2 makes every agent's step 1-Lipschitz

n is the most records that any batch of any agent may hold; of Poisson batches that is all that an
agent may hold, not the expected number. |a| is bounded by a public number that code enforces, the
constant feature of the bias among the features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...privacy.adversary import EAVESDROPPER, FINAL_MODELS
from ...privacy.guarantee import Statement, Unit
from ..accounts.subject import Subject
from ..algorithms import ALGORITHMS
from ..exposure.dense_rounds import DenseRound
from ..graphs.graph import Graph
from ..tracing.trace import AlgorithmTrace

__all__ = ["LinearModel", "refusal", "step_limit"]

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
    """The largest learning rate at which every agent's step is 1-Lipschitz: 2 B / (n beta).

    >>> step_limit(LinearModel(network="linear", loss="cross-entropy", outputs=2, feature_norm=1.0,
    ...     most_records=100, batch_size=5.0))
    0.1
    """
    return 2.0 * model.batch_size / ((model.most_records or math.inf) * model.curvature)


def refusal(
    subject: Subject, model: LinearModel, *, statement: Statement, traces: AlgorithmTrace
) -> str | None:
    """Why no steered figure is proven of a run, in a clause; None where every hypothesis holds.

    Args:
        model: its model, loss and data.
        statement: what epsilon is said of.
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


def _of_statement(statement: Statement, subject: Subject) -> str | None:
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


def _of_step(subject: Subject) -> str | None:
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


def _of_size(subject: Subject, model: LinearModel) -> str | None:
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


def _of_rates(subject: Subject) -> str | None:
    """What was added at one rate would be moved away by the noise of a round with a smaller one."""
    if isinstance(subject.learning_rate, tuple):
        return (
            "the learning rate changes from round to round, and with it the noise in the models, "
            "which the bound takes to be equal; give learning_rate one number"
        )
    return None


def _of_trace(subject: Subject, traces: AlgorithmTrace) -> str | None:
    """Whether the traced step is the recursion of the bound, number by number."""
    graph = subject.graph
    agents = graph.agents
    if len(traces.rounds) != 1 or traces.start.messages:
        return "rounds differ, or the start sends something"
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
