"""When a target counts as met."""

from __future__ import annotations

from typing import Any

import pytest

from overhear.reports.judgement.verdict import Outcome, doubt, head_row, verdict
from tests.conftest import with_audit

Report = dict[str, Any]


def test_a_proven_epsilon_within_the_target_meets_it(report: Report) -> None:
    found = verdict(report)
    assert found.outcome is Outcome.MET
    assert found.actions == ()


def test_an_epsilon_equal_to_the_target_meets_it(report: Report) -> None:
    report["plan"]["target"]["epsilon"] = report["ledger"]["epsilon"]["eavesdropper"]
    assert verdict(report).outcome is Outcome.MET


def test_what_the_ledger_released_counts_and_not_what_was_planned(report: Report) -> None:
    report["ledger"]["epsilon"]["eavesdropper"] = 4.01
    assert report["plan"]["adversaries"][0]["epsilon"] < 4
    assert verdict(report).outcome is Outcome.NOT_MET


def test_a_heuristic_epsilon_never_meets_a_target(report: Report) -> None:
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    report["run"]["form"] = "published"
    found = verdict(report)
    assert found.outcome is Outcome.NOT_MET
    assert "at least ε =" in found.text
    assert 'form = "repaired"' in found.actions[0]


def test_repeatable_noise_never_meets_a_target(report: Report) -> None:
    report["run"]["evaluation_noise_seed"] = 7
    found = verdict(report)
    assert found.outcome is Outcome.NOT_MET
    assert "evaluation_noise_seed" in found.actions[0]


@pytest.mark.parametrize("infinite", ["inf", float("inf")])
def test_an_infinite_epsilon_never_meets_a_target(report: Report, infinite: float | str) -> None:
    report["ledger"]["epsilon"]["eavesdropper"] = infinite
    assert "Nothing protects" in verdict(report).headline


def test_a_run_over_its_target_is_told_what_would_have_met_it(report: Report) -> None:
    report["plan"]["target"]["epsilon"] = 1.8
    of = {"adversary": "eavesdropper", "status": "proven"}
    report["mending"] = [
        {"action": "rounds", "rounds": 144, "epsilon": 1.79, **of},
        {"action": "noise", "noise_multiplier": 2.8123, "epsilon": 1.8, **of},
        {"action": "encrypt", "epsilon": 1.1, **of},
        {"action": "repair", "epsilon": 1.2, **of},
    ]
    found = verdict(report)
    assert found.outcome is Outcome.NOT_MET
    said = " ".join(found.actions)
    for figure in (">144</data>", ">1.79</data>", ">2.82</data>", ">1.80</data>", ">1.20</data>"):
        assert figure in said
    assert said.count("at the same δ and unit") == 4


def test_a_run_that_repeated_rounds_is_told_that_the_planned_ones_cost_less(
    report: Report,
) -> None:
    report["ledger"]["epsilon"]["eavesdropper"] = 4.2
    of = {"adversary": "eavesdropper", "status": "proven"}
    report["mending"] = [{"action": "rounds", "rounds": 200, "epsilon": 3.9, **of}]
    assert "Train again without a repeated round" in verdict(report).actions[1]


def test_a_remedy_that_alone_does_not_meet_the_target_says_so(report: Report) -> None:
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    of = {"action": "repair", "adversary": "eavesdropper", "status": "proven"}
    report["mending"] = [of | {"epsilon": 3.9}]
    assert "still over the limit" not in verdict(report).actions[0]
    report["mending"] = [of | {"epsilon": 4.1}]
    assert "still over the limit" in verdict(report).actions[0]


def test_without_a_target_there_is_no_verdict(report: Report) -> None:
    report["plan"]["target"] |= {"epsilon": None, "adversary": None}
    assert verdict(report).outcome is Outcome.OPEN


def test_a_target_adversary_that_was_not_accounted_for_is_an_error(report: Report) -> None:
    report["plan"]["target"]["adversary"] = "neighbour:3"
    with pytest.raises(KeyError, match="neighbour:3"):
        verdict(report)


def test_an_adversary_that_learns_more_than_the_target_is_named(report: Report) -> None:
    report["ledger"]["epsilon"]["neighbour"] = 9.0
    [note] = verdict(report).notes
    assert "worst single neighbour" in note


def test_an_unfinished_run_and_a_torn_ledger_are_named(report: Report) -> None:
    report["run"] |= {"rounds_done": 150, "finished": False}
    report["ledger"]["torn"] = True
    cut_off, torn = verdict(report).notes
    assert "The run is not finished: " in cut_off
    assert "torn" in torn


def test_without_a_target_adversary_the_worst_onlooker_is_spoken_of(report: Report) -> None:
    report["plan"]["target"] |= {"epsilon": None, "adversary": None}
    report["plan"]["adversaries"].insert(0, report["plan"]["adversaries"].pop())
    assert head_row(report)["name"] == "eavesdropper"  # a single message is nobody's view


def test_without_a_target_it_is_said_that_nothing_protects(report: Report) -> None:
    report["plan"]["target"] |= {"epsilon": None}
    report["ledger"]["epsilon"]["eavesdropper"] = "inf"
    assert "nothing protects" in verdict(report).headline


def test_an_audit_that_is_consistent_changes_nothing(report: Report) -> None:
    assert verdict(with_audit(report)) == verdict(report)
    assert doubt(with_audit(report)) == ""


@pytest.mark.parametrize("target", [4.0, None])
def test_a_contradicted_proof_is_never_met_and_protects_nobody(
    report: Report, target: float | None
) -> None:
    report["plan"]["target"]["epsilon"] = target
    report = with_audit(report, "contradicted")
    found = verdict(report)
    assert found.outcome is Outcome.NOT_MET
    assert "Contradicted: the audit" in found.headline
    assert "if the proof held" in found.text
    assert doubt(report) == "contradicted"


def test_an_attack_that_rebuilt_too_much_contradicts_the_proof(report: Report) -> None:
    report["attack"]["scenarios"][0]["bound"]["exceeded"] = True
    found = verdict(report)
    assert "Contradicted: an attack" in found.headline
    assert "None of two was rebuilt" in found.actions[0]


def test_a_failed_check_is_never_met_and_is_named(report: Report) -> None:
    found = verdict(with_audit(report, "failed checks"))
    assert found.outcome is Outcome.NOT_MET
    assert found.actions[0] == "residuals: residuals were compared"


def test_a_check_that_failed_counts_whatever_the_audit_says_of_itself(report: Report) -> None:
    report = with_audit(report)
    report["audit"]["checks"][2]["passed"] = False
    assert verdict(report).outcome is Outcome.NOT_MET


def test_a_suspicious_audit_leaves_the_verdict_open(report: Report) -> None:
    found = verdict(with_audit(report, "suspicious"))
    assert found.outcome is Outcome.OPEN
    assert "fresh canaries" in found.actions[0]


def test_a_suspicious_audit_opens_no_verdict_that_is_not_met(report: Report) -> None:
    report["plan"]["target"]["epsilon"] = 1.0
    assert verdict(with_audit(report, "suspicious")).outcome is Outcome.NOT_MET
