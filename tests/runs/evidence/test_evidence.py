"""Evidence beside a proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overhear.reports import schema
from overhear.runs.evidence.evidence import (
    Place,
    contradictions,
    measured,
    read_attack,
    read_audit,
    row_of,
    suspicions,
)
from overhear.runs.evidence.schema import Audit
from tests.conftest import sample_audit, with_audit

Report = dict[str, Any]


def typed(report: Report) -> schema.Report:
    return schema.Report.parse(json.dumps(report), refusal="{} {}".format)


def contradicted(report: Report) -> list[Place]:
    found = typed(report)
    return contradictions(found.attack, found.audit)


def suspected(report: Report) -> list[Place]:
    found = typed(report)
    return suspicions(found.audit, planned=found.plan, epsilon=found.ledger.epsilon)


def test_a_run_without_evidence_has_none(tmp_path: Path) -> None:
    assert read_audit(tmp_path) is None
    assert read_attack(tmp_path) is None


def test_an_audit_is_read_as_it_was_written(tmp_path: Path) -> None:
    audit = sample_audit() | {"runs": 2}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    found = read_audit(tmp_path)
    assert found is not None
    assert found.dump() == audit


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", json.dumps(sample_audit() | {"verdict": "fine"})]
)
def test_evidence_that_cannot_be_read_is_refused_and_not_left_out(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(ValueError, match="overhear audit DIR"):
        read_audit(tmp_path)


def test_a_consistent_audit_neither_contradicts_nor_is_suspicious(report: Report) -> None:
    assert contradicted(with_audit(report)) == suspected(with_audit(report)) == []


def test_a_contradicted_row_is_named(report: Report) -> None:
    assert contradicted(with_audit(report, "contradicted")) == [("audit", "adversaries", 0)]


def test_an_audit_that_says_only_in_all_that_it_contradicts_is_believed(report: Report) -> None:
    report = with_audit(report)
    report["audit"]["verdict"] = "contradicted"
    assert contradicted(report) == [("audit",)]


def test_an_attack_that_rebuilt_too_much_is_named(report: Report) -> None:
    report["attack"]["scenarios"][0]["bound"]["exceeded"] = True
    assert contradicted(report) == [("attack", "scenarios", 0, "bound")]


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [(2.1, 1e-5, 1), (2.1, 1e-4, 1), (2.0, 1e-5, 0), (2.1, 1e-6, 0)],
)
def test_a_bound_above_the_ledgers_figure_is_suspicious_whatever_it_is_called(
    report: Report, epsilon: float, delta: float, expected: int
) -> None:
    """The ledger has 2.0738 at 1e-5; at a smaller delta epsilon is larger, and says nothing."""
    report = with_audit(report)
    report["audit"]["delta"] = delta
    report["audit"]["adversaries"][0]["measured_epsilon"] = epsilon
    assert len(suspected(report)) == expected


def test_a_bound_above_a_heuristic_figure_is_no_surprise(report: Report) -> None:
    report = with_audit(report)
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    report["audit"]["adversaries"][0]["measured_epsilon"] = 9.0
    assert suspected(report) == []


def test_an_audited_agent_is_found_as_the_worst_of_its_kind(report: Report) -> None:
    planned = typed(report).plan
    found = row_of(planned, "neighbour:1")
    assert found is not None
    assert found.name == "neighbour"
    assert row_of(planned, "neighbour:7") is None


def test_measured_figures_are_rounded_down() -> None:
    audit = sample_audit()
    audit["adversaries"][0] |= {"measured_epsilon": 7.4199, "ideal_epsilon": 7.6}
    found = measured(Audit.model_validate(audit))["eavesdropper"]
    assert (found.epsilon, found.ideal, found.messages) == (7.41, 7.6, [])
