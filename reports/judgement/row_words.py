"""How a row of the adversary table is spoken of: its adversary, and how its epsilon is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ...runs.numbers import is_infinite

__all__ = ["adversary_phrase", "epsilon_kind", "epsilon_sign"]

_PHRASES = {
    "eavesdropper": "the eavesdropper",
    "neighbour": "the worst single neighbour",
    "all-others": "all other agents together",
    "final-models": "holders of the final models",
    "single-message": "a reader of one message",
}


def adversary_phrase(name: str) -> Markup:
    """An adversary in a sentence."""
    return Markup("{}").format(_PHRASES.get(name, name))


def epsilon_kind(row: Mapping[str, Any]) -> str:
    """How an epsilon is rounded: only an upper bound is rounded up."""
    return "bound" if row["status"] == "proven" else "figure"


def epsilon_sign(row: Mapping[str, Any], epsilon: float | str) -> str:
    """How the epsilon of a row stands to the truth: "≤" proven, "≥" heuristic, "=" infinite."""
    if is_infinite(epsilon):
        return "="
    return "≤" if row["status"] == "proven" else "≥"
