"""Whether the evidence that a policy asks for stands beside the figures of a run."""

from __future__ import annotations

from collections.abc import Iterator

from ...runs.folder import folder as run_folder
from ..document.checked_run import CheckedRun
from ..plain_text import plain
from .finding import Finding, Outcome
from .limit_check import adversary_key, figure_row
from .policy import Evidence, Limit, Policy

__all__ = ["check_evidence"]


def check_evidence(policy: Policy, run: CheckedRun) -> Iterator[Finding]:
    """A finding for the report, and for each piece of evidence that is asked for."""
    wanted = policy.evidence
    absent = f"privacy.json is missing; `overhear report {run.folder}` writes it"
    yield _finding(
        "report",
        None if run.reported else absent,
        right="privacy.json says what the files of the run give",
    )
    if wanted.complete_run:
        planned = run.report["run"]["rounds"]
        yield _finding(
            "complete run", _incomplete(run), right=f"the ledger holds all {planned} planned rounds"
        )
    if wanted.wants_audit:
        for name in dict.fromkeys(limit.adversary for limit in policy.limits):
            limits = [limit for limit in policy.limits if limit.adversary == name]
            gaps = (_audit_gap(wanted, limit, run) for limit in limits)
            wrong = next((gap for gap in gaps if gap is not None), None)
            yield _finding(f"audit of {name}", wrong, right=_audited(run))
    tried = {s.preset for s in run.attack.scenarios} if run.attack else set[str]()
    for preset in dict.fromkeys(wanted.attack_presets):
        wrong = (
            f"no attack of this run is {preset}; name it in presets of [attack] in the run file, "
            f"train again, and run `overhear attack {run.folder}`"
        )
        if run.attack is None:
            wrong = f"the run was not attacked; run `overhear attack {run.folder}`"
        yield _finding(
            f"attack by {preset}",
            None if preset in tried else wrong,
            right=f"{preset} was tried on the run's own messages",
        )


def _finding(what: str, wrong: str | None, *, right: str) -> Finding:
    return Finding(
        requirement=plain(f"evidence: {what}"),
        outcome=Outcome.MISSING if wrong else Outcome.PASSED,
        sentence=plain(wrong or right),
    )


def _incomplete(run: CheckedRun) -> str | None:
    """What the run lacks, and whether it can be had."""
    facts = run.report["run"]
    planned, stopped = int(facts["rounds"]), facts["stopped"]
    missing = planned - len(set(run.spent.numbers) & set(range(1, planned + 1)))
    waive = "or set complete_run = false, since the planned rounds are accounted for either way"
    again = (
        f"continue it with `overhear train {run.folder}/{run_folder.RUN} --out {run.folder} "
        f"--resume`, {waive}"
    )
    if stopped is not None and facts["finished"]:
        return (
            f"the budget ended the run after round {stopped['round']} of {planned}: rounds that "
            f"were released more than once have used up the rest, and it cannot be continued; "
            f"train a new run, {waive}"
        )
    if run.spent.torn:
        return f"the last line of the ledger is torn, so the run was cut off; {again}"
    if missing:
        return f"{missing} of {planned} planned rounds are not in the ledger; {again}"
    if not facts["finished"]:
        return f"the run was cut off in its last round; {again}"
    return None


def _audit_gap(wanted: Evidence, limit: Limit, run: CheckedRun) -> str | None:
    """What the audit lacks as evidence for a limit."""
    audit, remedy = run.audit, f"run `overhear audit {run.folder}`"
    again = "and train and audit again"
    if audit is None:
        return f"the run was not audited; {remedy}"
    if wanted.audit_confidence is not None and audit.confidence < wanted.audit_confidence:
        return (
            f"the confidence of the audit is {audit.confidence:g}, and {wanted.audit_confidence:g} "
            f"is asked for; set confidence in [audit] of the run file {again}"
        )
    if audit.adjacency != limit.adjacency:
        return (
            f"the audit is for {audit.adjacency}, the limit for {limit.adjacency}; set adjacency "
            f"in [privacy] of the run file {again}"
        )
    row = figure_row(run, limit.adversary)
    names = (limit.adversary, row["worst_adversary"] if row else None)
    asked = {adversary_key(name) for name in names if name is not None}
    one = next((a for a in audit.adversaries if adversary_key(a.name) in asked), None)
    if one is None or one.measured_epsilon is None:
        known = [a.name for a in audit.adversaries if a.measured_epsilon is not None]
        return (
            f"the audit measured {', '.join(known) or 'nobody'}, and not {limit.adversary}; name "
            f"it in adversaries of [privacy] in the run file {again}, or limit one that is measured"
        )
    if wanted.audit_canaries is not None and one.canaries < wanted.audit_canaries:
        return (
            f"the audit planted {one.canaries} canaries, and {wanted.audit_canaries} are asked "
            f"for; set canaries in [audit] of the run file {again}"
        )
    return None


def _audited(run: CheckedRun) -> str:
    audit = run.audit
    if audit is None:
        return ""
    shorter = audit.rounds is not None and audit.rounds < run.report["run"]["rounds"]
    rounds = f" over {audit.rounds} of {run.report['run']['rounds']} rounds" if shorter else ""
    return f"audited with {audit.canaries} canaries{rounds} at confidence {audit.confidence:g}"
