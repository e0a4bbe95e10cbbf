"""Min-max runs from their run file: tasks, refusals, what a plan says, and AUROC."""

import json
import math
from pathlib import Path

import pytest

from overhear.privacy.errors import InputError
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.models.tasks import ClassWeights
from tests.real_data import root_with
from tests.small_run import run_text

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("dpmixsgd", "dm-hsgd", "sgda", "dp-sgda")
RUN = run_text(
    "dpmixsgd", agents=4, privacy={"noise_multiplier": 1.0, "delta": 1e-05},
    training={"rounds": 4, "sampling_rate": 0.1},
)  # fmt: skip


def loaded(folder: Path, text: str = RUN, overrides=()):
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return load_run_file(path, overrides)


def without_privacy(name: str) -> str:
    head, _, tail = RUN.replace("dpmixsgd", name).partition("[privacy]")
    return head + "[training]" + tail.partition("[training]")[2]


@pytest.mark.parametrize(
    ("name", "task"), [("dpmixsgd", "class-weights"), ("dp-dpsgd", "classification")]
)
def test_the_task_is_what_the_algorithm_is_for(name, task, tmp_path):
    config = loaded(tmp_path, RUN.replace("dpmixsgd", name))
    assert config.model.task == task
    again = loaded(tmp_path, config.to_toml())
    assert again == config
    assert ("strength" in config.to_toml()) == (task == "class-weights")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.task=classification"], "ascends in dual variables; use .class-weights."),
        (["algorithm.name=dp-dpsgd", "model.task=class-weights"], "has no dual variables"),
        (["model.task=class-weights", "model.strength=-1"], "strength"),
        (["algorithm.beta_x=0"], r"beta_x=0.* must lie in \(0, 1\]"),
        (["algorithm.name=sgda"], "sgda adds no noise"),
        (["algorithm.name=dm-hsgd", "privacy.epsilon=3"], "epsilon=3.* cannot be met"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        loaded(tmp_path, overrides=overrides)


def test_the_numbers_of_the_task_reach_the_run(tmp_path):
    chosen = 'name = "linear"\ntask = "class-weights"\nstrength = 0.5\npenalty = 0.001'
    task = build(loaded(tmp_path, RUN.replace('name = "linear"', chosen))).setting.task
    assert isinstance(task, ClassWeights)
    assert task.dimensions == (650, 10)
    assert (task._strength, task._penalty, task._steepness) == (0.5, 0.001, 10.0)


@pytest.mark.parametrize("name", ["dm-hsgd", "sgda"])
def test_a_reference_without_privacy_is_infinite(name, tmp_path):
    plan = make_plan(loaded(tmp_path, without_privacy(name)))
    found = {one["name"]: one["epsilon"] for one in plan.to_json()["adversaries"]}
    assert found["eavesdropper"] == found["neighbour"] == "inf"


def test_published_is_infinite_without_clipping_and_large_with_it(tmp_path):
    clipped = make_plan(loaded(tmp_path, overrides=["algorithm.form=published"]))
    found = clipped.guarantee("eavesdropper")
    repaired = make_plan(loaded(tmp_path)).guarantee("eavesdropper")
    assert 20 * repaired.epsilon < found.epsilon < math.inf
    assert "all rounds are one release" in found.because
    off = ["algorithm.form=published", "privacy.clip_norm=inf", "privacy.noise_multiplier=0"]
    found = make_plan(loaded(tmp_path, overrides=off)).guarantee("eavesdropper")
    assert found.epsilon == math.inf
    assert "not clipped" in found.because


def test_a_published_run_too_long_for_one_view_stays_infinite(tmp_path):
    long = ["algorithm.form=published", "training.rounds=5000"]
    found = make_plan(loaded(tmp_path, overrides=long)).guarantee("eavesdropper")
    assert found.epsilon == math.inf
    assert "too large for a view of all its rounds" in found.because


@pytest.mark.parametrize(
    ("initial_noise", "expected"), [("1", 1.687), ("5", 0.1233), ("1e6", 0.0975)]
)
def test_the_first_batch_of_a_plan_dominates_at_equal_noise(initial_noise, expected, tmp_path):
    """20,000 records an agent, b 10, b0 2000, 2,000 rounds, multiplier 1."""
    data = tmp_path / "data"
    data.write_text("+1 1:1\n-1 1:2\n" * 20_000, encoding="utf-8")
    Path(f"{data}.t").write_text("+1 1:1\n-1 1:2\n", encoding="utf-8")
    text = RUN.replace('name = "digits"', f'name = "libsvm"\nroot = "{data}"\nfeatures = 1')
    text = text.replace("agents = 4", "agents = 2").replace("rounds = 4", "rounds = 2000")
    text = text.replace("sampling_rate = 0.1", "batch_size = 10")
    config = loaded(tmp_path, text, [f"algorithm.initial_noise={initial_noise}"])
    plan = make_plan(config)
    rates = [r.sampling_rate for r in plan.exposures["eavesdropper"].releases]
    assert rates == pytest.approx([0.1, 0.0005])
    assert plan.guarantee("eavesdropper").epsilon == pytest.approx(expected, abs=6e-4)


@pytest.mark.some_quick(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_leaves_auroc_where_there_are_two_classes(name, tmp_path):
    data = tmp_path / "data"
    data.write_text("+1 1:1 2:.5\n-1 1:-1 2:.5\n" * 40, encoding="utf-8")
    Path(f"{data}.t").write_text("+1 1:1\n-1 1:-1\n" * 5, encoding="utf-8")
    text = RUN.replace("dpmixsgd", name) if "dp" in name else without_privacy(name)
    text = text.replace('name = "digits"', f'name = "libsvm"\nroot = "{data}"\nfeatures = 2')
    train_run(loaded(tmp_path, text), tmp_path / "out")
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert len(last["auroc"]) == 4
    assert 0.0 <= last["consensus_auroc"] <= 1.0


def test_ten_classes_have_the_auroc_of_each_against_the_rest(tmp_path):
    summary = train_run(loaded(tmp_path), tmp_path / "out")
    assert len(summary.metrics.auroc) == 4
    assert 0.0 <= summary.metrics.consensus_auroc <= 1.0
    planned = make_plan(loaded(tmp_path)).planned().adversaries
    assert summary.adversaries == planned


@pytest.mark.parametrize("name", NAMES)
def test_an_example_can_be_planned(name):
    found = make_plan(load_run_file(EXAMPLES / f"{name}-digits.toml"))
    if "dp" in name:
        assert found.guarantee("eavesdropper").epsilon == pytest.approx(8.0, abs=1e-3)
    else:
        assert found.guarantee("eavesdropper").epsilon == math.inf


@pytest.mark.data
@pytest.mark.slow
def test_the_references_rank_a9a_better_with_every_report(tmp_path):
    """AUROC of the mean model at rounds 0, 30 and 60; the start ranks at .40 to .60."""
    file = root_with("libsvm/a9a") / "libsvm/a9a"
    text = (EXAMPLES / "dpmixsgd-a9a.toml").read_text(encoding="utf-8")
    head, _, tail = text.replace('"dpmixsgd"', '"sgda"').partition("\n[privacy]")
    text = head + "\n[training]" + tail.partition("[training]")[2]
    short = [f'data.root="{file}"', "training.rounds=60", "training.evaluate_every=30"]
    train_run(loaded(tmp_path, text, short), tmp_path / "out")
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line)["consensus_auroc"] for line in lines]
    assert found == sorted(found)
    assert found[-1] > 0.7


def test_auroc_is_learned_as_a_task_of_its_own_and_costs_what_was_planned(tmp_path):
    text = RUN.replace('name = "linear"', 'name = "linear"\ntask = "auc"\npositive_share = 0.4')
    config = loaded(tmp_path, text.replace('"digits"', '"faces"'))
    assert loaded(tmp_path, config.to_toml()) == config
    assert "positive_share = 0.4" in config.to_toml()
    expected = {g.adversary: g.epsilon for g in make_plan(config).guarantees}
    summary = train_run(config, tmp_path / "run")
    assert {one.adversary: one.epsilon for one in summary.adversaries} == expected
    assert len(summary.metrics.auroc) == 4
    assert build(config).setting.task.dimensions == (2 * 625 + 2 + 2, 1)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["algorithm.name=dp-dpsgd", "model.task=auc"], "has no dual variables"),
        (["model.positive_share=0.5"], "positive_share=0.5 has no effect"),
        (["model.task=auc", "model.positive_share=1.0"], "positive_share=1.0 must"),
        (["model.task=auc", "model.loss=cross-entropy"], "auc has its own"),
    ],
)
def test_a_wrong_auroc_task_is_refused(overrides, named, tmp_path):
    with pytest.raises(InputError, match=named):
        loaded(tmp_path, RUN, overrides)


def test_auroc_of_ten_classes_is_refused(tmp_path):
    with pytest.raises(InputError, match="there are classes=10"):
        build(loaded(tmp_path, RUN, ["model.task=auc"]))
