"""The evidence of a run beside its proof: the audit and the attack, read, checked and judged.

A measured lower bound above a proven epsilon leaves a proof in doubt, whatever the file's own
verdict says; one that was found twice, or an attack that rebuilt more than the proof allows,
contradicts it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ...privacy.errors import InputError
from ..folder import folder as run_folder
from ..numbers import is_infinite
from .schema import Attack, Audit

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


def read_attack(folder: Path) -> dict[str, Any] | None:
    """The object of attack.json, None where no attack was finished.

    Raises:
        ValueError: it is no attack; a report never leaves out evidence that is there.
    """
    return _read(folder / run_folder.ATTACK, Attack, "overhear attack")


def read_audit(folder: Path) -> dict[str, Any] | None:
    """The object of audit.json, None where no audit was run.

    Raises:
        ValueError: it is no audit; a report never leaves out evidence that is there.
    """
    return _read(folder / run_folder.AUDIT, Audit, "overhear audit")


def _read(path: Path, kind: type[BaseModel], command: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    text = path.read_bytes()
    try:
        kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(str(part) for part in first["loc"])
        raise InputError(
            f"{path} cannot be read at {place or 'its start'}: {first['msg']}; move it away and "
            f"run `{command} DIR` again"
        ) from error
    found: dict[str, Any] = json.loads(text)
    return found


def row_of(report: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The row of the plan that an audited adversary is: by its name, or as the worst of its kind.

    Args:
        report: the object of privacy.json.
        name: of the audit, such as "neighbour:1" for the plan's "neighbour".
    """
    rows: Sequence[Mapping[str, Any]] = report["plan"]["adversaries"]
    named = [r for r in rows if r["name"] == name]
    worst = [r for r in rows if r["worst_adversary"] == name]
    return next(iter(named or worst), None)


def contradictions(report: Mapping[str, Any]) -> list[Place]:
    """Where the report holds evidence that contradicts a proof.

    Args:
        report: the object of privacy.json.

    Returns:
        The places of the audit's rows and of the attack's bounds that exceed the proof.
    """
    audit, attack = report["audit"], report["attack"]
    found: list[Place] = [
        ("audit", "adversaries", number)
        for number, row in enumerate(audit["adversaries"] if audit else ())
        if row["verdict"] == "contradicted"
    ]
    if audit and audit["verdict"] == "contradicted" and not found:
        found.append(("audit",))
    scenarios: Sequence[Mapping[str, Any]] = attack["scenarios"] if attack else ()
    found += [
        ("attack", "scenarios", number, "bound")
        for number, scenario in enumerate(scenarios)
        if scenario["bound"].get("exceeded", False)
    ]
    return found


def suspicions(report: Mapping[str, Any]) -> list[Place]:
    """Where the audit holds a bound above what is proven that was not found a second time.

    Args:
        report: the object of privacy.json.
    """
    audit = report["audit"]
    found: list[Place] = [
        ("audit", "adversaries", number)
        for number, row in enumerate(audit["adversaries"] if audit else ())
        if row["verdict"] == "suspicious"
        or (row["verdict"] != "contradicted" and _exceeds(report, audit, row))
    ]
    if audit and audit["verdict"] == "suspicious" and not found:
        found.append(("audit",))
    return found


def measured(audit: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """What a page says of each audited adversary, with three digits, rounded down.

    A measured lower bound must never be told too large, nor what the best audit could have found.

    >>> row = {"name": "eavesdropper", "measured_epsilon": 2.71828, "ideal_epsilon": None}
    >>> measured({"adversaries": [row]})
    {'eavesdropper': {'epsilon': 2.71, 'ideal': None, 'messages': []}}
    """
    return {
        row["name"]: {
            "epsilon": _down(row["measured_epsilon"]),
            "ideal": _down(row["ideal_epsilon"]),
            "messages": [_down(one["measured_epsilon"]) for one in row.get("messages", ())],
        }
        for row in (audit["adversaries"] if audit else ())
    }


def _down(value: float | str | None) -> float | None:
    if value is None or is_infinite(value):
        return None
    # Of the digits that it was given with, not of the binary number just below them.
    return float(Context(prec=_DIGITS, rounding=ROUND_FLOOR).plus(Decimal(repr(float(value)))))


def _exceeds(report: Mapping[str, Any], audit: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a row measured more than the ledger's proven epsilon."""
    of = row_of(report, row["name"])
    if of is None or of["status"] != "proven" or row["measured_epsilon"] is None:
        return False
    # At a larger delta epsilon is smaller, so what is measured there bounds the proven one too.
    same = audit["delta"] >= of["delta"] and audit["adjacency"] == of["adjacency"]
    proven = float(report["ledger"]["epsilon"][of["name"]])
    return bool(same and float(row["measured_epsilon"]) > proven)
