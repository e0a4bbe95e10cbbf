"""The first half page: what a figure means for people, what to do next, and who answers for it."""

from typing import Any

import pytest

from overhear.reports.document.html import render
from overhear.reports.document.summary import ReportSummary, summary_of
from overhear.reports.judgement.facts import facts_of_report
from overhear.reports.judgement.findings import text_of
from overhear.reports.judgement.wording import verdict
from tests.conftest import typed, with_audit

Report = dict[str, Any]


def told(report: Report) -> ReportSummary:
    found = typed(report)
    facts = facts_of_report(found)
    return summary_of(found, facts, verdict(facts))


def steps(report: Report) -> str:
    return text_of(*told(report).steps)


def test_the_meaning_is_the_odds_of_the_adversary(report):
    assert text_of(told(report).meaning) == (
        "Of 100 people whose record was used, the eavesdropper finds at most 14 while accusing 1 "
        "of 100 others wrongly; a blind guess finds 1."
    )


@pytest.mark.parametrize(
    ("source", "said"), [("nothing protects", "Nothing limits"), ("no bound", "No limit is known")]
)
def test_without_a_bound_no_number_is_told(report, source, said):
    for risk in report["risk"].values():
        risk["from"] = source
    meaning = text_of(told(report).meaning)
    assert meaning.startswith(said)
    assert not any(letter.isdigit() for letter in meaning)


def test_a_proof_in_doubt_is_told_as_a_condition(report):
    assert text_of(told(with_audit(report, "contradicted")).meaning).startswith("If the proof held")


def test_missing_evidence_is_the_next_step_and_there_is_none_to_sign_unless_met(report):
    assert "overhear audit DIR" in steps(report)
    assert "Sign in section 11" in steps(report)
    report["plan"]["target"]["epsilon"] = 1.0
    assert "Sign in section 11" not in steps(report)
    assert "do not sign" in steps(report)


def test_a_person_with_more_records_than_any_figure_covers_is_the_next_step(report):
    report["about"] = {"records_per_person": 3}
    assert "no figure of this report covers so many" in steps(report)
    covered = text_of(*told(report).covered)
    assert "covers one record of a person" in covered
    assert "a person has at most 3" in covered
    for row in report["plan"]["adversaries"]:
        row["group"] = [{"records": 3, "epsilon": 7.5, "delta": 1e-5}]
    row = report["plan"]["adversaries"][0]
    row["epsilon"] = report["ledger"]["epsilon"]["eavesdropper"]
    assert "no figure of this report covers" not in steps(report)
    assert "for 3 records of a person ε is at most 7.5" in text_of(*told(report).covered)
    row["epsilon"] /= 2  # more was released than was planned
    assert "for 3 records of a person ε is more than 7.5" in text_of(*told(report).covered)


def test_a_verdict_that_is_not_met_has_no_line_to_accept(report):
    page = render(typed(report))
    assert "☐ accepted&emsp;" in page
    report["plan"]["target"]["epsilon"] = 1.0
    page = render(typed(report))
    assert "☐ accepted&emsp;" not in page
    assert "☐ refused" in page


def test_the_assessment_says_what_the_user_said_and_what_nobody_did(report):
    report["about"] = {
        "legal_basis": "consent <b>",
        "reference": "2026-17",
        "review_by": "May 2027",
    }
    page = render(typed(report))
    assert "consent &lt;b&gt;" in page
    assert "2026-17, <code>" in page
    assert "<dt>Review by</dt><dd>May 2027</dd>" in page
    assert "not said: <code>retention</code>" in page
