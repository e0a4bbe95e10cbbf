"""The decision of the gate: what passes, what does not, and in which words."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overhear.privacy.ledger import Spent
from overhear.reports.document.checked_run import CheckedRun
from overhear.reports.judgement.check import decide
from overhear.reports.judgement.finding import Decision, Outcome
from overhear.reports.judgement.policy import Policy
from overhear.runs.evidence.schema import Audit
from tests.runs.evidence.evidence import AUDIT, attack, audit, audited

LIMIT: dict[str, Any] = {"adversary": "eavesdropper", "epsilon": 4.0, "delta": 1e-5}
ROUNDS = 200


@pytest.fixture
def run(report: dict[str, Any]) -> CheckedRun:
    """A run whose eavesdropper has a proven epsilon of 2.074 at delta 1e-5, all rounds done."""
    report = copy.deepcopy(report)
    report["run"]["duplicate_records"] = 0
    for row in report["plan"]["adversaries"]:
        row["bound"] = "privacy loss distribution"
    entries = [{"round": number, "releases": []} for number in range(ROUNDS + 1)]
    return CheckedRun(
        folder=Path("DIR"),
        report=report,
        reported=True,
        victim=None,
        spent=Spent(header={}, entries=entries, torn=False),
        attack=None,
        audit=None,
    )


def decided(
    run: CheckedRun, *limits: dict[str, Any], evidence: dict[str, Any] | None = None
) -> Decision:
    given = {"schema": 1, "limits": list(limits or (LIMIT,)), "evidence": evidence or {}}
    return decide(Policy.model_validate(given), run)


def changed(run: CheckedRun, who: str = "eavesdropper", /, **changes: Any) -> CheckedRun:
    """The run with another figure of one adversary."""
    report: Any = copy.deepcopy(run.report)
    for row in report["plan"]["adversaries"]:
        if row["name"] == who:
            row |= changes
    if "epsilon" in changes:
        report["ledger"]["epsilon"][who] = changes["epsilon"]
    return replace(run, report=report)


def sentence(decision: Decision, outcome: Outcome) -> str:
    return " | ".join(f.sentence for f in decision.findings if f.outcome is outcome)


def test_a_proven_figure_within_its_limit_passes(run: CheckedRun) -> None:
    decision = decided(run)
    assert decision.exit_code == 0
    assert {f.outcome for f in decision.findings} == {Outcome.PASSED}
    assert "epsilon at most 2.08 at delta 1e-5 for one record" in decision.findings[0].sentence


def test_a_figure_equal_to_its_limit_passes_and_the_next_number_does_not(run: CheckedRun) -> None:
    assert decided(changed(run, epsilon=4.0)).exit_code == 0
    over = decided(changed(run, epsilon=4.000000000000001))
    assert over.exit_code == 3
    assert "epsilon 4.000000000000001 at delta 1e-5 is over" in sentence(over, Outcome.OVER)


def test_a_figure_over_its_limit_names_figure_limit_and_remedy(run: CheckedRun) -> None:
    decision = decided(run, {**LIMIT, "epsilon": 1.0})
    assert decision.exit_code == 3
    said = sentence(decision, Outcome.OVER)
    assert "epsilon 2.074 at delta 1e-5 is over the limit of 1;" in said
    assert 'set epsilon = 1 and adversary = "eavesdropper" in [privacy]' in said
    assert "or plan 25 rounds in a new run" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "heuristic"}, "only a proven figure passes; choose an algorithm"),
        ({"epsilon": "inf"}, "epsilon is infinite, over the limit of 4"),
        ({"delta": 1e-4}, "the figure holds at delta 1e-4, larger than the limit's 1e-5"),
        ({"adjacency": "replace-one"}, "is for replace-one, the limit for add-or-remove-one; set"),
        ({"unit": "agent"}, "the limit for one record, and nothing here is proven for that; ask"),
        ({"bound": "central limit: approximation, may be too small"}, "only a proven figure"),
        ({"bound": "not stated"}, "only a proven figure passes"),
        ({"epsilon": float("nan")}, "is over the limit"),
    ],
)
def test_what_is_not_proven_for_the_limit_does_not_pass(
    run: CheckedRun, changes: dict[str, Any], words: str
) -> None:
    decision = decided(changed(run, **changes))
    assert decision.exit_code == 3
    assert words in sentence(decision, Outcome.OVER)


def test_a_figure_at_a_smaller_delta_passes(run: CheckedRun) -> None:
    assert decided(run, {**LIMIT, "delta": 1e-3}).exit_code == 0


def test_a_limit_for_an_agent_is_not_met_by_the_figure_of_a_record(run: CheckedRun) -> None:
    decision = decided(run, {**LIMIT, "unit": "agent"})
    assert (decision.exit_code, decision.findings[0].outcome) == (3, Outcome.OVER)


def test_every_reason_is_told(run: CheckedRun) -> None:
    decision = decided(changed(run, epsilon=9.0, delta=1e-3, status="heuristic"))
    said = decision.findings[0].sentence
    assert all(words in said for words in ("delta 0.001", "heuristic", "over the limit of 4"))


def test_noise_that_can_be_repeated_does_not_pass(run: CheckedRun) -> None:
    report: Any = copy.deepcopy(run.report)
    report["run"]["evaluation_noise_seed"] = 0
    decision = decided(replace(run, report=report))
    assert decision.exit_code == 3
    assert "evaluation_noise_seed" in sentence(decision, Outcome.OVER)


def test_the_figure_of_one_victim_does_not_pass_for_any_record(run: CheckedRun) -> None:
    decision = decided(replace(run, victim=0))
    assert decision.exit_code == 3
    assert "records of agent 0 alone" in sentence(decision, Outcome.OVER)


def test_the_published_form_is_told_to_be_repaired(run: CheckedRun) -> None:
    report: Any = copy.deepcopy(run.report)
    report["run"]["form"] = "published"
    decision = decided(changed(replace(run, report=report), status="heuristic"))
    assert 'set form = "repaired"' in sentence(decision, Outcome.OVER)


def test_a_single_message_never_passes(run: CheckedRun) -> None:
    decision = decided(run, {**LIMIT, "adversary": "single-message"})
    assert decision.exit_code == 3
    assert "limit the eavesdropper instead" in sentence(decision, Outcome.OVER)


def test_the_figure_is_the_ledgers_and_not_the_plans(run: CheckedRun) -> None:
    report: Any = copy.deepcopy(run.report)
    report["ledger"]["epsilon"]["eavesdropper"] = 5.0
    assert decided(replace(run, report=report)).exit_code == 3


def test_an_adversary_without_a_figure_is_missing_evidence(run: CheckedRun) -> None:
    decision = decided(run, {**LIMIT, "adversary": "coalition:1,9"})
    assert decision.exit_code == 5
    said = sentence(decision, Outcome.MISSING)
    assert "does not account for coalition:1,9, only for eavesdropper, neighbour" in said


def test_an_adversary_is_found_however_it_is_written(run: CheckedRun) -> None:
    named = changed(run, "neighbour", name="coalition:1,9")
    spent: Any = copy.deepcopy(named.report)
    spent["ledger"]["epsilon"]["coalition:1,9"] = 2.0
    named = replace(named, report=spent)
    assert decided(named, {**LIMIT, "adversary": "coalition:9,1"}).exit_code == 0


def test_one_neighbour_is_not_the_worst_one(run: CheckedRun) -> None:
    assert decided(run, {**LIMIT, "adversary": "neighbour:3"}).exit_code == 5


def test_a_missing_report_is_missing_evidence_and_says_what_writes_it(run: CheckedRun) -> None:
    decision = decided(replace(run, reported=False))
    assert decision.exit_code == 5
    assert "`overhear report DIR` writes it" in sentence(decision, Outcome.MISSING)


def test_more_rebuilt_than_proven_contradicts_whatever_is_asked_for(run: CheckedRun) -> None:
    decision = decided(replace(run, attack=attack(exceeded=True)))
    assert decision.exit_code == 4
    assert "8 of 8 images were rebuilt" in sentence(decision, Outcome.CONTRADICTED)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (audited(verdict="contradicted", measured_epsilon=9.23456), "at least 9.234 at delta 1e-5"),
        (audit(verdict="contradicted"), "the verdict of the audit is 'contradicted'"),
        (audit(verdict="failed checks"), "the verdict of the audit is 'failed checks'"),
        (
            audit(checks=[{**AUDIT["checks"][0], "passed": False}]),
            "the check 'residuals' of the implementation failed (as stated)",
        ),
    ],
)
def test_an_audit_that_refutes_a_proof_contradicts(
    run: CheckedRun, found: Audit, words: str
) -> None:
    decision = decided(replace(run, audit=found))
    assert decision.exit_code == 4
    assert words in sentence(decision, Outcome.CONTRADICTED)


@pytest.mark.parametrize(
    "found",
    [
        audit(verdict="suspicious"),
        audited(verdict="suspicious"),
        audited(measured_epsilon=2.08),  # above the 2.074 of the ledger, whatever the audit says
        audited(measured_epsilon="inf"),
    ],
)
def test_an_audit_in_doubt_must_be_settled_first(run: CheckedRun, found: Audit) -> None:
    decision = decided(replace(run, audit=found))
    assert decision.exit_code == 5
    assert "audit again with fresh canaries" in sentence(decision, Outcome.MISSING)


def test_a_bound_at_a_smaller_delta_says_nothing_about_the_figure(run: CheckedRun) -> None:
    found = audit(delta=1e-9, adversaries=[{**AUDIT["adversaries"][0], "measured_epsilon": 3.0}])
    assert decided(replace(run, audit=found)).exit_code == 0


def test_contradicted_stands_above_over_and_over_above_missing(run: CheckedRun) -> None:
    bad, evidence = {**LIMIT, "epsilon": 1.0}, {"audit_canaries": 10}
    assert decided(run, bad, evidence=evidence).exit_code == 3
    assert decided(run, evidence=evidence).exit_code == 5
    contradicted = replace(run, attack=attack(exceeded=True))
    assert decided(contradicted, bad, evidence=evidence).exit_code == 4


def test_an_audit_that_is_asked_for_passes(run: CheckedRun) -> None:
    asked = {"audit_canaries": 1000, "audit_confidence": 0.95}
    decision = decided(replace(run, audit=audit()), evidence=asked)
    assert decision.exit_code == 0
    assert "audited with 1000 canaries at confidence 0.95" in sentence(decision, Outcome.PASSED)


def test_an_audit_of_fewer_rounds_says_so(run: CheckedRun) -> None:
    decision = decided(replace(run, audit=audit(rounds=5)), evidence={"audit_canaries": 1})
    assert "over 5 of 200 rounds" in sentence(decision, Outcome.PASSED)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "the run was not audited; run `overhear audit DIR`"),
        (audited(canaries=999), "planted 999 canaries, and 1000 are asked for"),
        (audit(confidence=0.9), "the confidence of the audit is 0.9, and 0.95 is asked for"),
        (audit(adversaries=[]), "the audit measured nobody, and not eavesdropper"),
        (audited(name="final-models"), "measured final-models, and not eavesdropper"),
        (audited(measured_epsilon=None, verdict="not measured"), "measured nobody"),
        (audit(adjacency="replace-one"), "the audit is for replace-one, the limit for add-or"),
    ],
)
def test_an_audit_that_is_asked_for_and_lacks_something_is_missing(
    run: CheckedRun, found: Audit | None, words: str
) -> None:
    asked = {"audit_canaries": 1000, "audit_confidence": 0.95}
    decision = decided(replace(run, audit=found), evidence=asked)
    assert decision.exit_code == 5
    assert words in sentence(decision, Outcome.MISSING)


def test_every_limited_adversary_must_be_audited(run: CheckedRun) -> None:
    decision = decided(
        replace(run, audit=audit()),
        LIMIT,
        {**LIMIT, "adversary": "final-models"},
        evidence={"audit_canaries": 1},
    )
    assert decision.exit_code == 5
    assert "and not final-models" in sentence(decision, Outcome.MISSING)


def test_an_audit_of_the_worst_neighbour_counts_for_the_neighbour(run: CheckedRun) -> None:
    decision = decided(
        replace(run, audit=audited(name="neighbour:1")),
        {**LIMIT, "adversary": "neighbour"},
        evidence={"audit_canaries": 1},
    )
    assert decision.exit_code == 0


def test_every_preset_that_is_asked_for_must_have_been_tried(run: CheckedRun) -> None:
    asked = {"attack_presets": ["matched", "dlg"]}
    decision = decided(replace(run, attack=attack()), evidence=asked)
    assert decision.exit_code == 5
    assert "no attack of this run is dlg" in sentence(decision, Outcome.MISSING)
    assert "matched was tried" in sentence(decision, Outcome.PASSED)
    assert "`overhear attack DIR`" in sentence(decided(run, evidence=asked), Outcome.MISSING)


@pytest.mark.parametrize(
    ("spent", "words"),
    [
        (Spent(header={}, entries=[{"round": 1}], torn=False), "199 of 200 planned rounds are not"),
        (Spent(header={}, entries=[{"round": r} for r in range(201)], torn=True), "is torn"),
    ],
)
def test_a_run_that_was_cut_off_is_missing_evidence_unless_waived(
    run: CheckedRun, spent: Spent, words: str
) -> None:
    cut = replace(run, spent=spent)
    decision = decided(cut)
    assert decision.exit_code == 5
    assert words in sentence(decision, Outcome.MISSING)
    assert decided(cut, evidence={"complete_run": False}).exit_code == 0


def test_what_passes_and_still_matters_is_noted(run: CheckedRun) -> None:
    report: Any = copy.deepcopy(run.report)
    report["run"] |= {"duplicate_records": 3, "links": "encrypted"}
    notes = decided(replace(run, report=report)).notes
    assert [note.split(":")[0] for note in notes] == [
        "3 records occur more than once",
        "links are taken to be encrypted",
    ]


def test_a_hostile_name_makes_one_harmless_line(run: CheckedRun) -> None:
    words = "x\n\x1b[2JPASSED"
    found = audited(verdict="contradicted", words=words, name=words)
    for finding in decided(replace(run, folder=Path(words), audit=found, reported=False)).findings:
        assert "\n" not in finding.sentence + finding.requirement
        assert "\x1b" not in finding.sentence + finding.requirement


def test_a_decision_needs_a_requirement() -> None:
    with pytest.raises(ValueError, match="decides nothing"):
        Decision(findings=[])
