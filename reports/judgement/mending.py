"""What would turn a verdict, with its numbers: fewer rounds, more noise, encrypted links, a repair.

Every remedy was planned with the same accountant as the run itself. One that cannot be planned, or
whose figure is no better, is not named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...privacy.guarantee import Status
from ...privacy.ledger import Spent
from ...privacy.view.view import UnsupportedView
from ...runs.plan.plan import Plan, make_plan
from ...runs.run_file.run_file import RunFile
from ...training.exposure.guarantees import (
    UnsupportedMechanism,
    accounted,
    calibrated_multiplier,
    run_epsilon,
)
from ...training.graphs.graph import Topology

__all__ = ["mending", "rounds_within"]

_NO_BETTER = 1.0 - 1e-6  # of the figure at hand: what differs by rounding mends nothing


def rounds_within(plan: Plan, spent: Spent, *, limit: float) -> dict[str, dict[str, Any]]:
    """For each adversary how many rounds a limit allows, where the run has more.

    Args:
        plan: of the run.
        spent: the ledger; rounds that it does not name are taken in order.
        limit: epsilon, at the run's delta.

    Returns:
        By adversary, where finite and over the limit: `rounds` and what so many cost, `epsilon`.
    """
    released = [number for number in spent.numbers if number > 0]
    numbers = released + [n for n in range(1, plan.rounds + 1) if n > len(released)]
    starts = [0] * spent.numbers.count(0)  # a start that was released twice costs twice
    known: dict[tuple[Any, ...], dict[str, Any] | None] = {}
    found = {}
    for name, exposure in plan.exposures.items():
        if exposure.releases not in known:

            def cost(rounds: int, exposure: Any = exposure) -> float:
                return run_epsilon(
                    exposure,
                    statement=plan.statement,
                    noise_multiplier=plan.noise_multiplier,
                    rounds=[*starts, *numbers[:rounds]],
                )

            known[exposure.releases] = _last_within(cost, len(numbers), limit)
        if (entry := known[exposure.releases]) is not None:
            found[name] = entry
    return found


def mending(
    config: RunFile,
    plan: Plan,
    spent: Spent,
    *,
    graph: Topology,
    epsilon: Mapping[str, float],
    anew: bool = True,
) -> list[dict[str, Any]]:
    """What would turn the verdict about the target adversary, or about the worst one without it.

    Args:
        config: the run file.
        plan: its plan.
        spent: the ledger.
        graph: of the run.
        epsilon: accounted, by adversary.
        anew: whether to leave out a number of rounds that, planned anew, is over the limit; else
            the caller plans it.

    Returns:
        Entries with `action` ("rounds", "noise", "encrypt" or "repair"), the adversary, the
        figure that it leads to and its status; empty where the target is met.
    """
    target = plan.target
    name = target.adversary or next(
        (g.adversary for g in plan.guarantees if g.adversary != "single-message"), None
    )
    if name is None:
        return []
    guarantee, limit = plan.guarantee(name), target.epsilon
    proven = guarantee.status is Status.PROVEN
    finite = proven and math.isfinite(epsilon[name])
    if finite and (limit is None or epsilon[name] <= limit):
        return []
    found: list[dict[str, Any]] = []
    if finite and limit is not None:
        within = rounds_within(plan, spent, limit=float(limit)).get(name)
        if within is not None and (
            _holds(config, plan, within, graph, name, float(limit))
            if anew
            else within["rounds"] > 0
        ):
            found.append({"action": "rounds", **within, "status": "proven"})
        noise = _noise(plan, spent, name, float(limit))
        if noise is not None:
            found.append({"action": "noise", **noise, "status": "proven"})
    if config.algorithm.form == "published":
        algorithm = config.algorithm.model_copy(update={"form": "repaired"})
        found += _planned("repair", config.model_copy(update={"algorithm": algorithm}), plan, graph)
    if config.graph.links == "clear" and name == "eavesdropper":
        links = config.graph.model_copy(update={"links": "encrypted"})
        found += _planned("encrypt", config.model_copy(update={"graph": links}), plan, graph)
    return [
        {**entry, "adversary": name}
        for entry in found
        if entry["status"] == "proven"
        and math.isfinite(entry["epsilon"])
        # A repaired run is another claim: of a heuristic figure its own is the first proven one.
        and (entry["action"] != "encrypt" or entry["epsilon"] < guarantee.epsilon * _NO_BETTER)
    ]


def _holds(
    config: RunFile,
    plan: Plan,
    within: Mapping[str, Any],
    graph: Topology,
    name: str,
    limit: float,
) -> bool:
    """Whether a run of so many rounds, planned anew, costs no more than the limit.

    A schedule or a correlation of noise may depend on the number of rounds, so that a shorter run
    is no part of the longer one.
    """
    p = config.privacy
    if p is None or within["rounds"] < 1:
        return False
    kept = p.model_copy(update={"epsilon": None, "noise_multiplier": plan.noise_multiplier})
    training = config.training.model_copy(update={"rounds": within["rounds"]})
    shorter = config.model_copy(update={"privacy": kept, "training": training})
    try:
        return make_plan(shorter, graph=graph).guarantee(name).epsilon <= limit
    except (UnsupportedView, UnsupportedMechanism):
        return False


def _planned(action: str, config: RunFile, plan: Plan, graph: Topology) -> list[dict[str, Any]]:
    """The target's figure in another run with the same noise; none where it cannot be planned."""
    p = config.privacy
    if p is None or plan.noise_multiplier == 0:
        return []
    kept = p.model_copy(update={"epsilon": None, "noise_multiplier": plan.noise_multiplier})
    try:
        found = make_plan(config.model_copy(update={"privacy": kept}), graph=graph)
        guarantee = found.guarantee(p.adversary)
    except (UnsupportedView, UnsupportedMechanism):
        return []
    return [{"action": action, "epsilon": guarantee.epsilon, "status": str(guarantee.status)}]


def _noise(plan: Plan, spent: Spent, name: str, limit: float) -> dict[str, Any] | None:
    """The noise multiplier that would have covered everything that was released."""
    released = accounted(plan.exposures[name], spent.numbers, torn=spent.torn)
    try:
        multiplier = calibrated_multiplier(released, statement=plan.statement, epsilon=limit)
    except (UnsupportedView, UnsupportedMechanism):
        return None
    return {
        "noise_multiplier": multiplier,
        "epsilon": run_epsilon(released, statement=plan.statement, noise_multiplier=multiplier),
    }


def _last_within(cost: Any, most: int, limit: float) -> dict[str, Any] | None:
    """The most rounds whose cost is within the limit; None if all are, or if no bound is finite."""
    try:
        if not limit < cost(most) < math.inf:
            return None
        low, high = 0, most  # within at low, over at high; cost grows with rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cost(middle) <= limit else (low, middle)
        spent = cost(low)
    except (UnsupportedView, UnsupportedMechanism):
        return None
    return {"rounds": low, "epsilon": spent} if spent <= limit else None
