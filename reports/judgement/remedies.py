"""What would turn a finding, with its figure: fewer rounds, more noise, encrypted links, a repair.

Every figure is that of the accountant of the run itself. What cannot be planned, or whose figure is
no better, is not named.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ...privacy.accounting.other_accountants import Accountant
from ...privacy.errors import InputError
from ...privacy.guarantee import Guarantee, Status
from ...privacy.releases.ledger import Spent
from ...privacy.target import Goal
from ...runs.folder.released import epsilon_of
from ...runs.plan.plan import Plan, make_plan
from ...runs.run_file.build import graph_of
from ...runs.run_file.run_file import RunFile
from ...training.accounts.figures import reached
from ...training.exposure.events import accounted
from ...training.exposure.guarantees import calibrated_multiplier
from ...training.exposure.sensitivity import JointSensitivity
from ...training.graphs.graph import Topology
from ..schema import Remedy as Fix
from ..schema import RoundsWithin
from .facts import FigureRequirement, facts_of_plan

_NO_BETTER = 1.0 - 1e-6  # of the figure at hand: what differs by rounding fixes nothing


def rounds_within(plan: Plan, spent: Spent, *, limit: float) -> dict[str, RoundsWithin]:
    """For each adversary how many rounds a limit allows, where the run has more.

    Args:
        spent: the ledger; rounds that it does not name are taken in order.
        limit: epsilon, at the plan's delta.

    Returns:
        By adversary, where finite and over the limit: the rounds, and what so many cost.
    """
    released = [number for number in spent.numbers if number > 0]
    numbers = released + [n for n in range(1, plan.rounds + 1) if n > len(released)]
    starts = [0] * spent.numbers.count(0)  # a start that was released twice costs twice
    known: dict[object, RoundsWithin | None] = {}  # equal releases cost the same
    found = {}
    for name, exposure in plan.exposures.items():
        key = (exposure.releases, exposure.each)
        if key not in known:

            def cost(rounds: int, exposure: JointSensitivity = exposure) -> float:
                return epsilon_of(plan, exposure, rounds=[*starts, *numbers[:rounds]])

            known[key] = _last_within(cost, len(numbers), limit)
        if (entry := known[key]) is not None:
            found[name] = entry
    return found


def fixes_of_run(
    config: RunFile, plan: Plan, spent: Spent, *, graph: Topology, epsilon: Mapping[str, float]
) -> list[Fix]:
    """What would have met the target of a run, against its adversary or the worst one without it.

    Returns:
        One for each fix with the figure that it leads to; none where the target is met.
    """
    facts = facts_of_plan(config, plan)
    adversary = facts.head.adversary
    if adversary == "single-message" and facts.target is None:
        return []
    return fixes(
        config,
        plan,
        spent,
        adversary=adversary,
        limit=facts.limit,
        epsilon=epsilon[adversary],
        graph=graph,
    )


def limit_fixes(
    config: RunFile, spent: Spent
) -> Callable[[Guarantee, FigureRequirement], Sequence[Fix]]:
    """What would meet a limit of a policy, for a run that is over it.

    The fixes are those of a new run that makes the statement which the limit asks for: at its
    adjacency, at no larger delta, for any record, with secret noise.

    Returns:
        A function of the run's claim and of what is asked; it plans, so it may take seconds.
    """

    @functools.cache  # planned once, and only where a figure does not pass
    def as_run() -> tuple[Topology, float]:
        graph = graph_of(config)
        return graph, make_plan(config, graph=graph).noise_multiplier

    def found(claim: Guarantee, asked: FigureRequirement) -> Sequence[Fix]:
        p = config.privacy
        # The statement that the limit asks for, planned as a new run.
        if p is None or asked.unit != claim.unit or asked.records != claim.records_per_person:
            return ()
        try:
            graph, noise = as_run()
            stated = p.with_noise(
                noise,
                adversary=claim.adversary,
                delta=min(p.delta, asked.delta),
                adjacency=asked.adjacency,
                victim=None,
                holders=None,
                records_held=None,
            )
            # With secret noise, at the multiplier of the run.
            secret = config.training.model_copy(update={"evaluation_noise_seed": None})
            anew = config.model_copy(update={"privacy": stated, "training": secret})
            plan = make_plan(anew, graph=graph)
            released = accounted(plan.exposures[claim.adversary], spent.numbers, torn=spent.torn)
            return fixes(
                anew,
                plan,
                spent,
                adversary=claim.adversary,
                limit=asked.epsilon,
                epsilon=epsilon_of(plan, released),
                graph=graph,
            )
        except InputError:  # what cannot be planned or accounted for is not named
            return ()

    return found


def limit_risks(config: RunFile, spent: Spent) -> Callable[[Guarantee, Goal], float]:
    """What membership tests come to after everything that a run released.

    Returns:
        A function of the run's claim and of what is asked; it plans, so it may take seconds.
    """

    @functools.cache  # planned once, and only where a policy asks
    def planned() -> Plan:
        return make_plan(config, begun=True, notice=lambda _: None)

    def found(claim: Guarantee, goal: Goal) -> float:
        plan = planned()
        if plan.said_of.accountant is not Accountant.PLD:
            plan = replace(plan, said_of=replace(plan.said_of, accountant=Accountant.PLD))
        return reached(
            accounted(plan.exposures[claim.adversary], spent.numbers, torn=spent.torn),
            statement=plan.said_of,
            noise_multiplier=plan.noise_multiplier,
            goal=goal,
        )

    return found


def fixes(
    config: RunFile,
    plan: Plan,
    spent: Spent,
    *,
    adversary: str,
    limit: float | None,
    epsilon: float,
    graph: Topology,
    anew: bool = True,
) -> list[Fix]:
    """What would bring one adversary's figure within a limit, or make it a proven one.

    Args:
        limit: epsilon, at the plan's delta; None where there is none.
        anew: whether to leave out a number of rounds that, planned anew, is over the limit; else
            the caller plans it.
    """
    # A proven figure within its limit needs nothing.
    guarantee = plan.guarantee(adversary)
    finite = guarantee.status is Status.PROVEN and math.isfinite(epsilon)
    if finite and (limit is None or epsilon <= limit):
        return []
    found: list[Fix] = []
    # Fewer rounds or more noise, for a finite figure that is over the limit.
    if finite and limit is not None:
        within = rounds_within(plan, spent, limit=limit).get(adversary)
        if within is not None and within.rounds > 0:
            again = with_rounds(config, plan, within.rounds, graph=graph) if anew else None
            if not anew or (again is not None and again.guarantee(adversary).epsilon <= limit):
                found.append(
                    Fix(
                        action="rounds",
                        rounds=within.rounds,
                        epsilon=within.epsilon,
                        status=Status.PROVEN,
                        adversary=adversary,
                    )
                )
        found += _noise(plan, spent, adversary, limit)
    if config.algorithm.form == "published":
        algorithm = config.algorithm.model_copy(update={"form": "repaired"})
        repaired = config.model_copy(update={"algorithm": algorithm})
        # A repaired run is another claim: of a heuristic figure its own is the first proven one.
        found += _planned("repair", repaired, plan, adversary, graph)
    if config.graph.links == "clear" and adversary == "eavesdropper":
        links = config.graph.model_copy(update={"links": "encrypted"})
        hidden = config.model_copy(update={"graph": links})
        found += [
            fix
            for fix in _planned("encrypt", hidden, plan, adversary, graph)
            if float(fix.epsilon) < guarantee.epsilon * _NO_BETTER
        ]
    return found


def as_planned(plan: Plan) -> Spent:
    """The ledger of a run that goes as planned."""
    numbers = range(plan.rounds + 1)
    return Spent(header={}, entries=[{"round": n} for n in numbers], torn=False)


def with_rounds(config: RunFile, plan: Plan, rounds: int, *, graph: Topology) -> Plan | None:
    """The plan of so many rounds with the same noise; None where it cannot be planned.

    A schedule or a correlation of noise may depend on the number of rounds, so that a shorter run
    is no part of the longer one.
    """
    training = config.training.model_copy(update={"rounds": rounds})
    shorter = config.model_copy(update={"training": training})
    return _same_noise(shorter, plan, None, graph)


def _same_noise(config: RunFile, plan: Plan, adversary: str | None, graph: Topology) -> Plan | None:
    p = config.privacy
    if p is None:
        return None
    privacy_table = p.with_noise(plan.noise_multiplier, adversary=adversary or p.adversary)
    try:
        return make_plan(config.model_copy(update={"privacy": privacy_table}), graph=graph)
    except InputError:  # what cannot be planned or accounted for is not named
        return None


def _planned(
    action: Literal["encrypt", "repair"],
    config: RunFile,
    plan: Plan,
    adversary: str,
    graph: Topology,
) -> list[Fix]:
    """The adversary's figure in another run with the same noise, where it is proven and finite."""
    found = _same_noise(config, plan, adversary, graph) if plan.noise_multiplier > 0 else None
    if found is None:
        return []
    guarantee = found.guarantee(adversary)
    if guarantee.status is not Status.PROVEN or math.isinf(guarantee.epsilon):
        return []
    epsilon = guarantee.epsilon
    return [Fix(action=action, epsilon=epsilon, status=Status.PROVEN, adversary=adversary)]


def _noise(plan: Plan, spent: Spent, adversary: str, limit: float) -> list[Fix]:
    """The noise multiplier that would have covered everything that was released."""
    released = accounted(plan.exposures[adversary], spent.numbers, torn=spent.torn)
    try:
        multiplier = calibrated_multiplier(released, epsilon=limit, statement=plan.said_of)
    except InputError:  # what cannot be planned or accounted for is not named
        return []
    spends = epsilon_of(replace(plan, noise_multiplier=multiplier), released)
    return [
        Fix(
            action="noise",
            noise_multiplier=multiplier,
            epsilon=spends,
            status=Status.PROVEN,
            adversary=adversary,
        )
    ]


def _last_within(cost: Callable[[int], float], most: int, limit: float) -> RoundsWithin | None:
    """The most rounds whose cost is within the limit; None if all are, or if no bound is finite."""
    try:
        if not limit < cost(most) < math.inf:
            return None
        low, high = 0, most  # within at low, over at high; cost grows with rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cost(middle) <= limit else (low, middle)
        spends = cost(low)
    except InputError:  # what cannot be planned or accounted for is not named
        return None
    return RoundsWithin(rounds=low, epsilon=spends) if spends <= limit else None
