"""Checks and defaults of a run file that need more than one table.

Each function gives a table with its defaults filled in, and one line for each problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .data_table import DataTable
from .privacy_table import PrivacyTable
from .tables import AttackTable, AuditTable, InterceptTable, ModelTable, TrainingTable


def resolved_privacy(
    privacy: PrivacyTable | None, *, algorithm: str, agents: int, links: str
) -> tuple[PrivacyTable | None, list[str]]:
    """[privacy] with its adversaries; without a clip norm where the algorithm does not clip.

    Args:
        links: clear or encrypted.
    """
    from ...training.own.names import algorithm_named

    # A private algorithm needs [privacy]; agents that it names exist.
    private = algorithm_named(algorithm).private
    if privacy is None:
        missing = "[privacy] is missing; give epsilon or noise_multiplier, and delta"
        return None, [f"{missing}: {algorithm} is private"] if private else []
    names, problems = _adversaries(privacy, agents, links=links)
    victims = () if privacy.victim is None else (privacy.victim,)
    for key, named in (("victim", victims), ("holders", privacy.holders or ())):
        problems += _outside(f"[privacy] {key}", named, agents - 1, "agents count from 0")
    privacy = privacy.model_copy(update={"adversaries": names})
    if private:
        return privacy, problems
    # What asks for protection is refused here, and so is a clip norm that nothing reads.
    remedy = "choose a private algorithm or leave [privacy] out"
    if privacy.goal is not None:
        name = next(n for n in ("epsilon", "advantage", "tpr") if getattr(privacy, n) is not None)
        problems.append(
            f"[privacy] {name}={privacy.goal.figure} cannot be met: {algorithm} adds no noise; "
            f"{remedy}"
        )
    elif privacy.noise_multiplier:
        problems.append(
            f"[privacy] noise_multiplier={privacy.noise_multiplier} has no effect: {algorithm} "
            f"adds no noise; {remedy}"
        )
    if "clip_norm" in privacy.model_fields_set and privacy.clip_norm != math.inf:
        problems.append(
            f"[privacy] clip_norm={privacy.clip_norm} has no effect: {algorithm} does not clip; "
            "leave clip_norm out"
        )
    return privacy.model_copy(update={"clip_norm": math.inf}), problems


def cap_problems(privacy: PrivacyTable | None) -> list[str]:
    """What is missing where the data say whose a record is: the public cap of a user's records."""
    if privacy is None or privacy.noise_multiplier == 0:
        return []
    if "records_per_person" in privacy.model_fields_set:
        return []
    return [
        "[privacy] records_per_person is missing: the data say whose a record is, so give the "
        "public cap on the records of one user"
    ]


def resolved_model(
    model: ModelTable, *, algorithm: str, data: DataTable
) -> tuple[ModelTable, list[str]]:
    """[model] with its loss, and with its task, by default what the algorithm is for."""
    from ...training.algorithms import ALGORITHMS
    from ...training.own.names import algorithm_named

    # The task that the algorithm and the data are for.
    has_dual = algorithm_named(algorithm).blocks > 1
    wanted = "class-weights" if has_dual else "classification"
    if has_dual and model.task == "auc":
        wanted = "auc"
    outputs = data.predicts
    if outputs:
        wanted = "regression"
        if has_dual:
            key = f"outputs={outputs}" if data.outputs else f"name={data.name!r}"
            return model, [
                f"[data] {key} cannot be learned by {algorithm}, which weighs classes; "
                "choose an algorithm without dual variables"
            ]
    # That task, or none named: the usual loss of it.
    if model.task in (None, wanted):
        problems = _loss_problems(model.loss, wanted) + _quadratic_problems(model, data)
        usual = {"regression": "squared", "auc": None}.get(wanted, "cross-entropy")
        found = {"task": wanted, "loss": model.loss or usual}
        return model.model_copy(update=found), problems
    if "regression" in (model.task, wanted):
        remedy = "set [data] outputs" if wanted != "regression" else "leave task out"
        return model, [f'[model] task="{model.task}" does not fit [data]; {remedy}']
    # Another task: what it would need.
    reason = "ascends in dual variables" if has_dual else "has no dual variables"
    min_max = next(other for other, of in ALGORITHMS.items() if of.blocks > 1 and of.private)
    instead = "another algorithm" if has_dual else f"a min-max algorithm such as {min_max}"
    return model, [
        f'[model] task="{model.task}" cannot be learned by {algorithm}, which {reason}; use '
        f'"{wanted}", or choose {instead}'
    ]


def _loss_problems(loss: str | None, task: str) -> list[str]:
    """What is wrong with a loss for a task."""
    if loss is None or ":" in loss or task == "auc":
        wrong = loss is not None and task in ("class-weights", "auc")
        remedy = "leave it out: class-weights weighs the cross-entropy, and auc has its own"
    elif task == "regression":
        wrong, remedy = loss == "cross-entropy", "use squared, absolute or your own"
    else:
        wrong, remedy = loss != "cross-entropy", "set [data] outputs to predict numbers"
    return [f'[model] loss="{loss}" does not fit task="{task}"; {remedy}'] if wrong else []


def _quadratic_problems(model: ModelTable, data: DataTable) -> list[str]:
    """What would make the loss of `quadratic` no quadratic of the model."""
    if data.name != "quadratic":
        return []
    return [
        f'[model] {key}={found!r} makes no quadratic of [data] name="quadratic"; use "{wanted}"'
        for key, found, wanted in (
            ("name", model.name, "linear"),
            ("loss", model.loss or "squared", "squared"),
        )
        if found != wanted
    ]


def resolved_intercept(
    intercept: InterceptTable, *, rounds: int, agents: int, victim: int | None
) -> tuple[InterceptTable, list[str]]:
    """[intercept] with its rounds and victims.

    Args:
        victim: of [privacy].
    """
    kept, victims = intercept.rounds, intercept.victims
    # An empty list that is given means none; one that is not given is to be filled in.
    if "rounds" not in intercept.model_fields_set:
        kept = tuple(sorted({1, rounds}))
    problems = _outside("[intercept] victims", victims, agents - 1, "agents count from 0")
    if "victims" not in intercept.model_fields_set:
        victims = (0 if victim is None else victim,)
    problems += _outside("[intercept] rounds", kept, rounds, "rounds count from 1")
    return intercept.model_copy(update={"rounds": kept, "victims": victims}), problems


def resolved_attack(
    attack: AttackTable, intercept: InterceptTable, *, algorithm: str, agents: int, rounds: int
) -> tuple[AttackTable, list[str]]:
    """[attack] with its rounds, by default all that are intercepted.

    Args:
        intercept: with its rounds and victims.
    """
    tried = attack.rounds
    if "rounds" not in attack.model_fields_set:
        tried = intercept.rounds
    intercepted = frozenset(intercept.rounds)
    problems = [
        f"[attack] rounds names round {number}, which is not in [intercept] rounds; add it there"
        for number in tried
        if number not in intercepted
    ]
    problems += _attacker(attack.adversary, agents, intercept.victims)
    together = attack.together
    problems += [
        f"[attack] together={together} from round {number} goes beyond the {rounds} rounds of "
        f"[training]; use at most {rounds - number + 1}, or attack an earlier round"
        for number in tried
        if number <= rounds < number + together - 1
    ]
    problems += _scenarios(attack, algorithm)
    return attack.model_copy(update={"rounds": tried}), problems


def gradient_problems(training: TrainingTable, *, algorithm: str) -> list[str]:
    """What is wrong with a gradient norm of an algorithm: at a saddle point there is none."""
    from ...training.own.names import algorithm_named

    if not training.gradient_norm or algorithm_named(algorithm).blocks == 1:
        return []
    return [
        f"[training] gradient_norm=true is of a loss that is minimised, and {algorithm} ascends in "
        "dual variables, too; leave it out"
    ]


def audit_problems(audit: AuditTable, *, rounds: int) -> list[str]:
    """What is wrong with [audit] in a run of so many rounds."""
    if audit.rounds is None:
        return []
    return _outside("[audit] rounds", (audit.rounds,), rounds, "it is part of the run")


def _scenarios(attack: AttackTable, algorithm: str) -> list[str]:
    """Scenarios that the algorithm does not have."""
    if not attack.scenarios:
        return []
    from ...attacks.interception.names import scenarios_of

    possible = tuple(map(str, scenarios_of(algorithm)))
    return [
        f"[attack] scenarios: {name!r} does not exist for {algorithm!r}; use "
        f"{' or '.join(possible)}"
        for name in attack.scenarios
        if name not in possible
    ]


def _adversaries(
    privacy: PrivacyTable, agents: int, *, links: str
) -> tuple[tuple[str, ...], list[str]]:
    """The adversaries to account for, the target's first, and what is wrong with them."""
    from ...privacy.guarantee import ALL_OTHERS, WORST_NEIGHBOUR, parse_adversary
    from ...training.exposure.sensitivity import CLEAR_DEFAULT, ENCRYPTED_DEFAULT

    default: Sequence[str] = ENCRYPTED_DEFAULT if links == "encrypted" else CLEAR_DEFAULT
    if privacy.holders is not None:
        from ...training.exposure.sensitivity import usual_of_person

        default = usual_of_person(default, holders=privacy.held_by, agents=agents)
    given = "adversaries" in privacy.model_fields_set
    asked = privacy.adversaries if given else default
    names = tuple(dict.fromkeys((privacy.adversary, *asked)))
    problems = []
    for name in names:
        if name not in (WORST_NEIGHBOUR, ALL_OTHERS):  # not one adversary, but the worst of several
            try:
                parse_adversary(name, agents)
            except ValueError as error:
                problems.append(f"[privacy] {error}")
    return names, problems


def _attacker(name: str, agents: int, victims: tuple[int, ...]) -> list[str]:
    """What is wrong with the adversary of [attack]."""
    from ...privacy.guarantee import (
        ACTIVE_NEIGHBOUR,
        ALL_OTHERS,
        WORST_NEIGHBOUR,
        Sees,
        parse_adversary,
    )

    head = f"[attack] adversary={name!r}"
    usable = (
        "eavesdropper, neighbour:K, coalition:K,L, all-others, final-models or active-neighbour:K"
    )
    # Names that need no agent, one that lacks it, and those that are parsed.
    if name == ALL_OTHERS:
        return []
    if name == WORST_NEIGHBOUR:
        return [f"{head} names no agent; name one, neighbour:K"]
    try:
        who = parse_adversary(name, agents, deviating=True)
    except ValueError as error:
        kind, _, members = name.partition(":")
        known = kind in ("neighbour", "agent", "coalition", ACTIVE_NEIGHBOUR) and members
        return [f"[attack] {error}" if known else f"{head} is unknown; use {usable}"]
    if who.sees is Sees.ONE_MESSAGE:
        return [f"{head} has no view of its own to attack from; use {usable}"]
    return [
        f"{head} contains victim {victim} of [intercept] victims; leave one of them out"
        for victim in victims
        if victim in who.agents
    ]


def _outside(what: str, found: tuple[int, ...], last: int, remedy: str) -> list[str]:
    return [
        f"{what}={number} must be at most {last}; {remedy}" for number in found if number > last
    ]
