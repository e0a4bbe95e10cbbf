"""The first half page of a report: what a figure means for people, what to do next, and who asks.

Everything here is said again below, with what it rests on. Nothing here is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...privacy.guarantee import Unit
from ..judgement.facts import Facts
from ..judgement.sentence import Figure, Sentence, fill
from ..judgement.verdict import Outcome, Verdict
from ..judgement.wording import who
from ..schema import About, Report
from ..standing import kind_of
from .risk import Source

__all__ = ["Officer", "officer"]

_IN_100 = 1  # the entry of a row's hits whose odds are in 100
_USED = {
    Unit.RECORD: "people whose record was used",
    Unit.USER: "people whose records were used",
    Unit.AGENT: "agents whose data were used",
    Unit.CLIENT: "clients whose data were used",
}
_NOTHING = "Nothing limits how well {who} tells {of} from others."
_UNKNOWN = "No limit is known to how well {who} tells {of} from others."
_FOUND = (
    "Of {hundred} {of}, {who} finds {relation} {hits} while accusing {alarms} of {hundred} others "
    "wrongly; a blind guess finds {alarms}."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Officer:
    """What the first half page says.

    Attributes:
        meaning: the figure in words of people.
        steps: what to do next, most urgent first.
        covered: whose records the figure covers, and whether a person may have more.
        about: what the run file says about people.
    """

    meaning: Sentence
    steps: tuple[Sentence, ...]
    covered: tuple[Sentence, ...]
    about: About


def officer(report: Report, facts: Facts, found: Verdict) -> Officer:
    """What the first half page of a report says."""
    return Officer(
        meaning=_meaning(report, facts, found),
        steps=tuple(_steps(report, facts, found)),
        covered=tuple(_covered(report, facts)),
        about=report.about or About(),
    )


def _meaning(report: Report, facts: Facts, found: Verdict) -> Sentence:
    claim = facts.head
    risk, place = report.risk[claim.adversary], ("risk", claim.adversary, "hits", _IN_100)
    words: dict[str, str | Sentence | Figure] = {
        "who": who(claim, facts),
        "of": _USED[claim.unit],
    }
    if risk.source in (Source.NOTHING, Source.NO_BOUND):
        template = _NOTHING if risk.source == Source.NOTHING else _UNKNOWN
    else:
        template, hits = _FOUND, risk.hits[_IN_100]
        words |= {
            "hundred": Figure("whole", hits.of, (*place, "of")),
            "relation": risk.relation,
            "hits": Figure("given", hits.hits, (*place, "hits")),
            "alarms": Figure("whole", hits.false_positives, (*place, "false_positives")),
        }
    said = fill(template, **words)
    return ("If the proof held, this would be so: ", *said) if found.doubt else said


def _steps(report: Report, facts: Facts, found: Verdict) -> Iterator[Sentence]:
    yield from found.actions
    head, about = facts.head, report.about or About()
    held = about.records_per_person
    if held is not None and held > _most_covered(report):
        yield fill(
            "The run file says that one person has up to {held} records, and no figure of this "
            "report covers so many: set `records_per_person = {held}` in [privacy], and train "
            "again.",
            held=Figure("whole", held, ("about", "records_per_person")),
        )
    if report.attack is None:
        yield ("Run `overhear attack DIR`: it shows what can be rebuilt from the messages.",)
    if report.audit is None:
        yield ("Run `overhear audit DIR`: it checks that what ran is what was accounted for.",)
    yield (
        f"Decide whether {who(head, facts)} is the adversary that matters here; section 3 lists "
        "the others.",
    )
    gaps = sum(one.status == "gap" for one in report.assumptions)
    if gaps:
        yield (f"Read the {'gap' if gaps == 1 else f'{gaps} gaps'} of section 9, and decide "
               f"whether you accept {'it' if gaps == 1 else 'them'}.",)  # fmt: skip
    if found.outcome is Outcome.MET:
        yield ("Sign in section 11, and keep `privacy.json` with what you signed.",)
    elif found.outcome is Outcome.NOT_MET:
        yield ("Until then, do not sign this report as a target that is met.",)


def _most_covered(report: Report) -> int:
    """How many records of one person some figure of the report is about."""
    [*_, most] = sorted(
        [1]
        + [row.records_per_person or 1 for row in report.plan.adversaries]
        + [one.records for row in report.plan.adversaries for one in row.group or ()]
        + [sum(one.records for one in row.holders or ()) for row in report.plan.adversaries]
        + [2**62 for row in report.plan.adversaries if row.unit == "agent"]
    )
    return most


def _covered(report: Report, facts: Facts) -> Iterator[Sentence]:
    """Whose records the figure is about, and what is known of people with more."""
    head, place = facts.head, facts.place(facts.head)
    row = report.plan.adversaries[place[-1]]
    if row.holders:
        count = sum(one.records for one in row.holders)
        yield (f"the figure covers {count} records of one person, at {len(row.holders)} agents",)
    elif head.unit is Unit.RECORD:
        yield ("the figure covers one record of a person",)
    elif head.unit is Unit.USER:
        yield ("the figure covers a person with up to ", Figure(
            "whole", row.records_per_person or 1,
            (*place, "records_per_person"),
        ), " records at one agent")  # fmt: skip
    else:
        yield ("the figure covers all records of one agent",)
    # Of a run that released more than was planned, figures of the plan are too small.
    relation = "at most" if head.proven else "at least"
    relation = relation if row.epsilon == head.epsilon else "more than"
    for number, one in enumerate(row.group or ()):
        at = (*place, "group", number)
        yield (
            "for ", Figure("whole", one.records, (*at, "records")),
            f" records of a person ε is {relation} ",
            Figure(kind_of(proven=head.proven), float(one.epsilon), (*at, "epsilon")),
        )  # fmt: skip
    held = None if report.about is None else report.about.records_per_person
    if held is not None:
        yield (
            "the run file says that a person has at most ",
            Figure("whole", held, ("about", "records_per_person")),
        )
    elif head.unit is not Unit.AGENT:
        yield ("the run file does not say how many records one person has",)
