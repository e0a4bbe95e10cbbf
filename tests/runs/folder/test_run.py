"""A run from its file to its report, on digits."""

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from overhear.privacy import UnsupportedView, read_ledger
from overhear.reports.document.collect import report_run
from overhear.runs.attack.attack import attack_run
from overhear.runs.folder.folder import write_sums
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.data.load import load_dataset
from overhear.training.engine.transcript import Transcript
from tests.small_run import run_text

RUN = run_text(
    "dpdl", agents=5, graph={"name": "ring"}, privacy={"epsilon": 8, "delta": 0.0001},
    training={"rounds": 6, "sampling_rate": 0.1, "learning_rate": 0.2},
    intercept={"rounds": [1, 4]},
    attack={"presets": ["idlg"], "images": 1, "restarts": 1, "rounds": [4]},
)  # fmt: skip


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "run.toml"
    path.write_text(RUN)
    return path


@pytest.fixture(scope="module")
def folder(run_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    train_run(load_run_file(run_file), out)
    attack_run(out)
    report_run(out)
    return out


def test_the_ledger_costs_what_the_plan_said(run_file, folder):
    report = json.loads((folder / "privacy.json").read_text())
    planned = {g.adversary: g.epsilon for g in make_plan(load_run_file(run_file)).guarantees}
    for name, spent in report["ledger"]["epsilon"].items():
        assert spent == pytest.approx(planned[name], rel=1e-9)
    assert report["ledger"]["rounds"] == 6
    assert planned["eavesdropper"] <= 8


def test_epsilon_by_round_ends_where_the_ledger_does(folder):
    report = json.loads((folder / "privacy.json").read_text())
    for name, line in report["epsilon_by_round"].items():
        rounds, spent = zip(*line, strict=True)
        assert rounds[-1] == 6
        assert list(spent) == sorted(spent)
        assert spent[-1] == pytest.approx(report["ledger"]["epsilon"][name], rel=1e-9)


def test_the_attack_rebuilds_undefended_records_and_not_defended_ones(folder):
    attack = json.loads((folder / "attacks/attack.json").read_text())
    for scenario in attack["scenarios"]:
        rows = {row["name"]: row for row in scenario["rows"]}
        assert list(rows) == ["blind guess", "no defence", "clipping only", "defended"]
        assert min(map(float, rows["no defence"]["psnr"])) > 30  # "inf" of a record that is exact
        assert rows["defended"]["mean"]["mse"] >= 0.999 * rows["blind guess"]["mean"]["mse"]
    assert {s["scenario"] for s in attack["scenarios"]} == {"cross-gradient", "momentum", "view"}


def test_only_planted_public_records_are_pictured(folder):
    from PIL import Image

    data = load_dataset("digits")
    public = {
        tuple((p * 255).round().flatten().int().tolist()) for p in data.pixels(data.test_inputs)
    }
    for path in folder.glob("attacks/original-*.png"):
        assert tuple(Image.open(path).get_flattened_data()) in public


def test_the_transcript_holds_the_intercepted_rounds_of_the_watched_agent(folder):
    transcript = Transcript.load(folder / "transcript")
    assert {m.round for m in transcript} == {1, 4}
    assert transcript.sent(round=4, kind="cross-gradient", sender=0, receiver=1).shape == (650,)
    with pytest.raises(LookupError):
        transcript.sent(round=4, kind="cross-gradient", sender=2, receiver=3)


def test_the_resolved_run_file_reads_back_as_itself(run_file, folder):
    assert load_run_file(folder / "run.toml") == load_run_file(run_file)


def test_the_sums_hold(folder):
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], check=False, cwd=folder,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_nothing_in_the_folder_is_a_pickle(folder):
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds <= {".toml", ".json", ".jsonl", ".safetensors", ".png", ".html", ""}


def test_a_run_and_an_attack_are_never_overwritten(run_file, folder):
    with pytest.raises(FileExistsError, match="never overwritten"):
        train_run(load_run_file(run_file), folder)
    with pytest.raises(FileExistsError, match="attacks"):
        attack_run(folder)


def test_an_attack_on_rounds_that_were_not_kept_is_refused(run_file, tmp_path):
    out = tmp_path / "out"
    few = ["training.rounds=1", "intercept.rounds=[1]", "attack.rounds=[1]"]
    train_run(load_run_file(run_file, few), out)
    (out / "transcript" / "round-000001.safetensors").unlink()
    write_sums(out)
    with pytest.raises(ValueError, match="the transcript is empty for round 1"):
        attack_run(out)
    none = ["training.rounds=1", "intercept.rounds=[]", "attack.rounds=[]"]
    train_run(load_run_file(run_file, none), tmp_path / "none")
    with pytest.raises(ValueError, match=r"\[attack\] rounds is empty"):
        attack_run(tmp_path / "none")


def test_a_changed_file_of_a_run_is_refused(run_file, tmp_path):
    out = tmp_path / "out"
    none = ["training.rounds=1", "intercept.rounds=[]", "attack.rounds=[]"]
    train_run(load_run_file(run_file, none), out)
    with (out / "metrics.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is not the file"):
        report_run(out)


def test_a_ledger_of_another_run_is_refused(run_file, tmp_path):
    out = tmp_path / "out"
    train_run(
        load_run_file(run_file, ["training.rounds=1", "intercept.rounds=[]", "attack.rounds=[]"]),
        out,
    )
    other = load_run_file(
        run_file, ["privacy.epsilon=2", "intercept.rounds=[]", "attack.rounds=[]"]
    )
    (out / "run.toml").write_text(other.to_toml())
    write_sums(out)
    with pytest.raises(ValueError, match="do not belong together"):
        report_run(out)


def test_a_crash_in_the_middle_leaves_every_started_round_in_the_ledger(run_file, tmp_path):
    out = tmp_path / "out"

    class StopError(Exception):
        pass

    def progress(at, rounds, epsilon, metrics):
        if at == 3:
            raise StopError

    with pytest.raises(StopError):
        train_run(load_run_file(run_file), out, progress=progress)
    assert read_ledger(out / "ledger.jsonl").rounds == 3
    planned = make_plan(load_run_file(run_file)).guarantee("eavesdropper").epsilon
    report_run(out)
    ledger = json.loads((out / "privacy.json").read_text())["ledger"]
    # What stopped it may depend on the data: the planned figure stands, the other is a reading.
    assert ledger["epsilon"]["eavesdropper"] == pytest.approx(planned, rel=1e-9)
    assert ledger["reading"]["eavesdropper"] < planned
    assert ledger["rounds_accounted"] == 6


def test_the_round_is_in_the_ledger_before_any_of_its_messages_is_seen(
    run_file, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    seen = []
    keep = Transcript.__call__

    def spy(self, message):
        seen.append((message.round, read_ledger(out / "ledger.jsonl").rounds))
        keep(self, message)

    monkeypatch.setattr(Transcript, "__call__", spy)
    train_run(load_run_file(run_file), out)
    assert {r for r, _ in seen} == set(range(1, 7))
    assert all(written >= number for number, written in seen)


def test_noise_differs_between_runs_unless_an_evaluation_seed_is_set(run_file, tmp_path):
    def models(name, *extra):
        from safetensors.torch import load_file

        config = load_run_file(
            run_file, ["training.rounds=2", "intercept.rounds=[]", "attack.rounds=[]", *extra]
        )
        train_run(config, tmp_path / name)
        return load_file(tmp_path / name / "checkpoints/round-000002.safetensors")["x"]

    assert not torch.equal(models("a"), models("b"))
    seed = "training.evaluation_noise_seed=1"
    assert torch.equal(models("c", seed), models("d", seed))


def test_a_run_without_noise_is_reported_as_infinite(run_file, tmp_path):
    config = load_run_file(
        run_file, ["privacy.noise_multiplier=0", "intercept.rounds=[]", "attack.rounds=[]"]
    )
    plan = make_plan(config)
    assert plan.to_json()["adversaries"][0]["epsilon"] == "inf"
    train_run(config, tmp_path / "out")
    page = report_run(tmp_path / "out").read_text()
    assert (
        json.loads((tmp_path / "out/privacy.json").read_text())["ledger"]["epsilon"]["eavesdropper"]
        == "inf"
    )
    assert "No attack" in page or "no attack" in page


@pytest.mark.parametrize("command", [["--help"], ["plan", "--help"], ["train", "--help"]])
def test_help_imports_no_heavy_library(command):
    code = (
        "import sys; from overhear.commands.cli import main; main(sys.argv[1:]); "
        "print([m for m in ('torch', 'opacus', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("[]")


def test_plan_answers_with_the_figures_of_the_two_forms(run_file):
    ring = ["data.agents=10", "algorithm.alpha=1", "training.sampling_rate=0.02"]
    common = [*ring, "training.rounds=1000", "privacy.noise_multiplier=2.512"]
    common += ["privacy.delta=1e-5", "intercept.rounds=[]", "attack.rounds=[]", "privacy.victim=0"]
    common += ['privacy.adversaries=["eavesdropper", "neighbour:1", "coalition:1,9"]']
    for form, joint, epsilon, status in (
        ("published", 5.559, 33.3, "heuristic"),
        ("repaired", 1.732, 2.07, "proven"),
    ):
        found = make_plan(load_run_file(run_file, [*common, f"algorithm.form={form}"])).to_json()
        rows = {row["name"]: row for row in found["adversaries"]}
        assert set(rows) == {"eavesdropper", "neighbour:1", "coalition:1,9"}
        assert rows["eavesdropper"]["joint_sensitivity"] == pytest.approx(joint, abs=5e-4)
        assert rows["eavesdropper"]["epsilon"] == pytest.approx(epsilon, rel=5e-3)
        assert rows["eavesdropper"]["status"] == status
        assert found["schema"] == 1


@pytest.mark.parametrize("name", ["dpdl-digits", "dpdl-ring", "dp-dpsgd-ring", "dsgd-ring"])
def test_the_examples_are_valid(name):
    root = Path(__file__).resolve().parents[3]
    assert load_run_file(root / f"examples/{name}.toml").algorithm.name in name


def test_a_lone_agent_has_no_neighbour_to_protect_from(run_file):
    alone = ["data.agents=1", "privacy.adversary=neighbour"]
    with pytest.raises(ValueError, match="agents=1"):
        make_plan(load_run_file(run_file, alone))


def test_noise_that_is_out_of_proportion_to_the_batch_is_refused(run_file, monkeypatch):
    from overhear.training.algorithms import ALGORITHMS, dpdl

    def shrunk(state, round, *, batch_size, noise_std, **rest):
        return dpdl.step(
            state, round, batch_size=batch_size, noise_std=noise_std / batch_size, **rest
        )

    shrunk.__signature__ = inspect.signature(dpdl.step)
    broken = dataclasses.replace(ALGORITHMS["dpdl"], step=shrunk)
    monkeypatch.setitem(ALGORITHMS, "dpdl", broken)
    with pytest.raises(UnsupportedView, match="proportion"):
        make_plan(load_run_file(run_file))


@pytest.mark.slow
def test_every_victim_of_the_run_file_is_attacked(run_file, tmp_path):
    few = ["training.rounds=1", "intercept.rounds=[1]", "attack.rounds=[1]", "attack.images=1"]
    config = load_run_file(run_file, [*few, "intercept.victims=[0, 3]", "attack.restarts=1"])
    train_run(config, tmp_path / "out")
    result = attack_run(tmp_path / "out")
    assert {s.victim for s in result.scenarios} == {0, 3}


def test_a_layout_by_layers_is_refused_for_a_forward_in_which_examples_may_meet(
    tmp_path, monkeypatch
):
    source = (
        "from torch import nn\n\n\nclass Own(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.out = nn.Linear(64, 10)\n\n"
        "    def forward(self, x):\n"
        "        return self.out(x.flatten(1) / x.abs().amax().clamp(min=1e6))\n\n\n"
        "def build(input_shape, classes):\n    return Own()\n"
    )
    (tmp_path / "own_network.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = {
        "data": {"name": "digits", "agents": 3},
        "model": {"name": "own_network:build"},
        "algorithm": {"name": "dp-dpsgd"},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
        "training": {"rounds": 1, "sampling_rate": 0.1, "layout": "grouped"},
    }
    with pytest.raises(ValueError, match=r"nothing shows that they do not mix.*use layout"):
        train_run(RunFile.model_validate(table), tmp_path / "run")
    assert not (tmp_path / "run").exists()
