"""What would turn a finding: each remedy meets what it promises."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from overhear.privacy.guarantee import Guarantee
from overhear.privacy.releases.ledger import Spent
from overhear.reports.judgement.facts import FigureRequirement, facts_of_plan
from overhear.reports.judgement.policy import Limit
from overhear.reports.judgement.remedies import as_planned, fixes_of_run, limit_fixes, rounds_within
from overhear.reports.schema import Remedy as Fix
from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.build import graph_of
from overhear.runs.run_file.run_file import RunFile
from overhear.training.exposure.events import accounted
from overhear.training.exposure.guarantees import run_epsilon
from tests.reports.judgement.planned import config_of, plan_of

config = partial(config_of, 40)


def ledger(plan: Plan, again: int = 0) -> Spent:
    numbers = [*range(plan.rounds + 1), *range(1, again + 1)]
    return Spent(header={}, entries=[{"round": n} for n in numbers], torn=False)


def cost_of(plan: Plan, rounds: int) -> float:
    exposure, noise = plan.exposures["eavesdropper"], plan.noise_multiplier
    return run_epsilon(exposure, rounds=rounds, noise_multiplier=noise, statement=plan.said_of)


def spent_by(plan: Plan, spent: Spent) -> dict[str, float]:
    return {
        name: run_epsilon(
            accounted(exposure, spent.numbers),
            noise_multiplier=plan.noise_multiplier,
            statement=plan.said_of,
        )
        for name, exposure in plan.exposures.items()
    }


def remedies(run: RunFile, again: int = 0) -> dict[str, Fix]:
    plan = plan_of(run)
    spent = ledger(plan, again)
    epsilon = spent_by(plan, spent)
    found = fixes_of_run(run, plan, spent, graph=graph_of(run), epsilon=epsilon)
    return {fix.action: fix for fix in found}


def test_a_run_that_meets_its_target_needs_no_remedy():
    assert remedies(config()) == {}


def test_the_noise_and_the_rounds_that_are_named_would_have_met_the_target():
    run = config()
    plan = plan_of(run)
    exposure = plan.exposures["eavesdropper"]
    found = remedies(run, again=10)
    noise, rounds = found["noise"].noise_multiplier, found["rounds"].rounds
    assert isinstance(noise, float)
    assert rounds is not None
    released = accounted(exposure, ledger(plan, 10).numbers)
    assert run_epsilon(released, noise_multiplier=noise, statement=plan.said_of) <= 2.0
    assert noise > plan.noise_multiplier
    assert found["rounds"].epsilon == pytest.approx(cost_of(plan, rounds))
    assert cost_of(plan, rounds) <= 2.0 < cost_of(plan, rounds + 1)


def test_a_published_form_is_fixed_by_the_repaired_one():
    run = config(algorithm={"form": "published"}, privacy={"epsilon": None, "noise_multiplier": 3})
    repaired = config(privacy={"epsilon": None, "noise_multiplier": 3})
    found = remedies(run)["repair"]
    assert found.status == "proven"
    assert found.epsilon == plan_of(repaired).guarantee("eavesdropper").epsilon


def test_a_remedy_that_is_no_better_is_not_named():
    """DPDL's final models cost an adversary as much as its messages: encryption fixes nothing."""
    assert "encrypt" not in remedies(config(), again=10)


def test_what_cannot_be_fixed_by_noise_has_no_remedy():
    run = config(
        algorithm={"name": "whisper", "form": None},
        privacy={"epsilon": None, "noise_multiplier": 3, "adversary": "neighbour"},
    )
    assert remedies(run) == {}


def test_rounds_within_a_limit_are_the_last_that_it_allows():
    plan = plan_of(config())
    of = rounds_within(plan, ledger(plan), limit=1.0)["eavesdropper"]
    assert of.epsilon == cost_of(plan, of.rounds) <= 1.0 < cost_of(plan, of.rounds + 1)


def test_a_limit_that_is_never_passed_has_no_round():
    plan = plan_of(config())
    assert rounds_within(plan, ledger(plan), limit=2.0) == {}


def test_a_limit_that_one_round_passes_leaves_none():
    run = config()
    plan = plan_of(run)
    assert rounds_within(plan, ledger(plan), limit=1e-6)["eavesdropper"].rounds == 0


def limited(run: RunFile, **limit: Any) -> tuple[Guarantee, dict[str, Fix]]:
    """What the accountant names for a policy's limit on a run that went as planned."""
    plan = plan_of(run)
    claim = facts_of_plan(run, plan).claim(limit.get("adversary", "eavesdropper"))
    assert claim is not None
    [asked] = FigureRequirement.of_limit(
        Limit.model_validate({"adversary": claim.adversary, "delta": 1e-5} | limit)
    )
    return claim, {fix.action: fix for fix in limit_fixes(run, as_planned(plan))(claim, asked)}


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        pytest.param({}, {"epsilon": 1.0}, marks=pytest.mark.slow),
        ({"privacy": {"epsilon": 8}}, {"epsilon": 4.0}),
        pytest.param(
            {"training": {"sampling_rate": 0.02, "rounds": 90}},
            {"epsilon": 1.2},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"algorithm": {"name": "ldp-dsgd"}, "privacy": {"epsilon": 8}},
            {"epsilon": 4.0},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"privacy": {"epsilon": None, "noise_multiplier": 3}},
            {"epsilon": 1.0},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"privacy": {"adjacency": "replace-one"}},
            {"epsilon": 1.0, "adjacency": "replace-one"},
            marks=pytest.mark.slow,
        ),
        pytest.param({}, {"epsilon": 1.5, "delta": 1e-6}, marks=pytest.mark.slow),
        pytest.param({}, {"epsilon": 1.5, "delta": 1e-4}, marks=pytest.mark.slow),
        pytest.param(
            {"graph": {"name": "star"}, "privacy": {"victim": 1}},
            {"epsilon": 1.9},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"training": {"evaluation_noise_seed": 3, "rounds": 30}},
            {"epsilon": 1.0},
            marks=pytest.mark.slow,
        ),
        pytest.param({}, {"epsilon": 1.0, "adversary": "neighbour"}, marks=pytest.mark.slow),
    ],
)
def test_the_rounds_and_the_noise_that_are_named_for_a_limit_meet_it_and_one_round_more_does_not(
    changes, limit
):
    run = config(**changes)
    claim, found = limited(run, **limit)
    stated = {
        "epsilon": None,
        "noise_multiplier": plan_of(run).noise_multiplier,
        "delta": min(1e-5, limit.get("delta", 1e-5)),
        "adjacency": limit.get("adjacency", "add-or-remove-one"),
        "adversary": claim.adversary,
        "victim": None,
    }
    kept = {"training": changes.get("training", {}) | {"evaluation_noise_seed": None}}

    def cost(**of: dict[str, object]) -> float:
        tables = {**changes, **kept, "privacy": changes.get("privacy", {}) | stated}
        for table, keys in of.items():
            tables[table] = tables[table] | keys
        return make_plan(config(**tables)).guarantee(claim.adversary).epsilon

    rounds, noise = found["rounds"].rounds, found["noise"].noise_multiplier
    assert rounds is not None
    fewer, noisier = cost(training={"rounds": rounds}), cost(privacy={"noise_multiplier": noise})
    assert max(fewer, noisier) <= limit["epsilon"] < cost(training={"rounds": rounds + 1})
    assert fewer == pytest.approx(found["rounds"].epsilon)
    assert noisier == pytest.approx(found["noise"].epsilon)


def test_nothing_is_named_for_the_limit_of_an_agent():
    assert limited(config(), epsilon=1.0, unit="agent")[1] == {}


def test_the_rounds_that_are_named_are_the_accountants_and_not_a_charts():
    """Of 40 rounds a chart plots the cost of 7 and of 10; the limit allows 8."""
    run = config(
        algorithm={"name": "dp-dpsgd"}, privacy={"epsilon": 8}, training={"sampling_rate": 0.25}
    )
    _, found = limited(run, epsilon=4.0)
    assert (found["rounds"].rounds, found["rounds"].epsilon) == (8, pytest.approx(3.8398, abs=1e-4))


def test_a_limit_that_no_round_meets_names_noise_alone():
    _, found = limited(config(), epsilon=1e-3)
    assert list(found) == ["noise"]


@pytest.mark.slow
def test_a_limit_that_the_accountant_does_not_cover_has_no_fix_and_stops_nothing():
    run = config(
        algorithm={"name": "dp-dpsgd", "form": None}, privacy={"epsilon": 8, "accountant": "rdp"}
    )
    plan = plan_of(run)
    facts = facts_of_plan(run, plan)
    asked = replace(FigureRequirement.of_target(facts.head, 5.0), adjacency="replace-one")
    assert list(limit_fixes(run, ledger(plan))(facts.head, asked)) == []
