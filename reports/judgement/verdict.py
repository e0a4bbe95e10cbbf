"""The verdict: whether the target of the run file is met, and what would turn it.

A heuristic figure never passes, nor does a run whose noise can be repeated, nor one whose evidence
contradicts its proof. The figure that counts is the ledger's: what was released, not what was
planned.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ...runs.numbers import is_infinite
from ..cited import Cited, look_up
from .evidence_places import contradictions_in, suspicions_in
from .remedies import calibrate, mend, protect, prove
from .row_words import adversary_phrase, epsilon_kind
from .verdict_notes import verdict_notes

__all__ = [
    "Outcome",
    "Verdict",
    "doubt",
    "head_row",
    "verdict",
]


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
        headline: one line.
        text: the figure behind it, with its delta and unit.
        actions: what would turn it; empty where it is met.
        notes: what else a reader of the headline must know.
    """

    outcome: Outcome
    headline: Markup
    text: Markup
    actions: tuple[Markup, ...] = ()
    notes: tuple[Markup, ...] = ()


def verdict(report: Mapping[str, Any]) -> Verdict:
    """Judge a report.

    Raises:
        KeyError: the target adversary is missing from the plan or from the ledger.
    """
    cited = Cited(report)
    target = report["plan"]["target"]
    row = head_row(report)
    who = adversary_phrase(row["name"])
    text = _statement(report, cited, row)
    against = _against(report)
    found = functools.partial(Verdict, text=text, notes=verdict_notes(report))
    if target["epsilon"] is None:
        if against is not None:
            return found(outcome=Outcome.NOT_MET, headline=against[0], actions=against[1])
        leads = (
            Markup("No target was set, and nothing protects a record from {}").format(who)
            if is_infinite(report["ledger"]["epsilon"][row["name"]])
            else Markup("No target was set, so nothing is met or missed")
        )
        ask = Markup("To get a verdict, set <code>epsilon</code> in [privacy].")
        return found(outcome=Outcome.OPEN, headline=leads, actions=(ask, *mend(report, cited)))
    spent, allowed = report["ledger"]["epsilon"][row["name"]], float(target["epsilon"])
    allows = cited("bound", "plan", "target", "epsilon")
    said = Markup("{} The run file allows ε ≤ {} at the same δ.").format(text, allows)
    found = functools.partial(found, text=said)
    outcome = Outcome.NOT_MET
    actions: tuple[Markup, ...]
    if against is not None:
        headline, actions = against
    elif is_infinite(spent):
        headline = Markup("Nothing protects a record from {}").format(who)
        actions = (*mend(report, cited), *protect(row))
    elif report["run"]["evaluation_noise_seed"] is not None:
        headline = Markup("Not met: the noise of this run can be repeated")
        actions = (Markup("Leave <code>evaluation_noise_seed</code> out and train again."),)
    elif row["status"] != "proven":
        headline = Markup("Not proven against {}, so the target is not met").format(who)
        actions = mend(report, cited) or prove(report)
    elif float(spent) > allowed:
        headline = Markup("Over the target against {}").format(who)
        actions = (*calibrate(cited), *mend(report, cited))
    elif suspicions_in(report):
        outcome = Outcome.OPEN
        headline = Markup("The target is met on paper, but the audit is suspicious")
        actions = (
            Markup(
                "Audit again with fresh canaries and more of them "
                "(<code>overhear audit DIR</code>) before signing, which settles it; section 6 "
                "says what was found."
            ),
        )
    else:
        headline = Markup("The target is met against {}").format(who)
        return found(outcome=Outcome.MET, headline=headline)
    return found(outcome=outcome, headline=headline, actions=actions)


def head_row(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row that the verdict speaks of: the target's, or without one the worst onlooker's.

    Raises:
        KeyError: the target adversary is missing from the plan.
    """
    rows: Sequence[Mapping[str, Any]] = report["plan"]["adversaries"]
    target = report["plan"]["target"]["adversary"]
    if target is None:
        return next((r for r in rows if r["name"] != "single-message"), rows[0])
    row = next((r for r in rows if r["name"] == target), None)
    if row is None:
        raise KeyError(f"the plan has no row for the target adversary {target!r}")
    return row


def _against(report: Mapping[str, Any]) -> tuple[Markup, tuple[Markup, ...]] | None:
    """Headline and actions where the evidence speaks against the proof."""
    places = contradictions_in(report)
    if places:
        sentences = [look_up(report, place) for place in places]
        said = tuple(
            Markup("{}").format(at.get("sentence") or at.get("words") or "The audit contradicts.")
            for at in sentences
        )
        by = {"audit": "the audit", "attack": "an attack"}[str(places[0][0])]
        return (
            Markup("Contradicted: {} found more than is proven").format(by),
            (
                *said,
                Markup(
                    "Do not rely on any figure of this report. The proof, the program or the "
                    "measurement is wrong: find which, and train again."
                ),
            ),
        )
    audit = report["audit"]
    failed = [check for check in audit["checks"] if check["passed"] is not True] if audit else []
    if failed or (audit and audit["verdict"] == "failed checks"):
        return (
            Markup("Not met: a check of the audit failed"),
            (
                *(Markup("{}: {}").format(check["name"], check["words"]) for check in failed),
                Markup(
                    "What ran is not what was accounted for. Find the fault, train again, and "
                    "audit again."
                ),
            ),
        )
    return None


def doubt(report: Mapping[str, Any]) -> str:
    """Why no proven figure may be relied on: "contradicted", "check failed", or nothing."""
    if contradictions_in(report):
        return "contradicted"
    return "check failed" if _against(report) is not None else ""


def _statement(report: Mapping[str, Any], cited: Cited, row: Mapping[str, Any]) -> Markup:
    index = report["plan"]["adversaries"].index(row)
    lead = "is protected with ε ≤" if row["status"] == "proven" else "is exposed with at least ε ="
    if row["status"] == "proven" and doubt(report):
        lead = "would be protected, if the proof held, with ε ≤"
    if is_infinite(report["ledger"]["epsilon"][row["name"]]):
        lead = "has no bound: ε ="
    return Markup(
        "One {unit} of agent {victim} {lead} {epsilon} at δ = {delta} ({adjacency}) against "
        "{name}, over {rounds} rounds."
    ).format(
        unit=row["unit"],
        victim=cited("whole", "plan", "adversaries", index, "victim"),
        lead=lead,
        epsilon=cited(epsilon_kind(row), "ledger", "epsilon", row["name"]),
        delta=cited("small", "plan", "adversaries", index, "delta"),
        adjacency=row["adjacency"],
        name=adversary_phrase(row["name"]),
        rounds=cited("whole", "ledger", "rounds_accounted"),
    )
