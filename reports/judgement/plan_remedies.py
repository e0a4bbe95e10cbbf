"""What would mend a plan, each remedy with the figure that it leads to, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...privacy.adversary import EAVESDROPPER
from ...privacy.errors import InputError
from ...privacy.guarantee import Guarantee, Status
from ...privacy.ledger import Spent
from ...privacy.view.view import UnsupportedView
from ...runs.numbers import bound
from ...runs.plan.plan import Plan, make_plan
from ...runs.run_file.build import graph_of
from ...runs.run_file.run_file import RunFile
from ...training.algorithms import ALGORITHMS
from ...training.exposure.guarantees import UnsupportedMechanism, run_epsilon
from ...training.graphs.graph import Topology
from .mending import mending
from .plan_words import Advice, Case, What, at_most, limit_of, listed, onlooker

__all__ = ["mended"]

_KINDS_OF_ROUND = 16  # each is composed by itself: more make every figure take a second or so
_ROUNDING = 1e-9  # of a figure: less than what the noise is rounded up by


def mended(
    config: RunFile, plan: Plan, case: Case, *, graph: Topology | None = None, slow: bool = False
) -> list[Advice]:
    """The remedies of one case, or why none is named."""
    worst, p = case.statements[0], config.privacy
    if not ALGORITHMS[config.algorithm.name].private or p is None:
        return [_private(config)]
    if plan.noise_multiplier == 0:
        return [_noisy(p.clip_norm)]
    if (why := _why_long(plan, worst, slow=slow)) is not None:
        return [_skipped(config, plan, case, why)]
    graph = graph or graph_of(config)
    name = worst.adversary
    aimed = config.model_copy(update={"privacy": p.model_copy(update={"adversary": name})})
    numbers = range(plan.rounds + 1)  # as the ledger of a run that went as planned would have them
    entries = mending(
        aimed,
        replace(plan, target=plan.target.model_copy(update={"adversary": name})),
        Spent(header={}, entries=[{"round": n} for n in numbers], torn=False),
        graph=graph,
        epsilon={g.adversary: g.epsilon for g in plan.guarantees},
        anew=False,  # `_fewer_rounds` plans it, and says where it is not computed
    )
    found: list[Advice] = []
    for entry in entries:
        if entry["action"] == "rounds":
            found.append(_fewer_rounds(aimed, plan, case, int(entry["rounds"]), graph))
        elif entry["action"] == "noise":
            found += _more_noise(config, plan, case, entry)
        else:
            found.append(_changed(config, plan, worst, entry))
    if case.kind == "over" and plan.exposures[name].whole_run:
        found.append(_one_release(plan))
    return found or [_nothing_helps(config, case)]


def _changed(config: RunFile, plan: Plan, worst: Guarantee, entry: dict[str, Any]) -> Advice:
    """A repaired form, or encrypted links."""
    then = float(entry["epsilon"])
    limit = plan.target.epsilon
    at = at_most(then, worst.delta)
    if entry["action"] == "repair":
        words = (
            'Set form = "repaired" in [algorithm]: with the same noise, '
            f"{onlooker(config, worst)} then has {at}, proven"
        )
        what = What.REPAIR
    else:
        words = (
            'Encrypt the links, and say so by links = "encrypted" in [graph]: with the same noise, '
            f"an outsider then gets the released final models alone and has {at}; agents still "
            "read what is sent to them"
        )
        what = What.ENCRYPT
    over = limit is not None and then > limit
    rest = "; still over the target, so it takes more noise too" if over else ""
    return Advice(what=what, words=f"{words}{rest}.", epsilon=then)


def _more_noise(config: RunFile, plan: Plan, case: Case, entry: dict[str, Any]) -> list[Advice]:
    """The noise that meets the target, and the target that asks for it."""
    worst, p = case.statements[0], config.privacy
    if p is None:
        return []
    multiplier, then = float(entry["noise_multiplier"]), float(entry["epsilon"])
    still = [
        onlooker(config, g)
        for g in case.statements[1:]
        if plan.exposures[g.adversary].releases != plan.exposures[worst.adversary].releases
        and run_epsilon(
            plan.exposures[g.adversary],
            statement=g.statement,
            noise_multiplier=multiplier,
        )
        > limit_of(plan) * (1.0 + _ROUNDING)
    ]
    used, needed = bound(plan.noise_multiplier, 4), bound(multiplier, 4)
    now = f" (now {used})" if used != needed else ""
    words = (
        f"Add more noise: noise_multiplier = {needed}{now} in place of epsilon in [privacy]; "
        f"{onlooker(config, worst)} then has {at_most(then, worst.delta)}{_still(still)}."
    )
    found = [Advice(what=What.NOISE, words=words, epsilon=then)]
    if worst.adversary != plan.target.adversary:
        words = (
            f'Or let the target speak of it: adversary = "{worst.adversary}" in [privacy], beside '
            f"epsilon = {limit_of(plan):g}, calculates that noise multiplier of {needed}."
        )
        found.append(Advice(what=What.ADVERSARY, words=words, epsilon=then))
    return found


def _fewer_rounds(aimed: RunFile, plan: Plan, case: Case, rounds: int, graph: Topology) -> Advice:
    """So many rounds, planned anew: a schedule or a correlation may depend on their number."""
    worst, p = case.statements[0], aimed.privacy
    if p is None:
        raise InputError("a run without [privacy] has no target that fewer rounds could meet")
    kept = p.model_copy(update={"epsilon": None, "noise_multiplier": plan.noise_multiplier})
    training = aimed.training.model_copy(update={"rounds": rounds})
    shorter = aimed.model_copy(update={"privacy": kept, "training": training})
    depends = Advice(
        what=What.SKIPPED,
        words=(
            "How many rounds stay within the target is not computed: what a round sends or costs "
            "depends on their number here. To try one, plan again with --set training.rounds=N."
        ),
    )
    try:
        again = make_plan(shorter, graph=graph)
    except (UnsupportedView, UnsupportedMechanism):
        return depends
    then = again.guarantee(worst.adversary)
    if then.status is not Status.PROVEN or then.epsilon > limit_of(plan):
        return depends
    others = [again.guarantee(g.adversary) for g in case.statements[1:]]
    still = [onlooker(aimed, g) for g in others if g.epsilon > limit_of(plan)]
    words = (
        f"Train fewer rounds: {rounds} in place of {plan.rounds}, with the same noise "
        f"(noise_multiplier = {bound(plan.noise_multiplier, 4)} in place of epsilon in [privacy]); "
        f"{onlooker(aimed, worst)} then has {at_most(then.epsilon, then.delta)}{_still(still)}."
    )
    return Advice(what=What.ROUNDS, words=words, epsilon=then.epsilon)


def _one_release(plan: Plan) -> Advice:
    return Advice(
        what=What.SKIPPED,
        words=(
            f"How many rounds stay within the target is not computed: here all {plan.rounds} count "
            "as one release. To try a number, plan again with --set training.rounds=N."
        ),
    )


def _private(config: RunFile) -> Advice:
    other = ALGORITHMS[config.algorithm.name].private_counterpart
    words = (
        f'{config.algorithm.name} neither clips nor adds noise: set name = "{other}" in '
        "[algorithm], or another private algorithm, and epsilon and delta in [privacy]; the noise "
        "that it takes is then calculated."
    )
    return Advice(what=What.ALGORITHM, words=words)


def _noisy(clip_norm: float) -> Advice:
    clipped = ", and a finite clip_norm beside it" if math.isinf(clip_norm) else ""
    words = (
        "noise_multiplier = 0 adds no noise: put a target in its place in [privacy], such as "
        f"epsilon = 1{clipped}; the noise that it takes is then calculated."
    )
    return Advice(what=What.NOISE, words=words)


def _nothing_helps(config: RunFile, case: Case) -> Advice:
    who = onlooker(config, case.statements[0])
    words = {
        "infinite": f"More noise does not help against {who}: choose an algorithm, or settings of "
        "it, that leave nothing of what is named above without noise.",
        "heuristic": f"More noise proves nothing about {who}: choose an algorithm, or settings of "
        "it, whose messages are proven.",
        "over": f"No remedy against {who} could be computed with this accountant: plan again with "
        "--set privacy.accountant=pld.",
    }
    return Advice(what=What.ALGORITHM, words=words[case.kind])


def _why_long(plan: Plan, worst: Guarantee, *, slow: bool) -> str | None:
    """Why remedies would take long, if they would."""
    kinds = len(plan.exposures[worst.adversary].releases)
    if kinds > _KINDS_OF_ROUND:
        return f"the run has {kinds} kinds of round, each accounted for by itself"
    return "this plan took long, and each remedy is a plan" if slow else None


def _skipped(config: RunFile, plan: Plan, case: Case, why: str) -> Advice:
    worst, tries = case.statements[0], list[str]()
    if config.algorithm.form == "published":
        tries.append("--set algorithm.form=repaired")
    if config.graph.links == "clear" and worst.adversary == EAVESDROPPER.name:
        tries.append("--set graph.links=encrypted")
    if case.kind == "over":
        if worst.adversary != plan.target.adversary:
            tries.append(f"--set privacy.adversary={worst.adversary} (the noise that it takes)")
        tries.append(f"--set training.rounds={max(1, plan.rounds // 2)}")
    if not tries:
        return _nothing_helps(config, case)
    words = f"What would mend it is not computed, because {why}. To see it, plan again with "
    return Advice(what=What.SKIPPED, words=f"{words}{listed(tries, 'or')}.")


def _still(who: Sequence[str]) -> str:
    return f"; {listed(who)} would still be over" if who else ""
