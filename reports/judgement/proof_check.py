"""Whether what was measured leaves the proofs of a run standing.

An attack that rebuilt more than the proof allows, an audit that measured more than is proven and
did so again, or a check of the implementation that failed: each says that the proof or the code is
wrong, for whatever adversary, and no figure of the run passes then.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...runs.evidence.schema import Audit, AuditedAdversary
from ...runs.numbers import bound, lower_bound, small
from ..document.checked_run import CheckedRun
from ..plain_text import plain
from .finding import Finding, Outcome
from .limit_check import figure_row

__all__ = ["check_proofs", "contradictions_of"]

_REPORT = "do not rely on any figure of this run, and report it"


def contradictions_of(run: CheckedRun) -> list[str]:
    """What was measured that refutes a proof of the run, or what the proof rests on."""
    return [*_rebuilt_too_much(run), *_refuted(run.audit)]


def check_proofs(run: CheckedRun) -> Iterator[Finding]:
    """A finding for the attack and one for the audit, where they are there."""
    if run.attack is not None:
        told = _rebuilt_too_much(run)
        attacks = len(run.attack.scenarios)
        yield Finding(
            requirement="proof: not contradicted by the attack",
            outcome=Outcome.CONTRADICTED if told else Outcome.PASSED,
            sentence="; ".join(told) or f"{attacks} attacks rebuilt no more than the proof allows",
        )
    if run.audit is not None:
        told = _refuted(run.audit)
        doubts = _doubts(run.audit, run)
        passed = "no more was measured than is proven, and no check of the implementation failed"
        yield Finding(
            requirement="proof: not contradicted by the audit",
            outcome=Outcome.CONTRADICTED if told else Outcome.MISSING if doubts else Outcome.PASSED,
            sentence="; ".join(told or doubts) or passed,
        )


def _rebuilt_too_much(run: CheckedRun) -> list[str]:
    if run.attack is None:
        return []
    told = [one.bound.sentence for one in run.attack.scenarios if one.bound.exceeded]
    return [
        plain(f"more was rebuilt than the proof allows ({said}); {_REPORT}", most=None)
        for said in told
    ]


def _refuted(audit: Audit | None) -> list[str]:
    """What of an audit refutes a proof, or what a proof rests on."""
    if audit is None:
        return []
    told = [
        f"against {one.name} {_measured(one, audit)}, more than the {bound(one.proven_epsilon, 4)} "
        f"that is proven ({one.words}); {_REPORT}"
        for one in audit.adversaries
        if one.verdict == "contradicted"
    ]
    told += [
        f"the check {check.name!r} of the implementation failed ({check.words}), so what ran is "
        f"not what was accounted for; {_REPORT}"
        for check in audit.checks
        if not check.passed
    ]
    if audit.verdict in ("contradicted", "failed checks") and not told:
        told.append(f"the verdict of the audit is {audit.verdict!r}; {_REPORT}")
    return [plain(one, most=None) for one in told]


def _doubts(audit: Audit, run: CheckedRun) -> list[str]:
    """What of an audit must be settled before its run can pass."""
    told = [
        f"against {one.name} {_measured(one, audit)}, once more than is proven"
        for one in audit.adversaries
        if one.verdict == "suspicious" or _exceeds(one, audit, run)
    ]
    if audit.verdict == "suspicious" and not told:
        told = ["the verdict of the audit is 'suspicious'"]
    remedy = "audit again with fresh canaries and more of them, which settles it"
    return [plain(f"{one}; {remedy}", most=None) for one in told]


def _exceeds(one: AuditedAdversary, audit: Audit, run: CheckedRun) -> bool:
    """Whether a bound is above the figure that was computed anew, whatever the audit says."""
    row = figure_row(run, one.name)
    if row is None or one.measured_epsilon is None or row["status"] != "proven":
        return False
    # A larger delta can only lower epsilon, so what is measured there bounds the figure too.
    same = row["adjacency"] == audit.adjacency and audit.delta >= row["delta"]
    return same and float(one.measured_epsilon) > float(
        run.report["ledger"]["epsilon"][row["name"]]
    )


def _measured(one: AuditedAdversary, audit: Audit) -> str:
    if one.measured_epsilon is None:
        return "nothing was measured"
    return (
        f"epsilon is measured to be at least {lower_bound(one.measured_epsilon, 4)} at delta "
        f"{small(audit.delta)} and confidence {audit.confidence:g}"
    )
