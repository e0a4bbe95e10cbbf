"""Second opinions of a plan: of the releases that its figures are of."""

import dataclasses
import math

import pytest

from overhear.privacy import second_opinion
from overhear.runs.plan.opinions import (
    bracket_words,
    contradiction,
    described,
    opinions,
    with_opinions,
)
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.exposure.guarantees import opinion_on, run_epsilon
from tests.small_run import run_text

RUN = run_text(
    "dpdl",
    agents=4,
    privacy={
        "noise_multiplier": 2.0,
        "delta": 1e-05,
        "adversaries": ["eavesdropper", "single-message"],
    },
    training={"rounds": 20, "sampling_rate": 0.1},
)


def planned(folder, text):
    (folder / "run.toml").write_text(text)
    return make_plan(load_run_file(folder / "run.toml"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return planned(tmp_path_factory.mktemp("plan"), RUN)


def test_every_adversary_of_a_plan_has_a_bracket_around_its_own_figure(plan):
    found = with_opinions(plan).second_opinion
    assert found.keys() == {"eavesdropper", "single-message"}
    for g in plan.guarantees:
        one = found[g.adversary]
        assert one.epsilon == g.epsilon
        assert one.verdict == "confirmed"
        assert one.optimistic <= g.epsilon <= 1.001 * one.pessimistic
    assert found["eavesdropper"].pessimistic > found["single-message"].pessimistic
    assert plan.planned().second_opinion is None  # only where it is asked for


def test_the_bracket_is_of_the_rounds_that_were_released(plan):
    exposure = plan.exposures["eavesdropper"]
    how = {"statement": plan.said_of, "noise_multiplier": plan.noise_multiplier}
    for rounds in (5, [1, 2, 2, 3, 3, 3], None):
        spent = run_epsilon(exposure, **how, rounds=rounds)
        found = opinion_on(spent, exposure, **how, rounds=rounds)
        assert found.confirms, rounds
    fewer = opinion_on(run_epsilon(exposure, **how, rounds=5), exposure, **how)
    assert fewer.contradicts  # 5 rounds are not 20


def test_the_accountant_can_be_dp_accounting(plan, tmp_path):
    text = RUN.replace("delta = 1e-05", 'delta = 1e-05\naccountant = "dp-accounting"')
    theirs = planned(tmp_path, text)
    for g in theirs.guarantees:
        ours = plan.guarantee(g.adversary).epsilon
        assert g.bound == "privacy loss distribution by dp-accounting"
        assert g.epsilon == pytest.approx(ours, rel=1e-3)
    assert {one.verdict for one in with_opinions(theirs).second_opinion.values()} == {"confirmed"}
    aimed = text.replace("noise_multiplier = 2.0", "epsilon = 1.0")
    assert 0.999 < planned(tmp_path, aimed).guarantee("eavesdropper").epsilon <= 1.0


def test_an_infinite_figure_has_no_bracket(plan):
    silent = dataclasses.replace(plan, noise_multiplier=0.0)
    found = opinions(silent, silent.exposures, dict.fromkeys(silent.exposures, math.inf))
    assert {one.verdict for one in found.values()} == {"none"}
    assert {one.dump()["optimistic"] for one in found.values()} == {None}


def test_the_words_say_what_was_found():
    rounds = {(1.0, 0.01): 1000}
    fine = described(second_opinion(rounds, ours=1.8283, delta=1e-5))
    wrong = described(second_opinion(rounds, ours=1.0, delta=1e-5))
    none = described(second_opinion(rounds, ours=1.8283, delta=1e-13))
    free = described(second_opinion({}, ours=0.0, delta=1e-5))
    assert bracket_words(fine).startswith("epsilon between 1.70 and 1.83, and ours is ")
    assert bracket_words(wrong).startswith("CONTRADICTED: epsilon between")
    assert bracket_words(none).startswith("none: delta=1e-13 is below")
    assert bracket_words(free) == "epsilon is 0"
    assert contradiction({"a": fine, "b": none, "c": free}) == ""
    said = contradiction({"a": fine, "b": wrong})
    assert said.startswith("dp-accounting")
    assert "epsilon against b at no less than 1.70" in said
    assert "more than the 1 that is stated" in said
