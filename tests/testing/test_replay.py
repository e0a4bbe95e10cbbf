"""Replay of foreign trainings: a table of faults, each beside its sound twin."""

import datetime as dt
import os
import random
import re
import subprocess
import sys
import time
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import overhear
from overhear.attacks.checks.secrecy import frozen
from overhear.privacy.errors import InputError
from overhear.testing import assert_noise, assert_private, released, replay
from tests.benchmark_scripts import benchmark

faults = benchmark("faults", "examples")

by_hand, with_torch = faults.by_hand, faults.with_torch
D, T, B, C, N = faults.WIDTH, faults.STEPS, faults.BATCH, faults.CLIP, faults.RECORDS
X, Y, STD, LR, CLAIM = faults.X, faults.Y, faults.STD, faults.RATE, faults.CLAIM

FAULTS = {
    "two items": ("releases", "2 clip scale"),
    "means": ("releases", "2 clip scale"),
    "clip of the mean": ("releases", "before any sum or mean"),
    "by tensors": ("releases", "2 clip scale"),
    "a tenth too long": ("releases", "2 clip scale"),
    "no clip": ("releases", "2 clip scale"),
    "dropped beyond 2000": ("releases", "2 clip scale"),
    "weights by counts": ("rate", "is claimed; draw each"),
    "thrice the rate": ("rate", "share of 0.25 is claimed"),
    "rate of loss": ("public", "lr was .* and became"),
    "printed": ("public", "a line that is printed was 'step"),
    "stopped": ("public", "came in one alone"),
    "seed": ("secrecy", "known to anyone who knows the seed"),
    "clock": ("secrecy", "known to anyone who knows the seed"),
    "date": ("secrecy", "known to anyone who knows the seed"),
    "process": ("secrecy", "known to anyone who knows the seed"),
    "public batches": ("secrecy", "releases that records are in are the same"),
    "bfloat16": ("noise", "40 numbers of noise .* lie on a grid"),
    "two rounds": ("noise", "8 of 40 numbers of noise .* come twice"),
    "none at last": ("secrecy", "8 of .* are equal"),
    "no noise": ("noise", "at most 0 .*1.5 is claimed"),
    "one with little": ("noise", r"at most 0.0\d+ is on the sum"),
    "a fifth": ("noise", "1.5 is claimed"),  # of 40 numbers half is seen two times in three
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_by_value_bound_and_remedy(fault):
    name, words = FAULTS[fault]
    assert name in faults.KINDS[fault][0]
    with pytest.raises(AssertionError, match=f"(?s){name} +failed: .*{words}"):
        replay(by_hand(fault), (X, Y), **CLAIM)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_sound_loop_by_hand_passes(dtype):
    assert {"", "median", *FAULTS} == set(faults.KINDS)  # seen in seven replays of ten
    found = replay(by_hand(dtype=dtype), (X, Y), **CLAIM)
    assert [one.passed for one in found.checks] == [True] * 5
    assert "shuffled batches" in repr(found)  # which would pass, too
    assert by_hand(hand=lambda w: w)((X, Y))["w"].shape == (D,)


@pytest.mark.slow
def test_what_was_not_seen_to_leave_does_not_pass():
    with pytest.raises(
        AssertionError, match=r"releases +not run: nothing was seen .*released\(w\)"
    ):
        replay(by_hand(hand=lambda w: w), (X, Y), **CLAIM)
    found = overhear.replay(by_hand("rate of loss", hand=lambda w: w), (X, Y), records=2)
    assert "lr was" in found["public"].words
    assert not found["public"].passed
    assert not found["secrecy"].passed  # lr follows the data, and nothing hides it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "how"),
    [
        *((fault, {}) for fault in faults.OF_TORCH),
        ("", {"dtype": torch.float64, "passes": 2}),
        ("", {"kind": torch.optim.Adam}),
    ],
)
def test_optimisers_are_seen_without_a_word(fault, how):
    found = overhear.replay(
        with_torch(fault, **how), faults.ITEMS, records=8, **faults.CLAIM_OF_TORCH
    )
    failed = {one.name for one in found.checks if not one.passed}
    assert failed >= set(faults.OF_TORCH[fault][0])
    assert bool(failed) is bool(fault)


def recorded(std, folder="ledger"):
    def train(data):
        x, w = data["x"], torch.zeros(D, dtype=torch.float64)
        with overhear.record(f"{folder}/a.jsonl", agents=1, clip=C, rate=B / N) as ledger:
            for t in range(1, T + 1):
                g = x[torch.from_numpy(ledger.batch(len(x)))] - w
                g = (g * (C / g.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1)).sum(dim=0)
                value = w - LR * (g + ledger.noise(D, std=std, like=g))
                ledger.release(
                    t, kind="model", to="all", noise=STD, value=value, known=w, scale=-LR
                )
                w = value

    return train


@pytest.mark.slow
def test_a_recorder_tells_what_leaves_and_its_log_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"x": torch.tensor(X)}
    assert overhear.replay(recorded(STD), data, noise=STD, scale=LR, records=4).passed
    assert not list(tmp_path.iterdir())
    with pytest.raises(AssertionError, match=r"noise of at most 0\.\d+ .* 1.5 is claimed"):
        assert_noise(recorded(STD / 10), data, noise=STD, scale=LR)


def test_estimators_and_items_are_taken_and_what_carries_no_noise_is_named():
    from sklearn.linear_model import Ridge

    found = overhear.replay(lambda data: Ridge().fit(*data), (X, Y), records=2)
    assert "numbers of coef_ are equal" in found["secrecy"].words
    rows = [(torch.tensor(x), int(y)) for x, y in zip(X, Y, strict=True)]
    found = overhear.replay(
        lambda data: [len(data), next(iter(DataLoader(data, len(data))))[0].mean(dim=0)], rows
    )
    assert "With one record less" in repr(found)


def test_what_is_in_a_release_and_its_kind_must_not_move():
    def words(data):  # a row for each word that is there
        seen = sorted(set(data.tolist()))
        return released(np.random.default_rng().normal(size=len(seen)))

    with pytest.raises(AssertionError, match=r"release 1 was of shape .* and became of shape"):
        replay(words, np.arange(20), clip=1.0, records=20)


@pytest.mark.parametrize("seed", [None, 3])
def test_noise_in_whole_numbers_may_come_twice_and_not_always(seed):
    def counts(data):
        chance = np.random.default_rng(seed)
        noise = chance.geometric(0.3, 40) - chance.geometric(0.3, 40)
        return released(np.histogram(data.clip(-1, 1), 40, (-1, 1))[0] + noise)

    found = overhear.replay(counts, X[:, 0], clip=1.0, records=4)
    assert found["secrecy"].passed is (seed is None)
    assert found["releases"].passed


def test_a_training_that_cannot_be_repeated_is_refused_with_the_part_that_differs():
    left = []

    def train(data):
        left.append(1)
        return {"w": np.zeros(2), "calls": len(left)}

    with pytest.raises(InputError, match="calls was 2 and became 3"):
        overhear.replay(train, (X, Y))


@pytest.mark.parametrize(
    ("data", "how", "words"),
    [
        ((X, Y[1:]), {}, "one row a record"),
        ([], {}, "at least one record"),
        ((X, Y), {"clip": -1.0}, "clip=-1"),
        ((X, Y), {"rate": 2.0}, "rate=2"),
    ],
)
def test_what_cannot_be_replayed_is_refused(data, how, words):
    with pytest.raises((InputError, TypeError), match=words):
        overhear.replay(lambda data: 1, data, **how)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.gauss(0, 1),
        np.random.normal,
        lambda: float(torch.randn(())),
        lambda: np.random.default_rng().normal(),
        lambda: random.SystemRandom().gauss(0, 1),
    ],
)
def test_noise_of_any_generator_is_repeated_and_new_with_other_entropy(draw):
    def train(data):
        return [released(float(np.clip(data, 0, 1).sum()) + draw()) for _ in range(20)]

    found = replay(train, np.linspace(0, 1, 9), clip=0.5)
    assert [found["releases"].passed, found["secrecy"].passed] == [True, True]


def test_randomness_is_put_back(monkeypatch):
    before = os.urandom, time.time, torch.get_rng_state()
    held = types.ModuleType("held")
    held.clock = time.time
    monkeypatch.setitem(sys.modules, "held", held)
    with frozen(globals(), seed=1):
        assert held.clock is time.time is not before[1]
        drawn = os.urandom(4), time.time(), os.getrandom(4), torch.rand(2)
        assert isinstance(dt.datetime.now(), dt.datetime)
    with frozen(globals(), seed=1):
        assert os.urandom(4) == drawn[0]
        assert (time.time(), os.getrandom(4)) == drawn[1:3]
    assert (os.urandom, time.time, held.clock) == (*before[:2], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.slow
def test_an_audit_keeps_to_its_time():
    def train(dataset, steps=60):
        net = nn.Linear(D, 2)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(steps):
            for x, y in DataLoader(dataset, batch_size=N):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
        return net

    wide = TensorDataset(torch.randn(100, D), torch.arange(100) % 2)
    began = time.process_time()
    assert_private(lambda data: train(data, 0), wide, claim="epsilon=1,delta=1e-5", seconds=2)
    assert time.process_time() - began < 20


PROJECT = """
import sys
assert "torch" not in sys.modules
import pytest
from overhear.testing import replay
from tests.testing.test_replay import CLAIM, X, Y, by_hand

@pytest.mark.parametrize("fault", FAULTS)
def test_training(fault):
    replay(by_hand(fault), (X, Y), records=4, **CLAIM)
"""


@pytest.mark.slow
def test_a_plugin_of_pytest_finds_faults_and_passes_the_sound_twin(tmp_path):
    root = Path(__file__).parents[2]
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    wrong = ["no noise", "clip of the mean", "rate of loss", "seed", "two items"]
    (tmp_path / "test_mine.py").write_text(f"FAULTS = {['', *wrong]}" + PROJECT)
    ran = subprocess.run(
        f"{sys.executable} -m pytest -p {points['pytest11']['overhear']} --overhear-seconds 9 "
        f"-p no:cacheprovider --rootdir {tmp_path} {tmp_path}".split(),
        env={**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "5 failed, 1 passed" in ran.stdout, ran.stdout
    assert "asserts.py" not in ran.stdout  # the line of the test, and what was found
    for fault in wrong:
        name, words = FAULTS[fault]
        assert re.search(f"E +{name} +failed: .*{words}", ran.stdout), fault
