"""What would turn a verdict, in sentences with their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ..cited import Cited

__all__ = ["calibrate", "mend", "protect", "prove"]


def calibrate(cited: Cited) -> tuple[Markup, ...]:
    """Of a run over its target: train again with noise that is calibrated to it."""
    return (
        Markup(
            "Train again with <code>epsilon = {}</code> in [privacy], which calibrates the noise "
            "to it; this run used noise multiplier {}."
        ).format(
            cited("bound", "plan", "target", "epsilon"), cited("figure", "run", "noise_multiplier")
        ),
    )


def mend(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    """What would turn the verdict, each with the figure that it leads to."""
    words = {
        "rounds": Markup("Plan {} rounds in a new run: so many cost"),
        "again": Markup("Train again without a repeated round: the {} planned ones cost"),
        "noise": Markup("Use noise multiplier {}: all that was released would have cost"),
        "repair": Markup(
            'Set <code>form = "repaired"</code> in [algorithm] and train again: the same noise '
            "then gives a proven"
        ),
        "encrypt": Markup(
            'Encrypt the links (<code>links = "encrypted"</code>) and plan again: an eavesdropper '
            "then reads the released models alone, and the same noise gives"
        ),
    }
    found = []
    for number, entry in enumerate(report["mending"]):
        action = entry["action"]
        kind, key = {"rounds": ("whole", "rounds"), "noise": ("bound", "noise_multiplier")}.get(
            action, (None, None)
        )
        if action == "rounds" and entry["rounds"] >= report["run"]["rounds"]:
            action = "again"  # more was released than planned
        at = () if kind is None else (cited(kind, "mending", number, str(key)),)
        said = words[action].format(*at)
        cost = cited("bound", "mending", number, "epsilon")
        limit = report["plan"]["target"]["epsilon"]
        over = limit is not None and float(entry["epsilon"]) > float(limit)
        rest = ", which is still over the limit: it takes more noise too" if over else ""
        found.append(Markup("{} ε = {} at the same δ and unit{}.").format(said, cost, rest))
    return tuple(found)


def protect(row: Mapping[str, Any]) -> tuple[Markup, ...]:
    """Of a row that nothing protects."""
    return (
        Markup(
            "Choose an algorithm and a noise multiplier that protect what this adversary sees: {}."
        ).format(row["because"]),
    )


def prove(report: Mapping[str, Any]) -> tuple[Markup, ...]:
    """Of a row without a proof."""
    if report["run"]["form"] == "published":
        return (Markup('Set <code>form = "repaired"</code> in [algorithm] and train again.'),)
    return (Markup("Use an algorithm whose messages are proven for this adversary."),)
