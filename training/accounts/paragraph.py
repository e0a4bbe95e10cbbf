"""An account as a paragraph to paste: unit, adjacency, sampling, accountant, what is assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...privacy.accounting.request import Adjacency
from ...privacy.accounting.trade_off import trade_off
from ...privacy.batches.patterns import CONSTANTS
from ...privacy.batches.sampling import Sampling
from ...privacy.guarantee import SINGLE_MESSAGE, Guarantee, Sees, Statement, Status, Unit
from ...privacy.view.elimination import in_round
from ...privacy.view.view import View, matched_filter
from ..exposure.events import counted, spent_releases
from ..exposure.sensitivity import JointSensitivity, Release, effective_of
from ..graphs.participation import MISSING
from .summary import Summary, rounded_down, rounded_up

if TYPE_CHECKING:
    from ..tracing.round_trace import RoundTrace
    from ..tracing.trace import AlgorithmTrace

_CHANGES = {
    (Unit.RECORD, Adjacency.ADD_OR_REMOVE_ONE): "adding or removing one record",
    (Unit.RECORD, Adjacency.ZERO_OUT): "blanking the values of one record",
    (Unit.RECORD, Adjacency.REPLACE_ONE): "replacing one record by another",
    (Unit.USER, Adjacency.ADD_OR_REMOVE_ONE): "adding or removing all records of one user",
    (Unit.USER, Adjacency.ZERO_OUT): "blanking the values of all records of one user",
    (Unit.USER, Adjacency.REPLACE_ONE): "replacing all records of one user by another one's",
    (Unit.CLIENT, Adjacency.ADD_OR_REMOVE_ONE): "adding or removing all data of one client",
    (Unit.CLIENT, Adjacency.ZERO_OUT): "blanking all data of one client",
    (Unit.CLIENT, Adjacency.REPLACE_ONE): "replacing all data of one client by other data",
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
    Unit.CLIENT: "whose data are",
}
_NAMED = {
    Unit.RECORD: "members",
    Unit.USER: "users",
    Unit.AGENT: "agents that hold data",
    Unit.CLIENT: "clients that hold data",
}
_COHORTS = {
    Sampling.COHORT: "agents that take part by secret draws of their own",
    Sampling.FIXED_COHORT: "secret cohorts of as many agents each, drawn anew every round",
    Sampling.SHUFFLED_COHORT: "agents that take part once an epoch at most, in cohorts of as many "
    "each, and are shuffled anew every epoch, in orders that count as public",
    Sampling.CYCLIC_COHORT: "agents that take part once an epoch at most, in cohorts of as many "
    "each and one order, which counts as public",
}
_BOUNDS = {
    Status.PROVEN: "proven",
    Status.DECLARED: "if the list of releases is true, which nothing shows",
    Status.CHECKED: "if the list of releases is true, with which kept releases agree",
}
"""What an upper bound rests on, by its status."""
_ALARMS = 0.01  # false-positive rate of the membership test that is spoken of


def as_paragraph(summary: Summary, sensitivities: Mapping[str, JointSensitivity]) -> str:
    """The paragraph; figures are rounded up, and what is not proven says so.

    Args:
        sensitivities: by adversary, those behind its figures.
    """
    # How the run is set up.
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
    said += claims_of(
        summary.guarantees,
        sensitivities,
        statement=summary.statement,
        noise_multiplier=summary.noise_multiplier,
    )
    # What every figure rests on, and what none covers.
    secret = any(stated.sampling.is_secret_cohort for stated in summary.guarantees)
    coins = ", as who takes part," if secret else ""
    figure = worst_off(summary.statement.unit)
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


def worst_off(unit: Unit) -> str:
    """Whose figure is given where the worst agent is searched."""
    return f"the agent {_WORST_OFF[unit]} at highest risk"


def claims_of(
    guarantees: Sequence[Guarantee],
    sensitivities: Mapping[str, JointSensitivity],
    *,
    statement: Statement,
    noise_multiplier: float,
) -> list[str]:
    """The figures in sentences, those of adversaries that fare alike together."""
    alike: dict[tuple[object, ...], list[Guarantee]] = {}
    for stated in guarantees:
        if stated.adversary != SINGLE_MESSAGE.name:
            key = (stated.epsilon, stated.status, stated.sampling, stated.because)
            alike.setdefault(key, []).append(stated)
    said = []
    for same in alike.values():
        said.append(_sentence(statement, same))
        if same[0].status in _BOUNDS:
            behind = sensitivities[same[0].adversary]
            said += _meant(statement, same[0], behind, noise_multiplier=noise_multiplier)
    return said


def _meant(
    statement: Statement, stated: Guarantee, behind: JointSensitivity, *, noise_multiplier: float
) -> list[str]:
    """What an upper bound means for a test of membership, and for several records."""
    said = []
    # The best test is read off the trade-off curve of the same rounds.
    releases = spent_releases(behind.releases)
    if releases and noise_multiplier > 0:
        adjacency = statement.adjacency
        curve = trade_off(counted(releases, noise_multiplier, adjacency), adjacency=adjacency)
        hits = 100.0 * (1.0 - float(curve.false_negative_rates(_ALARMS)))
        what = _NAMED[statement.unit]
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


def _sentence(statement: Statement, same: Sequence[Guarantee]) -> str:
    """What is said of adversaries whose figures are the same."""
    who, stated = " and ".join(_named(guarantee) for guarantee in same), same[0]
    # What neighbouring data sets differ in.
    change = _CHANGES[statement.unit, statement.adjacency]
    if statement.unit is Unit.USER:
        change += f" (at most {statement.records_per_person})"
    if statement.holders:
        change = f"{_PERSON[statement.adjacency]} of {statement.whose}"
    epsilon = f"epsilon {rounded_up(stated.epsilon)} at delta {statement.delta:g}"
    found = f"accountant {statement.accountant}"
    # An upper bound, a heuristic, or no bound.
    if stated.status in _BOUNDS:
        whole = (
            ", whichever agents were sampled: all rounds count as one release"
            if stated.sampling in (Sampling.ANY, Sampling.TURNS)
            else ""
        )
        return (
            f"Against {who}, {change} changes the distribution of all that is seen by at most "
            f"{epsilon}, {_BOUNDS[stated.status]} ({found}{whole})."
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


# Why a figure is what it is: the messages of one round that add up to mu, in words.
#
# The rows A of the contributions and B of the noise of a round's closed view give the most powerful
# test that a record is in (`privacy.view.view`): a weight for each message. A direction u
# is taken in which the record moves every clipped vector by its bound, with signs c, so that
#
#     nu^2 = c^T M c <= mu^2,  M = A_v^T (B B^T)^+ A_v
#
# is reached; mu is the stated bound, over vectors that point anywhere.

_HELD = {
    Unit.RECORD: "a record",
    Unit.USER: "one record of a user",
    Unit.AGENT: "all data",
    Unit.CLIENT: "all data",
}
_MOST_MESSAGES = 4000  # of a view that is written out
_SHOWN = 12
_LEAST = 1e-6  # weight of a message that counts, next to the largest one


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One message of the combination.

    Attributes:
        message: what was sent or kept, by whom and when.
        weight: of the message in units of its own noise; the largest one is 1 or -1.
        alone: mu of this message by itself.
    """

    message: str
    weight: float
    alone: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Why an adversary's figure is what it is; printed, it is a text.

    Attributes:
        adversary: who sees.
        victim: the agent whose record is at risk.
        mu: of the round that costs most, at the run's noise; infinite where nothing protects.
        reached: by the combination; None where there is none to show.
        parts: the combination, the largest weight first; empty likewise.
        words: the text.
    """

    adversary: str
    victim: int
    mu: float
    reached: float | None
    parts: tuple[Part, ...]
    words: str

    def __str__(self) -> str:
        """The text."""
        return self.words

    __repr__ = __str__


def explain(
    traces: AlgorithmTrace,
    stated: Guarantee,
    sensitivity: JointSensitivity,
    *,
    encrypted: bool = False,
    counted: str | None = None,
) -> Explanation:
    """Explain one adversary's figure.

    Args:
        traces: of the run, at its own noise.
        sensitivity: from which it follows.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.
        counted: that the number of all records is public, where it has to be.
    """
    found = _explained(traces, stated, sensitivity, encrypted=encrypted)
    return found if counted is None else replace(found, words=f"{found.words}\n{counted}")


def explain_releases(stated: Guarantee, sensitivity: JointSensitivity) -> Explanation:
    """Explain one adversary's figure by what is released of each batch, of a log of releases."""
    most = max((of.joint_sensitivity for of in sensitivity.releases), default=0.0)
    count = sum(of.rounds for of in sensitivity.releases if of.joint_sensitivity == most)
    when = "for all rounds together" if sensitivity.whole_run else f"in {count} of the rounds"
    found = _beginning(stated, sensitivity, when=f"{when}, by the noise that the log declares")
    rows = [
        f"  {of.joint_sensitivity:9.4g}  {of.sampling_rate:9.4g}  {of.rounds:7d}  "
        f"{of.contributions:7d}  from round {of.first}"
        for of in sorted(sensitivity.releases, key=lambda r: -r.joint_sensitivity)[:_SHOWN]
    ]
    more = len(sensitivity.releases) - _SHOWN
    tail = [f"  and {more} kinds of rounds more"] if more > 0 else []
    heads = ["         mu       rate   rounds  vectors  of what is released of one batch"]
    return replace(found, words="\n".join((found.words, *(heads if rows else ()), *rows, *tail)))


def _beginning(
    stated: Guarantee, sensitivity: JointSensitivity, *, when: str | None = None
) -> Explanation:
    """Who is told of whom, and what decides mu; `when` replaces the rounds of a trace."""
    who = stated.adversary
    if stated.worst_adversary is not None:
        who = f"{who} ({stated.worst_adversary})"
    head = f"{who} and {_HELD[stated.unit]} of agent {sensitivity.victim}"
    if _has_no_parts(stated, sensitivity):
        seen = "mu is infinite" if math.isinf(stated.mu_per_round) else "nothing is seen, mu is 0"
        return _without_parts(stated, f"{head}: {seen}, {stated.status}: {stated.because}.")
    if when is None:
        top = max(sensitivity.releases, key=lambda r: r.joint_sensitivity)
        when = (
            f"{_when(top, whole=sensitivity.whole_run)}, the joint sensitivity "
            f"{rounded_up(stated.joint_sensitivity, 4)} / the noise multiplier"
        )
    head += f": mu {rounded_up(stated.mu_per_round, 4)} {when}; {stated.status}: {stated.because}."
    return _without_parts(stated, head)


def _has_no_parts(stated: Guarantee, sensitivity: JointSensitivity) -> bool:
    infinite = math.isinf(stated.mu_per_round)
    return infinite or not sensitivity.releases or not sensitivity.largest


def _explained(
    traces: AlgorithmTrace, stated: Guarantee, sensitivity: JointSensitivity, *, encrypted: bool
) -> Explanation:
    found = _beginning(stated, sensitivity)
    if _has_no_parts(stated, sensitivity):
        return found
    head, top = found.words, max(sensitivity.releases, key=lambda r: r.joint_sensitivity)
    # Parts are those of one round's view, where its messages can be weighed one by one.
    if sensitivity.whole_run or sensitivity.adversary.sees is Sees.ONE_MESSAGE:
        return found
    round_ = _round(traces, top.first)
    view = round_.view(effective_of(sensitivity.adversary, encrypted=encrypted))
    if view.noise.shape[0] > _MOST_MESSAGES:
        return _without_parts(
            stated, f"{head}\nIts {view.noise.shape[0]} messages are too many to weigh one by one."
        )
    reached, parts = _combination(round_, view, sensitivity.victim, number=top.first)
    return Explanation(
        adversary=stated.adversary,
        victim=sensitivity.victim,
        mu=stated.mu_per_round,
        reached=reached,
        parts=parts,
        words="\n".join((head, *_lines(parts), _end(reached, stated.mu_per_round))),
    )


def _without_parts(stated: Guarantee, words: str) -> Explanation:
    return Explanation(
        adversary=stated.adversary,
        victim=stated.victim,
        mu=stated.mu_per_round,
        reached=None,
        parts=(),
        words=words,
    )


def _when(release: Release, *, whole: bool) -> str:
    if whole and release.sampling_rate < 1:  # turns that are counted one by one
        turns = "the one turn" if release.rounds == 1 else f"each of {release.rounds} turns"
        return f"in {turns} of the record"
    if whole:
        return "for all rounds together"
    if release.first == 0:
        return "at the start"
    if release.rounds == 1:
        return f"in round {release.first}"
    last = release.first + release.rounds - 1
    return f"in each of the rounds {release.first} to {last}"


def _round(traces: AlgorithmTrace, number: int) -> RoundTrace:
    """The trace of a round; 0 is the start."""
    if number == 0:
        return traces.start
    last = 0
    for one, count in traces.rounds:
        last += count
        if number <= last:
            return one
    return traces.rounds[-1][0]


def _combination(
    round_: RoundTrace, view: View, victim: int, *, number: int
) -> tuple[float, tuple[Part, ...]]:
    """The mu that is reached by one direction for the batch that costs most, and its messages."""
    batches = [(columns, bounds) for columns, bounds, _ in round_.of_victim(victim).values()]
    columns, bounds = max(batches, key=lambda batch: view.mu(batch[0], bounds=batch[1]))
    test = matched_filter(view, columns)
    b = np.asarray(bounds)
    M = test.information * np.outer(b, b)
    signs = _signs(M, round_.vectors[list(columns)])
    weights = test.weights @ (signs * b)
    moved = np.asarray(view.contributions[:, list(columns)] @ (signs * b))
    noise = np.sqrt(np.asarray((view.noise * view.noise).sum(axis=1)).ravel())
    scaled = weights * noise
    largest = float(np.abs(scaled).max(initial=0.0))
    order = np.argsort(-np.abs(scaled), kind="stable")
    parts = tuple(
        Part(
            message=in_round(view.messages[int(i)], number),
            weight=float(scaled[i] / largest),
            alone=abs(float(moved[i] / noise[i])),
        )
        for i in order
        if largest and abs(scaled[i]) > _LEAST * largest
    )
    return math.sqrt(max(0.0, float(signs @ M @ signs))), parts


def _signs(M: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """(columns,) +1 or -1 so that c^T M c is large; 0 for the cheaper parts of one vector."""
    kept = np.zeros(len(M))
    for vector in np.unique(vectors):
        parts = np.flatnonzero(vectors == vector)
        kept[parts[np.argmax(np.diag(M)[parts])]] = 1.0
    starts = [kept, kept * np.where(np.linalg.eigh(M)[1][:, -1] < 0, -1.0, 1.0)]
    found = []
    for start in starts:
        signs = start.copy()
        changed = True
        while changed:
            changed = False
            for i in np.flatnonzero(kept):
                pull = float(M[i] @ signs) - M[i, i] * signs[i]
                if pull * signs[i] < -1e-12 * M[i, i]:
                    signs[i], changed = -signs[i], True
        found.append(signs)
    return max(found, key=lambda c: float(c @ M @ c))


def _lines(parts: Sequence[Part]) -> list[str]:
    rows = [f"  {p.weight:+7.3f}  {p.alone:9.4g}  {p.message}" for p in parts[:_SHOWN]]
    more = len(parts) - _SHOWN
    tail = [f"  and {more} more of smaller weight"] if more > 0 else []
    return ["   weight   mu alone  message", *rows, *tail]


def _end(reached: float, mu: float) -> str:
    told = (
        "Added up with these weights, each in units of its own noise, they tell a run with the "
        "record from one without it as well as two normals of deviation 1 at distance "
        f"{rounded_up(reached, 4)}"
    )
    if reached >= mu * (1 - 1e-6):
        return f"{told}, which is mu: no other combination does better."
    return (
        f"{told}; mu is an upper bound, over gradients that point anywhere and over every "
        "victim's worst round."
    )
