"""What the figures rest on: a declared list, and what speaks for each entry in this run.

An assumption is *verified* only by what was computed from this run's own files or by a check of its
audit that passed, and the entry says which; a check that failed makes a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DECLARED", "Assumption", "Facts", "assumptions"]

_NO_AUDIT = "no audit was run; overhear audit DIR checks it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """One thing that the figures rest on.

    Attributes:
        name: a word for machines.
        text: what must hold.
        check: the check of audit.json that verifies it; None where none does.
        status: without such a check.
        how: why that status, where there is no check.
    """

    name: str
    text: str
    check: str | None = None
    status: str = "assumed"
    how: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What the run's own files say.

    Attributes:
        planned, released: rounds in the run file, and releases of rounds in the ledger.
        repeated: how many of these are of a round that was released before.
        torn: whether a line of the ledger was cut off.
        seed: the evaluation_noise_seed, None for the system's entropy.
        duplicates: records that equal another one.
        records: how many there are.
        clipped: whether examples are clipped.
        encrypted: whether links are taken to be encrypted.
        server: whether a server sums what agents send.
        changing: whether the graph changes from round to round.
    """

    planned: int
    released: int
    repeated: int
    torn: bool
    seed: int | None
    duplicates: int
    records: int
    clipped: bool
    encrypted: bool
    server: bool
    changing: bool


# Verified by checks of the audit, else assumed.
DECLARED: tuple[Assumption, ...] = (
    Assumption(
        name="step",
        text="The step that runs is the step that was traced: every message is the linear function "
        "of clipped gradients and noise that was accounted for.",
        check="messages",
    ),
    Assumption(
        name="noise",
        text="The noise of the messages has the covariance that was declared, within a round and "
        "from round to round.",
        check="residuals",
    ),
    Assumption(
        name="sampling",
        text="Batches are Poisson samples at a public rate, drawn in secret and anew each round.",
        check="sampler",
    ),
    Assumption(
        name="knowledge",
        text="Nobody knows more of the noise than was declared.",
        check="knowledge",
    ),
)
_ALWAYS: tuple[Assumption, ...] = (
    Assumption(
        name="honest",
        text="Agents are honest but curious: they follow the protocol.",
        how="the choice of threat model",
    ),
    Assumption(
        name="constants",
        text="The rate, the normaliser, the weights, the graph and the number of rounds are public "
        "constants; where they come from the number of records in all, that number is public.",
        how="nothing in the run can show where a number came from",
    ),
    Assumption(
        name="choices",
        text="No choice was made by looking at the data: preprocessing, tuning, other runs.",
        how="other runs on the same records add to these figures, and this report knows only one",
    ),
    Assumption(
        name="gaussian",
        text="Noise is exactly Gaussian; floating-point samples only come close to it.",
        how="samplers and rounding are those of the numerical library",
    ),
    Assumption(
        name="side-channels",
        text="Timing, message sizes and the machines' memory tell nothing.",
        status="gap",
        how="not looked at",
    ),
)


def assumptions(facts: Facts, audit: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The list of a report: name, text, status ("verified", "assumed", "gap") and how.

    Args:
        facts: what the run's files say.
        audit: the object of audit.json.
    """
    checks = {check["name"]: check for check in audit["checks"]} if audit else {}
    found = [_entry(of, *_from_check(of, checks, audited=audit is not None)) for of in DECLARED]
    return [
        *_from_ledger(facts),
        *found,
        _measured(audit),
        *_from_run_file(facts),
        *(_entry(of, of.status, of.how) for of in _ALWAYS),
    ]


def _entry(of: Assumption, status: str, how: str) -> dict[str, str]:
    return {"name": of.name, "text": of.text, "status": status, "how": how}


def _from_check(
    of: Assumption, checks: Mapping[str, Mapping[str, Any]], *, audited: bool
) -> tuple[str, str]:
    if of.check is None or of.check not in checks:
        missing = f"the audit has no check of {of.check}" if audited else _NO_AUDIT
        return "assumed", missing
    check = checks[of.check]
    if check["passed"] is not True:
        return "gap", f"the audit's check of {of.check} FAILED: {check['words']}"
    tests = f", {check['tests']} comparisons" if check.get("tests") else ""
    return "verified", f"the audit's check of {of.check} passed{tests}"


def _measured(audit: Mapping[str, Any] | None) -> dict[str, str]:
    """The implementation as a whole, tried with canaries."""
    text = "Planted canaries are found no better than the proof allows."
    if audit is None:
        return {"name": "canaries", "text": text, "status": "gap", "how": "no audit was run"}
    verdict = audit["verdict"]
    return {
        "name": "canaries",
        "text": text,
        "status": "verified" if verdict == "consistent" else "gap",
        "how": f"audit with {audit['canaries']} canaries at confidence {audit['confidence']:g}: "
        f"{verdict}",
    }


def _from_ledger(facts: Facts) -> Sequence[dict[str, str]]:
    within = facts.released <= facts.planned
    return (
        {
            "name": "rounds",
            "text": f"No more than the {facts.planned} planned rounds were released, counting one "
            "that was released again as another.",
            "status": "verified" if within else "gap",
            "how": f"the ledger names {facts.released}"
            + (f", {facts.repeated} of them again" if facts.repeated else ""),
        },
        {
            "name": "ledger",
            "text": "The ledger is complete, and was written for this run file.",
            "status": "gap" if facts.torn else "verified",
            "how": "a line was cut off; the release that it announces is counted"
            if facts.torn
            else "every line is whole, and its header has the digest of run.toml",
        },
        {
            "name": "duplicates",
            "text": "No record is held by several agents, or twice by one.",
            "status": "gap" if facts.duplicates else "verified",
            "how": f"{facts.duplicates} of {facts.records} records equal another one"
            if facts.duplicates
            else f"all {facts.records} records were compared byte by byte",
        },
    )


def _from_run_file(facts: Facts) -> Sequence[dict[str, str]]:
    found = [
        {
            "name": "entropy",
            "text": "Noise and batches are drawn from secret seeds of the system's entropy."
            if facts.seed is None
            else "Noise comes from evaluation_noise_seed: whoever knows it can subtract it.",
            "status": "assumed" if facts.seed is None else "gap",
            "how": "no evaluation_noise_seed is set; the system's generator is trusted"
            if facts.seed is None
            else "evaluation_noise_seed is set in the run file",
        }
    ]
    if not facts.clipped:
        found.append(
            {
                "name": "clipping",
                "text": "Every example's gradient is clipped, so that noise can hide it.",
                "status": "gap",
                "how": "the run file clips nothing",
            }
        )
    if facts.encrypted:
        found.append(
            {
                "name": "encryption",
                "text": "Links are encrypted, and no onlooker has a key.",
                "status": "assumed",
                "how": 'links = "encrypted" in the run file; the transport is not part of the run',
            }
        )
    if facts.server:
        found.append(
            {
                "name": "server",
                "text": "The server sums what agents give it, adds its noise, and keeps and tells "
                "nothing else.",
                "status": "assumed",
                "how": "the algorithm trusts a server; no adversary of this report is one",
            }
        )
    if facts.changing:
        found.append(
            {
                "name": "schedule",
                "text": "Which links are used in which round was fixed beforehand and is public.",
                "status": "assumed",
                "how": "the graph changes from round to round by a fixed rule",
            }
        )
    return found
