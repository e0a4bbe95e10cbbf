"""A tiny DP-SGD with one fault at a time, audited by the ratios of its own canaries."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from overhear.attacks.audit.audited import Verdict
from overhear.attacks.foreign.audit_training import audit_training
from overhear.attacks.foreign.claimed import claimed

BATCHES, EPOCHS, CANARIES = 10, 4, 400
RATE, NOISE = 1.0 / BATCHES, 1.0
DATA = TensorDataset(torch.zeros(16, 1), torch.arange(16) % 2)


class Fault(NamedTuple):
    noise: float = 1.0  # times the declared
    norm: float = 1.0  # of a canary after clipping, in clip norms
    rate: float = 1.0  # times the declared
    shuffled: bool = False


class Observed:
    """What the training's messages show of each canary, along a direction of its own."""

    ratios = True

    def claim(self, delta):
        return claimed(noise=NOISE, rate=RATE, rounds=BATCHES * EPOCHS, delta=delta)

    def __init__(self, seen):
        self.seen = seen  # (T, m)

    def scores(self, planted):
        ratio = self.seen / NOISE**2 - 0.5 / NOISE**2
        return np.logaddexp(np.log1p(-RATE), np.log(RATE) + ratio).sum(axis=0)


def trained(fault, seed):
    """train: one noisy sum of clipped gradients a round; that of canary j is `norm` along e_j."""
    rng = np.random.default_rng(seed)

    def train(planted):
        seen = []
        for step in range(BATCHES * EPOCHS):
            if fault.shuffled:
                if step % BATCHES == 0:
                    places = rng.permutation(len(planted)) % BATCHES
                batch = np.flatnonzero(places == step % BATCHES)
            else:
                batch = np.flatnonzero(rng.random(len(planted)) < RATE * fault.rate)
            total = np.zeros(planted.count)
            for _, which in planted.__getitems__(batch.tolist()):
                if which >= 100:
                    total[which - 100] += fault.norm
            seen.append(total + fault.noise * NOISE * rng.normal(size=planted.count))
        return Observed(np.array(seen))

    return train


def audited(fault, seed):
    return audit_training(
        trained(fault, seed), DATA, canaries=CANARIES, per_run=CANARIES, kind="yours",
        records=[(torch.zeros(1), torch.tensor(100 + j)) for j in range(CANARIES)], seed=seed,
    )  # fmt: skip


# 400 canaries, 40 rounds at rate .1 and noise 1: epsilon 4.69 at delta 1e-5; contradicted at
# 95 % and then at 99.9 % of 1,600 fresh ones, so by a sound training with probability 5e-5.
@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (Fault(), Verdict.CONSISTENT),
        (Fault(noise=0.5), Verdict.CONTRADICTED),
        (Fault(noise=0.9), Verdict.CONSISTENT),  # too little for so few canaries to show
        (Fault(norm=20.0), Verdict.CONTRADICTED),  # no clipping
        (Fault(rate=2.0), Verdict.CONTRADICTED),
        (Fault(shuffled=True), Verdict.CONSISTENT),  # a test of the batches finds it, not scores
    ],
    ids=["none", "noise halved", "noise .9", "no clip", "rate doubled", "shuffled"],
)
def test_verdict_of_each_fault(fault, verdict):
    assert audited(fault, seed=1).verdict is verdict


@pytest.mark.slow
def test_a_sound_training_is_not_contradicted_in_20_seeds():
    verdicts = [audited(Fault(), seed).verdict for seed in range(20)]
    assert Verdict.CONTRADICTED not in verdicts
    assert Verdict.CONSISTENT in verdicts


def test_the_claim_is_that_of_the_recorder():
    found = audited(Fault(), seed=2)
    assert found.claimed == Observed(None).claim(1e-5)
    assert found.trainings == 1
    assert 0.0 < found.epsilon < found.claimed.epsilon
