"""The option `--device` of train, attack, invert, audit and demo."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from overhear.commands.cli import main
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=4, privacy={"noise_multiplier": 1, "delta": 0.0001},
    training={"rounds": 2, "sampling_rate": 0.1},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Path("run.toml").write_text(RUN)
    Path("g.st").write_bytes(b"")


COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "train": lambda device: ["train", "run.toml", "--out", "run", "--device", device],
    "attack": lambda device: ["attack-sweep", "run.toml", "--out", "runs", "--device", device],
    "demo": lambda device: ["demo", "--out", "run", "--device", device],
    "invert": lambda device: [
        "invert", "g.st", "--model", "mlp", "--out", "found", "--device", device,
    ],
    "audit": lambda device: ["audit", "run.toml", "--device", device],
    "last model": lambda device: ["audit-last-model", "run.toml", "--device", device],
}  # fmt: skip


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.parametrize(
    ("device", "said"), [("gpu", "device='gpu' is unknown"), ("cuda:1", "no CUDA device is there")]
)
def test_a_device_that_is_not_there_ends_with_exit_code_2(command, device, said, capsys):
    assert main(COMMANDS[command](device)) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert sorted(path.name for path in Path().iterdir()) == ["g.st", "run.toml"]


def test_train_computes_where_it_is_told_in_place_of_the_run_file(capsys):
    Path("run.toml").write_text(RUN + 'device = "cuda"\n')
    assert main(["train", "run.toml", "--out", "run"]) == 2
    assert "--device or as [training] device" in capsys.readouterr().err
    assert not Path("run").exists()
    assert main(["train", "run.toml", "--out", "run", "--device", "cpu"]) == 0
    assert load_run_file("run/run.toml").training.device == "cpu"
    assert main(["train", "run.toml", "--out", "run", "--resume", "--device", "cpu"]) == 0
    assert "is finished" in capsys.readouterr().out


@pytest.mark.parametrize("device", ["mps", 'cpu"\nrounds=1', ""])
def test_train_refuses_a_device_that_rounds_cannot_run_on(device, capsys):
    assert main(["train", "run.toml", "--out", "run", "--device", device]) == 2
    assert "error: device=" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.distributed
@pytest.mark.slow  # starts two processes
def test_ranks_are_given_the_device(capfd):
    named = ["train", "run.toml", "--out", "run", "--ranks", "2", "--device"]
    assert main([*named, "cuda:1"]) == 2
    assert "device='cuda:1' is one GPU" in capfd.readouterr().err
    assert not Path("run").exists()
    assert main([*named, "cpu"]) == 0
    assert load_run_file("run/run.toml").training.device == "cpu"
