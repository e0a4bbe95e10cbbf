"""The decision of the gate: what passes, what does not, and why."""

import math
from dataclasses import replace
from typing import Any

import pytest

from overhear.attacks.interception.names import NOT_IDENTIFIED
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import Guarantee, Status
from overhear.privacy.target import Goal
from overhear.reports.judgement.facts import Facts, FigureRequirement, facts_of_report
from overhear.reports.judgement.findings import Action, Kind, Outcome, judge, text_of
from overhear.reports.judgement.gate import Decision, decide, decide_plan
from overhear.reports.judgement.policy import Policy
from overhear.reports.judgement.wording import verdict
from overhear.reports.schema import Remedy as Fix
from overhear.runs.audit.evidence_schema import Attack
from overhear.runs.plan.schema import SecondOpinion
from overhear.training.accounts.summary import Verdict
from overhear.training.accounts.traced_twice import TracedTwice
from tests.conftest import typed
from tests.runs.evidence.evidence import AUDIT, attack, audit, audited
from tests.runs.evidence.membership import membership

PROVEN = Status.PROVEN
NOTHING = {"epsilon": math.inf, "status": Status.NO_PROTECTION}
LIMIT: dict[str, Any] = {"adversary": "eavesdropper", "epsilon": 4.0, "delta": 1e-5}
ROUNDS = 200


@pytest.fixture
def facts(report):
    """A run whose eavesdropper has a proven epsilon of 2.074 at delta 1e-5, all rounds done."""
    return facts_of(report | {"attack": None, "audit": None})


def facts_of(report: dict[str, Any], **of: Any) -> Facts:
    return facts_of_report(typed(report), **of)


def ran(facts: Facts, **changes: Any) -> Facts:
    """The run with other evidence."""
    assert facts.ran is not None
    return replace(facts, ran=replace(facts.ran, **changes))


def decided(
    facts: Facts, *limits: dict[str, Any], evidence: dict[str, Any] | None = None, **of: Any
) -> Decision:
    given = {"schema": 1, "limits": list(limits or (LIMIT,)), "evidence": evidence or {}}
    return decide(Policy.model_validate(given), facts, **of)


def changed(facts: Facts, who: str = "eavesdropper", /, **changes: Any) -> Facts:
    """The run with another figure of one adversary."""
    claims = [replace(c, **changes, group=None) if c.adversary == who else c for c in facts.claims]
    return replace(facts, claims=claims)


def kinds(decision: Decision, outcome: Outcome | None = None) -> list[Kind]:
    """What was found, of one outcome or of every one that is not passed."""
    wanted = {outcome} if outcome else set(Outcome) - {Outcome.PASSED}
    of = [one for one in decision.requirements if one.outcome in wanted]
    return [finding.kind for one in of for finding in one.findings]


def test_a_proven_figure_within_its_limit_passes(facts):
    decision = decided(facts)
    assert decision.exit_code == 0
    assert {one.outcome for one in decision.requirements} == {Outcome.PASSED}
    (within,) = decision.requirements[0].findings
    assert (within.kind, within.adversary, within.limit) == (Kind.WITHIN, "eavesdropper", 4.0)
    assert within.figure == pytest.approx(2.0738, abs=1e-3)
    assert within.remedy == ()


def test_a_figure_equal_to_its_limit_passes_and_the_next_number_does_not(facts):
    assert decided(changed(facts, epsilon=4.0)).exit_code == 0
    over = decided(changed(facts, epsilon=4.000000000000001))
    assert over.exit_code == 3
    assert "epsilon is 4.000000000000001 at delta 1e-5" in over.requirements[0].sentence


def test_a_figure_over_its_limit_names_figure_limit_and_what_the_accountant_says(facts):
    asked: list[tuple[Guarantee, FigureRequirement]] = []
    fix = Fix(action="rounds", adversary="eavesdropper", epsilon=0.97, status=PROVEN, rounds=25)

    def fixes(claim: Guarantee, of: FigureRequirement) -> list[Fix]:
        asked.append((claim, of))
        return [fix]

    decision = decided(facts, {**LIMIT, "epsilon": 1.0}, fixes=fixes)
    assert decision.exit_code == 3
    (over,) = decision.requirements[0].findings
    assert (over.kind, over.limit) == (Kind.OVER, 1.0)
    assert [remedy.action for remedy in over.remedy] == [Action.TARGET, Action.ROUNDS]
    assert over.remedy[1].epsilon == 0.97
    assert [(claim.adversary, of.epsilon) for claim, of in asked] == [("eavesdropper", 1.0)]


def test_a_fix_holds_at_the_smaller_delta_of_the_limit_and_says_so(facts):
    fix = Fix(action="rounds", adversary="eavesdropper", epsilon=0.97, status=PROVEN, rounds=25)
    limit = {**LIMIT, "epsilon": 1.0, "delta": 1e-6}
    decision = decided(facts, limit, fixes=lambda *_: [fix])
    remedy = decision.requirements[0].findings[-1].remedy[-1]
    assert (remedy.action, remedy.delta) == (Action.ROUNDS, 1e-6)
    assert "at most 0.9700 at delta 1e-6" in decision.requirements[0].sentence


def test_nothing_is_computed_for_a_figure_that_passes(facts):
    decided(facts, fixes=lambda *_: pytest.fail("a fix was computed"))


@pytest.mark.parametrize(
    ("changes", "kind", "action"),
    [
        ({"status": Status.HEURISTIC}, Kind.HEURISTIC, Action.PROVE),
        (NOTHING, Kind.UNPROTECTED, Action.HIDE),
        (NOTHING | {"status": Status.CANNOT_BE_EXPRESSED}, Kind.INEXPRESSIBLE, Action.EXPRESS),
        ({"delta": 1e-4}, Kind.LARGER_DELTA, Action.DELTA),
        ({"adjacency": "replace-one"}, Kind.OTHER_ADJACENCY, Action.ADJACENCY),
        ({"unit": "agent"}, Kind.OTHER_UNIT, Action.UNIT),
    ],
)
def test_what_is_not_proven_for_the_limit_does_not_pass(facts, changes, kind, action):
    decision = decided(changed(facts, **changes))
    assert decision.exit_code == 3
    (finding,) = decision.requirements[0].findings
    assert (finding.kind, [one.action for one in finding.remedy]) == (kind, [action])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("status", "heuristic"),
        ("bound", "central limit: approximation, may be too small"),
        ("bound", "not stated"),
    ],
)
def test_a_figure_without_an_upper_bound_is_heuristic(report, key, value):
    report["plan"]["adversaries"][0][key] = value
    assert kinds(decided(facts_of(report))) == [Kind.HEURISTIC]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("no protection", Kind.UNPROTECTED),
        ("cannot be expressed", Kind.INEXPRESSIBLE),
        ("proven", Kind.INEXPRESSIBLE),  # planned finite: more was released than has a bound
    ],
)
def test_an_infinite_figure_of_a_file_is_what_its_status_says(report, status, kind):
    report["ledger"]["epsilon"]["eavesdropper"] = "inf"
    row = next(r for r in report["plan"]["adversaries"] if r["name"] == "eavesdropper")
    if status != "proven":
        row |= {"status": status, "epsilon": "inf"}
    decision = decided(facts_of(report))
    assert (kinds(decision), decision.exit_code) == ([kind], 3)


def test_a_figure_at_a_smaller_delta_passes(facts):
    assert decided(facts, {**LIMIT, "delta": 1e-3}).exit_code == 0


def test_a_limit_for_an_agent_is_not_met_by_the_figure_of_a_record(facts):
    decision = decided(facts, {**LIMIT, "unit": "agent"})
    assert (decision.exit_code, decision.requirements[0].outcome) == (3, Outcome.OVER)


def test_every_reason_is_told(facts):
    decision = decided(changed(facts, epsilon=9.0, delta=1e-3, status=Status.HEURISTIC))
    assert kinds(decision) == [Kind.LARGER_DELTA, Kind.HEURISTIC, Kind.OVER]
    said = decision.requirements[0].sentence
    assert all(words in said for words in ("delta 0.001", "heuristic", "over the limit of 4"))


def test_noise_that_can_be_repeated_does_not_pass(facts):
    decision = decided(replace(facts, seeded=True))
    assert decision.exit_code == 3
    assert kinds(decision) == [Kind.SEEDED]


def test_the_figure_of_one_victim_does_not_pass_for_any_record(facts):
    decision = decided(replace(facts, victim=0))
    assert decision.exit_code == 3
    assert kinds(decision) == [Kind.ONE_VICTIM]
    assert "records of agent 0 alone" in decision.requirements[0].sentence


def test_the_published_form_is_told_to_be_repaired(facts):
    fix = Fix(action="repair", adversary="eavesdropper", epsilon=3.0, status=Status.PROVEN)
    decision = decided(changed(facts, status=Status.HEURISTIC), fixes=lambda *_: [fix])
    (heuristic,) = decision.requirements[0].findings
    assert [(one.action, one.epsilon) for one in heuristic.remedy] == [(Action.REPAIR, 3.0)]
    assert 'form = "repaired"' in decision.requirements[0].sentence


def test_a_single_message_never_passes(facts):
    decision = decided(facts, {**LIMIT, "adversary": "single-message"})
    assert decision.exit_code == 3
    (heuristic,) = decision.requirements[0].findings
    assert [one.action for one in heuristic.remedy] == [Action.EAVESDROPPER]


def test_the_figure_is_the_ledgers_and_not_the_plans(report):
    report["ledger"]["epsilon"]["eavesdropper"] = 5.0
    assert decided(facts_of(report)).exit_code == 3


def test_an_adversary_without_a_figure_is_missing_evidence(facts):
    decision = decided(facts, {**LIMIT, "adversary": "coalition:1,9"})
    assert decision.exit_code == 5
    assert kinds(decision) == [Kind.NOT_ACCOUNTED]
    said = decision.requirements[0].sentence
    assert "does not account for coalition:1,9, only for eavesdropper, neighbour" in said


@pytest.mark.parametrize("adversary", ["neighbour", "all-others", "neighbour:1", "coalition:1,2"])
def test_a_lone_agent_is_not_told_to_account_for_another(facts, adversary):
    claims = [claim for claim in facts.claims if claim.adversary == "eavesdropper"]
    alone = replace(facts, agents=1, claims=claims)
    decision = decided(alone, {**LIMIT, "adversary": adversary})
    assert kinds(decision) == [Kind.NOT_ACCOUNTED]
    assert "has one agent, so there is no such adversary" in decision.requirements[0].sentence
    unnamed = decided(alone, {**LIMIT, "adversary": "final-models"})
    assert "Name it in `adversaries`" in unnamed.requirements[0].sentence


def test_an_adversary_is_found_however_it_is_written(facts):
    named = changed(facts, "neighbour", adversary="coalition:1,9", epsilon=2.0)
    assert decided(named, {**LIMIT, "adversary": "coalition:9,1"}).exit_code == 0


def test_one_neighbour_is_not_the_worst_one(facts):
    assert decided(facts, {**LIMIT, "adversary": "neighbour:3"}).exit_code == 5


def test_a_missing_report_is_missing_evidence_and_says_what_writes_it(facts):
    decision = decided(ran(facts, reported=False))
    assert decision.exit_code == 5
    assert kinds(decision) == [Kind.NO_REPORT]
    assert "`overhear report DIR` writes it" in decision.requirements[1].sentence


def test_more_rebuilt_than_proven_contradicts_whatever_is_asked_for(facts):
    decision = decided(ran(facts, attack=attack(exceeded=True)))
    assert decision.exit_code == 4
    assert kinds(decision) == [Kind.REBUILT]
    assert "8 of 8 images were rebuilt" in decision.requirements[1].sentence


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        (
            audited(verdict="contradicted", measured_epsilon=9.23456),
            Kind.MEASURED,
            "at least 9.234 at delta 1e-5",
        ),
        (audit(verdict="contradicted"), Kind.MEASURED, "verdict of the audit is contradicted"),
        (audit(verdict="failed checks"), Kind.CHECK_FAILED, "of the audit is failed checks"),
        (
            audit(checks=[{**AUDIT["checks"][0], "passed": False}]),
            Kind.CHECK_FAILED,
            "failed (audit.json has it as failed, but its own verdict is consistent)",
        ),
        (
            audit(verdict="failed checks", checks=[{**AUDIT["checks"][0], "passed": False}]),
            Kind.CHECK_FAILED,
            "check residuals of the implementation failed (as stated)",
        ),
    ],
)
def test_an_audit_that_refutes_a_proof_contradicts(facts, found, kind, words):
    decision = decided(ran(facts, audit=found))
    assert decision.exit_code == 4
    assert kinds(decision) == [kind]
    assert words in decision.requirements[1].sentence


@pytest.mark.parametrize(
    "found",
    [
        audit(verdict="suspicious"),
        audited(verdict="suspicious"),
        audited(measured_epsilon=2.08),  # above the 2.074 of the ledger, whatever the audit says
        audited(measured_epsilon="inf"),
        audited(name="neighbour:1", measured_epsilon=2.08),  # the worst neighbour of the plan
    ],
)
def test_an_audit_in_doubt_must_be_settled_first(facts, found):
    decision = decided(ran(facts, audit=found))
    assert decision.exit_code == 5
    assert kinds(decision) == [Kind.SUSPICIOUS]
    assert decision.requirements[1].findings[0].remedy[0].action is Action.AUDIT_AGAIN


FRESH = {"epsilon": 2.0, "confidence": 0.95}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"verdict": "cleared", "fresh": FRESH}, Kind.CLEARED),
        ({"verdict": "consistent", "together": {**FRESH, "confidence": 0.95}}, Kind.AUDIT_AGREES),
        ({"verdict": "cleared"}, Kind.SUSPICIOUS),
        ({"verdict": "cleared", "fresh": {**FRESH, "epsilon": 2.09}}, Kind.SUSPICIOUS),
        ({"verdict": "cleared", "fresh": {**FRESH, "noise_scale": 0.9}}, Kind.SUSPICIOUS),
        ({"verdict": "cleared", "fresh": {**FRESH, "confidence": 0.6}}, Kind.SUSPICIOUS),
        ({"verdict": "consistent", "fresh": FRESH}, Kind.SUSPICIOUS),
        # Of one adversary nothing but itself takes a share of the risk, and messages a tenth.
        ({"verdict": "consistent", "together": {**FRESH, "confidence": 0.9999}}, Kind.SUSPICIOUS),
    ],
)
def test_a_bound_above_the_proof_passes_only_beside_a_look_that_explains_it(facts, changes, kind):
    found = audited(measured_epsilon=2.5, **changes)
    decision = decided(ran(facts, audit=found))
    assert [one.kind for one in decision.requirements[1].findings] == [kind]
    assert decision.exit_code == (5 if kind is Kind.SUSPICIOUS else 0)


@pytest.mark.parametrize("verdict", ["not measured", "nothing proven"])
def test_an_audit_that_could_hold_nothing_against_a_figure_says_so(facts, verdict):
    decision = decided(
        ran(facts, audit=audited(verdict=verdict).model_copy(update={"verdict": verdict}))
    )
    assert [one.kind for one in decision.requirements[1].findings] == [Kind.VAIN]
    assert verdict in decision.requirements[1].sentence
    assert decision.exit_code == 0


@pytest.mark.parametrize(
    ("ideal", "asked", "code"),
    [
        (0.20, {"audit_canaries": 10}, 5),
        (0.21, {"audit_canaries": 10}, 0),
        (0.20, {"audit_ideal": 0.05}, 0),
        (0.50, {"audit_ideal": 0.5}, 5),
        (1.5, {"audit_ideal": 0.5}, 0),
        (0.0, {}, 0),
    ],
)
def test_an_audit_that_could_show_too_little_is_no_evidence(facts, ideal, asked, code):
    # Of a figure of 2.08: a tenth is .208.
    found = audited(ideal_epsilon=ideal, measured_epsilon=0.0)
    decision = decided(ran(facts, audit=found), evidence=asked)
    assert decision.exit_code == code
    if code:
        assert Kind.WEAK_AUDIT in [one.kind for r in decision.requirements for one in r.findings]
        assert "Even a perfect audit of 1000 canaries" in decision.requirements[-1].sentence


def test_what_refutes_a_proof_stands_before_what_is_in_doubt(facts):
    row = AUDIT["adversaries"][0]
    rows = [row | {"verdict": "suspicious"}, row | {"verdict": "contradicted", "name": "x"}]
    decision = decided(ran(facts, audit=audit(adversaries=rows)))
    assert decision.exit_code == 4
    assert kinds(decision) == [Kind.MEASURED]


def test_a_bound_at_a_smaller_delta_says_nothing_about_the_figure(facts):
    found = audit(delta=1e-9, adversaries=[{**AUDIT["adversaries"][0], "measured_epsilon": 3.0}])
    assert decided(ran(facts, audit=found)).exit_code == 0


def test_contradicted_stands_above_over_and_over_above_missing(facts):
    bad, evidence = {**LIMIT, "epsilon": 1.0}, {"audit_canaries": 10}
    assert decided(facts, bad, evidence=evidence).exit_code == 3
    assert decided(facts, evidence=evidence).exit_code == 5
    contradicted = ran(facts, attack=attack(exceeded=True))
    assert decided(contradicted, bad, evidence=evidence).exit_code == 4


def test_an_audit_that_is_asked_for_passes(facts):
    asked = {"audit_canaries": 1000, "audit_confidence": 0.95}
    decision = decided(ran(facts, audit=audit()), evidence=asked)
    assert decision.exit_code == 0
    said = decision.requirements[-1].sentence
    assert "audited with 1000 canaries at confidence 0.95" in said


def test_an_audit_of_fewer_rounds_says_so(facts):
    decision = decided(ran(facts, audit=audit(rounds=5)), evidence={"audit_canaries": 1})
    assert "over 5 of 200 rounds" in decision.requirements[-1].sentence


@pytest.mark.parametrize(
    ("found", "kind", "figure", "limit"),
    [
        (None, Kind.NO_AUDIT, None, None),
        (audited(canaries=999), Kind.FEW_CANARIES, 999, 1000),
        (audit(confidence=0.9), Kind.LOW_CONFIDENCE, 0.9, 0.95),
        (audit(adversaries=[]), Kind.NOT_MEASURED, None, None),
        (audited(name="final-models"), Kind.NOT_MEASURED, None, None),
        (audited(measured_epsilon=None, verdict="not measured"), Kind.NOT_MEASURED, None, None),
        (audit(adjacency="replace-one"), Kind.AUDIT_ADJACENCY, None, None),
    ],
)
def test_an_audit_that_is_asked_for_and_lacks_something_is_missing(
    facts, found, kind, figure, limit
):
    asked = {"audit_canaries": 1000, "audit_confidence": 0.95}
    decision = decided(ran(facts, audit=found), evidence=asked)
    assert decision.exit_code == 5
    (gap,) = decision.requirements[-1].findings
    assert (gap.kind, gap.figure, gap.limit) == (kind, figure, limit)


def test_every_limited_adversary_must_be_audited(facts):
    limits = (LIMIT, {**LIMIT, "adversary": "final-models"})
    decision = decided(ran(facts, audit=audit()), *limits, evidence={"audit_canaries": 1})
    assert decision.exit_code == 5
    assert kinds(decision) == [Kind.NOT_MEASURED]
    assert decision.requirements[-1].findings[0].adversary == "final-models"


def test_an_audit_of_the_worst_neighbour_counts_for_the_neighbour(facts):
    found = ran(facts, audit=audited(name="neighbour:1"))
    limit = {**LIMIT, "adversary": "neighbour"}
    assert decided(found, limit, evidence={"audit_canaries": 1}).exit_code == 0


def test_every_preset_that_is_asked_for_must_have_been_tried(facts):
    asked = {"attack_presets": ["matched", "posterior"]}
    tried: Attack = attack()  # by matched, without public records to weigh
    decision = decided(ran(facts, attack=tried), evidence=asked)
    assert decision.exit_code == 5
    assert kinds(decision) == [Kind.NOT_TRIED]
    assert Kind.TRIED in kinds(decision, Outcome.PASSED)
    assert kinds(decided(facts, evidence=asked)) == [Kind.NO_ATTACK, Kind.NO_ATTACK]


def test_matched_satisfies_a_policy_that_names_a_weaker_preset(facts):
    asked = {"attack_presets": ["dlg", "idlg", "inverting-gradients"]}
    decision = decided(ran(facts, attack=attack()), evidence=asked)
    assert Kind.NOT_TRIED not in kinds(decision)
    assert kinds(decision, Outcome.PASSED).count(Kind.TRIED) == 3


def test_an_attack_that_saw_nothing_of_the_victim_alone_says_so(facts):
    asked, seen = {"attack_presets": ["matched"]}, attack()
    (scenario,) = seen.scenarios
    blind, told = (
        scenario.model_copy(
            update={"rows": [row.model_copy(update={"stage": [stage]}) for row in scenario.rows]}
        )
        for stage in (NOT_IDENTIFIED, "posterior")
    )
    for scenarios, says in (([blind], True), ([blind, told], False)):
        found = ran(facts, attack=seen.model_copy(update={"scenarios": scenarios}))
        said = decided(found, evidence=asked).requirements[-1].sentence
        assert "matched was tried on the run's own messages" in said
        assert ("rebuilt nothing and shows nothing" in said) is says


def test_an_attack_that_scored_nothing_was_not_tried(facts):
    asked = {"attack_presets": ["matched"]}
    empty = attack(rows=()), Attack.model_validate({"schema": 1, "scenarios": []})
    for tried in empty:
        decision = decided(ran(facts, attack=tried), evidence=asked)
        assert kinds(decision) == [Kind.NOT_TRIED]
    assert Kind.ATTACK_AGREES not in kinds(decision, Outcome.PASSED)


def test_a_figure_that_no_noise_makes_proven_is_given_no_target(facts):
    claims = [replace(claim, status=Status.HEURISTIC) for claim in facts.claims]
    found = judge(replace(facts, claims=claims), FigureRequirement.of_target(claims[0], 0.5))
    actions = {remedy.action for finding in found for remedy in finding.remedy}
    assert Kind.OVER in {finding.kind for finding in found}
    assert Action.TARGET not in actions


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"missing": 199}, Kind.ROUNDS_MISSING),
        ({"torn": True}, Kind.TORN),
        ({"finished": False}, Kind.CUT_OFF),
        ({"stopped": (150, "eavesdropper")}, Kind.STOPPED),
    ],
)
def test_a_run_that_was_cut_off_is_missing_evidence_unless_waived(facts, changes, kind):
    cut = ran(facts, **changes)
    decision = decided(cut)
    assert decision.exit_code == 5
    assert kinds(decision) == [kind]
    assert decided(cut, evidence={"complete_run": False}).exit_code == 0


def test_what_passes_and_still_matters_is_noted(facts):
    notes = decided(replace(ran(facts, duplicates=3), encrypted=True)).notes
    assert [note.split(" occur")[0].split(":")[0] for note in notes] == [
        "3 records",
        "The links are taken to be encrypted",
    ]
    assert [note[:28] for note in decided(ran(facts, torn=True)).notes] == [
        "The last line of the ledger "
    ]
    counted = "The number of records in all counts as public: the sampling rate comes from it."
    assert decided(replace(ran(facts), counted=counted)).notes == [counted]
    loose = decided(facts, LIMIT | {"delta": 0.9}).notes  # passes whatever epsilon is
    assert [note.partition(":")[0] for note in loose] == ["delta = 0.9 is large"]


def test_a_hostile_name_makes_one_harmless_line(facts):
    words = "x\n\x1b[2JPASSED"
    found = audited(verdict="contradicted", words=words, name=words)
    for one in decided(ran(facts, folder=words, audit=found, reported=False)).requirements:
        assert "\n" not in one.sentence + one.name
        assert "\x1b" not in one.sentence + one.name


def test_a_policy_is_held_against_a_run_and_not_against_a_plan(facts):
    with pytest.raises(ValueError, match="facts are those of a plan"):
        decided(replace(facts, ran=None))


def test_a_plan_without_a_figure_says_what_the_run_file_can_ask_for(facts):
    with pytest.raises(InputError, match=r"name one in \[privacy\] adversaries, such as"):
        decide_plan(replace(facts, claims=(), target=None))


def test_a_decision_needs_a_requirement():
    with pytest.raises(ValueError, match="decides nothing"):
        Decision(requirements=[])


def opinion(
    verdict: str = "confirmed", *, optimistic: float | None = 1.9, because: str = ""
) -> SecondOpinion:
    return SecondOpinion.model_validate(
        {
            "by": "dp-accounting 0.6.0",
            "epsilon": 2.0739,
            "optimistic": optimistic,
            "pessimistic": None if optimistic is None else max(2.074, optimistic),
            "ratio": None if optimistic is None else 0.9999,
            "verdict": verdict,
            "because": because,
        }
    )


def traced(verdict: Verdict = Verdict.AGREES, because: str = "") -> dict[str, TracedTwice]:
    one = TracedTwice(
        adversary="eavesdropper", who="eavesdropper", victim=0, first=17.32,
        second=None if verdict is Verdict.NOT_CHECKED else 17.32, verdict=verdict,
        because=because,
    )  # fmt: skip
    return {"eavesdropper": one}


ASKED = {"second_opinion": True}


def test_a_second_trace_is_evidence_where_a_second_opinion_is_asked_for(facts):
    fine = {"eavesdropper": opinion()}
    decision = decided(ran(facts, opinions=fine, traced=traced(Verdict.LOOSER)), evidence=ASKED)
    assert decision.exit_code == 0
    assert decision.requirements[-1].name == "evidence: second trace of eavesdropper"
    small = traced(Verdict.NOT_CHECKED, "the view has 900 rows, and at most 800 are checked")
    for held, why in (({}, "none was requested"), (small, "the view has 900 rows")):
        decision = decided(ran(facts, opinions=fine, traced=held), evidence=ASKED)
        assert decision.exit_code == 5
        assert kinds(decision) == [Kind.NOT_TRACED]
        assert why in decision.requirements[-1].sentence


def test_a_second_trace_that_contradicts_fails_every_policy(facts):
    wrong = ran(facts, traced=traced(Verdict.CONTRADICTED, "neighbour:1 learns more of agent 0"))
    decision = decided(wrong)  # not asked for
    assert decision.exit_code == 4
    assert kinds(decision) == [Kind.TRACE_CONTRADICTS]
    said = decision.requirements[1].sentence
    assert "neighbour:1 learns more of agent 0" in said
    assert "Do not rely on any figure of this run" in said
    assert verdict(wrong).doubt == "contradicted"


def test_a_second_opinion_is_asked_for_by_the_policy_alone(facts):
    found = ran(facts, opinions={"eavesdropper": opinion()}, traced=traced())
    assert Kind.CONFIRMED not in kinds(decided(found), Outcome.PASSED)
    decision = decided(found, evidence=ASKED)
    assert decision.exit_code == 0
    last = decision.requirements[-2]
    assert last.name == "evidence: second opinion on eavesdropper"
    for words in ("dp-accounting 0.6.0 puts", "between 1.900 and 2.074", "is 0.9999 of its upper"):
        assert words in last.sentence


@pytest.mark.parametrize(
    "held", [{}, {"eavesdropper": opinion("none", optimistic=None, because="it takes too long")}]
)
def test_a_second_opinion_that_is_not_there_is_missing_evidence(facts, held):
    decision = decided(ran(facts, opinions=held, traced=traced()), evidence=ASKED)
    assert decision.exit_code == 5
    assert kinds(decision) == [Kind.NO_OPINION]
    said = decision.requirements[-2].sentence
    assert ("it takes too long" if held else "none was requested") in said
    assert "leave `second_opinion` out of the policy" in said


def test_a_second_opinion_well_above_the_figure_does_not_confirm_it(facts):
    found = ran(facts, opinions={"eavesdropper": opinion("not confirmed")}, traced=traced())
    assert decided(found).exit_code == 0
    decision = decided(found, evidence=ASKED)
    assert decision.exit_code == 5
    assert kinds(decision) == [Kind.NOT_CONFIRMED]
    assert '`accountant = "dp-accounting"`' in decision.requirements[-2].sentence


def test_a_second_opinion_on_a_figure_that_is_not_proven_is_none(facts):
    found = ran(changed(facts, status=Status.HEURISTIC), opinions={"eavesdropper": opinion()})
    decision = decided(found, evidence=ASKED)
    assert "the figure is not proven" in decision.requirements[-2].sentence
    unknown = decided(found, {**LIMIT, "adversary": "neighbour:7"}, evidence=ASKED)
    assert "the run does not account for it" in unknown.requirements[-2].sentence


def test_a_second_opinion_that_contradicts_fails_every_policy(facts):
    wrong = ran(facts, opinions={"single-message": opinion("contradicted", optimistic=2.5)})
    decision = decided(wrong)  # of another adversary, and not asked for
    assert decision.exit_code == 4
    assert kinds(decision) == [Kind.OPINION_CONTRADICTS]
    said = decision.requirements[1].sentence
    assert "epsilon against single-message at no less than 2.5 " in said
    assert "Do not rely on any figure of this run" in said
    judged = verdict(wrong)
    assert judged.doubt == "contradicted"
    assert text_of(judged.headline) == "Contradicted: another library finds more than is proven"


MEMBERSHIP: list[tuple[Any, dict[str, Any], Kind, int]] = [
    (None, {"membership": True}, Kind.NO_MEMBERSHIP, 5),
    (membership(), {"membership": True}, Kind.INFERRED, 0),
    (membership(verdict="nothing proven"), {"membership": True}, Kind.INFERRED, 0),
    (membership(verdict="suspicious"), {"membership": True}, Kind.MEMBERS_DOUBTED, 5),
    (membership(), {"membership_tpr_at_1_percent": 0.04}, Kind.INFERRED, 0),
    (membership(), {"membership_tpr_at_1_percent": 0.039}, Kind.MEMBERS_FOUND, 3),
    (membership(high=None), {"membership_tpr_at_1_percent": 1.0}, Kind.MEMBERS_NOT_MEASURED, 5),
    (None, {"membership_tpr_at_1_percent": 1.0}, Kind.NO_MEMBERSHIP, 5),
]


@pytest.mark.parametrize(("found", "evidence", "kind", "code"), MEMBERSHIP)
def test_membership_is_evidence_that_can_be_asked_for(facts, found, evidence, kind, code):
    decision = decided(ran(facts, membership=found), evidence=evidence)
    assert decision.exit_code == code
    (one,) = [r for r in decision.requirements if r.name == "evidence: membership"]
    assert [finding.kind for finding in one.findings] == [kind]


def test_guesses_that_contradict_a_proof_count_whether_they_were_asked_for_or_not(facts):
    decision = decided(ran(facts, membership=membership(verdict="contradicted")))
    assert decision.exit_code == 4
    assert Kind.MEMBERS_GUESSED in kinds(decision, Outcome.CONTRADICTED)
    assert decided(ran(facts, membership=membership(verdict="suspicious"))).exit_code == 0


TESTS = {"adversary": "eavesdropper", "max_advantage": 0.1}
RATES = {"adversary": "eavesdropper", "max_tpr_at": {"tpr": 0.05, "fpr": 0.01}}


def test_membership_tests_are_held_against_their_limits(facts):
    asked = []

    def risks(claim: Guarantee, goal: Goal) -> float:
        asked.append((claim.adversary, goal.words))
        return goal.figure

    decision = decided(facts, TESTS | {"epsilon": 4, "delta": 1e-5} | RATES, risks=risks)
    assert decision.exit_code == 0
    assert asked == [("eavesdropper", "advantage 0.1"), ("eavesdropper", "TPR 0.05 at FPR 0.01")]
    assert [one.name for one in decision.requirements[:3]] == [
        "limit: eavesdropper, epsilon 4 at delta 1e-5",
        "limit: eavesdropper, advantage 0.1 of membership tests",
        "limit: eavesdropper, TPR 0.05 at FPR 0.01 of membership tests",
    ]
    assert "proven; the limit is advantage 0.1." in decision.requirements[1].sentence


@pytest.mark.parametrize("limit", [TESTS, RATES], ids=["advantage", "TPR"])
def test_membership_tests_over_their_limit_do_not_pass(facts, limit):
    decision = decided(facts, limit, risks=lambda _, goal: goal.figure * (1 + 1e-12))
    assert decision.exit_code == 3
    assert kinds(decision) == [Kind.RISK_OVER]
    said = decision.requirements[0].sentence
    assert '`adversary = "eavesdropper"` in [privacy]' in said
    assert ("`advantage = 0.1`" if limit is TESTS else "`tpr = 0.05`, `fpr = 0.01`") in said
    assert kinds(decided(facts, limit, risks=lambda *_: math.nan)) == [Kind.RISK_OVER]


def test_membership_tests_of_which_nothing_is_proven_do_not_pass(facts):
    """However small what is said of them: heuristic, infinite, seeded, another unit or nobody."""

    def nothing(*_: Any) -> float:
        return 0.0

    assert decided(facts, TESTS).exit_code == 3  # nobody says what they come to
    assert decided(facts, TESTS, risks=nothing).exit_code == 0
    for worse, kind in (
        (changed(facts, status=Status.HEURISTIC), Kind.HEURISTIC),
        (changed(facts, **NOTHING), Kind.UNPROTECTED),
        (changed(facts, **NOTHING | {"status": Status.CANNOT_BE_EXPRESSED}), Kind.INEXPRESSIBLE),
        (replace(facts, seeded=True), Kind.SEEDED),
        (changed(facts, unit="agent"), Kind.OTHER_UNIT),
        (changed(facts, adjacency="replace-one"), Kind.OTHER_ADJACENCY),
        (replace(facts, victim=2), Kind.ONE_VICTIM),
        (replace(facts, whose="one person with 1 record at agent 0"), Kind.ONE_VICTIM),
    ):
        decision = decided(worse, TESTS, risks=nothing)
        assert decision.exit_code == 3, kind
        assert kinds(decision, Outcome.OVER) == [kind]
    assert decided(facts, TESTS | {"adversary": "server"}, risks=nothing).exit_code == 5


def test_figures_about_one_person_pass_no_limit_for_any_record(facts):
    decision = decided(replace(facts, whose="one person with 2 records at agent 0"))
    assert kinds(decision) == [Kind.ONE_VICTIM]
    said = decision.requirements[0].sentence
    assert "The figure is for one person with 2 records at agent 0 alone" in said
    assert "Leave `holders` out of [privacy]" in said
