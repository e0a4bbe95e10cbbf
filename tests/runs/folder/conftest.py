"""A finished run, and a copy of it for each test."""

import shutil

import pytest

from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dpdl", agents=3, privacy={"noise_multiplier": 2, "delta": 1e-05},
    training={"rounds": 2, "sampling_rate": 0.1}, intercept={"rounds": [1]},
    attack={"rounds": [1]},
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("finished")
    (place / "run.toml").write_text(RUN, encoding="utf-8")
    train_run(load_run_file(place / "run.toml"), place / "out")
    return place / "out"


@pytest.fixture
def folder(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"
