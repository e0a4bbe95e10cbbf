"""When a target counts as met."""

from typing import Any

import pytest

from overhear.reports.judgement.facts import facts_of_report
from overhear.reports.judgement.findings import Action, Finding, Kind, text_of
from overhear.reports.judgement.proofs import against_proofs
from overhear.reports.judgement.wording import Outcome, Verdict, verdict
from tests.conftest import typed, with_audit

Report = dict[str, Any]


def judged(report: Report) -> Verdict:
    return verdict(facts_of_report(typed(report)))


def kinds(report: Report) -> list[Kind]:
    return [finding.kind for finding in judged(report).findings]


def actions(report: Report) -> list[Action]:
    return [remedy.action for remedy in judged(report).findings[0].remedy]


def doubts(report: Report) -> list[Finding]:
    return list(against_proofs(facts_of_report(typed(report))))


def test_a_proven_epsilon_within_the_target_meets_it(report):
    found = judged(report)
    assert found.outcome is Outcome.MET
    assert found.actions == ()


def test_an_epsilon_equal_to_the_target_meets_it(report):
    report["plan"]["target"]["epsilon"] = report["ledger"]["epsilon"]["eavesdropper"]
    assert judged(report).outcome is Outcome.MET


def test_what_the_ledger_released_counts_and_not_what_was_planned(report):
    report["ledger"]["epsilon"]["eavesdropper"] = 4.01
    assert report["plan"]["adversaries"][0]["epsilon"] < 4
    assert judged(report).outcome is Outcome.NOT_MET


def test_a_heuristic_epsilon_never_meets_a_target(report):
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    report["run"]["form"] = "published"
    of = {"action": "repair", "adversary": "eavesdropper", "status": "proven"}
    report["fixes"] = [of | {"epsilon": 3.9}]
    found = judged(report)
    assert (found.outcome, kinds(report)) == (Outcome.NOT_MET, [Kind.HEURISTIC])
    assert "at least ε =" in text_of(*found.text)
    assert actions(report) == [Action.REPAIR]
    report["fixes"] = []
    assert actions(report) == [Action.PROVE]


def test_repeatable_noise_never_meets_a_target(report):
    report["run"]["evaluation_noise_seed"] = 7
    assert judged(report).outcome is Outcome.NOT_MET
    assert (kinds(report), actions(report)) == ([Kind.SEEDED], [Action.SEED])


@pytest.mark.parametrize("infinite", ["inf", float("inf")])
@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        ("no protection", Kind.UNPROTECTED, "has no protection: ε ="),
        ("cannot be expressed", Kind.INEXPRESSIBLE, "has no bound that can be expressed: ε ≤"),
    ],
)
def test_an_infinite_epsilon_never_meets_a_target(report, infinite, status, kind, said):
    make_infinite(report, status, infinite)
    found = judged(report)
    assert (found.outcome, kinds(report)) == (Outcome.NOT_MET, [kind])
    assert said in text_of(*found.text)
    assert "The reason: a message is clean." in text_of(*found.text)


def make_infinite(report: Report, status: str, infinite: float | str = "inf") -> None:
    report["ledger"]["epsilon"]["eavesdropper"] = infinite
    (row,) = (r for r in report["plan"]["adversaries"] if r["name"] == "eavesdropper")
    row |= {"status": status, "epsilon": infinite, "because": "a message is clean"}


def test_a_run_over_its_target_is_told_what_would_have_met_it(report):
    report["plan"]["target"]["epsilon"] = 1.8
    of = {"adversary": "eavesdropper", "status": "proven"}
    report["fixes"] = [
        {"action": "rounds", "rounds": 144, "epsilon": 1.79, **of},
        {"action": "noise", "noise_multiplier": 2.8123, "epsilon": 1.8, **of},
        {"action": "encrypt", "epsilon": 1.1, **of},
        {"action": "repair", "epsilon": 1.2, **of},
    ]
    found = judged(report)
    assert (found.outcome, kinds(report)) == (Outcome.NOT_MET, [Kind.OVER])
    fixes = [Action.ROUNDS, Action.NOISE, Action.ENCRYPT, Action.REPAIR]
    assert actions(report) == [Action.TARGET, *fixes]
    said = text_of(*found.actions)
    for figure in ("144 rounds", "1.790", "2.813", "1.800", "1.100", "1.200"):
        assert figure in said
    assert said.count("at delta 1e-5") == 4


def test_a_run_that_repeated_rounds_is_told_that_the_planned_ones_cost_less(report):
    report["ledger"]["epsilon"]["eavesdropper"] = 4.2
    of = {"adversary": "eavesdropper", "status": "proven"}
    report["fixes"] = [{"action": "rounds", "rounds": 200, "epsilon": 3.9, **of}]
    assert actions(report) == [Action.TARGET, Action.AGAIN]


@pytest.mark.parametrize(("epsilon", "over"), [(3.9, False), (4.1, True)])
def test_a_remedy_that_alone_does_not_meet_the_target_says_so(report, epsilon, over):
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    of = {"action": "repair", "adversary": "eavesdropper", "status": "proven"}
    report["fixes"] = [of | {"epsilon": epsilon}]
    found = judged(report)
    assert found.findings[0].remedy[0].over is over
    assert ("still over the limit" in text_of(found.actions[0])) is over


def test_without_a_target_there_is_no_verdict(report):
    report["plan"]["target"] |= {"epsilon": None, "adversary": None}
    found = judged(report)
    assert (found.outcome, kinds(report)) == (Outcome.OPEN, [Kind.NO_TARGET])
    assert actions(report) == [Action.SET_TARGET]


def test_a_target_adversary_that_was_not_accounted_for_is_an_error(report):
    report["plan"]["target"]["adversary"] = "neighbour:3"
    with pytest.raises(KeyError, match="neighbour:3"):
        judged(report)


def test_an_adversary_that_learns_more_than_the_target_is_named(report):
    report["ledger"]["epsilon"]["neighbour"] = 9.0
    [note] = judged(report).notes
    assert "worst single neighbour" in text_of(note)


def test_an_unfinished_run_and_a_torn_ledger_are_named(report):
    report["run"] |= {"rounds_done": 150, "finished": False}
    report["ledger"]["torn"] = True
    cut_off, torn = map(text_of, judged(report).notes)
    assert "The run is not finished: " in cut_off
    assert "torn" in torn


def test_without_a_target_adversary_the_worst_one_is_spoken_of(report):
    report["plan"]["target"] |= {"epsilon": None, "adversary": None}
    report["plan"]["adversaries"].insert(0, report["plan"]["adversaries"].pop())
    facts = facts_of_report(typed(report))
    assert facts.head.adversary == "eavesdropper"  # a single message is nobody's view
    assert facts.place(facts.head)[-1] == 1


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        ("no protection", Kind.UNPROTECTED, "nothing protects"),
        ("cannot be expressed", Kind.INEXPRESSIBLE, "no bound can be expressed"),
    ],
)
def test_without_a_target_it_is_said_that_an_epsilon_is_infinite(report, status, kind, said):
    report["plan"]["target"] |= {"epsilon": None}
    make_infinite(report, status)
    found = judged(report)
    assert (found.outcome, kinds(report)[0]) == (Outcome.OPEN, kind)
    assert said in text_of(found.headline)


def test_an_audit_that_is_consistent_changes_nothing(report):
    assert judged(with_audit(report)) == judged(report)
    assert doubts(with_audit(report)) == []


@pytest.mark.parametrize("target", [4.0, None])
def test_a_contradicted_proof_is_never_met_and_protects_nobody(report, target):
    report["plan"]["target"]["epsilon"] = target
    report = with_audit(report, "contradicted")
    found = judged(report)
    assert (found.outcome, kinds(report)) == (Outcome.NOT_MET, [Kind.MEASURED])
    assert "if the proof held" in text_of(*found.text)
    assert found.doubt == "contradicted"


def test_an_attack_that_rebuilt_too_much_contradicts_the_proof(report):
    report["attack"]["scenarios"][0]["bound"]["exceeded"] = True
    found = judged(report)
    assert (found.outcome, kinds(report)) == (Outcome.NOT_MET, [Kind.REBUILT])
    assert "None of two was rebuilt" in text_of(found.actions[0])


def test_a_failed_check_is_never_met_and_is_named(report):
    report = with_audit(report, "failed checks")
    found = judged(report)
    assert (found.outcome, kinds(report)) == (Outcome.NOT_MET, [Kind.CHECK_FAILED])
    assert found.findings[0].words["check"] == "residuals"
    assert "residuals were compared" in text_of(found.actions[0])
    assert found.doubt == "check failed"


def test_a_check_that_failed_counts_whatever_the_audit_says_of_itself(report):
    report = with_audit(report)
    report["audit"]["checks"][2]["passed"] = False
    assert judged(report).outcome is Outcome.NOT_MET


def test_a_suspicious_audit_leaves_the_verdict_open(report):
    report = with_audit(report, "suspicious")
    assert (judged(report).outcome, kinds(report)) == (Outcome.OPEN, [Kind.SUSPICIOUS])
    assert actions(report) == [Action.AUDIT_AGAIN]


def test_a_suspicious_audit_opens_no_verdict_that_is_not_met(report):
    report["plan"]["target"]["epsilon"] = 1.0
    assert judged(with_audit(report, "suspicious")).outcome is Outcome.NOT_MET


def test_a_contradicted_row_is_named(report):
    [found] = doubts(with_audit(report, "contradicted"))
    assert (found.kind, found.adversary) == (Kind.MEASURED, "eavesdropper")


def test_an_audit_that_says_only_in_all_that_it_contradicts_is_believed(report):
    report = with_audit(report)
    report["audit"]["verdict"] = "contradicted"
    [found] = doubts(report)
    assert (found.kind, found.adversary) == (Kind.MEASURED, "")


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [(2.1, 1e-5, 1), (2.1, 1e-4, 1), (2.0, 1e-5, 0), (2.1, 1e-6, 0)],
)
def test_a_bound_above_the_ledgers_figure_is_suspicious_whatever_it_is_called(
    report, epsilon, delta, expected
):
    """The ledger has 2.0738 at 1e-5; at a smaller delta epsilon is larger, and says nothing."""
    report = with_audit(report)
    report["audit"]["delta"] = delta
    report["audit"]["adversaries"][0]["measured_epsilon"] = epsilon
    assert [one.kind for one in doubts(report)] == [Kind.SUSPICIOUS] * expected


def test_a_bound_above_a_heuristic_figure_is_no_surprise(report):
    report = with_audit(report)
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    report["audit"]["adversaries"][0]["measured_epsilon"] = 9.0
    assert doubts(report) == []


def test_an_audited_agent_is_found_as_the_worst_of_its_kind(report):
    facts = facts_of_report(typed(report))
    found = facts.audited("neighbour:1")
    assert found is not None
    assert found.adversary == "neighbour"
    assert facts.audited("neighbour:7") is None
