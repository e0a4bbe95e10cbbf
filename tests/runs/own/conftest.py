"""A user's folder: a model and an algorithm in files of its own, a run file, and the command."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm
from tests.small_run import run_text

PARTS = '''\
"""What the algorithm is made of."""

def decayed(old, new, *, decay):
    return decay * old + new
'''
MINE = '''\
"""A model and an algorithm of one's own."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from own_parts import decayed
from overhear.training import Agents, Algorithm, Round
from torch import nn


def net(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


class State(NamedTuple):
    x: Agents
    y: Agents


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    decay: float = 0.9


def init(round: Round) -> State:
    return State(round.initial(), 0.0 * round.initial())


def step(state, round, *, decay, learning_rate, clip_norm, noise_std, batch_size):
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    y = decayed(state.y, noisy, decay=decay)
    return State(round.mix(state.x - learning_rate * y, kind="model"), y)


MOMENTUM = Algorithm(name="momentum", init=init, step=step, settings=Settings)
'''
RUN = run_text(
    "own_mine.py:MOMENTUM", agents=3, model={"name": "own_mine:net"}, algorithm={"decay": 0.5},
    privacy={"noise_multiplier": 1.0, "delta": 1e-05, "adversaries": ["eavesdropper"]},
    training={"rounds": 3, "sampling_rate": 0.05, "checkpoint_every": 1},
    attack={"presets": ["idlg"], "restarts": 1, "images": 1, "rounds": [1]},
    audit={"canaries": 20, "checked_rounds": 2},
)  # fmt: skip

Done = subprocess.CompletedProcess[str]
Told = tuple[int, str]
Overhear = Callable[..., Told]


def command(*arguments: str, cwd: Path, start: Callable[..., Done] = warm.run) -> Told:
    """Exit code and all that is said; the working directory is not on the path."""
    done = start(*arguments, cwd=cwd, env={"COLUMNS": "400"})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder of a user in which `run` is a run of the user's own code."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_parts.py").write_text(PARTS)
    (folder / "own_mine.py").write_text(MINE)
    (folder / "run.toml").write_text(RUN)
    code, said = command("train", "run.toml", "--out", "run", cwd=folder, start=warm.cold)
    assert code == 0, said
    assert "runs code of yours: own_mine.py (sha256 " in said
    return folder


@pytest.fixture
def place(trained, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(trained, tmp_path / "place")


@pytest.fixture
def overhear(place):
    """The command, run in that copy."""
    return lambda *arguments: command(*arguments, cwd=place)
