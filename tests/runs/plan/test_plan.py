"""What a plan says beside its figures: the paper's own bound, and warnings."""

import json
import math

import numpy as np
import pytest

from overhear.privacy.guarantee import Statement
from overhear.privacy.noise.schedule import Schedule
from overhear.privacy.published.claim import dpdl_theorem_1, dyn_d2p_clt
from overhear.privacy.published.whisper import muffliato_losses
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dpdl", model={"name": "mlp"}, privacy={"noise_multiplier": 2.5, "delta": 1e-05},
    training={"rounds": 100, "sampling_rate": 0.02},
)  # fmt: skip


def planned(folder, *, replaced=("", ""), rounds=100):
    path = folder / "run.toml"
    text = RUN.replace(*replaced).replace("rounds = 100", f"rounds = {rounds}")
    path.write_text(text, encoding="utf-8")
    return make_plan(load_run_file(path))


def test_dpdl_is_planned_with_its_papers_bound(tmp_path):
    plan = planned(tmp_path)
    bound = plan.to_json()["published_bound"]
    assert sorted(bound) == ["caveats", "delta", "epsilon", "paper", "statement"]
    by_hand = dpdl_theorem_1(
        noise_multiplier=2.5, delta=bound["delta"], rounds=100, sampling_rate=0.02,
        sensitivity_factor=math.sqrt(3),
    )  # fmt: skip
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
    plan = planned(tmp_path, rounds=20, replaced=('"dpdl"', '"dyn-d2p"'))
    schedule = Schedule(rounds=20, sampling_rate=0.02)
    claim = dyn_d2p_clt(
        schedule, noise_multiplier=2.5, statement=Statement(delta=plan.guarantees[0].delta)
    )
    assert plan.to_json()["published_bound"]["epsilon"] == pytest.approx(claim.epsilon)
    assert plan.published_bound.proven_epsilon == pytest.approx(
        plan.guarantee("eavesdropper").epsilon, rel=1e-6
    )


def test_whisper_is_planned_with_its_papers_theorem(tmp_path):
    plan = planned(tmp_path, replaced=('"dpdl"', '"whisper"'))
    rho = 2 * 100 / 2.5**2
    claimed = rho + 2 * math.sqrt(rho * math.log(1e5))
    assert plan.published_bound.epsilon == pytest.approx(claimed)
    assert "2501.14644" in plan.to_json()["published_bound"]["paper"]


def test_muffliato_is_planned_with_the_loss_of_its_worst_pair(tmp_path):
    plan = planned(tmp_path, replaced=('"dpdl"', '"muffliato"\ngossip_steps = 3'))
    weights = (np.eye(10) + np.roll(np.eye(10), 1, 0) + np.roll(np.eye(10), -1, 0)) / 3
    loss = muffliato_losses(weights, observer=0, gossip_steps=3).max()
    rho = 100 * loss / (2 * 2.5**2)
    assert plan.published_bound.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))


def test_dpmixsgd_is_planned_with_its_papers_theorem_beside_the_same_proof(tmp_path):
    plan = planned(tmp_path, replaced=('"dpdl"', '"dpmixsgd"'))
    records = 1437 / 10  # of the bundled digits on ten agents
    std = 2.5 / (0.02 * records)  # on a batch's mean gradient, in clip norms
    claimed = math.sqrt(100 * math.log(1e5)) / (records * std)
    assert plan.published_bound.epsilon == pytest.approx(claimed)
    proven = plan.guarantee("eavesdropper").epsilon
    assert plan.published_bound.proven_epsilon == pytest.approx(proven, rel=1e-6)


@pytest.mark.slow
def test_the_published_form_of_dpmixsgd_proves_nothing_beside_the_claim(tmp_path):
    published = ('"dpdl"', '"dpmixsgd"\nform = "published"')
    plan = planned(tmp_path, replaced=published, rounds=20)
    assert plan.published_bound.proven_epsilon == math.inf


@pytest.mark.some_quick(1)
@pytest.mark.parametrize("name", ["dyn-d2p", "whisper", "muffliato"])
def test_without_noise_a_formula_of_noise_claims_nothing(tmp_path, name):
    text = RUN.replace('"dpdl"', f'"{name}"').replace("= 2.5", "= 0.0").replace("= 100", "= 10")
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    assert make_plan(load_run_file(tmp_path / "run.toml")).published_bound is None


def test_a_form_that_does_not_differ_is_no_remedy(tmp_path):
    def said(name):
        text = RUN.replace('"dpdl"', f'"{name}"\nform = "published"')
        text = text.replace("rounds = 100", "rounds = 100\nevaluation_noise_seed = 3")
        (tmp_path / "run.toml").write_text(text, encoding="utf-8")
        return " ".join(make_plan(load_run_file(tmp_path / "run.toml")).warnings)

    assert 'form = "repaired"' in said("dpdl")
    assert 'form = "repaired"' not in said("dp-cga")


def test_noise_from_a_seed_of_the_run_file_proves_nothing(tmp_path):
    plan = planned(tmp_path, replaced=("rounds = 100", "rounds = 100\nevaluation_noise_seed = 3"))
    assert {str(g.status) for g in plan.guarantees} == {"heuristic"}
    assert all("evaluation_noise_seed" in g.because for g in plan.guarantees)


def test_a_target_for_a_single_message_is_warned_of(tmp_path):
    asked = ("noise_multiplier = 2.5", 'epsilon = 1\nadversary = "single-message"')
    assert any("single message" in w for w in planned(tmp_path, replaced=asked).warnings)
    assert not any("single message" in w for w in planned(tmp_path).warnings)
    loose = planned(tmp_path, replaced=("delta = 1e-05", "delta = 0.1"))
    assert any("delta = 0.1 is large" in w for w in loose.warnings)


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


COUNTED = "The number of records in all counts as public"
SIX = """
[data]
name = "npz"
root = "{folder}/six.npz"
classes = 2
agents = 2
[model]
name = "linear"
[graph]
name = "full"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 2
delta = 1e-5
[training]
rounds = 3
batch_size = 1
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((), "the sampling rate and the normaliser of a batch's sum come from it"),
        (("training.sampling_rate=0.3333",), "the normaliser of a batch's sum comes from it"),
        (("privacy.adjacency=zero-out",), ""),
        (("privacy.adjacency=replace-one",), ""),
        (("privacy.noise_multiplier=0",), ""),  # hides nothing
    ],
)
def test_what_comes_from_the_number_of_records_is_told_beside_the_figures(tmp_path, change, said):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "six.npz", X=rng.random((6, 4), dtype=np.float32), y=np.arange(6) % 2)
    text = SIX.format(folder=tmp_path)
    if "training.sampling_rate=0.3333" in change:
        text = text.replace("batch_size = 1", "sampling_rate = 0.3333")
        change = ()
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    plan = make_plan(load_run_file(tmp_path / "run.toml", list(change)))
    told = [warning for warning in plan.warnings if COUNTED in warning]
    assert len(told) == bool(said)
    assert said in "".join(told)
    assert (COUNTED in plan.statement()) == bool(said)
    assert (COUNTED in repr(plan)) == bool(said)
    assert (COUNTED in json.dumps(plan.to_json())) == bool(said)
