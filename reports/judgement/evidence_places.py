"""Where a report that is read by its keys holds evidence against a proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ...runs.described import Described, as_text
from ...runs.evidence.evidence import Place, contradictions, suspicions
from ...runs.evidence.schema import Attack, Audit
from ...runs.plan.schema import Planned

__all__ = ["contradictions_in", "suspicions_in"]

_Part = TypeVar("_Part", bound=Described)


def contradictions_in(report: Mapping[str, Any]) -> list[Place]:
    """The places of what contradicts a proof, in the object of privacy.json."""
    return contradictions(_part(report, "attack", Attack), _part(report, "audit", Audit))


def suspicions_in(report: Mapping[str, Any]) -> list[Place]:
    """The places of bounds above what is proven, in the object of privacy.json."""
    planned = _part(report, "plan", Planned)
    if planned is None:
        return []
    epsilon = {name: float(of) for name, of in report["ledger"]["epsilon"].items()}
    return suspicions(_part(report, "audit", Audit), planned=planned, epsilon=epsilon)


def _part(report: Mapping[str, Any], name: str, kind: type[_Part]) -> _Part | None:
    if report[name] is None:
        return None
    return kind.parse(as_text(report[name]), refusal="privacy.json at {}: {}".format)
