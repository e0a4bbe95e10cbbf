"""Findings about proofs: what attacks, audits, checks of code and second opinions say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...attacks.bounds.evidence import LINKS
from ...privacy.reference.second_opinion import AGREES_WITHIN
from ...runs.audit.evidence_schema import Audit, AuditCheck, AuditedAdversary
from ...runs.numbers import percent
from ...training.accounts.summary import Verdict
from .facts import Facts
from .findings import Action, Figure, Finding, Kind, Remedy, Value

_REFUTED = "contradicted"
_RATE = 0.01  # of false positives, at which a policy limits members that are found


def against_proofs(facts: Facts) -> tuple[Finding, ...]:
    """What was measured that refutes a proof of the run, or what a proof rests on.

    An attack that rebuilt more than the proof allows, an audit that measured more than is proven
    and did so again, another library whose lower bound lies above the figure, or a check of the
    implementation that failed: each says that the proof or the code is wrong, for whatever
    adversary, and no figure of the run passes then. A bound that was measured above a proof is
    suspicious, whatever the audit says of itself, unless a look of its own explains it.
    """
    if facts.ran is None:
        return ()
    opinions = (of_opinion(name, facts) for name in facts.ran.opinions)
    told = [opinion for opinion in opinions if opinion.kind is Kind.OPINION_CONTRADICTS]
    traced = (of_trace(name, facts) for name in facts.ran.traced)
    told += [one for one in traced if one.kind is Kind.TRACE_CONTRADICTS]
    checks = None if facts.declared is None else facts.declared.checks
    if checks is not None and checks.failed:
        told.append(Finding(kind=Kind.LIST, words={"failed": ", ".join(checks.failed)}))
    refuted = (*_refuted(facts.ran.audit, facts), *_rebuilt(facts), *told)
    return (*refuted, *_guessed(facts), *_told_by_last_models(facts))


def _guessed(facts: Facts) -> Iterator[Finding]:
    """Right guesses of members that no sound run allows."""
    found = None if facts.ran is None else facts.ran.membership
    if found is not None and found.verdict == "contradicted":
        yield Finding(
            kind=Kind.MEMBERS_GUESSED,
            adversary=found.adversary,
            remedy=(Remedy(action=Action.DISTRUST),),
            words={"said": found.words},
        )


def _told_by_last_models(facts: Facts) -> Iterator[Finding]:
    """More measured from last models than is proven, and again, now or before."""
    found = None if facts.ran is None else facts.ran.last_model
    if found is None:
        return
    earlier = [f"{one.file}: {one.verdict}" for one in found.earlier if one.verdict == _REFUTED]
    if found.verdict == _REFUTED or earlier:
        said = "; ".join([found.words, *earlier])
        yield Finding(
            kind=Kind.LAST_MODEL,
            adversary=found.adversary,
            remedy=(Remedy(action=Action.DISTRUST),),
            words={"said": said},
        )


def of_membership(most: float | None, facts: Facts) -> Finding:
    """What became of membership inference, as evidence.

    Args:
        most: largest upper limit of the true-positive rate at 1 % false positives; None for any.
    """
    # A contradiction, or a suspicion, goes before every rate.
    found = None if facts.ran is None else facts.ran.membership
    if found is None:
        return Finding(kind=Kind.NO_MEMBERSHIP)
    if found.verdict == "contradicted":
        return next(_guessed(facts))
    if found.verdict == "suspicious":
        return Finding(kind=Kind.MEMBERS_DOUBTED, words={"said": found.words})
    # The upper limits of true-positive rates, the largest of which decides.
    if most is not None:
        parts = [part for part in (found.run, found.played) if part is not None]
        for part in parts:
            at = [(row, one) for row in part.rows for one in row.rates if one.asked == _RATE]
            if not at or any(one.high is None for _, one in at):
                words: dict[str, Value] = {"others": part.others, "needed": round(1.0 / _RATE)}
                return Finding(kind=Kind.MEMBERS_NOT_MEASURED, words=words)
        row, worst = max(
            ((row, rate) for part in parts for row in part.rows for rate in row.rates),
            key=lambda pair: pair[1].high or 0.0 if pair[1].asked == _RATE else -1.0,
        )
        if worst.high is not None and worst.high > most:
            return Finding(
                kind=Kind.MEMBERS_FOUND,
                figure=worst.high,
                limit=most,
                words={
                    "attack": row.attack,
                    "model": row.model,
                    "rate": Figure("bound", worst.high),
                    "limit": Figure("given", most),
                },
            )
    return Finding(
        kind=Kind.INFERRED,
        words={"references": found.references, "games": found.games, "verdict_word": found.verdict},
    )


def of_opinion(adversary: str, facts: Facts) -> Finding:
    """What another library says of the figure of one adversary, however its name is written."""
    # The opinion on this adversary, if there is one with both bounds.
    opinions = {} if facts.ran is None else facts.ran.opinions
    claim = facts.claim(adversary)
    name = adversary if claim is None else claim.adversary
    found = opinions.get(name)
    if claim is None or found is None:
        why = "the run does not account for it" if claim is None else "none was requested"
        return _without(name, why)
    if found.optimistic is None or found.pessimistic is None or found.ratio is None:
        return _without(name, found.because)
    place = ("second_opinion", name)
    words: dict[str, Value] = {
        "library": found.by,
        "ours": Figure("exact", found.epsilon, (*place, "epsilon")),
        "optimistic": Figure("exact", found.optimistic, (*place, "optimistic")),
        "pessimistic": Figure("exact", found.pessimistic, (*place, "pessimistic")),
        "ratio": Figure("given", found.ratio, (*place, "ratio")),
        "within": percent(AGREES_WITHIN, 0),
    }
    # A contradiction is shown as it is; what agrees is rounded to the safe side.
    if found.verdict == "contradicted":
        return Finding(
            kind=Kind.OPINION_CONTRADICTS,
            adversary=name,
            figure=float(found.optimistic),
            remedy=(Remedy(action=Action.DISTRUST),),
            words=words,
        )
    words |= {
        "ours": Figure("precise", found.epsilon, (*place, "epsilon")),
        "optimistic": Figure("lower", found.optimistic, (*place, "optimistic")),
        "pessimistic": Figure("precise", found.pessimistic, (*place, "pessimistic")),
    }
    if not claim.proven:
        return _without(name, "the figure is not proven")
    kind = Kind.CONFIRMED if found.verdict == "confirmed" else Kind.NOT_CONFIRMED
    return Finding(kind=kind, adversary=name, figure=float(found.pessimistic), words=words)


def _without(name: str, why: str) -> Finding:
    return Finding(kind=Kind.NO_OPINION, adversary=name, words={"why": why})


def of_trace(adversary: str, facts: Facts) -> Finding:
    """What a second tracer says of the joint sensitivity to one adversary."""
    traced = {} if facts.ran is None else facts.ran.traced
    claim = facts.claim(adversary)
    name = adversary if claim is None else claim.adversary
    # The trace of this adversary, if one was made and has an answer.
    found = traced.get(name)
    if claim is None or found is None:
        why = "the run does not account for it" if claim is None else "none was requested"
        return Finding(kind=Kind.NOT_TRACED, adversary=name, words={"why": why})
    if found.second is None:
        return Finding(kind=Kind.NOT_TRACED, adversary=name, words={"why": found.because})
    words: dict[str, Value] = {
        "why": found.because,
        "first": Figure("given", found.first),
        "second": Figure("given", found.second),
    }
    # Whatever is no contradiction counts as traced.
    if found.verdict is not Verdict.CONTRADICTED:
        words |= {"first": Figure("sensitivity", found.first)}
        words |= {"second": Figure("sensitivity", found.second)}
        return Finding(kind=Kind.TRACED, adversary=name, figure=found.second, words=words)
    return Finding(
        kind=Kind.TRACE_CONTRADICTS,
        adversary=name,
        figure=found.second,
        remedy=(Remedy(action=Action.DISTRUST),),
        words=words,
    )


def _rebuilt(facts: Facts) -> Iterator[Finding]:
    attack = None if facts.ran is None else facts.ran.attack
    for scenario in attack.scenarios if attack is not None else ():
        if scenario.bound.exceeded:
            yield Finding(
                kind=Kind.REBUILT,
                adversary=scenario.adversary,
                remedy=(Remedy(action=Action.DISTRUST),),
                words={"said": scenario.bound.sentence},
            )


def _refuted(audit: Audit | None, facts: Facts) -> Iterator[Finding]:
    if audit is None:
        return
    # Contradictions, then failed checks, then suspicions.
    rows = [
        (at, adversary, _doubt(adversary, audit, facts))
        for at, adversary in enumerate(audit.adversaries)
    ]
    doubted = {
        kind: [(at, one) for at, one, doubt in rows if doubt is kind]
        for kind in (Kind.MEASURED, Kind.SUSPICIOUS)
    }
    for at, one in doubted[Kind.MEASURED]:
        yield _measured(Kind.MEASURED, at, one, audit)
    if audit.verdict == "contradicted" and not doubted[Kind.MEASURED]:
        yield _said(Kind.MEASURED, audit)
    failed = [check for check in audit.checks if check.passed is not True]
    for check in failed:
        yield Finding(
            kind=Kind.CHECK_FAILED,
            remedy=(Remedy(action=Action.FAULT),),
            words={"said": _words_of(check, audit), "check": check.name},
        )
    if audit.verdict == "failed checks" and not failed:
        yield _said(Kind.CHECK_FAILED, audit)
    for at, one in doubted[Kind.SUSPICIOUS]:
        yield _measured(Kind.SUSPICIOUS, at, one, audit)
    if audit.verdict == "suspicious" and not doubted[Kind.SUSPICIOUS]:
        yield _said(Kind.SUSPICIOUS, audit)


def _words_of(check: AuditCheck, audit: Audit) -> str:
    """What the audit says of a check that failed; nothing it says where it contradicts itself."""
    if audit.verdict in ("failed checks", "contradicted"):
        return check.words
    return f"audit.json has it as failed, but its own verdict is {audit.verdict}"


_OF_AUDIT: Mapping[Kind, Action] = {
    Kind.MEASURED: Action.DISTRUST,
    Kind.CHECK_FAILED: Action.FAULT,
    Kind.SUSPICIOUS: Action.AUDIT_AGAIN,
}


def _doubt(one: AuditedAdversary, audit: Audit, facts: Facts) -> Kind | None:
    """Whether what was measured of an adversary contradicts its proof, or is suspicious."""
    if one.verdict == "contradicted":
        return Kind.MEASURED
    if one.verdict == "suspicious":
        return Kind.SUSPICIOUS
    if _is_explained(one, audit):
        return None
    claim = facts.audited(one.name)
    if claim is None or one.measured_epsilon is None or not claim.is_bound:
        return None
    most = max(one.measured_epsilon, one.single_epsilon or 0.0)
    # At a larger delta epsilon is smaller, so what is measured there bounds the proven one too.
    same = audit.delta >= claim.delta and audit.adjacency == claim.adjacency
    return Kind.SUSPICIOUS if same and most > claim.epsilon else None


def _is_explained(one: AuditedAdversary, audit: Audit) -> bool:
    """Whether a first bound above the proof stands beside one that explains it as chance.

    Fresh canaries at the first confidence that stay within the proof, or the first bound itself,
    corrected for no more adversaries than were audited.
    """
    if one.verdict == "cleared":
        look, least = one.fresh, audit.confidence
    elif one.verdict == "consistent":
        look, least = one.together, audit.confidence
    else:
        return False
    if look is None or look.confidence < least:
        return False
    most = 1.0 - (1.0 - LINKS) * (1.0 - audit.confidence) / max(len(audit.adversaries), 1)
    rejected = look.noise_scale is not None and look.noise_scale < 1.0
    return look.confidence <= most + 1e-9 and look.epsilon <= one.proven_epsilon and not rejected


def _measured(kind: Kind, at: int, one: AuditedAdversary, audit: Audit) -> Finding:
    place = ("audit", "adversaries", at)
    words: dict[str, Value] = {
        "said": one.words,
        "called": one.verdict,
        "proven": Figure("precise", one.proven_epsilon, (*place, "proven_epsilon")),
        "delta": Figure("small", audit.delta, ("audit", "delta")),
    }
    figure, sure, at_ = one.measured_epsilon, one.measured_confidence, "measured"
    if figure is not None and one.single_epsilon and figure <= one.proven_epsilon:
        figure, sure, at_ = one.single_epsilon, None, "single"
    refuted = one.verdict in ("contradicted", "suspicious")  # perhaps by a message, or by odds
    if figure is not None and (figure > one.proven_epsilon or not refuted):
        words["measured"] = Figure("lower", figure, (*place, f"{at_}_epsilon"))
        words["confidence"] = Figure("given", audit.confidence, ("audit", "confidence"))
        if sure is not None:
            words["confidence"] = Figure("given", sure, (*place, "measured_confidence"))
    return Finding(
        kind=kind,
        adversary=one.name,
        figure=figure,
        remedy=(Remedy(action=_OF_AUDIT[kind]),),
        words=words,
    )


def _said(kind: Kind, audit: Audit) -> Finding:
    """A verdict of the audit that none of its rows explains."""
    return Finding(
        kind=kind, remedy=(Remedy(action=_OF_AUDIT[kind]),), words={"verdict": audit.verdict}
    )
