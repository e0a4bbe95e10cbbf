"""When a target counts as met."""

from __future__ import annotations

from typing import Any

import pytest

from overhear.reports.verdict import Outcome, last_round_within, verdict

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


def test_a_run_over_its_target_is_told_where_it_should_have_stopped(report: Report) -> None:
    report["plan"]["target"]["epsilon"] = 1.8
    assert last_round_within(report, "eavesdropper", 1.8) == 5  # 1.68 at 125, 1.82 at 150
    assert any(">125</data>" in action for action in verdict(report).actions)


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
    report["run"]["rounds_done"] = 150
    report["ledger"]["torn"] = True
    stopped, torn = verdict(report).notes
    assert "stopped after" in stopped
    assert "torn" in torn
