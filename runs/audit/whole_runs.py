"""The canary game of adversaries to whom all rounds of a run are one release."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from ...attacks.audit.audit import hosts_of
from ...attacks.audit.game import CanaryGame
from ...attacks.audit.whole_runs.game import WholeRunGame
from ...privacy.accounting.request import Adjacency
from ...privacy.adversary import SINGLE_MESSAGE, WORST_NEIGHBOUR, Adversary, neighbour
from ...privacy.errors import InputError, UnsupportedView
from ...privacy.guarantee import Unit
from ...training.exposure.sensitivity import JointSensitivity
from ...training.exposure.whole_run import whole_run_by_victim
from ...training.graphs.graph import Topology
from ...training.tracing.trace import AlgorithmTrace
from ..plan.plan import Plan
from ..run_file.build import Built
from ..run_file.run_file import RunFile

_ONE_RECORD = (
    "all rounds are one release, in which canaries that are single records are scored, and the "
    "figure is about more than one"
)
_NOT_POISSON = "all rounds are one release, in which canaries are scored in Poisson batches alone"
_MEANS = "all rounds are one release, in which what moves a clipped mean is not scored"


def whole_run_names(plan: Plan) -> list[str]:
    """The adversaries of a plan to whom all rounds are one release that hides something."""
    return [
        g.adversary
        for g in plan.guarantees
        if plan.exposures[g.adversary].whole_run
        and g.adversary != SINGLE_MESSAGE.name
        and math.isfinite(g.epsilon)
    ]


def whole_run_game(
    config: RunFile,
    built: Built,
    plan: Plan,
    *,
    multiplier: float,
    traces: AlgorithmTrace,
    clips_batches: bool,
    clips_users: bool,
) -> tuple[WholeRunGame | None, str]:
    """The game, or why there is none; neither where no adversary asks for one.

    Args:
        config: the run file.
        built: its objects.
        plan: its plan.
        multiplier: noise multiplier of the run.
        traces: of the run at it.
        clips_batches: whether what is clipped is the mean of a batch.
        clips_users: whether the sums of users are clipped.
    """
    p, setting, names = config.privacy, built.setting, whole_run_names(plan)
    if p is None or not names:
        return None, ""
    if Unit(p.unit) is not Unit.RECORD or plan.statement.at_once > 1 or clips_users:
        return None, _ONE_RECORD
    if p.records_per_person > 1:
        return None, _ONE_RECORD
    if setting.sampler is not None:
        return None, _NOT_POISSON
    if clips_batches:
        return None, _MEANS
    encrypted = config.graph.links == "encrypted"
    by_victim_of = functools.partial(
        whole_run_by_victim,
        traces,
        sampling_rate=plan.sampling_rate,
        encrypted=encrypted,
        pattern=config.pattern,
    )
    try:
        by_victim = {name: by_victim_of(name) for name in names}
        exposed = {
            name: [e for v, e in of.items() if p.victim is None or v == p.victim]
            for name, of in by_victim.items()
        }
        found = hosts_of(
            exposed, canaries=config.audit.canaries, encrypted=encrypted, together=True
        )
        if not found:
            return None, "no agent has anything that a canary could be held by"
        if WORST_NEIGHBOUR in found:
            nearer = nearest(
                found[WORST_NEIGHBOUR],
                by_victim[WORST_NEIGHBOUR],
                setting.graph,
                lambda name, host: by_victim_of(name)[host],
            )
            found = found | {WORST_NEIGHBOUR: nearer}
        canaries = CanaryGame(
            setting=setting,
            bound=built.bound(multiplier),
            traces=traces,
            rounds=config.audit.rounds or config.training.rounds,
            clip_norm=built.clip_norm or 0.0,
            adversaries=found,
            canaries=config.audit.canaries,
            replace=plan.statement.adjacency is Adjacency.REPLACE_ONE,
            apart=len({host for of in found.values() for host in of}) > 1,
        )
        return WholeRunGame.of(canaries, planned=config.training.rounds), ""
    except (UnsupportedView, InputError) as error:
        return None, f"all rounds are one release: {error}"


def nearest(
    hosts: Mapping[int, Adversary],
    worst: Mapping[int, JointSensitivity],
    graph: Topology,
    of: Callable[[str, int], JointSensitivity],
) -> dict[int, Adversary]:
    """In place of an agent that fares no better one that shares a link with the host.

    By closure, agents far away may count as seeing as much as a neighbour does; what crosses links
    reaches the neighbour.

    Args:
        hosts: who looks on, by host.
        worst: what the worst neighbour of each host sees of it.
        graph: of the run.
        of: what an adversary by its name sees of a host.
    """
    nearer = dict(hosts)
    for host in hosts:
        for agent in graph.neighbours(host):
            if agent == host:
                continue
            same = of(neighbour(agent).name, host)
            if same.sum_of_squares >= worst[host].sum_of_squares * (1 - 1e-9):
                nearer[host] = same.adversary
                break
    return nearer
