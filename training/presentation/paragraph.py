"""An account as a paragraph to paste: unit, adjacency, sampling, accountant, what is assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...privacy.accounting.request import Adjacency
from ...privacy.accounting.trade_off import trade_off
from ...privacy.adversary import SINGLE_MESSAGE
from ...privacy.batches.sampling import Sampling
from ...privacy.batches.words import CONSTANTS
from ...privacy.guarantee import Guarantee, Status, Unit
from ..exposure.events import counted, spent_releases
from ..exposure.sensitivity import JointSensitivity
from ..graphs.missing import MISSING
from .summary import Summary, rounded_down, rounded_up

__all__ = ["as_paragraph"]

_CHANGES = {
    (Unit.RECORD, Adjacency.ADD_OR_REMOVE_ONE): "adding or removing one record",
    (Unit.RECORD, Adjacency.ZERO_OUT): "blanking the values of one record",
    (Unit.RECORD, Adjacency.REPLACE_ONE): "replacing one record by another",
    (Unit.USER, Adjacency.ADD_OR_REMOVE_ONE): "adding or removing all records of one user",
    (Unit.USER, Adjacency.ZERO_OUT): "blanking the values of all records of one user",
    (Unit.USER, Adjacency.REPLACE_ONE): "replacing all records of one user by another one's",
    (Unit.AGENT, Adjacency.ZERO_OUT): "taking away all data of one agent",
    (Unit.AGENT, Adjacency.REPLACE_ONE): "replacing all data of one agent by other data",
}


_PERSON = {
    Adjacency.ADD_OR_REMOVE_ONE: "adding or removing all records",
    Adjacency.ZERO_OUT: "blanking the values of all records",
    Adjacency.REPLACE_ONE: "replacing all records",
}
_WORST_OFF = {
    Unit.RECORD: "whose record is",
    Unit.USER: "whose user is",
    Unit.AGENT: "whose data are",
}
_NAMED = {Unit.RECORD: "members", Unit.USER: "users", Unit.AGENT: "agents that hold data"}
_COHORTS = {
    Sampling.COHORT: "agents that take part by secret draws of their own",
    Sampling.FIXED_COHORT: "secret cohorts of as many agents each, drawn anew every round",
    Sampling.SHUFFLED_COHORT: "agents that take part once an epoch at most, in cohorts of as many "
    "each, and are shuffled anew every epoch, in orders that count as public",
    Sampling.CYCLIC_COHORT: "agents that take part once an epoch at most, in cohorts of as many "
    "each and one order, which counts as public",
}
_ALARMS = 0.01  # false-positive rate of the membership test that is spoken of


def as_paragraph(summary: Summary, sensitivities: Mapping[str, JointSensitivity]) -> str:
    """The paragraph; figures are rounded up, and what is not proven says so.

    Args:
        sensitivities: by adversary, those behind its figures.
    """
    given = {name: value for name, value in summary.settings.items() if value is not None}
    settings = ", ".join(f"{name} {value}" for name, value in given.items())
    clipped = (
        "without clipping" if summary.clip_norm is None else f"clip norm {summary.clip_norm:g}"
    )
    said = [
        f"{summary.algorithm}{f' ({settings})' if settings else ''} runs for {summary.rounds} "
        f"round{'' if summary.rounds == 1 else 's'} on {summary.graph} of {summary.agents} "
        f"agents, with {_drawn(summary)}, {clipped} and noise multiplier "
        f"{rounded_up(summary.noise_multiplier, 6)}."
    ]
    said += [words for words in (summary.batches, summary.counted) if words is not None]
    if summary.participation is not None:
        said.append(
            f"An agent takes part in {summary.participation}; the list is fixed beforehand and "
            "does not depend on the data, and each figure holds for it alone."
        )
    if summary.missing is not None:
        said.append(f"{summary.missing[0].upper()}{summary.missing[1:]}. {MISSING}")
    alike: dict[tuple[object, ...], list[Guarantee]] = {}
    for stated in summary.guarantees:
        if stated.adversary != SINGLE_MESSAGE.name:
            key = (stated.epsilon, stated.status, stated.sampling, stated.because)
            alike.setdefault(key, []).append(stated)
    for same in alike.values():
        said.append(_sentence(summary, same))
        if same[0].status is Status.PROVEN:
            said += _meant(summary, same[0], sensitivities[same[0].adversary])
    secret = any(stated.sampling.is_secret_cohort for stated in summary.guarantees)
    coins = ", as who takes part," if secret else ""
    figure = f"the agent {_WORST_OFF[summary.statement.unit]} at highest risk"
    if summary.statement.holders:
        figure = summary.statement.whose
    if summary.users is not None:
        said.append(summary.users)
    who = "no one on a link reads it" if summary.encrypted else "every message can be read"
    said.append(
        "Assumed are that the agents run this step and send nothing else that depends on their "
        f"records, that noise{coins} is secret and drawn anew, and that {who}; each figure is "
        f"that of {figure}. {CONSTANTS} Not covered are choices made by looking at the data "
        "or at results, data that evaluate the models, and agents that deviate."
    )
    return " ".join(said)


def _meant(summary: Summary, stated: Guarantee, behind: JointSensitivity) -> list[str]:
    """What a proven figure means for a test of membership, and for several records."""
    said = []
    releases = spent_releases(behind.releases)
    if releases and summary.noise_multiplier > 0:
        adjacency = summary.statement.adjacency
        curve = trade_off(
            counted(releases, summary.noise_multiplier, adjacency), adjacency=adjacency
        )
        hits = 100.0 * (1.0 - float(curve.false_negative_rates(_ALARMS)))
        what = _NAMED[summary.statement.unit]
        said.append(
            f"The best membership test names at most {rounded_up(hits)} % of {what} at "
            f"{100 * _ALARMS:g} % false positives."
        )
    if stated.at_least is not None:
        what = "cohorts" if stated.sampling is Sampling.SHUFFLED_COHORT else "batches"
        said.append(
            f"For worst-case gradients it is epsilon {rounded_down(stated.at_least)} at least, "
            f"though the order of the {what} stays secret."
        )
    for of in stated.group or ():
        said.append(
            f"For {of.records} records of one person at one agent the figure is epsilon "
            f"{rounded_up(of.epsilon)}."
        )
    return said


def _drawn(summary: Summary) -> str:
    if summary.statement.unit is Unit.AGENT:
        how = {stated.sampling for stated in summary.guarantees}
        return next((_COHORTS[one] for one in _COHORTS if one in how), "every agent in every round")
    if summary.batches is not None:
        return f"batches at rate {summary.sampling_rate:.12g}"
    if any(stated.sampling is Sampling.ANY for stated in summary.guarantees):
        return f"batches at rate {summary.sampling_rate:.12g}"
    if summary.sampling_rate == 1:
        return "every record in every batch"
    whole = " of whole users" if summary.whole_users else ""
    return (
        f"Poisson batches{whole} at rate {summary.sampling_rate:.12g} where the step names no rate "
        "of its own"
    )


def _sentence(summary: Summary, same: Sequence[Guarantee]) -> str:
    """What is said of adversaries whose figures are the same."""
    who, stated = " and ".join(_named(one) for one in same), same[0]
    statement = summary.statement
    change = _CHANGES[statement.unit, statement.adjacency]
    if statement.unit is Unit.USER:
        change += f" (at most {statement.records_per_person})"
    if statement.holders:
        change = f"{_PERSON[statement.adjacency]} of {statement.whose}"
    epsilon = f"epsilon {rounded_up(stated.epsilon)} at delta {summary.statement.delta:g}"
    found = f"accountant {summary.statement.accountant}"
    if stated.status is Status.PROVEN:
        whole = (
            ", whichever agents were sampled: all rounds count as one release"
            if stated.sampling in (Sampling.ANY, Sampling.TURNS)
            else ""
        )
        return (
            f"Against {who}, {change} changes the distribution of all that is seen by at most "
            f"{epsilon}, proven ({found}{whole})."
        )
    if stated.status is Status.HEURISTIC:
        return (
            f"Against {who} nothing is proven: {stated.because}; the heuristic figure, which the "
            f"truth may exceed, is {epsilon} ({found})."
        )
    word = "nothing protects" if stated.status is Status.NO_PROTECTION else "no bound is known"
    return f"Against {who} {word}: {stated.because}."


def _named(stated: Guarantee) -> str:
    name = stated.adversary
    return name if stated.worst_adversary is None else f"{name} (worst: {stated.worst_adversary})"
