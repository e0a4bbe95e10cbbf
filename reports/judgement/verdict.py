"""The verdict of a report: whether the target of the run file is met, and what would turn it.

A heuristic figure never passes, nor does a run whose noise can be repeated, nor one whose evidence
contradicts its proof. The figure that counts is the ledger's: what was released, not what was
planned.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ...privacy.guarantee import Guarantee
from ..schema import Remedy as Fix
from .facts import Facts, FigureRequirement
from .findings import Finding, Fixes, Kind, judge
from .proofs import against_proofs
from .sentence import Sentence
from .wording import action_sentence, headline, notes, sentence, statement


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
