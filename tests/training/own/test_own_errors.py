"""Errors that code of one's own raises, and what it may not change: each is one sentence."""

import sys
from dataclasses import make_dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training.accounts.account import account
from overhear.training.algorithms.algorithm import Algorithm, NoSettings, prepared
from overhear.training.data.own_data import dataset_of
from overhear.training.data.store import checked_targets
from overhear.training.graphs.topologies import build_graph
from overhear.training.own.names import own_object
from overhear.training.step.values import Agents

RUN = {"graph": "ring:5", "rounds": 2, "sampling_rate": 0.1, "delta": 1e-5}


class State(NamedTuple):
    x: Agents


def init(round):
    return State(round.initial())


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit(0), KeyError("k")])
def test_an_error_of_a_step_is_one_sentence_with_its_line(error):
    def step(state, round):
        raise error

    with pytest.raises(InputError, match=rf"step raised {type(error).__name__}.* in line \d+ of "):
        account(init, step, noise_multiplier=1, **RUN)


@pytest.mark.parametrize("name", ["noise_std", "clip_norm", "learning_rate", "round", "form"])
def test_a_hyper_parameter_may_not_take_the_name_of_what_runs_give(name):
    settings = make_dataclass("Settings", [(name, float, 0.01)], frozen=True)
    with pytest.raises(InputError, match=f"hyper-parameter '{name}' .*rename it"):
        Algorithm(name="mine", init=init, step=init, settings=settings)


@pytest.mark.parametrize("parts", [{"name": "a\x1b[31m"}, {"name": None}, {"init": None}])
def test_an_algorithm_of_parts_that_are_none_is_refused(parts):
    with pytest.raises(InputError, match="algorithm"):
        Algorithm(**{"name": "mine", "init": init, "step": init, **parts})


@pytest.mark.parametrize("made", [lambda: 1 / 0, lambda: [1]])
def test_a_prepare_that_fails_is_told(made):
    own = Algorithm(name="mine", init=init, step=init, prepare=lambda rounds: made())
    with pytest.raises(InputError, match="prepare of 'mine' r"):
        prepared(own, NoSettings(), graph=build_graph("ring", 4), rounds=2)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import os; os.chdir('/')", "the working directory"),
        ("import numpy; numpy.seterr(all='raise')", "what numpy does on errors"),
        ("import torch; torch.set_default_device('meta')", "the default device of torch"),
    ],
)
def test_a_module_may_not_change_what_the_run_relies_on(tmp_path, monkeypatch, line, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owntest_changes.py").write_text(f"{line}\nK = 1\n")
    numpy_before = np.geterr()
    try:
        with pytest.raises(InputError, match=what):
            own_object("owntest_changes:K", key="[model] name")
    finally:
        torch.set_default_device(None)
        np.seterr(**numpy_before)
        sys.modules.pop("owntest_changes", None)


class _Records:
    def __init__(self, length, item) -> None:
        self._length, self._item = length, item

    def __len__(self) -> int:
        return self._length()

    def __getitem__(self, at):
        return self._item(at)


def _exit(*_: object):
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("length", "item"),
    [
        (lambda: -1, lambda at: (torch.zeros(2), at % 2)),
        (lambda: 1 // 0, lambda at: (torch.zeros(2), at % 2)),
        (lambda: 9, _exit),
        (lambda: 9, lambda at: (torch.eye(2).to_sparse(), at % 2)),
    ],
)
def test_a_data_set_that_fails_is_told(length, item):
    with pytest.raises(InputError, match=r"^'mine'"):
        dataset_of(_Records(length, item), name="mine", classes=2)


def test_a_label_beyond_64_bits_is_named_as_it_is():
    labels = np.array([0, 2**63 + 1], dtype=np.uint64)
    with pytest.raises(InputError, match=r"y\[1\]=9223372036854775809 is too large"):
        checked_targets(labels, "y", rows=2, classes=None, outputs=0)
