"""The evidence of a run beside its proof: the audit and the attack, read, checked and judged.

A measured lower bound above a proven epsilon leaves a proof in doubt, whatever the file's own
verdict says; one that was found twice, or an attack that rebuilt more than the proof allows,
contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import TypeVar

from ..described import Described
from ..folder import folder as run_folder
from ..plan.schema import Planned, PlannedAdversary
from .schema import Attack, Audit, AuditedAdversary, Measured

__all__ = [
    "Place",
    "contradictions",
    "measured",
    "read_attack",
    "read_audit",
    "row_of",
    "suspicions",
]

Place = tuple[str | int, ...]  # within the report
_DIGITS = 3
_Evidence = TypeVar("_Evidence", bound=Described)


def read_attack(folder: Path) -> Attack | None:
    """The attack of a run folder, None where none was finished.

    Raises:
        ValueError: it is no attack; a report never leaves out evidence that is there.
    """
    return _read(folder / run_folder.ATTACK, Attack, "overhear attack")


def read_audit(folder: Path) -> Audit | None:
    """The audit of a run folder, None where none was run.

    Raises:
        ValueError: it is no audit; a report never leaves out evidence that is there.
    """
    return _read(folder / run_folder.AUDIT, Audit, "overhear audit")


def _read(path: Path, kind: type[_Evidence], command: str) -> _Evidence | None:
    if not path.exists():
        return None
    return kind.read(
        path,
        refusal=lambda at, what: (
            f"{path} cannot be read at {at or 'its start'}: {what}; move it away and run "
            f"`{command} DIR` again"
        ),
    )


def row_of(planned: Planned, name: str) -> PlannedAdversary | None:
    """The row of the plan that an audited adversary is: by its name, or as the worst of its kind.

    Args:
        planned: what was planned.
        name: of the audit, such as "neighbour:1" for the plan's "neighbour".
    """
    named = [row for row in planned.adversaries if row.name == name]
    worst = [row for row in planned.adversaries if row.worst_adversary == name]
    return next(iter(named or worst), None)


def contradictions(attack: Attack | None, audit: Audit | None) -> list[Place]:
    """Where a report holds evidence that contradicts a proof.

    Returns:
        The places of the audit's rows and of the attack's bounds that exceed the proof.
    """
    found: list[Place] = [
        ("audit", "adversaries", number)
        for number, row in enumerate(audit.adversaries if audit else ())
        if row.verdict == "contradicted"
    ]
    if audit and audit.verdict == "contradicted" and not found:
        found.append(("audit",))
    found += [
        ("attack", "scenarios", number, "bound")
        for number, scenario in enumerate(attack.scenarios if attack else ())
        if scenario.bound.exceeded
    ]
    return found


def suspicions(
    audit: Audit | None, *, planned: Planned, epsilon: Mapping[str, float]
) -> list[Place]:
    """Where an audit holds a bound above what is proven that was not found a second time.

    Args:
        audit: as it was read.
        planned: what was planned.
        epsilon: accounted, by adversary.
    """
    found: list[Place] = [
        ("audit", "adversaries", number)
        for number, row in enumerate(audit.adversaries if audit else ())
        if row.verdict == "suspicious"
        or (row.verdict != "contradicted" and _exceeds(row, audit, planned, epsilon))
    ]
    if audit and audit.verdict == "suspicious" and not found:
        found.append(("audit",))
    return found


def measured(audit: Audit | None) -> dict[str, Measured]:
    """What a page says of each audited adversary, with three digits, rounded down.

    A measured lower bound must never be told too large, nor what the best audit could have found.

    >>> measured(None)
    {}
    """
    return {
        row.name: Measured(
            epsilon=_down(row.measured_epsilon),
            ideal=_down(row.ideal_epsilon),
            messages=[_down(one.measured_epsilon) for one in row.messages],
        )
        for row in (audit.adversaries if audit else ())
    }


def _down(value: float | None) -> float | None:
    if value is None or math.isinf(value):
        return None
    # Of the digits that it was given with, not of the binary number just below them.
    return float(Context(prec=_DIGITS, rounding=ROUND_FLOOR).plus(Decimal(repr(value))))


def _exceeds(
    row: AuditedAdversary, audit: Audit | None, planned: Planned, epsilon: Mapping[str, float]
) -> bool:
    """Whether a row measured more than the ledger's proven epsilon."""
    of = row_of(planned, row.name)
    if audit is None or of is None or of.status != "proven" or row.measured_epsilon is None:
        return False
    # At a larger delta epsilon is smaller, so what is measured there bounds the proven one too.
    same = audit.delta >= of.delta and audit.adjacency == of.adjacency
    return same and row.measured_epsilon > epsilon[of.name]
