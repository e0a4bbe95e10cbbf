"""What `overhear plan --check` refuses is what `overhear train` refuses, in the same sentence."""

import json
import time
from collections.abc import Callable

import pytest

from overhear.commands import cli
from overhear.runs.readiness import check_ready
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dpdl", agents=4, graph={"name": "ring"}, model={"name": "{model}"},
    privacy={"epsilon": 8.0, "delta": 1e-05},
    training={"rounds": 3, "sampling_rate": 0.1, "device": "cpu"},
)  # fmt: skip
NETWORKS = """
import torch
from torch import nn

def normalised(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))

def random(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))

def narrow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def no_network(shape, classes):
    return 3

class Mixing(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.last = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.last(x - x.mean(dim=0))

def mixing(shape, classes):
    return Mixing(classes)
"""


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(NETWORKS, encoding="utf-8")
    (tmp_path / "table.csv").write_text("1,2,3\n4,5,6\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(model="linear"), encoding="utf-8")
    return path


Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(run_file, capsys):
    def told(command: str, *arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.main([command, str(run_file), *arguments])
        return code, capsys.readouterr().err

    return told


REFUSED = [
    pytest.param(["model.name=own_networks:normalised"], "BatchNorm1d", id="batch-norm"),
    pytest.param(["model.name=own_networks:random"], "Dropout", id="dropout"),
    pytest.param(["model.name=own_networks:narrow"], "must be logits", id="classes"),
    pytest.param(["model.name=own_networks:no_network"], "must be an nn.Module", id="no-module"),
    pytest.param(["model.name=own_networks:mixing"], "together than one by one", id="mixing"),
    pytest.param(["model.name=own_networks:absent"], "has no 'absent'", id="no-function"),
    pytest.param(["model.name=nowhere_at_all:f"], "no module", id="no-import"),
    pytest.param(["data.name=mnist", "data.root={folder}/absent"], "absent", id="no-folder"),
    pytest.param(
        ["data.name=libsvm", "data.root={folder}/table.csv", "data.features=3"],
        "table.csv",
        id="csv",
    ),
    pytest.param(["data.agents=100000"], "more than the", id="no-records-left"),
    pytest.param(['data.partition="shards"', "data.shards=100000"], "more than the", id="shards"),
    pytest.param(["training.batch_size=1e6"], "can give", id="batch"),
    pytest.param(["model.name=lenet", 'training.layout="ghost"'], "layout", id="layout"),
]


@pytest.mark.parametrize(("overrides", "word"), REFUSED)
def test_what_train_refuses_is_refused_in_the_same_sentence(said, tmp_path, overrides, word):
    given = [f"--set={one.format(folder=tmp_path)}" for one in overrides]
    out = tmp_path / "out"
    checked = said("plan", "--check", "--strict", *given)
    assert checked == said("train", *given, "--out", str(out))
    assert checked[0] == 2
    assert word in checked[1]
    assert not out.exists()


@pytest.mark.parametrize("held", ["file", "folder with files", "file above"])
def test_a_folder_that_train_refuses_is_refused(said, tmp_path, held):
    out = tmp_path / "out"
    if held == "folder with files":
        out.mkdir()
        (out / "notes").touch()
    else:
        out.touch()
        out = out / "below" if held == "file above" else out
    before = sorted(tmp_path.rglob("*"))
    checked = said("plan", "--check", "--out", str(out))
    assert sorted(tmp_path.rglob("*")) == before
    assert checked == said("train", "--out", str(out))
    assert checked[0] == 2


def test_a_run_that_passes_leaves_nothing(said, tmp_path):
    before = sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts)
    assert said("plan", "--check", "--strict", "--out", str(tmp_path / "a/b/c")) == (0, "")
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts) == before


@pytest.mark.some_quick(1)
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("attack.images=100000", "public test record"),
        ("attack.presets=[]", "presets is empty"),
        ("attack.rounds=[]", "rounds is empty"),
    ],
)
def test_an_attack_that_is_asked_for_is_refused_as_attack_refuses_it(
    said, tmp_path, override, sentence
):
    code, told = said("plan", "--check", "--set", override)
    assert code == 2
    assert sentence in told
    out = tmp_path / "out"
    assert said("train", "--set", override, "--out", str(out))[0] == 0
    assert cli.main(["attack", str(out)]) == 2


def test_what_attack_and_audit_would_refuse_is_told_where_nobody_asked_for_them(run_file, capsys):
    lonely = [f"--set={one}" for one in ("data.agents=1", "privacy.noise_multiplier=0.0")]
    assert cli.main(["plan", str(run_file), "--check", "--json", *lonely]) == 0
    found = json.loads(capsys.readouterr().out)["check"]
    assert found["attack"] == "agents=1: nothing crosses a link, so nothing can be intercepted"
    assert "the noise multiplier is 0" in found["audit"]
    assert cli.main(["plan", str(run_file), "--check", *lonely]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Checked: train would begin this run overhear attack would refuse it: agents=1" in shown


def test_an_audit_that_is_asked_for_is_refused_as_audit_refuses_it(said):
    given = ("--set=privacy.noise_multiplier=0.0", "--set=audit.canaries=40")
    checked = said("plan", "--check", *given)
    assert checked[0] == 2
    assert checked == said("audit", *given)


def test_a_run_whose_records_take_turns_is_rehearsed(run_file):
    turns = ["algorithm.name=dp-ftrl", "privacy.participation={ cycle = 3 }"]
    assert check_ready(load_run_file(run_file, turns)).plan.noise_multiplier > 0.0


def test_the_rehearsal_runs_the_step_on_tensors(run_file, monkeypatch):
    """What shows on tensors alone, such as gradients that are no numbers, is found."""
    (run_file.parent / "overflowing.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Root(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.last = nn.Linear(64, 10)\n"
        "    def forward(self, x):\n"
        "        return (self.last(x.flatten(1)) * 0.0).sqrt()\n"
        "def build(shape, classes):\n"
        "    return Root()\n",
        encoding="utf-8",
    )
    config = load_run_file(run_file, ["model.name=overflowing:build"])
    with pytest.raises(FloatingPointError, match="gradient"):
        check_ready(config)


def test_a_check_of_many_rounds_takes_no_longer(run_file):
    def took(rounds: int) -> float:
        config = load_run_file(run_file, [f"training.rounds={rounds}"])
        begun = time.process_time()
        check_ready(config)
        return time.process_time() - begun

    took(3)
    assert took(3000) < took(3) + 10.0  # three thousand rounds of training take minutes
