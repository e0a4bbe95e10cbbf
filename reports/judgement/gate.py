"""The gate: whether a run is within a policy, and what would turn it.

Only proven figures pass. A contradiction of a proof stands above everything, because it says that
the proof or the code is wrong; then come figures over a limit, then evidence that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...attacks.bounds.lower_bounds import LEAST_SHARE
from ...attacks.interception.names import NOT_IDENTIFIED, satisfies
from ...privacy.errors import InputError
from ...privacy.guarantee import SINGLE_MESSAGE, Statement
from ...privacy.plain_text import plain
from ...runs.audit.evidence_schema import Audit, AuditedAdversary
from .facts import Facts, FigureRequirement, Ran, adversary_key
from .findings import (
    PARTS,
    Figure,
    Finding,
    Fixes,
    Kind,
    Note,
    Outcome,
    Risks,
    Value,
    judge,
    no_fixes,
    text_of,
)
from .policy import Evidence, Limit, Policy
from .proofs import against_proofs, of_membership, of_opinion, of_trace
from .wording import notes, plain_sentences, sentence

EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.NOT_APPLICABLE: 5,  # where nothing else was decided
    Outcome.PASSED: 0,
    Outcome.OVER: 3,
    Outcome.CONTRADICTED: 4,
    Outcome.MISSING: 5,
}
_RANK = list(Outcome)
_NOTES = (Note.DUPLICATES, Note.ALONE, Note.ENCRYPTED, Note.TORN, Note.COUNTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One requirement and what became of it.

    Attributes:
        name: "limit: eavesdropper" or "evidence: audit".
        outcome: passed, or why not.
        sentence: the figure, its bound, and what would turn it; on one line.
        findings: what the sentence says.
    """

    name: str
    outcome: Outcome
    sentence: str
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Every requirement of a policy on one run.

    Attributes:
        requirements: in the order of the policy.
        notes: what else somebody who relies on it must know.

    Raises:
        ValueError: no requirements; nothing that was required is no reason to pass.
    """

    requirements: Sequence[Requirement]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check that something was required."""
        if not self.requirements:
            raise InputError("requirements=[] decides nothing; a decision needs a requirement")

    @property
    def outcome(self) -> Outcome:
        """The worst one: contradicted, over a limit, missing, passed, then not applicable."""
        return max((requirement.outcome for requirement in self.requirements), key=_RANK.index)

    @property
    def exit_code(self) -> int:
        """Of the command: 0, 3, 4 or 5."""
        return EXIT_CODES[self.outcome]

    def dump(self) -> dict[str, Any]:
        """The decision as an object of JSON, without the notes."""
        return {
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "requirements": [
                {"name": one.name, "outcome": one.outcome.value, "sentence": one.sentence}
                for one in self.requirements
            ],
        }


def decide(
    policy: Policy, facts: Facts, *, fixes: Fixes = no_fixes, risks: Risks | None = None
) -> Decision:
    """Check a run against a policy.

    Args:
        policy: what must hold.
        facts: of a run that was trained.
        fixes: gives what would bring a figure within a limit, by the run's own accountant.
        risks: gives what membership tests come to, for limits on these.

    Raises:
        ValueError: the facts are those of a plan.
    """
    ran = facts.ran
    if ran is None:
        raise InputError("facts are those of a plan; a policy is for a run")
    # Limits, proofs and evidence; each is a requirement by its worst finding.
    found = [
        *(
            (limit_name(asked), judge(facts, asked, fixes=fixes, risks=risks))
            for limit in policy.limits
            for asked in FigureRequirement.of_limit(limit)
        ),
        *proofs(facts, ran),
        *((f"evidence: {what}", [one]) for what, one in _evidence(policy, facts, ran)),
    ]
    limited = [limit.adversary for limit in policy.limits]
    told = notes(facts, limited=limited)
    return Decision(
        requirements=[
            Requirement(
                name=plain(name),
                outcome=max((finding.kind.outcome for finding in findings), key=_RANK.index),
                sentence=" ".join(plain_sentences(finding, facts) for finding in findings),
                findings=findings,
            )
            for name, findings in found
        ],
        notes=[
            *(text_of(one) for note in _NOTES for one in told.get(note, ())),
            *dict.fromkeys(
                said for one in policy.limits for said in Statement(delta=one.at_delta).cautions
            ),
        ],
    )


def decide_plan(facts: Facts) -> Decision:
    """Hold a plan against its own target: it is met, and every figure is proven and finite.

    A figure is asked for by [privacy] adversaries, or by default; that of a single message, which
    no adversary is limited to, only by being the target.

    Raises:
        ValueError: no figure is asked for, so nothing would be decided.
    """
    requirements = []
    for claim in facts.claims:
        aimed = claim.adversary == facts.target and facts.limit is not None
        if claim.adversary == SINGLE_MESSAGE.name and not aimed:
            continue
        asked = FigureRequirement.of_target(claim, facts.limit if aimed else None)
        found = [finding for finding in judge(facts, asked) if finding.kind is not Kind.NO_TARGET]
        requirements.append(
            Requirement(
                name=plain(f"{'target' if aimed else 'figure'}: {claim.adversary}"),
                outcome=max(
                    (one.kind.outcome for one in found), default=Outcome.PASSED, key=_RANK.index
                ),
                sentence=" ".join(text_of(sentence(one, facts)) for one in found),
                findings=found,
            )
        )
    if not requirements:
        raise InputError(
            "no figure is limited, so there is nothing to decide: no adversary is limited to a "
            "single message; name one in [privacy] adversaries, such as "
            '["eavesdropper"], or set [privacy] adversary and epsilon as a target'
        )
    return Decision(requirements=requirements)


def limit_name(asked: FigureRequirement) -> str:
    """What a requirement of a policy's limit is called."""
    if asked.goal is not None:
        return f"limit: {asked.adversary}, {asked.goal.words} of membership tests"
    delta = Figure("small", asked.delta).text
    return f"limit: {asked.adversary}, epsilon {asked.epsilon:g} at delta {delta}"


def proofs(facts: Facts, ran: Ran) -> Iterator[tuple[str, Sequence[Finding]]]:
    """What the attack and the audit leave of the proofs, where they are there."""
    against = against_proofs(facts)
    if ran.attack is not None and (scenarios := ran.attack.scenarios):
        attacks = "The attack" if len(scenarios) == 1 else f"The {len(scenarios)} attacks"
        agrees = Finding(kind=Kind.ATTACK_AGREES, words={"attacks": attacks})
        rebuilt = [one for one in against if one.kind is Kind.REBUILT]
        yield "proof: not contradicted by the attack", rebuilt or [agrees]
    if ran.audit is not None:
        by_models = (Kind.MEMBERS_GUESSED, Kind.LAST_MODEL, Kind.LIST)
        others = (Kind.REBUILT, Kind.OPINION_CONTRADICTS, Kind.TRACE_CONTRADICTS, *by_models)
        told = [one for one in against if one.kind not in others]
        refuted = [one for one in told if one.kind is not Kind.SUSPICIOUS]
        yield "proof: not contradicted by the audit", refuted or told or [_agrees(ran.audit)]
    if doubted := [one for one in against if one.kind is Kind.OPINION_CONTRADICTS]:
        yield "proof: not contradicted by a second opinion", doubted
    if told := [one for one in against if one.kind is Kind.TRACE_CONTRADICTS]:
        yield "proof: not contradicted by a second tracer", told
    if guessed := [one for one in against if one.kind is Kind.MEMBERS_GUESSED]:
        yield "proof: not contradicted by guesses of members", guessed
    if told := [one for one in against if one.kind is Kind.LAST_MODEL]:
        yield "proof: not contradicted by last models", told


def _agrees(audit: Audit) -> Finding:
    """An audit that speaks against nothing: how it came to that."""
    cleared = [adversary.name for adversary in audit.adversaries if adversary.verdict == "cleared"]
    if cleared or audit.verdict == "cleared":
        return Finding(kind=Kind.CLEARED, words={"cleared": ", ".join(cleared) or "the run"})
    if audit.verdict in ("not measured", "nothing proven"):
        return Finding(kind=Kind.VAIN, words={"called": audit.verdict})
    return Finding(kind=Kind.AUDIT_AGREES)


def _evidence(policy: Policy, facts: Facts, ran: Ran) -> Iterator[tuple[str, Finding]]:
    """A finding for the report, and for each piece of evidence that is asked for."""
    # What the folder has to hold.
    wanted = policy.evidence
    yield "report", Finding(kind=Kind.REPORTED if ran.reported else Kind.NO_REPORT)
    if wanted.complete_run:
        yield "complete run", _complete(ran)
    if ran.signed is not None:
        kind = Kind.SIGNED if ran.signed.passed else Kind.NOT_SIGNED
        yield "signature", Finding(kind=kind, words={"said": ran.signed.said})
    if wanted.records_alone:
        shown = ran.items is None or ran.items.shown
        yield "records alone", Finding(kind=Kind.ALONE if shown else Kind.NOT_ALONE)
    # Other code, membership and audits, for each adversary that has a limit.
    if wanted.second_opinion:
        for name in dict.fromkeys(limit.adversary for limit in policy.limits):
            yield f"second opinion on {name}", of_opinion(name, facts)
            yield f"second trace of {name}", of_trace(name, facts)
    if wanted.wants_membership:
        yield "membership", of_membership(wanted.membership_tpr_at_1_percent, facts)
    yield from audits(policy, facts, ran)
    # Presets that were tried, and of these the ones that had a gradient to begin with.
    tried: dict[str, bool] = {}  # preset -> whether it weighed public records
    began = set[str]()  # presets that had a gradient of the victim's to begin with
    for one in ran.attack.scenarios if ran.attack else ():
        rows = [row for row in one.rows if row.name == "defended" and row.psnr]
        if rows:
            weighed = any(row.candidates for row in rows)
            tried[one.preset] = tried.get(one.preset, False) or weighed
            if any({*row.stage} != {NOT_IDENTIFIED} for row in rows):
                began.add(one.preset)
    for asked in dict.fromkeys(wanted.attack_presets):
        missing = Kind.NO_ATTACK if ran.attack is None else Kind.NOT_TRIED
        by = [one for one, weighed in tried.items() if satisfies(one, asked, weighed=weighed)]
        words = {
            "preset": asked if asked in by or not by else f"{by[0]}, which covers {asked},",
            "saw": "" if began.intersection(by) else PARTS["nothing_singled_out"],
        }
        yield f"attack by {asked}", Finding(kind=Kind.TRIED if by else missing, words=words)


def audits(policy: Policy, facts: Facts, ran: Ran) -> Iterator[tuple[str, Finding]]:
    """A finding for each adversary of whom an audit is asked for."""
    for name in dict.fromkeys(limit.adversary for limit in policy.limits):
        if policy.evidence.wants_audit:
            limits = [limit for limit in policy.limits if limit.adversary == name]
            gaps = (_audit_gap(policy.evidence, limit, facts, ran) for limit in limits)
            gap = next((gap for gap in gaps if gap is not None), None)
            yield f"audit of {name}", gap or _audited(facts, ran.audit)


def _complete(ran: Ran) -> Finding:
    """Whether the run is complete; if not what it lacks, and whether that can be had."""
    if ran.stopped is not None and ran.finished:
        return Finding(kind=Kind.STOPPED, words={"end": ran.stopped[0]})
    if ran.torn:
        return Finding(kind=Kind.TORN)
    if ran.missing:
        return Finding(kind=Kind.ROUNDS_MISSING, words={"missing": ran.missing})
    return Finding(kind=Kind.COMPLETE if ran.finished else Kind.CUT_OFF)


def _audit_gap(wanted: Evidence, limit: Limit, facts: Facts, ran: Ran) -> Finding | None:
    """What the audit lacks as evidence for a limit."""
    # An audit of the statement that the limit is of.
    audit, who = ran.audit, limit.adversary
    if audit is None:
        return Finding(kind=Kind.NO_AUDIT, adversary=who)
    if wanted.audit_confidence is not None and audit.confidence < wanted.audit_confidence:
        return Finding(
            kind=Kind.LOW_CONFIDENCE,
            adversary=who,
            figure=audit.confidence,
            limit=wanted.audit_confidence,
            words={
                "confidence": Figure("given", audit.confidence),
                "wanted": Figure("given", wanted.audit_confidence),
            },
        )
    if audit.adjacency != limit.adjacency:
        words = {"adjacency": audit.adjacency, "wanted": limit.adjacency}
        return Finding(kind=Kind.AUDIT_ADJACENCY, adversary=who, words=words)
    # The adversary under any of its names, with as many canaries as are wanted.
    claim = facts.claim(who)
    names = (who, claim.worst_adversary if claim else None)
    asked = {adversary_key(name) for name in names if name is not None}
    one = next((a for a in audit.adversaries if adversary_key(a.name) in asked), None)
    if one is None or one.measured_epsilon is None:
        known = [a.name for a in audit.adversaries if a.measured_epsilon is not None]
        told = ", ".join(known) or "no adversary"
        return Finding(kind=Kind.NOT_MEASURED, adversary=who, words={"known": told})
    if wanted.audit_canaries is not None and one.canaries < wanted.audit_canaries:
        return Finding(
            kind=Kind.FEW_CANARIES,
            adversary=who,
            figure=one.canaries,
            limit=wanted.audit_canaries,
            words={"canaries": one.canaries, "wanted": wanted.audit_canaries},
        )
    return _weak(one, wanted, who)


def _weak(one: AuditedAdversary, wanted: Evidence, who: str) -> Finding | None:
    """Whether even a perfect audit would have shown too little of what is proven."""
    share = LEAST_SHARE if wanted.audit_ideal is None else wanted.audit_ideal
    if one.ideal_epsilon is None or not 0 < one.proven_epsilon < math.inf:
        return None
    best = one.ideal_epsilon / one.proven_epsilon
    if best >= share:
        return None
    words: dict[str, Value] = {
        "canaries": one.canaries,
        "best": f"{math.floor(1000 * best) / 1000:g}",
        "wanted": f"{share:g}",
    }
    return Finding(kind=Kind.WEAK_AUDIT, adversary=who, figure=best, limit=share, words=words)


def _audited(facts: Facts, audit: Audit | None) -> Finding:
    if audit is None:
        return Finding(kind=Kind.NO_AUDIT)
    shorter = audit.rounds is not None and audit.rounds < facts.rounds
    part = f" over {audit.rounds} of {facts.rounds} rounds" if shorter else ""
    confidence = Figure("given", audit.confidence)
    return Finding(
        kind=Kind.AUDITED,
        words={"canaries": audit.canaries, "part": part, "confidence": confidence},
    )
