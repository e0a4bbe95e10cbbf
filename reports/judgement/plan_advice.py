"""What a plan means, in sentences: who could learn what about whose record, and what would mend it.

Every remedy is named with the figure that it leads to, found by the accountant of the plan itself.
What would take long is not computed, and that is said.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...privacy.adversary import SINGLE_MESSAGE
from ...privacy.guarantee import Guarantee, Status
from ...runs.numbers import bound, small
from ...runs.plan.plan import Plan
from ...runs.run_file.run_file import RunFile
from ...training.graphs.graph import Topology
from .plan_remedies import mended
from .plan_words import (
    Advice,
    Case,
    What,
    at_most,
    capital,
    limit_of,
    listed,
    onlooker,
    record_words,
)

__all__ = ["Advice", "What", "advise"]


def advise(
    config: RunFile, plan: Plan, *, graph: Topology | None = None, slow: bool = False
) -> list[Advice]:
    """What leaks in a planned run, what would mend it, and how to set a target if there is none.

    Args:
        config: the run file.
        plan: its plan.
        graph: its graph, where it was made already.
        slow: whether the plan took so long that remedies, which are plans too, shall be skipped.

    Returns:
        First what leaks, one entry a reason, or one that nothing exceeds the target; then the
        remedies that apply, each with its epsilon at the plan's delta, for one record.

    >>> from overhear.runs.run_file.run_file import RunFile
    >>> from overhear.runs.plan.plan import make_plan
    >>> run = RunFile.model_validate({"data": {"name": "digits"}, "model": {"name": "linear"},
    ...     "algorithm": {"name": "ldp-dsgd"}, "privacy": {"epsilon": 2.0, "delta": 1e-5},
    ...     "training": {"rounds": 40, "sampling_rate": 0.1}})
    >>> [(str(found.what), round(found.epsilon, 2)) for found in advise(run, make_plan(run))]
    [('within', 2.0)]
    """
    seeded = config.training.evaluation_noise_seed is not None
    if seeded:
        config, plan = _without_seed(config, plan)
    cases = _cases(plan)
    found = [_leak(config, plan, case) for case in cases]
    remedies = [
        entry for case in cases for entry in mended(config, plan, case, graph=graph, slow=slow)
    ]
    if seeded:
        found.insert(0, _SEEDED)
        remedies.insert(0, _unseeded(config, plan))
    elif not cases:
        found.append(_most(config, plan))
    if plan.target.epsilon is None:
        remedies.append(_no_target(config))
    return [*found, *dict.fromkeys(remedies)]


_SEEDED = Advice(
    what=What.LEAK,
    words=(
        "No figure of this run is proven: the noise comes from evaluation_noise_seed, and whoever "
        "knows it can subtract it; against them epsilon is infinite."
    ),
    epsilon=math.inf,
)


def _without_seed(config: RunFile, plan: Plan) -> tuple[RunFile, Plan]:
    """The same run and plan with secret noise: the figures hold with the status of the trace."""
    training = config.training.model_copy(update={"evaluation_noise_seed": None})
    statements = [
        replace(g, status=plan.exposures[g.adversary].status, because=_reason(plan, g))
        for g in plan.guarantees
    ]
    return config.model_copy(update={"training": training}), replace(plan, guarantees=statements)


def _reason(plan: Plan, g: Guarantee) -> str:
    silent = plan.noise_multiplier == 0 and 0 < g.joint_sensitivity < math.inf
    return "no noise is added" if silent else plan.exposures[g.adversary].because


def _unseeded(config: RunFile, plan: Plan) -> Advice:
    remedy = "Leave evaluation_noise_seed out of [training], so that nobody knows the noise"
    worst = next(iter(_asked(plan)), None)
    if worst is None or worst.status is not Status.PROVEN or math.isinf(worst.epsilon):
        return Advice(what=What.SEED, words=f"{remedy}.")
    said = f"{remedy}: {onlooker(config, worst)} then has {at_most(worst.epsilon, worst.delta)}"
    return Advice(
        what=What.SEED, words=f"{said}, and nobody asked about more.", epsilon=worst.epsilon
    )


def _asked(plan: Plan) -> list[Guarantee]:
    """The statements about adversaries that exist, worst first."""
    return [g for g in plan.guarantees if g.adversary != SINGLE_MESSAGE.name]


def _cases(plan: Plan) -> list[Case]:
    limit = plan.target.epsilon
    grouped: dict[tuple[str, str], list[Guarantee]] = {}
    for g in _asked(plan):
        if math.isinf(g.epsilon):
            key = ("infinite", g.because)
        elif g.status is not Status.PROVEN:
            key = ("heuristic", g.because)
        elif limit is not None and g.epsilon > limit:
            key = ("over", "")
        else:
            continue
        grouped.setdefault(key, []).append(g)
    return [Case(kind, statements) for (kind, _), statements in grouped.items()]


def _leak(config: RunFile, plan: Plan, case: Case) -> Advice:
    worst, *others = case.statements
    who, record = onlooker(config, worst), record_words(config, worst)
    others_who = [onlooker(config, g) for g in others]
    if case.kind == "infinite":
        words = f"Nothing keeps {who} from recognising, or rebuilding, {record}: {worst.because}."
    elif case.kind == "heuristic":
        words = (
            f"{capital(who)} could find out whether {record} was trained on, and no limit to how "
            f"well is proven (epsilon {bound(worst.epsilon)} at delta {small(worst.delta)}, so far "
            f"as is known): {worst.because}."
        )
    else:
        by = "just over" if math.isclose(worst.epsilon, limit_of(plan), rel_tol=1e-3) else "over"
        words = (
            f"{capital(who)} could learn more than the target allows about whether {record} was "
            f"trained on: {at_most(worst.epsilon, worst.delta)}, {by} the target of "
            f"{bound(limit_of(plan))}."
        )
        others_who = [f"{onlooker(config, g)} at epsilon {bound(g.epsilon)}" for g in others]
    if others_who:
        words += f" The same goes for {listed(others_who)}."
    return Advice(what=What.LEAK, words=words, epsilon=worst.epsilon)


def _most(config: RunFile, plan: Plan) -> Advice:
    """Of a plan in which nothing is wrong: who comes closest, or learns most."""
    worst = next(iter(_asked(plan)), None)
    if worst is None:
        return Advice(
            what=What.ADVERSARY,
            words=(
                "Only a single message is accounted for, and no adversary sees so little: set "
                'adversary = "eavesdropper" in [privacy], for a figure that protects.'
            ),
        )
    who, record = onlooker(config, worst), record_words(config, worst)
    most = at_most(worst.epsilon, worst.delta)
    if plan.target.epsilon is None:
        words = (
            f"{capital(who)} could learn something about whether {record} was trained on: "
            f"{most}. Nobody else who was asked about learns more."
        )
        return Advice(what=What.LEAK, words=words, epsilon=worst.epsilon)
    words = (
        "Nobody who was asked about can learn more than the target allows. Closest to it comes "
        f"{who}, about whether {record} was trained on: {most}."
    )
    return Advice(what=What.WITHIN, words=words, epsilon=worst.epsilon)


def _no_target(config: RunFile) -> Advice:
    if config.privacy is None:
        words = (
            "No target is set, for there is no [privacy] table. To set one, add it with the "
            "largest epsilon that you allow and a delta, under an algorithm that is private."
        )
    else:
        words = (
            "No target is set: [privacy] gives noise_multiplier, so no figure counts as too large. "
            "To set one, put the largest epsilon that you allow there in its place, such as "
            "epsilon = 1; the noise that it takes is then calculated."
        )
    return Advice(what=What.NO_TARGET, words=words)
