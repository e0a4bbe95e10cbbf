"""The canary game that a run file describes, and what its measurements are held against.

A few rounds with canaries, played for their time before an audit begins; nothing is kept.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...attacks.audit.agents_game import AgentGame, has_one_host, reason_against
from ...attacks.audit.audit import claim_of, hosts_of
from ...attacks.audit.audited import Proven
from ...attacks.audit.game import MOST, CanaryGame, Game
from ...attacks.audit.observed_rows import shares_noise
from ...attacks.audit.whole_run_game import WholeRunGame
from ...attacks.checks.watched_run import traces_of
from ...privacy.accounting.request import Adjacency
from ...privacy.batches.sampling import Scheme
from ...privacy.errors import InputError, UnsupportedView
from ...privacy.guarantee import (
    SINGLE_MESSAGE,
    WORST_NEIGHBOUR,
    Adversary,
    Guarantee,
    Unit,
    neighbour,
)
from ...training.batches import Sampler
from ...training.exposure.guarantees import group_of, run_epsilon, status_of
from ...training.exposure.joint_sensitivities import (
    joint_sensitivities,
    joint_sensitivities_by_victim,
)
from ...training.exposure.sensitivity import JointSensitivity
from ...training.exposure.whole_run import InAllRounds, whole_run_by_victim
from ...training.graphs.graph import Topology
from ...training.models.parameters import sizes_of
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.trace import AlgorithmTrace, at_unit, clips_users
from ..numbers import Cost, Expect
from ..plan.plan import Plan
from ..run_file.build import Built
from ..run_file.run_file import RunFile

# The canary game of adversaries to whom all rounds of a run are one release.

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
        clips_batches: whether what is clipped is the mean of a batch.
        clips_users: whether the sums of users are clipped.
    """
    # The game is about one record, in Poisson batches whose records are clipped.
    p, setting, names = config.privacy, built.setting, whole_run_names(plan)
    if p is None or not names:
        return None, ""
    if Unit(p.unit) is not Unit.RECORD or plan.said_of.at_once > 1 or clips_users:
        return None, _ONE_RECORD
    if p.records_per_person > 1:
        return None, _ONE_RECORD
    if setting.sampler is not None:
        return None, _NOT_POISSON
    if clips_batches:
        return None, _MEANS
    encrypted = config.graph.links == "encrypted"
    # Hosts of canaries, by what their records lose over all rounds.
    how = InAllRounds(plan.sampling_rate, encrypted, config.pattern)
    try:
        by_victim = {name: whole_run_by_victim(traces, name, how) for name in names}
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
                lambda name, host: whole_run_by_victim(traces, name, how)[host],
            )
            found = found | {WORST_NEIGHBOUR: nearer}
        # The canaries of single rounds, which the whole run is then scored for.
        canaries = CanaryGame(
            setting=setting,
            bound=built.bound(multiplier),
            traces=traces,
            rounds=config.audit.rounds or config.training.rounds,
            clip_norm=built.clip_norm or 0.0,
            adversaries=found,
            canaries=config.audit.canaries,
            replace=plan.said_of.adjacency is Adjacency.REPLACE_ONE,
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

    Returns:
        No game where no adversary can be scored; the reason is empty where each row has its own.
    """
    p = config.privacy
    assert p is not None  # noqa: S101 # checked by the caller
    setting, rounds = built.setting, config.audit.rounds or config.training.rounds
    unit = Unit(p.unit)
    encrypted = config.graph.links == "encrypted"
    # The trace at the noise of the run; what canaries are placed by is at multiplier 1.
    bound = built.bound(multiplier)
    traces = traces_of(bound, setting, rounds=built.rounds)
    of_unit = at_unit(
        traces_of(built.bound(1.0), setting, rounds=built.rounds),
        unit,
        records=plan.said_of.at_once,
    )
    clips_batches, clips_users = _clips_batches(built, of_unit), _clips_users(of_unit)
    names = [g.adversary for g in plan.guarantees]
    by_victim = _by_victim(of_unit, names, plan, config)
    whole, held = unit is Unit.AGENT, config.audit.canaries
    # One host where a canary is all data of an agent, or where batches are of one size.
    alone = whole or (setting.sampler is not None and setting.sampler.scheme is Scheme.FIXED)
    adversaries = hosts_of(
        by_victim,
        canaries=min(held, _dimension(built)) if alone else held,
        encrypted=encrypted,
        most=1 if alone else MOST,
    )
    # What is proven of each adversary; one whose rounds are one release has its own game.
    stated = functools.partial(
        _proven, plan=plan, config=config, multiplier=multiplier, rounds=rounds
    )
    against = [stated(g) for g in plan.guarantees]
    over_all, why = whole_run_game(
        config,
        built,
        plan,
        multiplier=multiplier,
        traces=traces,
        clips_batches=clips_batches,
        clips_users=clips_users,
    )
    if why:
        rows = whole_run_names(plan)
        against = [replace(one, why=why) if one.name in rows else one for one in against]
    if not adversaries:
        return over_all, against, ""
    if not whole and clips_users:
        return None, against, _NO_USERS
    adversaries = _linked(adversaries, by_victim, of_unit, plan, setting.graph)
    replaced = plan.said_of.adjacency is Adjacency.REPLACE_ONE
    if whole:
        # All data of an agent are one canary.
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
    if why := _reason_against_batches(sampler, plan, clipped=clips_batches):
        return None, against, why
    # Of a user all records are the canary, and no row is about one of them.
    of_user = p.records_per_person if unit is Unit.USER else 1
    if of_user > 1 and clips_batches:
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
        batch_clipped=clips_batches,
        together=of_user,
    )
    # A game beside this one: over all rounds, or of all records of a person.
    if over_all is not None:
        return replace(game, beside=over_all), against, ""
    if p.records_per_person == 1 or unit is Unit.USER:
        return game, against, ""
    several = [stated(g, group=True) for g in plan.guarantees if g.adversary in adversaries]
    why = _SEVERAL_DRAWN if sampler is not None else _SEVERAL_IN_A_MEAN if clips_batches else ""
    if why:
        return game, [*against, *(replace(one, why=why) for one in several)], ""
    against += several
    named = {group_name(name, p.records_per_person): of for name, of in adversaries.items()}
    group = replace(game, adversaries=named, linked=None, together=p.records_per_person)
    return replace(game, beside=group), against, ""


def group_name(name: str, records: int) -> str:
    """The row of several records of one person, in the view of an adversary.

    >>> group_name("eavesdropper", 3)
    'eavesdropper, 3 records'
    """
    return f"{name}, {records} records"


def _reason_against_batches(sampler: Sampler | None, plan: Plan, *, clipped: bool) -> str:
    """Why no record can be scored in batches that are drawn so; empty if it can."""
    if sampler is None:
        return ""
    said, scheme = plan.said_of, sampler.scheme
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
    """With the nearest of agents that fare alike."""
    if WORST_NEIGHBOUR not in adversaries:
        return adversaries

    def seen_by(name: str, host: int) -> JointSensitivity:
        ((_, same),) = joint_sensitivities(
            traces, [name], sampling_rate=plan.sampling_rate, victim=host
        )
        return same

    worst = {e.victim: e for e in by_victim[WORST_NEIGHBOUR]}
    nearer = nearest(adversaries[WORST_NEIGHBOUR], worst, graph, seen_by)
    return adversaries | {WORST_NEIGHBOUR: nearer}


def _of_one_host(adversaries: dict[str, dict[int, Adversary]]) -> dict[str, dict[int, Adversary]]:
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
    *,
    plan: Plan,
    config: RunFile,
    multiplier: float,
    rounds: int,
    group: bool = False,
) -> Proven:
    """What is proven of one unit, or of as many records as the statement of one speaks of."""
    exposure, said = plan.exposures[stated.adversary], plan.said_of
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


_MOST_SHARE = 0.05  # of all rounds, that are played for their time
_TIMED = 3  # rounds
_SLOW_S = 5.0  # so much work in a first round is time enough
_A_CHECK = 12.0
"""Rounds with canaries that the checks take for one that they watch.

Between 10 and 16 in audits of an MLP of digits, of LeNet on MNIST, and of noise that is correlated
over time.
"""
_ALL_CHECKS = 5.0
"""What all checks take, in times of the first run that they watch.

Between 3.1 and 4.7 in audits with an MLP of digits where these rounds took two seconds or more
(DPDL, MAFALDA, DP-NETFLEET, DP-FedAvg), and above 6.6 for DPDL with LeNet on MNIST. Of shorter
rounds it is more, and nothing is told.
"""


class _EnoughError(Exception):
    """The rounds that are timed were played."""


def cost_of(game: Game, *, watched: int) -> Cost | None:
    """What checks and rounds with canaries will take; None where a trial would be a large part.

    The trial has coins of its own, and its noise and batches come from the system's entropy, so an
    audit is the same with and without it.
    """
    if isinstance(game, AgentGame) and game.runs * _MOST_SHARE < 1:  # it tells of whole runs
        return None
    # Rounds are timed until they are enough, or slow.
    times: list[tuple[int, float]] = []
    worked = math.inf  # until when this process did, which no other slows down
    rounds = 0

    def timed(done: int, total: int, _: str) -> None:
        nonlocal rounds, worked
        rounds = total
        if _MOST_SHARE * total < _TIMED:
            raise _EnoughError
        times.append((done, time.monotonic()))
        before, worked = worked, time.process_time()
        if worked - before > _SLOW_S or len(times) > _TIMED:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        game.play(generator=np.random.default_rng(), progress=timed)
    if len(times) < 2:
        return None
    # The first of several rounds warms the machine up.
    (before, begun), (done, ended) = times[1 if len(times) > 2 else 0], times[-1]
    return Cost(
        (ended - begun) / (done - before) * (rounds + _A_CHECK * watched),
        rounds,
        f"checks of {watched} rounds, and {rounds} rounds with canaries",
    )


def pricing_checks(expect: Expect, *, watched: int) -> Callable[[int], None]:
    """What hears of each watched round, and tells after the second what the checks will take.

    It is for audits that no trial prices: nothing is played with canaries, or too little for one.
    The first round warms the machine up, so the second one stands for all others.

    Args:
        expect: called once, with a cost that covers no step of the audit's progress.
    """
    ends = [time.monotonic()]

    def heard(done: int) -> None:
        ends.append(time.monotonic())
        if done == min(2, watched):
            first, last = ends[1] - ends[0], ends[-1] - ends[-2]
            seconds = _ALL_CHECKS * (first + (watched - 1) * last)
            rounds = f"{watched} {'round' if watched == 1 else 'rounds'}"
            expect(Cost(seconds, 0, f"checks of {rounds}"))

    return heard
