"""What becomes of the requirements of a policy: findings, and the decision that they make."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...privacy.errors import InputError

__all__ = ["EXIT_CODES", "Decision", "Finding", "Outcome"]


class Outcome(enum.StrEnum):
    """What became of a requirement, worst last."""

    PASSED = "passed"
    MISSING = "evidence missing"
    OVER = "over the limit"
    CONTRADICTED = "proof contradicted"


EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.PASSED: 0,
    Outcome.OVER: 3,
    Outcome.CONTRADICTED: 4,
    Outcome.MISSING: 5,
}
_RANK = list(Outcome)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One requirement and what became of it.

    Attributes:
        requirement: its name, "limit: eavesdropper" or "evidence: audit".
        outcome: passed, or why not.
        sentence: the figure, its bound, and what would turn it; on one line.
    """

    requirement: str
    outcome: Outcome
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Every requirement of a policy on one run.

    Attributes:
        findings: one for each requirement, in the order of the policy.
        notes: what else somebody who relies on it must know.

    Raises:
        ValueError: no findings; nothing that was required is no reason to pass.

    >>> over = Finding(requirement="limit", outcome=Outcome.OVER, sentence="9 is over 8")
    >>> gone = Finding(requirement="audit", outcome=Outcome.MISSING, sentence="no audit")
    >>> Decision(findings=[over, gone]).exit_code
    3
    """

    findings: Sequence[Finding]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check that something was required."""
        if not self.findings:
            raise InputError("findings=[] decides nothing; a decision needs a requirement")

    @property
    def outcome(self) -> Outcome:
        """The worst one: contradicted, then over a limit, then missing."""
        return max((f.outcome for f in self.findings), key=_RANK.index)

    @property
    def exit_code(self) -> int:
        """Of the command: 0, 3, 4 or 5."""
        return EXIT_CODES[self.outcome]
