"""How the advice about a plan speaks: its entries, its adversaries, its records and figures."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...privacy.adversary import ALL_OTHERS, EAVESDROPPER, FINAL_MODELS
from ...privacy.errors import InputError
from ...privacy.guarantee import Guarantee
from ...runs.numbers import bound, small
from ...runs.plan.plan import Plan
from ...runs.run_file.run_file import RunFile

__all__ = [
    "Advice",
    "Case",
    "What",
    "at_most",
    "capital",
    "limit_of",
    "listed",
    "onlooker",
    "record_words",
]


class What(enum.StrEnum):
    """What a sentence is about."""

    LEAK = "leak"
    WITHIN = "within"
    REPAIR = "repair"
    ENCRYPT = "encrypt"
    NOISE = "noise"
    ROUNDS = "rounds"
    ADVERSARY = "adversary"
    ALGORITHM = "algorithm"
    SEED = "seed"
    SKIPPED = "skipped"
    NO_TARGET = "no-target"


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One sentence or two about a plan.

    Attributes:
        what: what it is about.
        words: for a reader who knows neither the mathematics nor the code.
        epsilon: the figure that it names, or that the remedy leads to; None where there is none.

    Raises:
        ValueError: a negative or undefined epsilon.
    """

    what: What
    words: str
    epsilon: float | None = None

    def __post_init__(self) -> None:
        """Check the figure."""
        if self.epsilon is not None and not self.epsilon >= 0:
            raise InputError(f"epsilon={self.epsilon} must be a number >= 0, or None for no figure")

    def to_json(self) -> dict[str, Any]:
        """An entry of the "advice" of `overhear plan --json`; infinite is the string "inf"."""
        infinite = self.epsilon is not None and math.isinf(self.epsilon)
        return {
            "what": str(self.what),
            "words": self.words,
            "epsilon": "inf" if infinite else self.epsilon,
        }


class Case(NamedTuple):
    """Statements that are wrong for the same reason, worst first."""

    kind: str  # "infinite", "heuristic" or "over"
    statements: list[Guarantee]


def limit_of(plan: Plan) -> float:
    """The target; infinite where there is none."""
    return math.inf if plan.target.epsilon is None else float(plan.target.epsilon)


def at_most(epsilon: float, delta: float) -> str:
    """An upper bound, rounded up, with its delta.

    >>> at_most(2.0714, 1e-5)
    'at most epsilon 2.08 at delta 1e-5'
    """
    return f"at most epsilon {bound(epsilon)} at delta {small(delta)}"


def record_words(config: RunFile, g: Guarantee) -> str:
    """Whose record a statement is about, and whether its agent was searched."""
    searched = (config.privacy is None or config.privacy.victim is None) and config.data.agents > 1
    return f"a given record of agent {g.victim}{' (the worst off)' if searched else ''}"


def onlooker(config: RunFile, g: Guarantee) -> str:
    """An adversary, as one would speak of it."""
    unread = config.graph.links == "encrypted" or config.data.agents == 1
    if g.adversary == EAVESDROPPER.name and unread:
        return "an outsider who gets the released final models"
    if g.adversary == EAVESDROPPER.name:
        return "whoever reads every link"
    if g.adversary == FINAL_MODELS.name:
        return "whoever gets the final models"
    if g.adversary == ALL_OTHERS:
        return "all other agents together"
    _, _, members = (g.worst_adversary or g.adversary).partition(":")
    agents = members.split(",")
    if len(agents) > 1:
        return f"agents {listed(agents)} together"
    alone = " (no single agent learns more)" if g.worst_adversary is not None else ""
    return f"agent {agents[0]}{alone}"


def listed(words: Sequence[str], joint: str = "and") -> str:
    """One or more phrases in a row.

    >>> listed(["1", "2", "9"]), listed(["one"], "or")
    ('1, 2 and 9', 'one')
    """
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


def capital(words: str) -> str:
    """The words at the start of a sentence."""
    return words[:1].upper() + words[1:]
