"""Runs on a CUDA device: trained, resumed, attacked, audited, and over ranks that share it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from overhear.commands import cli
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.engine.tensor_file import load_checkpoint
from tests.small_run import run_text

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

RUN = run_text(
    "dpdl",
    agents=5,
    model={"name": "mlp"},
    privacy={"noise_multiplier": 1.5, "delta": 0.0001},
    training={
        "rounds": 8,
        "sampling_rate": 0.01,
        "device": "cuda",
        "checkpoint_every": 3,
        "evaluate_every": 2,
        "evaluation_noise_seed": 3,
    },
    intercept={"rounds": [3, 6]},
    attack={
        "rounds": [3],
        "presets": ["matched"],
        "scenarios": ["cross-gradient", "view"],
        "restarts": 1,
        "images": 1,
    },
    audit={"canaries": 50, "checked_rounds": 2},
)


def last(out: Path) -> torch.Tensor:
    return load_checkpoint(out / "checkpoints/round-000008.safetensors").state["x"]


def test_every_command_ends_well(run_file, tmp_path):
    out = str(tmp_path / "out")
    for command in (["train", str(run_file), "--out", out], ["attack", out], ["audit", out]):
        assert cli.main(command) == 0
    assert cli.main(["report", out]) == 0
    assert json.loads((Path(out) / "environment.json").read_text())["layout"] == "grouped"


def test_an_evaluation_run_has_the_same_bits_again_and_after_it_was_cut_off(run_file, tmp_path):
    def cut_off(at: int, *_: object) -> None:
        if at == 4:
            raise KeyboardInterrupt

    config = load_run_file(run_file)
    train_run(config, tmp_path / "one")
    train_run(config, tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "cut", progress=cut_off)
    resume_run(config, tmp_path / "cut")
    assert torch.equal(last(tmp_path / "one"), last(tmp_path / "other"))
    assert torch.equal(last(tmp_path / "one"), last(tmp_path / "cut"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.distributed
def test_ranks_that_share_a_device_train_the_run_of_one(run_file, tmp_path):
    train_run(load_run_file(run_file), tmp_path / "alone")
    given = ["train", str(run_file), "--out", str(tmp_path / "spread"), "--ranks", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "overhear.commands.cli", *given], check=False, capture_output=True,
        text=True, timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(
        last(tmp_path / "spread"), last(tmp_path / "alone"), rtol=1e-4, atol=1e-5
    )
