"""The canary game that a run file describes, and what its measurements are held against."""

from __future__ import annotations

import math
from dataclasses import replace

from ...attacks.audit.agents.game import AgentGame, has_one_host, reason_against
from ...attacks.audit.audit import Proven, claim_of, hosts_of
from ...attacks.audit.game import MOST, CanaryGame, Game
from ...attacks.audit.observed_rows import shares_noise
from ...privacy.accounting.request import Adjacency
from ...privacy.adversary import SINGLE_MESSAGE, WORST_NEIGHBOUR, Adversary, neighbour
from ...privacy.batches.drawing import Scheme
from ...privacy.guarantee import Guarantee, Unit
from ...training.batches.sampler import Sampler
from ...training.exposure.guarantees import group_of, run_epsilon, status_of
from ...training.exposure.joint_sensitivities import (
    joint_sensitivities,
    joint_sensitivities_by_victim,
)
from ...training.exposure.sensitivity import JointSensitivity
from ...training.graphs.graph import Topology
from ...training.models.parameters import sizes_of
from ...training.tracing.agents import at_unit, clips_users
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.trace import AlgorithmTrace, trace
from ..plan.plan import Plan
from ..run_file.build import Built
from ..run_file.run_file import RunFile
from .grouped import GroupedGame, group_name
from .whole_runs import whole_run_game, whole_run_names

__all__ = ["game_of"]

_LINKED = "eavesdropper"  # the adversary who sees every message, so that each can be scored
_OTHER_HOST = (
    "one agent alone holds a canary where cohorts are of fixed size, and it is not one that "
    "loses most to this adversary"
)
_SEVERAL_DRAWN = "several records of one person are scored in Poisson batches alone"
_NO_USERS = "canaries are single records, and what one moves in a user's clipped sum is not scored"
_SEVERAL_IN_A_MEAN = "what several records of a batch move its clipped mean by is not scored"


def game_of(
    config: RunFile, built: Built, plan: Plan, *, multiplier: float
) -> tuple[Game | None, list[Proven], str]:
    """The game, what is proven, and why there is no game where there is none.

    Args:
        config: the run file; it has [privacy].
        built: its objects.
        plan: its plan.
        multiplier: noise multiplier of the run.

    Returns:
        No game where no adversary can be scored; the reason is empty where each row has its own.
    """
    p = config.privacy
    assert p is not None  # noqa: S101 # checked by the caller
    setting, rounds = built.setting, config.audit.rounds or config.training.rounds
    unit = Unit(p.unit)
    encrypted = config.graph.links == "encrypted"
    of_unit = at_unit(_traced(built, 1.0), unit, records=plan.statement.at_once)
    names = [g.adversary for g in plan.guarantees]
    by_victim = _by_victim(of_unit, names, plan, config)
    whole, held = unit is Unit.AGENT, config.audit.canaries
    alone = whole or (setting.sampler is not None and setting.sampler.scheme is Scheme.FIXED)
    adversaries = hosts_of(
        by_victim,
        canaries=min(held, _dimension(built)) if alone else held,
        encrypted=encrypted,
        most=1 if alone else MOST,
    )
    against = [
        _proven(g, plan, config, multiplier=multiplier, rounds=rounds) for g in plan.guarantees
    ]
    over_all, why = whole_run_game(
        config,
        built,
        plan,
        multiplier=multiplier,
        traces=_traced(built, multiplier),
        clips_batches=_clips_batches(built, of_unit),
        clips_users=_clips_users(of_unit),
    )
    if why:
        rows = whole_run_names(plan)
        against = [replace(one, why=why) if one.name in rows else one for one in against]
    if not adversaries:
        return over_all, against, ""
    if not whole and _clips_users(of_unit):
        return None, against, _NO_USERS
    adversaries = _linked(adversaries, by_victim, of_unit, plan, setting.graph)
    bound, traces = built.bound(multiplier), _traced(built, multiplier)
    replaced = plan.statement.adjacency is Adjacency.REPLACE_ONE
    if whole:
        if why := reason_against(traces):
            return None, against, why
        if has_one_host(traces):
            adversaries = _of_one_host(adversaries)
            against = [
                one
                if one.name in adversaries or one.why or not math.isfinite(one.epsilon)
                else replace(one, why=_OTHER_HOST)
                for one in against
            ]
        agents = AgentGame(
            setting=setting,
            bound=bound,
            traces=traces,
            of_agents=at_unit(traces, Unit.AGENT),
            rounds=rounds,
            adversaries=adversaries,
            canaries=held,
            replace=replaced,
        )
        return agents, against, ""
    sampler = setting.sampler
    if why := _reason_against_batches(sampler, plan, clipped=_clips_batches(built, of_unit)):
        return None, against, why
    # Of a user all records are the canary, and no row is about one of them.
    of_user = p.records_per_person if unit is Unit.USER else 1
    batch_clipped = _clips_batches(built, of_unit)
    if of_user > 1 and batch_clipped:
        return None, against, _SEVERAL_IN_A_MEAN
    links = of_user == 1 and sampler is None and _LINKED in adversaries and not encrypted
    game = CanaryGame(
        setting=setting,
        bound=bound,
        traces=traces,
        rounds=rounds,
        clip_norm=built.clip_norm or 0.0,
        adversaries=adversaries,
        canaries=held,
        linked=_LINKED if links else None,
        replace=replaced,
        apart=shares_noise(traces, adversaries),
        batch_clipped=batch_clipped,
        together=of_user,
    )
    if over_all is not None:
        return GroupedGame(single=game, group=over_all), against, ""
    if p.records_per_person == 1 or unit is Unit.USER:
        return game, against, ""
    several = [
        _proven(g, plan, config, multiplier=multiplier, rounds=rounds, group=True)
        for g in plan.guarantees
        if g.adversary in adversaries
    ]
    if sampler is not None:
        several = [replace(one, why=_SEVERAL_DRAWN) for one in several]
        return game, [*against, *several], ""
    if game.batch_clipped:
        several = [replace(one, why=_SEVERAL_IN_A_MEAN) for one in several]
        return game, [*against, *several], ""
    against += several
    named = {group_name(name, p.records_per_person): of for name, of in adversaries.items()}
    group = replace(game, adversaries=named, linked=None, together=p.records_per_person)
    return GroupedGame(single=game, group=group), against, ""


def _reason_against_batches(sampler: Sampler | None, plan: Plan, *, clipped: bool) -> str:
    """Why no record can be scored in batches that are drawn so; empty if it can."""
    if sampler is None:
        return ""
    said, scheme = plan.statement, sampler.scheme
    if scheme is Scheme.TRUNCATED:
        return (
            "canaries are not scored in Poisson batches that are cut, from which one record pushes "
            "another"
        )
    if said.adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        return (
            f"canaries in {scheme} batches keep the number of records: they are scored under "
            "adjacency 'zero-out' and 'replace-one'"
        )
    if said.at_once > 1:
        return _SEVERAL_DRAWN
    return f"canaries in clipped means are not scored in {scheme} batches" if clipped else ""


def _traced(built: Built, multiplier: float) -> AlgorithmTrace:
    """The run at a noise multiplier."""
    bound = built.bound(multiplier)
    return trace(
        bound.init,
        bound.step,
        graph=built.setting.graph,
        rounds=built.rounds,
        noise_multiplier=bound.noise_multiplier,
        release=bound.release,
    )


def _dimension(built: Built) -> int:
    """Coordinates of the parameters."""
    task = built.setting.task
    return sum(sizes_of(built.setting.model)) if task is None else int(task.dimensions[0])


def _by_victim(
    traces: AlgorithmTrace, names: list[str], plan: Plan, config: RunFile
) -> dict[str, list[JointSensitivity]]:
    """Every agent's exposure to the adversaries that can be measured; the named victim's alone."""
    measured = [n for n in names if not plan.exposures[n].whole_run and n != SINGLE_MESSAGE.name]
    if not measured:
        return {}
    found = joint_sensitivities_by_victim(
        traces,
        measured,
        sampling_rate=plan.sampling_rate,
        encrypted=config.graph.links == "encrypted",
    )
    victim = None if config.privacy is None else config.privacy.victim
    return {
        name: [e for e in every if victim is None or e.victim == victim] for name, every in found
    }


def _linked(
    adversaries: dict[str, dict[int, Adversary]],
    by_victim: dict[str, list[JointSensitivity]],
    traces: AlgorithmTrace,
    plan: Plan,
    graph: Topology,
) -> dict[str, dict[int, Adversary]]:
    """In place of an agent that fares no better, one that shares a link with the host.

    By closure, agents far away may count as seeing as much as a neighbour does; what crosses links
    reaches the neighbour.
    """
    of = adversaries.get(WORST_NEIGHBOUR)
    if of is None:
        return adversaries
    orders = {e.victim: e.sum_of_squares for e in by_victim[WORST_NEIGHBOUR]}
    nearer = dict(of)
    for host in of:
        for agent in graph.neighbours(host):
            if agent == host:
                continue
            who = neighbour(agent)
            ((_, same),) = joint_sensitivities(
                traces, [who.name], sampling_rate=plan.sampling_rate, victim=host
            )
            if same.sum_of_squares >= orders[host] * (1 - 1e-9):
                nearer[host] = who
                break
    return adversaries | {WORST_NEIGHBOUR: nearer}


def _of_one_host(
    adversaries: dict[str, dict[int, Adversary]],
) -> dict[str, dict[int, Adversary]]:
    """The host of most adversaries, and those whose host it is."""
    hosts = sorted({host for of in adversaries.values() for host in of})
    chosen = max(hosts, key=lambda host: sum(host in of for of in adversaries.values()))
    return {name: {chosen: of[chosen]} for name, of in adversaries.items() if chosen in of}


def _clips_users(traces: AlgorithmTrace) -> bool:
    """Whether the sums of users are clipped."""
    return any(map(clips_users, (traces.start, *(part for part, _ in traces.rounds))))


def _clips_batches(built: Built, traces: AlgorithmTrace) -> bool:
    """Whether what is clipped is the mean of a batch, which moves by twice the clip norm."""
    parts = [traces.start, *(t for t, _ in traces.rounds)]
    bounds = [
        float(g.bounds.max())
        for part in parts
        for g in part.groups
        if isinstance(g, Contributions) and g.blame is None and g.size
    ]
    return any(b == 2.0 * (built.clip_norm or 0.0) for b in bounds)


def _proven(
    stated: Guarantee,
    plan: Plan,
    config: RunFile,
    *,
    multiplier: float,
    rounds: int,
    group: bool = False,
) -> Proven:
    """What is proven of one unit, or of as many records as the statement of one speaks of."""
    exposure, said = plan.exposures[stated.adversary], plan.statement
    records = said.records_per_person if group else said.at_once
    audited = None if rounds == config.training.rounds else rounds
    epsilon = run_epsilon(exposure, statement=said, noise_multiplier=multiplier, rounds=audited)
    if group:
        together = group_of(
            exposure, epsilon, statement=said, noise_multiplier=multiplier, rounds=audited
        )
        epsilon = together[0].epsilon if together else epsilon
    status = stated.status
    if status.is_finite != math.isfinite(epsilon):  # of fewer rounds than were planned
        status, _ = status_of(exposure, said, multiplier, epsilon=epsilon)
    return Proven(
        name=group_name(stated.adversary, records) if group else stated.adversary,
        epsilon=epsilon,
        statement=said,
        status=status,
        claim=claim_of(
            exposure, rounds=rounds, records=records, statement=said, noise_multiplier=multiplier
        ),
    )
