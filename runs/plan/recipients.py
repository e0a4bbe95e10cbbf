"""What final models, and agents some hops away, tell of one record of one agent of a run file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...privacy.errors import InputError
from ...privacy.guarantee import Status
from ...training.accounts.accounted_run import AccountedRun
from ...training.data.load import Dataset
from ...training.graphs.graph import Graph
from ...training.recipients import LinearModel, as_if_alone, distances, refusal, steered
from ..run_file import build
from ..run_file.run_file import RunFile
from .plan import Plan, make_plan, subject_of
from .schema import Recipient, Recipients

_MOST_AGENTS = 200
RESTS_ON = (
    "proven for this convex, smooth loss and step; rests on the other agents, too: they must add "
    "their noise and train this loss on norm-clipped features; and on a recipient that sends what "
    "the algorithm says and sees no accuracies of rounds; the proven figure without that is the "
    "closed one"
)


def recipients(config: RunFile, planned: Plan, victim: int) -> Recipients:
    """A row for final models, and one for every other agent, nearest first.

    Args:
        config: the run file.
        planned: its plan.
        victim: the agent whose record is meant.

    Raises:
        ValueError: no such agent, a graph that changes, or a run without privacy.
    """
    graph = build.graph_of(config)
    if not isinstance(graph, Graph) or not graph.has_links:
        raise InputError(f"graph {graph.name!r} must be one graph with links in all rounds")
    if (
        config.privacy is None
        or planned.noise_multiplier == 0
        or config.privacy.clip_norm == math.inf
    ):
        raise InputError(
            "a run without noise or a clip norm hides nothing from any recipient; set [privacy]"
        )
    if not 0 <= victim < graph.agents or graph.agents > _MOST_AGENTS:
        raise InputError(
            f"agent {victim} must lie in 0..{graph.agents - 1}, of at most {_MOST_AGENTS} agents"
        )
    if not config.pattern.is_every:
        raise InputError(
            f"participation={config.pattern.entry} has no figures of recipients by distance; use "
            "'every'"
        )
    if build.missing_of(config) or config.participation is not None:
        raise InputError("[participation] leaves agents out; recipients need all of them")
    # The run at noise multiplier 1, and why hypotheses of the proof may not hold for it.
    statement, data = build.statement_of(config), build.data_of(config)
    batch_size = build.sampling_rate_of(config, data) * build.records_of(config, data)
    subject = subject_of(config, graph, data, batch_size=batch_size)
    traces = subject.trace(1.0)
    model = _model(config, data)
    reason = refusal(subject, model, statement=statement, traces=traces)
    # Every other agent, nearest first, in the views that cover all it may see.
    hops = distances(graph, victim)
    others = sorted(
        (agent for agent in range(graph.agents) if agent != victim),
        key=lambda agent: (math.inf if hops[agent] is None else hops[agent], agent),
    )
    closed = _closed(config, planned, victim, others)
    rows = []
    for agent in (None, *others):
        name = "final-models" if agent is None else f"agent:{agent}"
        # The proven figure, one as if messages were alone, and one with what is steered away.
        figure, status = closed[name]
        proven = figure if status is Status.PROVEN else math.inf
        alone = as_if_alone(
            traces,
            statement=statement,
            noise_multiplier=planned.noise_multiplier,
            sampling_rate=planned.sampling_rate,
            victim=victim,
            agent=agent,
        )
        near = agent is not None and (hops[agent] or 0) < 2
        why = "a neighbour hears the record's own messages" if near else reason
        of = {
            "statement": statement,
            "noise_multiplier": planned.noise_multiplier,
            "victim": victim,
            "agent": agent,
        }
        rows.append(
            Recipient(
                name=name,
                hops=None if agent is None else hops[agent],
                closed=figure,
                closed_status=status,
                estimate=None if alone is None else min(alone, figure),
                steered=None if why else _least(subject, proven, final=agent is None, **of),
                with_final_models=None if why else _least(subject, proven, final=True, **of),
                refused=why,
            )
        )
    return Recipients(
        victim=victim,
        delta=statement.delta,
        rows=rows,
        rests_on=None if reason else RESTS_ON,
        refused=reason,
    )


def _least(subject: AccountedRun, closed: float, *, final: bool, **of: object) -> float:
    """The smaller one of the steered figure and the closed one, where that is proven."""
    return min(closed, steered(subject, final_models=final, **of).epsilon)  # type: ignore[arg-type] # as listed


def _closed(
    config: RunFile, planned: Plan, victim: int, others: Sequence[int]
) -> dict[str, tuple[float, Status]]:
    """Epsilon and its status of final models and of every other agent, as plans have it."""
    privacy = config.privacy
    if privacy is None:
        raise InputError("[privacy] is missing")
    names = ("final-models", *(f"agent:{agent}" for agent in others))
    privacy_table = privacy.with_noise(
        planned.noise_multiplier, adversaries=names, victim=victim, adversary="eavesdropper"
    )
    plan = make_plan(config.model_copy(update={"privacy": privacy_table}))
    return {name: (g.epsilon, g.status) for name in names for g in [plan.guarantee(name)]}


def _model(config: RunFile, data: Dataset) -> LinearModel:
    """What is known of the model and the data, the bounds being enforced by `build`."""
    build.parts_of(config, data)  # refuses an agent with more than most_records
    m = config.model
    usual = "squared" if data.outputs else "cross-entropy"
    plain = m.task in (None, "classification", "regression")
    return LinearModel(
        network=m.name,
        loss=(m.loss or usual) if plain else None,
        outputs=data.width,
        feature_norm=config.data.feature_norm,
        most_records=config.data.most_records,
        batch_size=build.sampling_rate_of(config, data) * build.records_of(config, data),
        full_precision=config.training.precision == "float32",
        own_noise=config.training.evaluation_noise_seed is None,
    )
