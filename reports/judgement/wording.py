"""Sentences about findings, and notes: the phrases with their names, figures and bounds filled in.

Notes are what somebody who relies on a judgement must know beside it: interruptions, copies and
doubts.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...privacy.guarantee import EAVESDROPPER, WORST_NEIGHBOUR, Guarantee, Status
from ...runs.folder import folder as run_folder
from ..references import Key, kind_of, sign_of
from ..schema import Remedy as Fix
from .facts import Facts, FigureRequirement, Ran
from .findings import (
    ACTIONS,
    AS_DECLARED,
    HEADLINES,
    KINDS,
    NAMES,
    NOTES,
    PARTS,
    STATEMENTS,
    WITHOUT_TARGET,
    Action,
    Figure,
    Finding,
    Fixes,
    Kind,
    Note,
    Remedy,
    Sentence,
    Value,
    fill,
    judge,
    text_of,
)
from .proofs import against_proofs

_DECLARED = {"proven": "declared", "the proof": "the list of releases", "proof": "list"}
_PROVEN = re.compile(r"(?<![{\w])(?:proven|the proof|proof)\b")
_WHAT = {
    "record": "a given record of agent",
    "user": "a given user of agent",
    "agent": "anything at all of the data of agent",
    "client": "anything at all of the data of client",
}


def who(claim: Guarantee, facts: Facts) -> str:
    """An adversary in a sentence."""
    ours = facts.declared is None
    if claim.adversary == EAVESDROPPER.name and ours and (facts.encrypted or facts.agents == 1):
        return "the eavesdropper (who reads the released models alone)"
    members = re.fullmatch(
        r"(?:neighbour|coalition):([\d,]+)", claim.worst_adversary or claim.adversary
    )
    agents = members[1].split(",") if members else []
    if claim.adversary == WORST_NEIGHBOUR and agents:
        return f"{NAMES[claim.adversary]} (agent {agents[0]})"
    if claim.adversary in NAMES or not agents:
        return NAMES.get(claim.adversary, claim.adversary)
    return f"agents {listed(agents)} together" if len(agents) > 1 else f"agent {agents[0]}"


def listed(words: Sequence[str], joint: str = "and") -> str:
    """One or more phrases in a row.

    >>> listed(["1", "2", "9"]), listed(["one"], "or")
    ('1, 2 and 9', 'one')
    """
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


def headline(finding: Finding, facts: Facts) -> Sentence:
    """A finding in one line, without a full stop."""
    template = HEADLINES.get(finding.kind, "")
    if facts.declared is not None:
        template = AS_DECLARED.get(finding.kind, template)
    elif finding.claim is not None and finding.limit is None:
        open_ = HEADLINES[Kind.NO_TARGET]
        template = WITHOUT_TARGET.get(finding.kind, open_)
    return _filled(template, finding, facts)


def sentence(finding: Finding, facts: Facts) -> Sentence:
    """What a finding says, with its figure and its bound."""
    template = KINDS[finding.kind]
    if "verdict" in finding.words:
        template = PARTS["verdict_alone"]
    elif finding.kind in (Kind.MEASURED, Kind.SUSPICIOUS) and "measured" not in finding.words:
        template = PARTS["without_figure"]
    return _filled(template, finding, facts)


def closest_sentence(finding: Finding, facts: Facts) -> Sentence:
    """Of a plan in which nothing is wrong: who comes closest to the limit, or learns most."""
    return _filled(PARTS["most"] if finding.limit is None else PARTS["closest"], finding, facts)


def same_sentence(finding: Finding, others: Sequence[Guarantee], facts: Facts) -> Sentence:
    """Of other adversaries for which the same is so."""
    named = [who(claim, facts) for claim in others]
    if finding.kind is Kind.OVER:
        shown = zip(named, others, strict=True)
        named = [f"{name} at epsilon {Figure('bound', one.epsilon).text}" for name, one in shown]
    return fill(PARTS["same"], others=listed(named))


def statement(facts: Facts, *, doubted: bool) -> tuple[Sentence, ...]:
    """The figure of a verdict as a statement, and what the run file allows."""
    claim = facts.head
    lead = "proven" if claim.proven else "declared" if claim.is_bound else "heuristic"
    if claim.is_bound and doubted:
        lead = "doubted"
    if math.isinf(claim.epsilon):
        lead = "inexpressible" if claim.status is Status.CANNOT_BE_EXPRESSED else "unprotected"
    accounted = facts.ran.accounted if facts.ran else facts.rounds
    finding = Finding(
        kind=Kind.WITHIN,
        claim=claim,
        limit=facts.limit,
        words={
            "lead": (as_declared(STATEMENTS[lead]) if facts.declared else STATEMENTS[lead],),
            "Subject": _subject(claim, facts),
            "rounds": Figure("whole", accounted, ("ledger", "rounds_accounted")),
        },
    )
    templates = [PARTS["statement"]]
    if math.isinf(claim.epsilon):  # what shows it
        templates.append(PARTS["reason"])
    if facts.limit is not None:
        templates.append(PARTS["allowed"])
    return tuple(_filled(template, finding, facts) for template in templates)


def _subject(claim: Guarantee, facts: Facts) -> Sentence:
    """Who is protected or exposed, at the beginning of a sentence."""
    if facts.whose:
        return (f"{facts.whose[:1].upper()}{facts.whose[1:]}",)
    victim = Figure("whole", claim.victim, (*facts.place(claim), "victim"))
    unit = claim.unit_name
    return fill("One {unit} of agent {victim}", unit=unit, victim=victim)


def _key_of(claim: Guarantee) -> str:
    """The unit as a policy asks for it."""
    if claim.records_per_person is None:
        return f'unit = "{claim.unit}"'
    return f'unit = "{claim.unit}"` and `records_per_person = {claim.records_per_person}'


def action_sentence(remedy: Remedy, finding: Finding, facts: Facts) -> Sentence:
    """What would turn a finding, with the figure that it leads to."""
    # Words of every remedy; parts that do not apply are empty.
    words: dict[str, Value] = {
        "again": ("plan again" if facts.ran is None else "train again",),
        "algorithm": facts.algorithm,
        "private": facts.counterpart,
        "planned": Figure("whole", facts.rounds, ("run", "rounds")),
        "used": Figure("precise", facts.noise_multiplier, ("run", "noise_multiplier")),
        "name": finding.adversary,
        "folder": "DIR" if facts.ran is None else facts.ran.folder,
        "clipped": (),
        "then": (),
        "over": (),
        "still": (),
        "now": (),
        "multiplied": (),
        "unseeded": (),
        **remedy.words,
    }
    # Where the remedy leads, and who is still over the limit.
    if remedy.epsilon is not None and finding.claim is not None:
        at: tuple[Key, ...] = (*remedy.path, "epsilon") if remedy.path else ()
        then = fill(
            PARTS["then"],
            who=who(finding.claim, facts),
            epsilon=Figure("precise", remedy.epsilon, at),
            delta=(
                fields_of(finding, facts)["delta"]
                if remedy.delta is None
                else Figure("small", remedy.delta)
            ),
        )
        words["then"] = then
        words["unseeded"] = (
            ": ", *then, ", and no other requested adversary learns more"
        )  # fmt: skip
    if remedy.over:
        words["over"] = ("; that is still over the limit, so it takes more noise too",)
    if remedy.others:
        others = listed([who(one, facts) for one in remedy.others])
        words["still"] = fill("; {others} would still be over the limit", others=others)
    # The noise that it takes, in place of what was used.
    multiplier = words.get("multiplier")
    if isinstance(multiplier, Figure):
        if facts.goal is None or finding.limit != facts.limit:  # else another noise meets the goal
            words["multiplied"] = fill(" (noise multiplier {multiplier})", multiplier=multiplier)
        used = words["used"]
        if isinstance(used, Figure) and used.text != multiplier.text:
            words["now"] = fill(" in place of {used}", used=used)
    template = ACTIONS[remedy.action]
    if facts.declared is not None and remedy.action is Action.AUDIT_AGAIN:
        template = PARTS["audit_declared_again"]
    return _filled(template, finding, facts, words)


def fields_of(finding: Finding, facts: Facts) -> dict[str, Value]:
    """What every phrase of a finding may name."""
    words: dict[str, Value] = {"adversary": finding.adversary, "over_limit": (), "only_proven": ()}
    # The run, where there is one.
    ran, claim = facts.ran, finding.claim
    if ran is not None:
        words |= {
            "folder": ran.folder,
            "alone": ran.alone,
            "planned": Figure("whole", facts.rounds, ("run", "rounds")),
            "waive": (PARTS["waive"],),
            "Continue": fill(PARTS["continue"], folder=ran.folder, file=run_folder.RUN),
        }
    # The limit, and the goal that it stands for.
    if finding.limit is not None:
        of_run = finding.limit == facts.limit
        at: tuple[Key, ...] = ("plan", "target", "epsilon") if of_run and not facts.goal else ()
        number = Figure("given", finding.limit, at if ran else ())
        limit: Sentence = (number,)
        words["aim"] = fill("`epsilon = {limit}`", limit=number)
        if of_run and facts.goal is not None:
            goal = facts.goal
            number = Figure("precise", finding.limit)
            limit = fill("{limit} (what {goal} comes to)", limit=number, goal=(goal.words,))
            key = (
                f"tpr = {goal.tpr}, fpr = {goal.fpr}" if goal.tpr else f"advantage = {goal.figure}"
            )
            words["aim"] = (f"`{key.replace(', ', '`, `')}`",)
        words["limit"] = limit
        words["over_limit"] = fill(", over the limit of {limit}", limit=limit)
        words["only_proven"] = (", and only a proven figure passes",)
    # The claim: rounded up as usual, and exact where it is just over the limit.
    if claim is not None:
        kind = kind_of(upper=claim.is_bound)
        close = finding.limit is not None and math.isclose(
            claim.epsilon, finding.limit, rel_tol=1e-3
        )
        if finding.kind is Kind.OVER:
            kind = "exact" if close else "precise"
        name, searched = who(claim, facts), " (highest risk)" if facts.searched else ""
        words |= {
            "who": name,
            "Who": f"{name[:1].upper()}{name[1:]}",
            "record": f"{facts.whose or f'{_WHAT[claim.unit]} {claim.victim}'}{searched}",
            "figure": Figure(
                kind, claim.epsilon, ("ledger", "epsilon", claim.adversary) if ran else ()
            ),
            "delta": Figure("small", claim.delta, (*facts.place(claim), "delta") if ran else ()),
            "unit": claim.unit_name,
            "unit_key": _key_of(claim),
            "adjacency": claim.adjacency,
            "because": claim.because,
            "by": ("just over" if close else "over",),
            "asked_victim": (facts.whose or f"records of agent {facts.victim}",),
            "limiting": ("`holders`" if facts.whose else "`victim`",),
        }
    return words | dict(finding.words)


def _filled(
    template: str, finding: Finding, facts: Facts, words: Mapping[str, Value] | None = None
) -> Sentence:
    template = template if facts.declared is None else as_declared(template)
    return fill(template, **{**fields_of(finding, facts), **(words or {})})


def as_declared(template: str) -> str:
    """A phrase on what is proven, for figures that are declared.

    >>> as_declared("more than the {proven} that is proven: the proof is wrong")
    'more than the {proven} that is declared: the list of releases is wrong'
    """
    return _PROVEN.sub(lambda found: _DECLARED[found[0]], template)


def plain_sentences(finding: Finding, facts: Facts) -> str:
    """A finding and what would turn it, on one line; remedies are alternatives."""
    turns = [text_of(action_sentence(remedy, finding, facts)) for remedy in finding.remedy]
    others = [f"Or {turn[:1].lower()}{turn[1:]}" for turn in turns[1:]]
    return " ".join([text_of(sentence(finding, facts)), *turns[:1], *others])


_MOST_STRETCHES = 4  # of rounds that follow each other


def notes(facts: Facts, *, limited: Collection[str] = ()) -> dict[Note, list[Sentence]]:
    """The notes on a run, by what they are about; those that do not apply are left out."""
    found: dict[Note, list[Sentence]] = {}
    for note, sentence in _notes(facts, limited):
        found.setdefault(note, []).append(sentence)
    return found


def _notes(facts: Facts, limited: Collection[str]) -> Iterator[tuple[Note, Sentence]]:
    ran = facts.ran
    if ran is None:
        return
    if (declared := facts.declared) is not None:
        checks = declared.checks
        looked = "no one looked whether it is" if checks is None else checks.said
        yield Note.DECLARED, fill(NOTES[Note.DECLARED], looked=looked)
    yield from _larger(facts)
    yield from _ended(facts, ran)
    yield from _resumed(facts, ran)
    if ran.torn:
        yield Note.TORN, fill(NOTES[Note.TORN])
    if facts.seeded:
        yield Note.SEEDED, fill(NOTES[Note.SEEDED])
    if ran.duplicates:
        copies = Figure("whole", ran.duplicates, ("run", "duplicate_records"))
        yield Note.DUPLICATES, fill(NOTES[Note.DUPLICATES], copies=copies)
    if ran.items is not None and not ran.items.shown:
        yield Note.ALONE, fill(NOTES[Note.ALONE], alone=ran.alone)
    if any(finding.kind is Kind.SUSPICIOUS for finding in against_proofs(facts)):
        said = NOTES[Note.SUSPICIOUS]
        yield Note.SUSPICIOUS, fill(said if facts.declared is None else as_declared(said))
    if facts.counted:
        yield Note.COUNTED, fill(NOTES[Note.COUNTED], said=facts.counted)
    if facts.encrypted and EAVESDROPPER.name in limited:
        yield Note.ENCRYPTED, fill(NOTES[Note.ENCRYPTED])


def _larger(facts: Facts) -> Iterator[tuple[Note, Sentence]]:
    """Adversaries beside the target that learn more than it."""
    target = None if facts.target is None else facts.claim(facts.target)
    for claim in facts.claims if target is not None else ():
        if target is not None and claim.epsilon > target.epsilon:
            figure = Figure(
                kind_of(upper=claim.is_bound), claim.epsilon, ("ledger", "epsilon", claim.adversary)
            )
            said = fill(
                NOTES[Note.MORE],
                sign=sign_of(claim.epsilon, upper=claim.is_bound),
                figure=figure,
                who=who(claim, facts),
            )
            yield Note.MORE, said


def _ended(facts: Facts, ran: Ran) -> Iterator[tuple[Note, Sentence]]:
    """Where the run ended, if that is not the planned end."""
    planned = Figure("whole", facts.rounds, ("run", "rounds"))
    at_most: Sentence = ()
    end: Value = ""
    by: Value = ""
    # Where a budget ended the run early.
    if ran.stopped is not None:
        number, adversary = ran.stopped
        claim = facts.claim(adversary)
        end = Figure("whole", number, ("run", "stopped", "round"))
        by = adversary if claim is None else who(claim, facts)
        at_most = fill(PARTS["at_most"], end=end)
    if not ran.finished:
        yield (
            Note.UNFINISHED,
            fill(
                NOTES[Note.UNFINISHED],
                done=Figure("whole", ran.done, ("run", "rounds_done")),
                planned=planned,
                folder=ran.folder,
                file=run_folder.RUN,
                at_most=at_most,
            ),
        )
    elif ran.stopped is not None:
        yield Note.STOPPED, fill(NOTES[Note.STOPPED], end=end, planned=planned, who=by)


def _resumed(facts: Facts, ran: Ran) -> Iterator[tuple[Note, Sentence]]:
    """How often the run was resumed, and what it released more than once."""
    if not ran.resumed:
        return
    often = "once" if ran.resumed == 1 else f"{ran.resumed} times"
    if not ran.repeated:
        yield Note.RESUMED, fill(NOTES[Note.RESUMED], often=often)
        return
    planned = Figure("whole", facts.rounds, ("run", "rounds"))
    more = fill(PARTS["more_than_planned"], planned=planned) if ran.accounted > facts.rounds else ()
    yield (
        Note.REPEATED,
        fill(
            NOTES[Note.REPEATED],
            often=often,
            which=_which(ran.repeated),
            releases=Figure("whole", ran.releases, ("ledger", "rounds")),
            more=more,
        ),
    )


def _which(repeated: Sequence[tuple[int, int]]) -> Sentence:
    """The rounds of (round, how often), those that follow each other as one stretch."""
    stretches: list[list[int]] = []  # places of the first and the last
    for at, (number, _) in enumerate(repeated):
        if stretches and number > 1 and repeated[at - 1][0] == number - 1:
            stretches[-1][1] = at
        else:
            stretches.append([at, at])
    shown: list[Sentence] = []
    for first, last in stretches[:_MOST_STRETCHES]:
        begins, ends = (
            Figure("whole", repeated[at][0], ("ledger", "repeated", at, 0)) for at in (first, last)
        )
        if repeated[first][0] == 0:
            shown.append(("the start",))
        elif first == last:
            shown.append(("round ", begins))
        else:
            shown.append(("rounds ", begins, " to ", ends))
    if len(stretches) > _MOST_STRETCHES:
        shown.append(("others",))
    joined = list(shown[0])
    for place, one in enumerate(shown[1:], start=2):
        joined += [" and " if place == len(shown) else ", ", *one]
    return tuple(joined)


# The verdict of a report: whether the target of the run file is met, and what would turn it.


class Outcome(enum.StrEnum):
    """What the report says about its run."""

    MET = "met"
    NOT_MET = "not met"
    OPEN = "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdict and its reasons.

    Attributes:
        outcome: met, not met, or open where no target was set.
        text: the figure behind it, with its delta and unit.
        actions: what would turn it; empty where it is met.
        notes: what else a reader of the headline must know.
        doubt: why no proven figure may be relied on: "contradicted", "check failed", or nothing.
    """

    outcome: Outcome
    findings: Sequence[Finding]
    headline: Sentence
    text: tuple[Sentence, ...]
    actions: tuple[Sentence, ...] = ()
    notes: tuple[Sentence, ...] = ()
    doubt: str = ""


def verdict(facts: Facts) -> Verdict:
    """Judge a run by its own target.

    Raises:
        KeyError: the target adversary is missing from the plan or from the ledger.
    """
    # What measurements say against the proofs goes before the target.
    measured = against_proofs(facts)
    failed = [one for one in measured if one.kind is Kind.CHECK_FAILED]
    refuted = [one for one in measured if one.kind.refutes and one not in failed]
    against = refuted or failed
    doubt = "contradicted" if refuted else "check failed" if failed else ""
    asked = FigureRequirement.of_target(facts.head, facts.limit)
    found = list(judge(facts, asked, fixes=_held(facts)))
    suspicious = [one for one in measured if one.kind is Kind.SUSPICIOUS]
    # A target is met by a proven figure that nothing casts doubt on.
    outcome = Outcome.NOT_MET
    if against:
        found = against
    elif facts.limit is None:
        outcome = Outcome.OPEN
    elif found[0].kind is Kind.WITHIN:
        outcome = Outcome.OPEN if suspicious else Outcome.MET
        found = suspicious or found
    return Verdict(
        outcome=outcome,
        findings=found,
        headline=headline(found[0], facts),
        text=statement(facts, doubted=bool(doubt)),
        actions=_actions(found, facts),
        notes=tuple(one for of_kind in notes(facts).values() for one in of_kind),
        doubt=doubt,
    )


def _held(facts: Facts) -> Fixes:
    """The fixes that privacy.json holds."""

    def fixes(claim: Guarantee, _asked: FigureRequirement) -> Sequence[Fix]:
        held = () if facts.ran is None else facts.ran.fixes
        return [fix for fix in held if fix.adversary == claim.adversary]

    return fixes


def _actions(findings: Sequence[Finding], facts: Facts) -> tuple[Sentence, ...]:
    """What was measured, and what would turn the verdict; of a figure its first reason counts."""
    first = findings[0]
    of_figure = first.claim is not None
    counted = [finding for finding in findings if finding is first or not of_figure]
    counted = [
        finding for finding in findings if finding.kind is Kind.NO_TARGET and finding is not first
    ] + counted
    said = () if of_figure else (sentence(one, facts) for one in counted)
    turns = (action_sentence(remedy, one, facts) for one in counted for remedy in one.remedy)
    return tuple(dict.fromkeys([*said, *turns]))
