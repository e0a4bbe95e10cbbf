"""What would turn a verdict: each remedy meets what it promises."""

from __future__ import annotations

import tomllib

import pytest

from overhear.privacy.guarantee import Statement
from overhear.privacy.ledger import Spent
from overhear.reports.judgement.mending import mending, rounds_within
from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.build import graph_of
from overhear.runs.run_file.run_file import RunFile
from overhear.training.exposure.guarantees import accounted, run_epsilon

RUN = """
data.name = "digits"
data.agents = 4
model.name = "linear"
algorithm = {name = "dpdl", form = "repaired"}
privacy = {epsilon = 2, delta = 1e-5}
training = {rounds = 40, sampling_rate = 0.1}
"""


def config(**changes: dict[str, object]) -> RunFile:
    tables = tomllib.loads(RUN)
    for table, keys in changes.items():
        tables[table] = tables.get(table, {}) | keys
        tables[table] = {key: value for key, value in tables[table].items() if value is not None}
    return RunFile.model_validate(tables)


def ledger(plan: Plan, again: int = 0) -> Spent:
    numbers = [*range(plan.rounds + 1), *range(1, again + 1)]
    return Spent(header={}, entries=[{"round": n} for n in numbers], torn=False)


def spent_by(plan: Plan, spent: Spent) -> dict[str, float]:
    return {
        name: run_epsilon(
            accounted(exposure, spent.numbers),
            noise_multiplier=plan.noise_multiplier,
            statement=Statement(delta=1e-5),
        )
        for name, exposure in plan.exposures.items()
    }


def remedies(run: RunFile, again: int = 0) -> dict[str, dict[str, object]]:
    plan = make_plan(run)
    spent = ledger(plan, again)
    epsilon = spent_by(plan, spent)
    found = mending(run, plan, spent, graph=graph_of(run), epsilon=epsilon)
    return {str(entry["action"]): entry for entry in found}


def test_a_run_that_meets_its_target_needs_no_remedy() -> None:
    assert remedies(config()) == {}


def test_the_noise_and_the_rounds_that_are_named_would_have_met_the_target() -> None:
    run = config()
    plan = make_plan(run)
    exposure = plan.exposures["eavesdropper"]
    found = remedies(run, again=10)
    noise, rounds = found["noise"]["noise_multiplier"], found["rounds"]["rounds"]
    assert isinstance(noise, float)
    assert isinstance(rounds, int)
    released = accounted(exposure, ledger(plan, 10).numbers)
    assert run_epsilon(released, noise_multiplier=noise, statement=Statement(delta=1e-5)) <= 2.0
    assert noise > plan.noise_multiplier
    how = {"noise_multiplier": plan.noise_multiplier, "statement": plan.statement}
    assert run_epsilon(exposure, rounds=rounds, **how) <= 2.0
    assert run_epsilon(exposure, rounds=rounds + 1, **how) > 2.0
    assert found["rounds"]["epsilon"] == pytest.approx(run_epsilon(exposure, rounds=rounds, **how))


def test_a_published_form_is_mended_by_the_repaired_one() -> None:
    run = config(algorithm={"form": "published"}, privacy={"epsilon": None, "noise_multiplier": 3})
    repaired = config(privacy={"epsilon": None, "noise_multiplier": 3})
    found = remedies(run)["repair"]
    assert found["status"] == "proven"
    assert found["epsilon"] == make_plan(repaired).guarantee("eavesdropper").epsilon


def test_a_remedy_that_is_no_better_is_not_named() -> None:
    """DPDL's final models cost an onlooker as much as its messages, so encryption mends nothing."""
    assert "encrypt" not in remedies(config(), again=10)


def test_what_cannot_be_mended_by_noise_has_no_remedy() -> None:
    run = config(
        algorithm={"name": "whisper", "form": None},
        privacy={"epsilon": None, "noise_multiplier": 3, "adversary": "neighbour"},
    )
    assert remedies(run) == {}


def test_rounds_within_a_limit_are_the_last_that_it_allows() -> None:
    run = config()
    plan = make_plan(run)
    found = rounds_within(plan, ledger(plan), limit=1.0)
    of = found["eavesdropper"]
    how = {"noise_multiplier": plan.noise_multiplier, "statement": plan.statement}
    exposure = plan.exposures["eavesdropper"]
    assert of["epsilon"] == run_epsilon(exposure, rounds=of["rounds"], **how)
    assert of["epsilon"] <= 1.0
    assert run_epsilon(exposure, rounds=of["rounds"] + 1, **how) > 1.0


def test_a_limit_that_is_never_passed_has_no_round() -> None:
    run = config()
    plan = make_plan(run)
    assert rounds_within(plan, ledger(plan), limit=2.0) == {}


def test_a_limit_that_one_round_passes_leaves_none() -> None:
    run = config()
    plan = make_plan(run)
    assert rounds_within(plan, ledger(plan), limit=1e-6)["eavesdropper"]["rounds"] == 0
