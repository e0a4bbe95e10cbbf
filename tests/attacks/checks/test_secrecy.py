"""Noise, batches and cohorts are made of the system's entropy alone, and none of another.

Sound runs are of the system's entropy: each fails with probability 1e-6 at most.
"""

import os
import random
import secrets
import threading
import time
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from overhear.attacks.checks.secrecy import _Entropy, _held, secrecy_check
from overhear.attacks.checks.watched_run import traces_of, watch
from overhear.privacy.batches.sampling import Drawing, Scheme
from overhear.training.algorithms.dp_fedavg import Cohorts, LocalData, Settings
from overhear.training.batches import Sampler
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.graphs.topologies import ring
from tests.attacks.checks.watched import a_setting
from tests.attacks.planted.catalogue import CATALOGUE
from tests.training.contract import bound_to

COHORTS = {"settings": Settings(cohort_rate=0.5, local_steps=1)}
LOCAL = {"settings": Settings(cohort_rate=0.5, local_steps=1, local_data=LocalData.EACH)}
FIXED = {"settings": Settings(cohort_rate=0.4, cohort=Cohorts.FIXED, local_steps=1)}


def checked(name="dpdl", *, rate=0.4, scheme=None, **how):
    graph = ring(5)
    setting, bound = a_setting(graph, rate=rate, records=40), bound_to(name, graph, **how)
    if scheme is not None:
        drawn = (Drawing(scheme, 40, 20 if scheme is Scheme.TRUNCATED else 16, 40),) * 5
        setting = replace(setting, sampler=Sampler(drawn=drawn, order_seed=1))
    traces = traces_of(bound, setting, rounds=2)
    return secrecy_check(watch(setting, bound, rounds=2, traces=traces), traces)


SOUND = {
    "by coins": {},
    "of everybody": {"rate": 1.0},
    **{scheme: {"scheme": scheme, "name": "dp-dpsgd"} for scheme in Scheme if scheme != "poisson"},
    "cohorts": {"name": "dp-fedavg", **COHORTS},
    "cohorts of a fixed size": {"name": "dp-fedavg", **FIXED},
    "without noise": {"name": "dp-dpsgd", "noise_std": 0.0},
}


@pytest.mark.some_quick(3)
@pytest.mark.parametrize("how", SOUND.values(), ids=list(SOUND))
def test_a_sound_engine_passes(how):
    found = checked(**how)
    assert found.passed, found.words


def of_root(root):
    return patch.object(secrets, "randbits", root)


def of_batches(draw):
    """A batch by `draw`, told the engine and the place."""

    def draw_batch(self, *, round, call, agent, rate, **_):
        return torch.as_tensor(draw(self, round, agent)).nonzero().flatten()

    return patch.object(Engine, "draw_batch", draw_batch)


def secretly(self, round, agent):
    stream = self._randomness.stream(Purpose.BATCH, round=round, call=0, row=agent)
    return stream.random(40) < 0.4


def one_public(self, round, agent):
    """Of agent 2 one record's coin everybody can toss."""
    drawn = secretly(self, round, agent)
    if agent == 2:
        drawn[7] = np.random.default_rng(round).random() < 0.4
    return drawn


def once_public(self, round, agent):
    return np.random.default_rng(agent).random(40) < 0.4 if round == 9 else secretly(
        self, round, agent
    )  # fmt: skip


def a_cohort_of_batches(self, cohort, *, round):
    streams = [self._randomness.stream(Purpose.BATCH, round=round, call=0, row=a) for a in range(5)]
    return torch.tensor([[of.random() < 0.5] for of in streams])


def by_size(self, round, agent):
    """The largest numbers of a row of noise, which no place of the generator tells."""
    stream = np.random.Philox(key=self._randomness._key, counter=[0, agent, 1 << 32, round])
    z = np.random.Generator(stream).standard_normal(40)
    return np.abs(z) > 0.8416212335729143  # of rate .4


def planted(name):
    return CATALOGUE[name].plant()


def of_10_bits(_):
    return int(np.random.default_rng().integers(2**10))


LOCAL_STEPS = {"name": "dp-fedavg", **LOCAL}
OUTSIDE = "whatever the system's entropy"
FAULTS = {
    "five": (of_root(lambda _: 5), OUTSIDE, {}),
    "global": (of_root(random.getrandbits), OUTSIDE, {}),
    "10 bits": (of_root(of_10_bits), "roots draw the noise of another", {}),
    "8 bytes": (of_root(lambda _: int.from_bytes(os.urandom(8))), OUTSIDE, {}),
    "engine": (
        patch.object(Engine, "_fresh_randomness", lambda _: SecretRandomness(1)), OUTSIDE, {}
    ),
    "clock": (planted("root of a clock that nobody can hold"), "another with the same entropy", {}),
    "moment": (planted("root of the nanosecond that it is"), OUTSIDE, {}),
    "masked": (planted("root of 32 bits"), OUTSIDE, {}),
    "one public coin": (
        of_batches(one_public), "whether number 7 is in the batch of agent 2", {"rate": 0.4}
    ),
    "one public round": (of_batches(once_public), "so that others can draw it in 1 of", {}),
    "batches as noise": (
        planted("batch coins that are numbers of the noise"),
        "batches are drawn from streams of noise",
        {},
    ),
    "batches as other numbers": (of_batches(by_size), "are numbers of source", {}),
    "cohorts as batches": (
        patch.object(Engine, "draw_cohort", a_cohort_of_batches),
        "cohorts are drawn from streams of batches",
        LOCAL_STEPS,
    ),
}  # fmt: skip


@pytest.mark.some_quick(3)
@pytest.mark.parametrize(("plant", "words", "how"), FAULTS.values(), ids=list(FAULTS))
def test_what_others_can_draw_is_named(plant, words, how):
    with plant:
        found = checked(**how)
    assert not found.passed
    assert words in found.words


def test_what_is_held_is_held_for_its_own_thread_and_given_back():
    before = random.getstate(), torch.get_rng_state(), os.urandom, time.time_ns
    seen = {}

    def elsewhere():
        seen["other"] = os.urandom(8), time.time_ns(), secrets.token_bytes(8)

    with _held(_Entropy(b"key")):
        seen["here"] = os.urandom(8), time.time_ns(), secrets.token_bytes(8)
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        assert time.time_ns() == seen["here"][1]
    with _held(_Entropy(b"key")):
        assert os.urandom(8) == seen["here"][0] != seen["other"][0]
    assert seen["other"][1] > seen["here"][1]
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert (os.urandom, time.time_ns) == before[2:]
