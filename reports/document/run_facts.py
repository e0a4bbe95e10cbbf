"""What a run was: its objects in numbers, the network that a report draws, and what it learned."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...privacy.errors import InputError
from ...privacy.ledgers.ledger import Spent
from ...runs.folder import folder as run_folder
from ...runs.folder.records import Stopped, read_stopped
from ...runs.plan.plan import Plan
from ...runs.run_file.build import Built
from ...runs.run_file.run_file import RunFile
from ...training.data.digests import digests_of
from ...training.graphs.graph import Topology
from ...training.models.evaluation import Metrics
from ...training.step.values import SERVER
from ...training.tracing.trace import trace
from ..schema import Run, Utility

__all__ = ["Course", "Traffic", "course", "duplicates", "run_facts", "traffic", "utility"]

_MOST_LINKS = 1000
_TOLERANCE = 1e-6  # of the same arithmetic on another machine


class Traffic(NamedTuple):
    """Whether anything goes through a server, and whether anything crosses the graph's links."""

    server: bool
    links: bool


class Course(NamedTuple):
    """How far a run came, and where its budget ends it if that is before the planned end."""

    done: int
    finished: bool
    stopped: Stopped | None


def course(folder: Path, plan: Plan, *, spent: Spent, metrics: Sequence[Metrics]) -> Course:
    """How far the run of a folder came, by its ledger, its evaluations and its stopped.json.

    Args:
        metrics: the lines of metrics.jsonl.

    Raises:
        ValueError: stopped.json cannot be read, or is not that of this run.
    """
    stopped = _stopped(folder / run_folder.STOPPED, plan, spent)
    end = plan.rounds if stopped is None else stopped.round
    named = {*spent.numbers, *(() if spent.torn_round is None else (spent.torn_round,))}
    # Rounds past the end were released, and discarded with their models.
    done = sum(0 < number <= end for number in named)
    return Course(
        done=done,
        finished=done == end and bool(metrics) and metrics[-1].round == end,
        stopped=stopped,
    )


def _stopped(path: Path, plan: Plan, spent: Spent) -> Stopped | None:
    if not path.exists():
        return None
    found = read_stopped(path)
    target = plan.target
    of_run = (
        target.goal is not None
        and (found.rounds, found.delta, found.adversary)
        == (plan.rounds, target.delta, target.adversary)
        and found.round <= plan.rounds
        and spent.resumed_after  # without a resumption the planned rounds are within the target
        and math.isclose(found.epsilon, plan.guarantee(found.adversary).epsilon, rel_tol=_TOLERANCE)
        # A target of another figure than epsilon is written down as the epsilon that is planned.
        and found.target == (found.epsilon if target.epsilon is None else target.epsilon)
    )
    if not of_run:
        raise InputError(
            f"{path} does not fit the plan and the ledger of this run; the folder's files do not "
            "belong together"
        )
    return found


def run_facts(
    config: RunFile, built: Built, plan: Plan, *, came: Course, sent: Traffic, device: str
) -> Run:
    """The run of a report; of a large network the links of one agent alone.

    That agent is the one whose records are most at risk: for the target adversary, or for the
    worst one where there is no target.

    Args:
        came: how far.
        sent: between whom.
        device: where it was trained.
    """
    graph = built.setting.graph
    target = plan.target.adversary
    at_risk = plan.guarantee(target) if target else plan.guarantees[0]
    links = _links(graph, victim=at_risk.victim)
    found = Run(
        name=f"{config.algorithm.name}-{graph.name}-{config.data.name}",
        algorithm=config.algorithm.name,
        form=config.algorithm.form,
        graph=graph.name,
        agents=graph.agents,
        edges=links.shown,
        edges_in_all=links.in_all,
        one_way=links.one_way,
        graphs_in_turn=len(set(graph.graphs)) if plan.participation else len(graph.graphs),
        server=sent.server,
        links_used=sent.links,
        links=config.graph.links,
        data=config.data.name,
        records=len(built.data.targets),
        duplicate_records=duplicates(built),
        model=config.model.name,
        parameters=sum(p.numel() for p in built.setting.model.parameters()),
        rounds=plan.rounds,
        rounds_done=came.done,
        finished=came.finished,
        stopped=came.stopped,
        sampling_rate=plan.sampling_rate,
        clip_norm=math.inf if built.clip_norm is None else built.clip_norm,
        noise_multiplier=plan.noise_multiplier,
        evaluation_noise_seed=config.training.evaluation_noise_seed,
        device=device,
    )
    told = {
        "missing": plan.missing and plan.missing.words,
        "joined_within": plan.joined_within,
        "participation": plan.participation and plan.participation.words,
    }
    return found.model_copy(update={key: one for key, one in told.items() if one is not None})


class _Links(NamedTuple):
    """Pairs that are joined and drawn, how many there are, and those joined one way alone."""

    shown: list[tuple[int, int]]
    in_all: int
    one_way: list[tuple[int, int]]


def _links(graph: Topology, *, victim: int) -> _Links:
    """The links of a graph; of one that is too large to draw those of the victim."""
    arcs = {(int(j), int(i)) for j, i in graph.links}
    pairs = sorted({(min(p), max(p)) for p in arcs})
    shown = pairs
    if len(pairs) > _MOST_LINKS:
        shown = [p for p in pairs if victim in p][:_MOST_LINKS]
    both = [arc for j, i in shown for arc in ((j, i), (i, j)) if arc in arcs]
    return _Links(shown, len(pairs), [(j, i) for j, i in both if (i, j) not in arcs])


def traffic(built: Built, plan: Plan) -> Traffic:
    """Between whom the start and the first rounds send anything, as traced."""
    bound = built.bound(plan.noise_multiplier)
    graph = built.setting.graph
    period = min(len(graph.graphs), built.rounds)
    traces = trace(bound.init, bound.step, graph=graph, rounds=period, noise_multiplier=None)
    ends = {
        (sender == SERVER, receiver == SERVER)
        for one in (traces.start, *(one for one, _ in traces.rounds))
        for message in one.messages
        for sender, receiver in zip(
            message.senders[message.links[:, 0]].tolist(),
            message.links[:, 1].tolist(),
            strict=True,
        )
    }
    return Traffic(server=any(a or b for a, b in ends), links=(False, False) in ends)


def duplicates(built: Built) -> int:
    """Records that are equal to another one, over all shards."""
    every = np.concatenate(
        [digests_of(shard, targets=False) for shard in built.setting.shards], axis=None
    )
    return len(every) - len(np.unique(every))


def utility(metrics: Sequence[Metrics]) -> Utility:
    """What was learned: accuracy, or error, of the mean model and of the agents' own ones.

    Args:
        metrics: the lines of metrics.jsonl.

    Raises:
        ValueError: some lack what others have.
    """
    for one, mean in (("accuracy", "consensus_accuracy"), ("rmse", "consensus_rmse")):
        if len({getattr(m, name) in (None, [], ()) for m in metrics for name in (one, mean)}) > 1:
            raise InputError(
                f"some lines of metrics.jsonl have no {one} or no {mean}, and others have; put the "
                "file back as it was written"
            )
    accuracy = [m.accuracy for m in metrics if m.accuracy is not None]
    error = [m.rmse for m in metrics if m.rmse is not None]
    return Utility(
        rounds=[m.round for m in metrics],
        consensus_accuracy=[
            m.consensus_accuracy for m in metrics if m.consensus_accuracy is not None
        ],
        consensus_loss=[m.consensus_loss for m in metrics],
        agent_accuracy_min=[min(each) for each in accuracy],
        agent_accuracy_median=[statistics.median(each) for each in accuracy],
        agent_accuracy_max=[max(each) for each in accuracy],
        agent_accuracy_last=list(accuracy[-1]) if accuracy else [],
        consensus_distance=[m.consensus_distance for m in metrics],
        consensus_rmse=[m.consensus_rmse for m in metrics if m.consensus_rmse is not None],
        consensus_r2=[m.consensus_r2 for m in metrics] if error else [],
        agent_rmse_min=[min(each) for each in error],
        agent_rmse_median=[statistics.median(each) for each in error],
        agent_rmse_max=[max(each) for each in error],
    )
