"""What a reader of the verdict must know beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from .cited import Cited
from .evidence import suspicions
from .row_words import adversary_phrase, epsilon_kind, epsilon_sign

__all__ = ["verdict_notes"]


def verdict_notes(report: Mapping[str, Any]) -> tuple[Markup, ...]:
    """Sentences: who learns more, what was interrupted, repeated, duplicated or suspicious."""
    cited = Cited(report)
    return (
        *_larger(report, cited),
        *_interrupted(report, cited),
        *_duplicates(report, cited),
        *_audited(report),
    )


def _larger(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    """Adversaries beside the target that learn more than it."""
    spent, target = report["ledger"]["epsilon"], report["plan"]["target"]["adversary"]
    if target not in spent:
        return ()
    rows = {row["name"]: row for row in report["plan"]["adversaries"]}
    return tuple(
        Markup("Beside the target, ε {} {} at the same δ and unit against {}.").format(
            epsilon_sign(rows[name], epsilon),
            cited(epsilon_kind(rows[name]), "ledger", "epsilon", name),
            adversary_phrase(name),
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


def _audited(report: Mapping[str, Any]) -> tuple[Markup, ...]:
    if not suspicions(report):
        return ()
    return (Markup("The audit is suspicious: once it measured more than is proven (section 6)."),)
