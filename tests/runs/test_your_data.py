"""The run files of docs/your-data.md are trained, and a regression is audited."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from overhear.attacks.checks.checks import message_check
from overhear.attacks.checks.watched_run import WatchedRun, watch
from overhear.commands.cli import main
from overhear.privacy.errors import InputError
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.step.values import Agents

PAGE = Path(__file__).resolve().parents[2] / "docs/your-data.md"
FILES = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
NAMES = ("csv", "npz", "function", "regression")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with everything that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(CODE, encoding="utf-8")
    rows = [f"{20 + i % 60},{'fm'[i % 2]},{('no', 'yes')[i % 3 == 0]}" for i in range(100)]
    (tmp_path / "visits.csv").write_text("age,sex,relapse\n" + "\n".join(rows), encoding="utf-8")
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "patients.npz", X=draw.normal(size=(100, 3)), y=np.arange(100) % 2)
    for name, text in zip(NAMES, FILES, strict=True):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_every_run_file_of_the_page_is_trained(folder, name):
    assert main(["train", f"{name}.toml", "--out", "run"]) == 0
    last = json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert (last["accuracy"] is None) == (name == "regression")
    assert (last["rmse"] is None) == (name != "regression")
    # What the folder says of the run is the whole of it.
    config = load_run_file(f"{name}.toml")
    again = folder / "again.toml"
    again.write_text(config.to_toml())
    assert load_run_file(again) == config


def test_the_skeleton_of_the_page_is_what_is_printed(folder, capsys):
    text = (folder / "csv.toml").read_text()
    (folder / "run.toml").write_text(re.sub(r"\[data.columns\].*?\n\n", "", text, flags=re.S))
    assert main(["train", "run.toml", "--out", "run"]) == 2
    printed = capsys.readouterr().err
    quoted = re.search(r"```text\n(error: run.toml.*?)```", PAGE.read_text(), re.S)
    assert quoted is not None
    assert printed.split() == quoted[1].split()


def test_a_number_of_classes_from_the_labels_is_said_in_plan_and_report(folder, capsys):
    text = (folder / "npz.toml").read_text().replace("classes = 2\n", "")
    (folder / "run.toml").write_text(text)
    assert main(["plan", "run.toml", "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert (
        sum("taken from the labels of 'npz' and counted as public" in one for one in warnings) == 1
    )
    assert main(["train", "run.toml", "--out", "run"]) == 0
    assert main(["report", "run", "--format", "json"]) == 0
    page = capsys.readouterr().out
    assert "The number of classes of 'patients.npz', 2, is taken from its labels" in page


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("model.loss=cross-entropy", 'loss="cross-entropy" does not fit task="regression"'),
        ("data.outputs=2", r"y has shape \(200,\); with outputs=2"),
        ("data.partition=dirichlet", "numbers to predict have none"),
        ("data.classes=2", "give one of them"),
        ("data.root=x.csv", "root='x.csv' has no effect with name='mine:costs'"),
        ("data.columns={a=[0,1]}", "columns=.* has no effect with name='mine:costs'"),
        ("data.sede=3", "sede is unknown, and 'mine:costs' takes nothing"),
        ("model.task=class-weights", "does not fit"),
        ("model.loss=huber", "loss='huber' must be one of cross-entropy, squared"),
    ],
)
def test_what_does_not_fit_a_regression_is_refused(folder, override, why):
    with pytest.raises(InputError, match=why):
        build(load_run_file("regression.toml", [override]))


def test_numbers_need_outputs(folder):
    with pytest.raises(InputError, match=r"set \[data\] outputs to predict numbers"):
        build(load_run_file("npz.toml", ["model.loss=squared"]))


def _watched() -> WatchedRun:
    built = build(load_run_file("regression.toml"))
    return watch(built.setting, built.bound(1.0), rounds=2, randomness=SecretRandomness(1))


def test_messages_of_a_regression_are_made_again_and_one_that_is_changed_is_found(
    folder, monkeypatch
):
    assert message_check(_watched()).passed
    sent = TensorRound.mix

    def changed(self, value, **how):
        rows = value.rows.clone()
        rows[2, 1] += 0.01
        return sent(self, Agents(rows), **how)

    monkeypatch.setattr(TensorRound, "mix", changed)
    assert not message_check(_watched()).passed


@pytest.mark.slow
def test_a_regression_is_audited(folder):
    assert main(["train", "regression.toml", "--out", "run", "--set", "audit.canaries=400"]) == 0
    assert main(["audit", "run", "--trust-code"]) == 0
    found = json.loads((folder / "run/audit.json").read_text())
    # Of 400 canaries one audit in 70 is looked at again by chance; 9e-6 of them are contradicted.
    assert found["verdict"] in ("consistent", "cleared", "suspicious")
    assert {check["name"] for check in found["checks"] if check["passed"]} > {"messages", "layout"}


def test_what_reads_labels_or_pictures_refuses_a_regression(folder, capsys):
    assert main(["train", "regression.toml", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["attack", "run", "--trust-code"]) == 2
    assert "attacks rebuild records that have a label" in capsys.readouterr().err
    assert main(["membership", "run", "--trust-code"]) == 2
    assert "has numbers to predict and no classes" in capsys.readouterr().err


def test_a_run_on_a_store_is_that_on_the_same_records_in_memory(folder):
    held = np.load("patients.npz")
    np.save("x.npy", held["X"])
    np.save("y.npy", held["y"])
    one = build(load_run_file("npz.toml"))
    keys = ["data.name=npy", "data.root=x.npy", "data.target=y.npy"]
    other = build(load_run_file("npz.toml", keys))
    assert other.data.inputs.is_meta
    for a, b in zip(one.setting.shards, other.setting.shards, strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
    at = message_check(watch(other.setting, other.bound(1.0), rounds=2))
    assert at.passed
