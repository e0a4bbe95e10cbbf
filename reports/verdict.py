"""The verdict: whether the target of the run file is met, and what would turn it.

A heuristic figure never passes, nor does a run whose noise can be repeated. The figure that counts
is the ledger's: what was released, not what was planned.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from .cited import Cited
from .numbers import is_infinite

__all__ = [
    "Outcome",
    "Verdict",
    "adversary_phrase",
    "epsilon_kind",
    "last_round_within",
    "verdict",
]

_PHRASES = {
    "eavesdropper": "the eavesdropper",
    "neighbour": "the worst single neighbour",
    "all-others": "all other agents together",
    "final-models": "holders of the final models",
    "single-message": "a reader of one message",
}


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
    rows, target = report["plan"]["adversaries"], report["plan"]["target"]
    notes = (
        *_larger(report, cited),
        *_interrupted(report, cited),
        *_duplicates(report, cited),
    )
    if target["epsilon"] is None:
        row = next((r for r in rows if r["name"] != "single-message"), rows[0])
        return Verdict(
            outcome=Outcome.OPEN,
            headline=Markup("No target was set, so nothing is met or missed"),
            text=_statement(report, cited, row),
            actions=(Markup("To get a verdict, set <code>epsilon</code> in [privacy]."),),
            notes=notes,
        )
    row = next((r for r in rows if r["name"] == target["adversary"]), None)
    if row is None:
        raise KeyError(f"the plan has no row for the target adversary {target['adversary']!r}")
    spent, allowed = report["ledger"]["epsilon"][row["name"]], float(target["epsilon"])
    who = adversary_phrase(row["name"])
    text = _statement(report, cited, row) + Markup(" The run file allows ε ≤ {}.").format(
        cited("bound", "plan", "target", "epsilon")
    )
    if is_infinite(spent):
        headline, actions = Markup("Nothing protects a record from {}").format(who), _protect(row)
    elif report["run"]["evaluation_noise_seed"] is not None:
        headline = Markup("Not met: the noise of this run can be repeated")
        actions = (Markup("Leave <code>evaluation_noise_seed</code> out and train again."),)
    elif row["status"] != "proven":
        headline = Markup("Not proven against {}, so the target is not met").format(who)
        actions = _prove(report)
    elif float(spent) > allowed:
        headline = Markup("Over the target against {}").format(who)
        actions = _spend_less(report, cited, row)
    else:
        headline = Markup("The target is met against {}").format(who)
        return Verdict(outcome=Outcome.MET, headline=headline, text=text, notes=notes)
    return Verdict(
        outcome=Outcome.NOT_MET, headline=headline, text=text, actions=actions, notes=notes
    )


def adversary_phrase(name: str) -> Markup:
    """An adversary in a sentence."""
    return Markup("{}").format(_PHRASES.get(name, name))


def epsilon_kind(row: Mapping[str, Any]) -> str:
    """How an epsilon is rounded: only an upper bound is rounded up."""
    return "bound" if row["status"] == "proven" else "figure"


def last_round_within(report: Mapping[str, Any], adversary: str, limit: float) -> int | None:
    """Index of the last entry of epsilon_by_round that a limit allows; None if no entry is."""
    series: Sequence[Sequence[Any]] = report["epsilon_by_round"].get(adversary, [])
    within = [i for i, (_, epsilon) in enumerate(series) if float(epsilon) <= limit]
    return within[-1] if within else None


def _statement(report: Mapping[str, Any], cited: Cited, row: Mapping[str, Any]) -> Markup:
    index = report["plan"]["adversaries"].index(row)
    lead = "is protected with ε ≤" if row["status"] == "proven" else "is exposed with at least ε ="
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


def _protect(row: Mapping[str, Any]) -> tuple[Markup, ...]:
    return (
        Markup(
            "Choose an algorithm and a noise multiplier that protect what this adversary sees: {}."
        ).format(row["because"]),
    )


def _prove(report: Mapping[str, Any]) -> tuple[Markup, ...]:
    if report["run"]["form"] == "published":
        return (Markup('Set <code>form = "repaired"</code> in [algorithm] and train again.'),)
    return (Markup("Use an algorithm whose messages are proven for this adversary."),)


def _spend_less(
    report: Mapping[str, Any], cited: Cited, row: Mapping[str, Any]
) -> tuple[Markup, ...]:
    found = [
        Markup(
            "Train again with <code>epsilon = {}</code> in [privacy], which calibrates the noise "
            "to it; this run used noise multiplier {}."
        ).format(
            cited("bound", "plan", "target", "epsilon"), cited("figure", "run", "noise_multiplier")
        )
    ]
    name, limit = row["name"], float(report["plan"]["target"]["epsilon"])
    last = last_round_within(report, name, limit)
    if last is not None:
        found.append(
            Markup("Or plan {} rounds in a new run: so many cost ε = {} at the same δ.").format(
                cited("whole", "epsilon_by_round", name, last, 0),
                cited("bound", "epsilon_by_round", name, last, 1),
            )
        )
    if name == "eavesdropper" and report["run"]["links"] == "clear":
        found.append(
            Markup(
                'Or encrypt the links (<code>links = "encrypted"</code>) and plan again: an '
                "eavesdropper then reads the released models alone."
            )
        )
    return tuple(found)


def _larger(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    """Adversaries beside the target that learn more than it."""
    spent, target = report["ledger"]["epsilon"], report["plan"]["target"]["adversary"]
    if target not in spent:
        return ()
    rows = {row["name"]: row for row in report["plan"]["adversaries"]}
    return tuple(
        Markup("Beside the target, ε = {} at the same δ against {}.").format(
            cited(epsilon_kind(rows[name]), "ledger", "epsilon", name), adversary_phrase(name)
        )
        for name, epsilon in spent.items()
        if name in rows and float(epsilon) > float(spent[target])
    )


def _interrupted(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    notes, run = [], report["run"]
    if run["rounds_done"] < run["rounds"]:
        notes.append(
            Markup(
                "The run stopped after {} of {} rounds. What stopped it may depend on the data, so "
                "the planned rounds are accounted for."
            ).format(cited("whole", "run", "rounds_done"), cited("whole", "run", "rounds"))
        )
    if report["ledger"]["torn"]:
        notes.append(
            Markup("The last line of the ledger is torn; the release it announces is counted.")
        )
    if run["evaluation_noise_seed"] is not None:
        notes.append(
            Markup(
                "The noise was drawn from evaluation_noise_seed: whoever knows it can subtract "
                "the noise."
            )
        )
    return tuple(notes)


def _duplicates(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    """Records that occur more than once: the statement is for each copy alone."""
    if not report["run"].get("duplicate_records"):
        return ()
    return (
        Markup(
            "{} records occur more than once. The figure holds for one copy: whoever is in the "
            "data k times is protected less."
        ).format(cited("whole", "run", "duplicate_records")),
    )
