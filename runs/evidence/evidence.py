"""The evidence of a run beside its proof: the audit and the attack, read and checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import TypeVar

from ..described import Described
from ..folder import folder as run_folder
from .schema import Attack, Audit, Measured

__all__ = [
    "measured",
    "read_attack",
    "read_audit",
    "read_evidence",
]

_DIGITS = 3
_Evidence = TypeVar("_Evidence", bound=Described)


def read_attack(folder: Path) -> Attack | None:
    """All attacks of a run folder as one, with the scenarios of each; None where none was finished.

    The first attack comes first, then the others by name. Evidence is judged over all of them, so
    that an attack that finds less takes nothing away.

    Raises:
        ValueError: one is no attack; a report never leaves out evidence that is there.
    """
    every = [
        (Path(name).parent.name if name != run_folder.ATTACK else "", found)
        for name in run_folder.attack_files(folder)
        if (found := read_evidence(folder / name, Attack, "overhear attack DIR")) is not None
    ]
    if not every:
        return None
    if [name for name, _ in every] == [""]:
        return every[0][1]
    return Attack(
        version=1,
        device=_each(one.device for _, one in every),
        exact_device=_each(one.exact_device for _, one in every),
        scenarios=[
            scenario.model_copy(update={"attack": name} if name else {})
            for name, one in every
            for scenario in one.scenarios
        ],
    )


def _each(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(name for name in names if name))


def read_audit(folder: Path) -> Audit | None:
    """The audit of a run folder, None where none was run.

    Raises:
        ValueError: it is no audit; a report never leaves out evidence that is there.
    """
    return read_evidence(folder / run_folder.AUDIT, Audit, "overhear audit DIR")


def read_evidence(path: Path, kind: type[_Evidence], command: str) -> _Evidence | None:
    """What a command found, None where it was not run.

    Args:
        kind: what it holds.
        command: that writes it, for the words of a refusal.

    Raises:
        ValueError: it is none that can be read; evidence that is there is never left out.
    """
    return kind.read_if_there(path, remedy=f"move it away and run `{command}` again")


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
