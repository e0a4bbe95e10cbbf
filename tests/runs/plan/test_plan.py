"""What a plan says beside its figures: the paper's own bound, and warnings."""

import json
import math

import pytest

from overhear.privacy.guarantee import Statement
from overhear.privacy.noise.schedule import Schedule
from overhear.privacy.published.dpdl import dpdl_theorem_1
from overhear.privacy.published.dyn_d2p import dyn_d2p_clt
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.run_file import load_run_file

RUN = """
[data]
name = "digits"
[model]
name = "mlp"
[algorithm]
name = "dpdl"
[privacy]
noise_multiplier = 2.5
delta = 1e-5
[training]
rounds = 100
sampling_rate = 0.02
"""


def planned(folder, *, replaced=("", "")):
    path = folder / "run.toml"
    path.write_text(RUN.replace(*replaced), encoding="utf-8")
    return make_plan(load_run_file(path))


def test_dpdl_is_planned_with_its_papers_bound(tmp_path):
    plan = planned(tmp_path)
    bound = plan.to_json()["published_bound"]
    assert sorted(bound) == ["caveats", "delta", "epsilon", "paper", "statement"]
    by_hand = dpdl_theorem_1(
        noise_multiplier=2.5,
        delta=bound["delta"],
        rounds=100,
        sampling_rate=0.02,
        sensitivity_factor=math.sqrt(3),
    )
    assert bound["epsilon"] == pytest.approx(by_hand.epsilon)
    assert "2606.04399" in bound["paper"]


def test_the_papers_bound_is_no_guarantee_of_the_plan(tmp_path):
    plan = planned(tmp_path)
    claimed = plan.to_json()["published_bound"]["epsilon"]
    assert all(row["epsilon"] != claimed for row in plan.to_json()["adversaries"])
    proven = plan.published_bound.proven_epsilon
    assert proven == pytest.approx(plan.guarantee("eavesdropper").epsilon)


def test_the_published_form_proves_nothing_beside_the_claim(tmp_path):
    plan = planned(tmp_path, replaced=('"dpdl"', '"dpdl"\nform = "published"'))
    assert plan.published_bound.proven_epsilon is None
    assert any("heuristic" in caveat for caveat in plan.published_bound.caveats)


def test_an_algorithm_without_a_bound_of_its_own_has_none(tmp_path):
    assert planned(tmp_path, replaced=('"dpdl"', '"dp-dpsgd"')).to_json()["published_bound"] is None


def test_a_claim_without_noise_is_written_as_json(tmp_path):
    found = planned(tmp_path, replaced=("noise_multiplier = 2.5", "noise_multiplier = 0.0"))
    assert found.to_json()["published_bound"]["epsilon"] == "inf"
    json.dumps(found.to_json(), allow_nan=False)


def test_dyn_d2p_is_planned_with_its_papers_central_limit(tmp_path):
    plan = planned(tmp_path, replaced=('"dpdl"', '"dyn-d2p"'))
    schedule = Schedule(rounds=100, sampling_rate=0.02)
    claim = dyn_d2p_clt(
        schedule, noise_multiplier=2.5, statement=Statement(delta=plan.guarantees[0].delta)
    )
    assert plan.to_json()["published_bound"]["epsilon"] == pytest.approx(claim.epsilon)
    assert plan.published_bound.proven_epsilon == pytest.approx(
        plan.guarantee("eavesdropper").epsilon, rel=1e-6
    )


def test_noise_from_a_seed_of_the_run_file_proves_nothing(tmp_path):
    plan = planned(tmp_path, replaced=("rounds = 100", "rounds = 100\nevaluation_noise_seed = 3"))
    assert {str(g.status) for g in plan.guarantees} == {"heuristic"}
    assert all("evaluation_noise_seed" in g.because for g in plan.guarantees)


def test_a_target_for_a_single_message_is_warned_of(tmp_path):
    asked = ("noise_multiplier = 2.5", 'epsilon = 1\nadversary = "single-message"')
    assert any("single message" in w for w in planned(tmp_path, replaced=asked).warnings)
    assert not any("single message" in w for w in planned(tmp_path).warnings)


def test_a_clean_recursion_is_planned_as_one_release_where_it_is_short(tmp_path):
    short = RUN.replace('"dpdl"', '"dpmixsgd"\nform = "published"').replace("100", "3")
    (tmp_path / "short.toml").write_text(short, encoding="utf-8")
    found = make_plan(load_run_file(tmp_path / "short.toml")).guarantee("eavesdropper")
    assert math.isfinite(found.epsilon)
    assert str(found.sampling) == "any: a record may be in every batch"
    (tmp_path / "long.toml").write_text(short.replace("= 3\n", "= 3000\n"), encoding="utf-8")
    found = make_plan(load_run_file(tmp_path / "long.toml")).guarantee("eavesdropper")
    assert math.isinf(found.epsilon)
    assert "too large" in found.because
