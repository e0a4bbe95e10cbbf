"""The evidence of a run beside its proof: the audit and the attack, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ...privacy.errors import InputError
from ..folder import folder as run_folder
from ..numbers import is_infinite
from .schema import Attack, Audit

__all__ = [
    "measured",
    "read_attack",
    "read_audit",
]

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
