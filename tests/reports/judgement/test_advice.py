"""What a plan says: each leak has its sentence, and each remedy meets what it promises."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest

from overhear.reports.judgement.remedies import Advice, What, advise
from overhear.runs.plan.plan import Plan
from overhear.runs.run_file.run_file import RunFile
from overhear.training.exposure.guarantees import run_epsilon
from tests.reports.judgement.planned import config_of, plan_of

GIVEN = {"epsilon": None, "noise_multiplier": 3.0}
ALONE = {"adversary": "single-message"}  # a target that every real adversary passes


config = partial(config_of, 16)


def advised(run: RunFile) -> dict[What, Advice]:
    return {entry.what: entry for entry in advise(run, plan_of(run))}


def test_a_met_target_is_said_with_whoever_comes_closest():
    run = config()
    plan = plan_of(run)
    (only,) = advise(run, plan)
    assert only.what is What.WITHIN
    assert only.epsilon == plan.guarantees[0].epsilon
    assert "the eavesdropper, about whether a given record of agent 0" in only.words
    assert "at most 2.00 at delta 1e-5" in only.words


def test_a_plan_without_target_says_how_to_set_one():
    found = advised(config(privacy=GIVEN))
    assert list(found) == [What.LEAK, What.NO_TARGET]
    assert "epsilon is at most" in found[What.LEAK].words
    assert "epsilon = 1" in found[What.NO_TARGET].words


def test_whoever_is_over_the_target_is_named_with_the_figure():
    run = config(privacy=ALONE)
    plan = plan_of(run)
    leak = advised(run)[What.LEAK]
    assert leak.epsilon == plan.guarantee("eavesdropper").epsilon
    assert "over the limit of 2." in leak.words
    assert "same goes for the worst single neighbour (agent 0) at epsilon" in leak.words


def test_the_noise_and_the_target_that_are_named_meet_the_target():
    found = advised(config(privacy=ALONE))
    noise = re.search(r"noise_multiplier = ([\d.]+)", found[What.NOISE].words)
    assert noise is not None
    run = config(privacy={"epsilon": None, "noise_multiplier": float(noise[1])})
    assert plan_of(run).guarantee("eavesdropper").epsilon <= 2.0
    assert 'adversary = "eavesdropper"' in found[What.ADVERSARY].words
    named = plan_of(config())
    assert found[What.ADVERSARY].epsilon == named.guarantee("eavesdropper").epsilon
    assert named.noise_multiplier == pytest.approx(float(noise[1]), rel=1e-3)


def test_the_rounds_that_are_named_meet_the_target_and_one_more_does_not():
    run = config(privacy=ALONE, training={"rounds": 40})
    plan = plan_of(run)
    entry = advised(run)[What.ROUNDS]
    said = re.search(r"(\d+) rounds? in place of 40", entry.words)
    assert said is not None
    exposure = plan.exposures["eavesdropper"]
    how = {"noise_multiplier": plan.noise_multiplier, "statement": plan.said_of}
    assert entry.epsilon == pytest.approx(run_epsilon(exposure, rounds=int(said[1]), **how))
    assert entry.epsilon is not None
    assert entry.epsilon <= 2.0
    assert run_epsilon(exposure, rounds=int(said[1]) + 1, **how) > 2.0


def test_rounds_that_change_with_their_number_are_not_named():
    """DECOR's horizon of all rounds: fewer rounds have another correlation, and are over."""
    run = config(
        data={"agents": 10}, algorithm={"name": "decor", "form": None, "horizon": 0},
        privacy={"epsilon": 1, "delta": 1e-4}, training={"rounds": 150, "sampling_rate": 0.2},
    )  # fmt: skip
    found = advised(run)
    assert What.ROUNDS not in found
    assert "depends on their number" in found[What.SKIPPED].words


def test_a_published_form_is_fixed_by_the_repaired_one_at_the_same_noise():
    found = advised(config(algorithm={"form": "published"}, privacy=GIVEN))
    repaired = plan_of(config(privacy=GIVEN)).guarantee("eavesdropper")
    assert found[What.REPAIR].epsilon == repaired.epsilon
    assert "no limit to how well is proven" in found[What.LEAK].words
    assert "noise-free gradient" in found[What.LEAK].words


@pytest.mark.slow
def test_encrypted_links_are_named_with_what_an_outsider_then_learns():
    changes = {"name": "dpmixsgd", "form": "published"}
    short = {"rounds": 4}
    models = {"adversary": "final-models"}
    run = config(algorithm=changes, training=short, privacy=models)
    plan = plan_of(run)
    kept = {"epsilon": None, "noise_multiplier": plan.noise_multiplier}
    hidden = config(algorithm=changes, training=short, privacy=kept, graph={"links": "encrypted"})
    found = {entry.what: entry for entry in advise(run, plan)}
    then = plan_of(hidden).guarantee("eavesdropper").epsilon
    assert found[What.ENCRYPT].epsilon == pytest.approx(then)
    assert then < plan.guarantee("eavesdropper").epsilon
    assert "4 count as one release" in found[What.SKIPPED].words


def test_an_infinite_figure_names_the_messages_without_noise():
    found = advised(config(algorithm={"name": "whisper", "form": None}))
    assert found[What.LEAK].epsilon == float("inf")
    assert "model of agent 1 to 0, 2" in found[What.LEAK].words
    assert found[What.LEAK].to_json()["epsilon"] == "inf"
    assert "More noise does not help" in found[What.ALGORITHM].words


def test_an_algorithm_without_noise_is_sent_to_one_with():
    tables = json.loads(config().model_dump_json(exclude_unset=True)) | {
        "algorithm": {"name": "dsgd"}
    }
    del tables["privacy"]
    found = advised(RunFile.model_validate(tables))
    assert 'name = "dp-dpsgd"' in found[What.ALGORITHM].words
    assert "no [privacy] table" in found[What.NO_TARGET].words


def test_no_noise_at_all_is_fixed_by_a_target():
    found = advised(config(privacy={"epsilon": None, "noise_multiplier": 0.0}))
    assert found[What.LEAK].epsilon == float("inf")
    assert "`noise_multiplier = 0` adds no noise" in found[What.NOISE].words
    assert What.NO_TARGET not in found  # it would say the same again


def test_noise_from_a_seed_is_fixed_by_leaving_the_seed_out():
    found = advised(config(training={"evaluation_noise_seed": 3}))
    proven = plan_of(config()).guarantees[0].epsilon
    assert found[What.SEED].epsilon == proven
    assert "evaluation_noise_seed" in found[What.LEAK].words
    assert What.WITHIN not in found


def test_leaving_the_seed_out_of_an_unproven_run_promises_no_figure():
    run = config(training={"evaluation_noise_seed": 3}, algorithm={"form": "published"})
    found = advised(run)
    assert found[What.SEED].epsilon is None
    assert found[What.REPAIR].epsilon is not None


def test_one_agent_is_no_network_to_be_overheard():
    (only,) = advise(run := config(data={"agents": 1}), plan_of(run))
    assert only.what is What.WITHIN
    assert "link" not in only.words
    assert "highest risk" not in only.words


def test_a_single_message_alone_is_no_adversary():
    run = config(privacy={**ALONE, "adversaries": ["single-message"]})
    assert list(advised(run)) == [What.ADVERSARY]


def test_what_takes_long_is_skipped_in_words():
    run = config(privacy=ALONE)
    plan = plan_of(run)
    large = config(privacy=ALONE, data={"agents": 1001})
    found = {entry.what: entry for entry in advise(large, plan)}
    assert list(found) == [What.LEAK, What.SKIPPED]
    assert "privacy.adversary=eavesdropper" in found[What.SKIPPED].words
    many = {entry.what: entry for entry in advise(run, of_many_kinds(plan))}
    assert "20 kinds of round" in many[What.SKIPPED].words


def of_many_kinds(plan: Plan) -> Plan:
    """The plan as if its rounds differed."""
    (release,) = plan.exposures["eavesdropper"].releases
    rounds = tuple(release._replace(rounds=2, first=2 * n + 1) for n in range(20))
    named = {name: e._replace(releases=rounds) for name, e in plan.exposures.items()}
    return replace(plan, exposures=named)


def test_advice_is_json():
    run = config(algorithm={"name": "whisper", "form": None})
    for entry in advise(run, plan_of(run)):
        assert list(entry.to_json()) == ["what", "words", "epsilon"]
        json.dumps(entry.to_json(), allow_nan=False)


def test_a_figure_below_zero_is_refused():
    with pytest.raises(ValueError, match="epsilon=-1 must be a number >= 0"):
        Advice(what=What.LEAK, words="", epsilon=-1)
