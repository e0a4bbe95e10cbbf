"""Tables of an audit for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from ...runs.audit.evidence_schema import Audit, AuditCheck
from ...runs.numbers import bound, lower_bound, small
from .terminal import make_table


def measured_table(found: Audit) -> Table:
    """Proven beside measured, a row an adversary.

    Args:
        found: the audit.
    """
    level = f"{100 * found.confidence:.10g}%"
    runs = "1 run" if found.runs == 1 else f"{found.runs} runs"
    title = (
        f"Epsilon at delta {small(found.delta)}, unit {found.unit}, {found.adjacency}: "
        f"{found.canaries} canaries, {runs} of {found.rounds} rounds"
    )
    table = make_table(title)
    for name in ("adversary", "epsilon", "at least", "ideal", "seen"):
        table.add_column(
            name, justify="left" if name == "adversary" else "right", no_wrap=name == "adversary"
        )
    table.add_column("verdict", no_wrap=True)
    for adversary in found.adversaries:
        digits, low = adversary.digits, adversary.measured_epsilon
        most = bound(adversary.proven_epsilon, digits)
        shown = most + ("" if adversary.status == "proven" else "*")
        table.add_row(
            adversary.name,
            adversary.status if math.isinf(adversary.proven_epsilon) else shown,
            "-" if low is None else lower_bound(low, digits),
            _plain(adversary.ideal_epsilon, "{:.2f}"),
            _plain(adversary.seen_epsilon, "{:.2f}"),
            adversary.verdict,
        )
    table.caption = (
        f"* not proven; at least: the lower bound that the verdict rests on, at {level} confidence "
        "for all that are tested together, or more; ideal: what a perfect audit of so many "
        "canaries expects; seen: the least true epsilon that 95 of 100 of them would tell from the "
        "proven one"
    )
    table.caption_justify = "left"
    return table


def checks_table(checks: Sequence[AuditCheck]) -> Table:
    """A row for each check: its words where it failed or had nothing to look at, else its power."""
    table = make_table("Checks of the engine")
    for name in ("check", "result", "tests", "found"):
        table.add_column(name, justify="right" if name == "tests" else "left")
    for check in checks:
        told = check.power if check.passed and check.tests else check.words
        table.add_row(check.name, "passed" if check.passed else "FAILED", str(check.tests), told)
    table.caption = "what each compared, and how surely, stands in --format json and the report"
    table.caption_justify = "left"
    return table


def trail_lines(found: Audit) -> Iterator[str]:
    """What stands in audits.jsonl beside the run file; nothing of a folder.

    Args:
        found: the audit.
    """
    if found.trail is None:
        return
    trail = found.trail
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in trail.verdicts.items())
    audits = "1 audit" if trail.audits == 1 else f"{trail.audits} audits"
    others = f"; {trail.others} of other values or run files" if trail.others else ""
    yield f"Audits of this run file: {audits} in audits.jsonl ({verdicts}){others}."
    for told in trail.damaged:
        yield f"Damaged: {told}."


def _plain(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
