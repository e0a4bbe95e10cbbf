"""The option `--device` of attack, invert and audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from overhear.commands.cli import main

RUN = """
[data]
name = "digits"
agents = 4
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 1
delta = 1e-4
[training]
rounds = 2
sampling_rate = 0.1
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Path("run.toml").write_text(RUN)
    Path("g.st").write_bytes(b"")


COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "attack": lambda device: ["attack", "run.toml", "--out", "runs", "--device", device],
    "invert": lambda device: [
        "invert", "g.st", "--model", "mlp", "--out", "found", "--device", device,
    ],
    "audit": lambda device: ["audit", "run.toml", "--device", device],
    "last model": lambda device: ["audit", "run.toml", "--last-model", "--device", device],
}  # fmt: skip


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.parametrize(
    ("device", "said"), [("gpu", "device='gpu' is unknown"), ("cuda:1", "no CUDA device is there")]
)
def test_a_device_that_is_not_there_ends_with_exit_code_2(
    command: str, device: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMMANDS[command](device)) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert sorted(path.name for path in Path().iterdir()) == ["g.st", "run.toml"]
