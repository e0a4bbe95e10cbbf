"""The phrases of a judgement, once for every place that prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...privacy.adversary import ALL_OTHERS

__all__ = ["HEURISTIC", "adversary_words"]

HEURISTIC = "heuristic: at least this bad, no upper bound known"


def adversary_words(adversary: Mapping[str, Any]) -> str:
    """The adversary that was asked for, and which one it is where the worst was searched.

    >>> adversary_words({"name": "neighbour", "worst_adversary": "neighbour:1"})
    'neighbour:1 (worst)'
    """
    worst = adversary.get("worst_adversary")
    if worst is None or adversary["name"] == ALL_OTHERS:
        return str(adversary["name"])
    return f"{worst} (worst)"
