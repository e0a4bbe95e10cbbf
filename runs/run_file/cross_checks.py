"""Checks and defaults of a run file that need more than one table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...privacy.errors import InputError

if TYPE_CHECKING:
    from .run_file import RunFile
    from .tables import ModelTable, PrivacyTable

__all__ = ["resolve_tables"]


def resolve_tables(run: RunFile) -> dict[str, Any]:
    """The tables whose defaults depend on another table.

    Raises:
        ValueError: with one line for each problem.
    """
    privacy, problems = _privacy(run)
    model, wrong = _model(run)
    problems += wrong
    agents, rounds = run.data.agents, run.training.rounds
    victim = privacy.victim if privacy is not None else None
    kept, victims, tried = run.intercept.rounds, run.intercept.victims, run.attack.rounds
    # An empty list that is given means none; one that is not given is to be filled in.
    if "rounds" not in run.intercept.model_fields_set:
        kept = tuple(sorted({1, rounds}))
    problems += _outside("[intercept] victims", victims, agents - 1, "agents count from 0")
    if "victims" not in run.intercept.model_fields_set:
        victims = (0 if victim is None else victim,)
    if "rounds" not in run.attack.model_fields_set:
        tried = kept
    if victim is not None:
        problems += _outside("[privacy] victim", (victim,), agents - 1, "agents count from 0")
    problems += _outside("[intercept] rounds", kept, rounds, "rounds count from 1")
    problems += [
        f"[attack] rounds names round {number}, which is not in [intercept] rounds; add it there"
        for number in tried
        if number not in kept
    ]
    problems += _attack(run, tried, victims)
    if run.audit.rounds is not None:
        problems += _outside("[audit] rounds", (run.audit.rounds,), rounds, "it is part of the run")
    if problems:
        raise InputError("\n".join(problems))
    return {
        "model": model,
        "privacy": privacy,
        "intercept": run.intercept.model_copy(update={"rounds": kept, "victims": victims}),
        "attack": run.attack.model_copy(update={"rounds": tried}),
    }


def _privacy(run: RunFile) -> tuple[PrivacyTable | None, list[str]]:
    from ...training.algorithms import ALGORITHMS

    name, privacy = run.algorithm.name, run.privacy
    private = ALGORITHMS[name].private
    if privacy is None:
        missing = "[privacy] is missing; give epsilon or noise_multiplier, and delta"
        return None, [f"{missing}: {name} is private"] if private else []
    names, problems = _adversaries(privacy, run.data.agents, links=run.graph.links)
    privacy = privacy.model_copy(update={"adversaries": names})
    if private:
        return privacy, problems
    remedy = "choose a private algorithm or leave [privacy] out"
    if privacy.epsilon is not None:
        problems.append(
            f"[privacy] epsilon={privacy.epsilon} cannot be met: {name} adds no noise; {remedy}"
        )
    elif privacy.noise_multiplier:
        problems.append(
            f"[privacy] noise_multiplier={privacy.noise_multiplier} has no effect: {name} adds no "
            f"noise; {remedy}"
        )
    if "clip_norm" in privacy.model_fields_set and privacy.clip_norm != math.inf:
        problems.append(
            f"[privacy] clip_norm={privacy.clip_norm} has no effect: {name} does not clip; leave "
            "clip_norm out"
        )
    return privacy.model_copy(update={"clip_norm": math.inf}), problems


def _model(run: RunFile) -> tuple[ModelTable, list[str]]:
    """The model with its task, by default what the algorithm is for, and what is wrong with it."""
    from ...training.algorithms import ALGORITHMS

    name, task = run.algorithm.name, run.model.task
    has_dual = ALGORITHMS[name].blocks > 1
    wanted = "class-weights" if has_dual else "classification"
    if task in (None, wanted):
        return run.model.model_copy(update={"task": wanted}), []
    reason = "ascends in dual variables" if has_dual else "has no dual variables"
    min_max = next(other for other, of in ALGORITHMS.items() if of.blocks > 1 and of.private)
    instead = "another algorithm" if has_dual else f"a min-max algorithm such as {min_max}"
    return run.model, [
        f'[model] task="{task}" cannot be learned by {name}, which {reason}; use "{wanted}", or '
        f"choose {instead}"
    ]


def _adversaries(
    privacy: PrivacyTable, agents: int, *, links: str
) -> tuple[tuple[str, ...], list[str]]:
    """The adversaries to account for, the target's first, and what is wrong with them."""
    from ...privacy.adversary import ALL_OTHERS, WORST_NEIGHBOUR, parse_adversary
    from ...training.exposure.candidates import CLEAR_DEFAULT, ENCRYPTED_DEFAULT

    default = ENCRYPTED_DEFAULT if links == "encrypted" else CLEAR_DEFAULT
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


def _attack(run: RunFile, tried: tuple[int, ...], victims: tuple[int, ...]) -> list[str]:
    """What is wrong with [attack] by the run file alone."""
    problems = _onlooker(run.attack.adversary, run.data.agents, victims)
    rounds, together = run.training.rounds, run.attack.together
    problems += [
        f"[attack] together={together} from round {number} goes beyond the {rounds} rounds of "
        f"[training]; use at most {rounds - number + 1}, or attack an earlier round"
        for number in tried
        if number <= rounds < number + together - 1
    ]
    if run.attack.scenarios:
        from ...attacks.interception.scenarios import scenarios_of

        possible = tuple(map(str, scenarios_of(run.algorithm.name)))
        problems += [
            f"[attack] scenarios: {name!r} is not to be had from {run.algorithm.name!r}; use "
            f"{' or '.join(possible)}"
            for name in run.attack.scenarios
            if name not in possible
        ]
    return problems


def _onlooker(name: str, agents: int, victims: tuple[int, ...]) -> list[str]:
    """What is wrong with the adversary of [attack]."""
    from ...privacy.adversary import ALL_OTHERS, WORST_NEIGHBOUR, Sees, parse_adversary

    head = f"[attack] adversary={name!r}"
    usable = "eavesdropper, neighbour:K, coalition:K,L, all-others or final-models"
    if name == ALL_OTHERS:
        return []
    if name == WORST_NEIGHBOUR:
        return [f"{head} names no agent; name one, neighbour:K"]
    try:
        who = parse_adversary(name, agents)
    except ValueError as error:
        kind, _, members = name.partition(":")
        known = kind in ("neighbour", "agent", "coalition") and members
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
