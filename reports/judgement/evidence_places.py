"""Where a report that is read by its keys holds evidence against a proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runs.described import as_text
from ...runs.evidence.evidence import Place, contradictions, suspicions
from ..schema import Report

__all__ = ["contradictions_in", "suspicions_in"]


def contradictions_in(report: Mapping[str, Any]) -> list[Place]:
    """The places of what contradicts a proof, in the object of privacy.json."""
    found = _typed(report)
    return contradictions(found.attack, found.audit)


def suspicions_in(report: Mapping[str, Any]) -> list[Place]:
    """The places of bounds above what is proven, in the object of privacy.json."""
    found = _typed(report)
    return suspicions(found.audit, planned=found.plan, epsilon=found.ledger.epsilon)


def _typed(report: Mapping[str, Any]) -> Report:
    return Report.parse(as_text(report), refusal="privacy.json at {}: {}".format)
