"""Tables of an audit for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from .lower_bound import lower_bound
from .numbers import bound, small

__all__ = ["checks_table", "measured_table"]


def measured_table(found: Mapping[str, Any]) -> Table:
    """Proven beside measured, a row an adversary.

    Args:
        found: the object of audit.json.
    """
    level = f"{found['confidence']:.0%}"
    title = (
        f"Epsilon at delta {small(found['delta'])}, unit {found['unit']}, {found['adjacency']}: "
        f"{found['canaries']} canaries, {found['runs']} runs of {found['rounds']} rounds"
    )
    table = Table(title=title, title_justify="left")
    for name in ("adversary", "epsilon", "at least", "ideal", "ratio", "canaries", "errors"):
        table.add_column(name, justify="left" if name == "adversary" else "right")
    table.add_column("verdict")
    for one in found["adversaries"]:
        status = "" if one["status"] == "proven" else ", unproven"
        alarms, misses = one["false_alarms"], one["misses"]
        table.add_row(
            one["name"],
            ("infinite" if one["proven_epsilon"] == "inf" else bound(one["proven_epsilon"]))
            + status,
            "-" if one["measured_epsilon"] is None else lower_bound(one["measured_epsilon"]),
            _plain(one["ideal_epsilon"], "{:.2f}"),
            _plain(one["ratio"], "{:.2f}"),
            str(one["canaries"]),
            "-" if alarms is None else f"{alarms} + {misses}",
            one["verdict"],
        )
    table.caption = (
        f"epsilon: proven unless it says otherwise; at least: a lower bound at {level} "
        "confidence; ideal: what a perfect audit of so many "
        "canaries expects; errors: false alarms + misses where the log-likelihood ratio is cut at "
        "0, as fixed in advance"
    )
    table.caption_justify = "left"
    return table


def checks_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """The checks that need no canaries."""
    table = Table(title="Checks of the engine", title_justify="left")
    for name in ("check", "result", "tests", "found"):
        table.add_column(name, justify="right" if name == "tests" else "left")
    for one in checks:
        table.add_row(
            one["name"], "passed" if one["passed"] else "FAILED", str(one["tests"]), one["words"]
        )
    return table


def _plain(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, str) else form.format(value)
