"""Steps whose noise a run would not have, or whose public numbers its trace would not share."""

import dataclasses
import math
from typing import NamedTuple

import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training.accounts.account import account
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from overhear.training.step.handles import Agents
from overhear.training.tracing.scripts import Basis
from overhear.training.tracing.trace import trace
from tests.training.contract import setting
from tests.training.step.test_false_proofs import GRAPH, ROUNDS, X, clipped, noised, start, tried

# What floats do that the coefficients of a trace do not.


class Carried(NamedTuple):
    x: Agents
    c: Agents
    d: Agents
    e: Agents


def start_carried(round):
    x = round.initial()
    return Carried(x, 0.0 * x, 0.0 * x, 0.0 * x)


def large_noise_that_swallows(state, round, s):
    large, z = round.noise(s, std=2.0**60), round.noise(s, std=1.0)
    return s + ((large + z) - large)


def a_large_known_value_that_swallows(state, round, s):
    large = state.x * 2.0**60
    return s + ((large + round.noise(s, std=1.0)) - large)


def a_factor_that_underflows(state, round, s):
    factor = torch.eye(4, dtype=torch.float64) * 2.0**-156
    return 2.0**-78 * s + round.noise(s, std=2.0**78, factor=factor)


def messages_in_which_noise_underflows(state, round, s):
    def kept(value):
        return round.own(round.reply(round.spread(value), kind="keep"))

    z = round.noise(s, std=1.0)
    for factor in (2.0**-70, 2.0**-70, 2.0**-70, 2.0**70, 2.0**70, 2.0**70):
        z = kept(z * factor)
    return s + z


class Another(float):
    def __float__(self):
        return 1.0


class Renamed(str):
    __slots__ = ()

    def __str__(self):
        return "model"


def a_number_that_is_another_when_asked(state, round, s):
    return s + round.noise(s, std=Another(0.0))


def a_kind_that_is_another_when_asked(state, round, s):
    round.broadcast(s + round.noise(s, std=1.0), kind=Renamed("stolen"))
    return s + round.noise(s, std=1.0)


def a_table_of_another_class(state, round, s):
    class Zeros(torch.Tensor):
        def to(self, *_, **__):
            return torch.zeros(4, 4, dtype=torch.float64)

    factor = torch.eye(4, dtype=torch.float64).as_subclass(Zeros)
    return s + round.noise(s, std=1.0, factor=factor)


def the_inside_of_a_round(state, round, s):
    first = round.noise(s, std=1.0)
    round._do("__setattr__", "_noise_calls", 0)
    return s + first - round.noise(s, std=1.0)


def another_class_for_a_handle(state, round, s):
    noise = round.noise(s, std=1.0)
    object.__setattr__(noise, "__class__", type("Spy", (type(noise).__base__,), {"__slots__": ()}))
    return s + noise


FLOATS = [
    large_noise_that_swallows, a_large_known_value_that_swallows, a_factor_that_underflows,
    messages_in_which_noise_underflows, a_number_that_is_another_when_asked,
    a_kind_that_is_another_when_asked, a_table_of_another_class, the_inside_of_a_round,
    another_class_for_a_handle,
]  # fmt: skip


@pytest.mark.parametrize("made", FLOATS, ids=lambda f: f.__name__)
def test_noise_that_a_run_would_not_have_is_no_noise(made):
    def step(state, round):
        return X(round.mix(made(state, round, clipped(state, round)), kind="model"))

    assert tried(start, step).planned is None


def test_what_cancels_over_rounds_is_not_expressed():
    def step(state, round, *, clip_norm, noise_std):
        s = clipped(state, round, clip_norm=clip_norm)
        large = 1000.0 * state.x
        round.broadcast(((state.c - state.e) - state.d) * 2.0**20, kind="left")
        return Carried(
            round.mix(noised(s, round, std=noise_std), kind="model"), s + large, s, large
        )

    found = costs(start_carried, step)
    assert (found.epsilon, found.status) == (math.inf, "cannot be expressed")


def test_noise_that_is_swallowed_over_rounds_protects_nothing():
    def step(state, round, *, clip_norm, noise_std):
        s = clipped(state, round, clip_norm=clip_norm)
        large, z = round.noise(s, std=2.0**34 * noise_std), round.noise(s, std=noise_std)
        sent = round.mix(s + (state.d - state.c), kind="model")
        return Carried(sent, large, large + z, 0.0 * s)

    assert costs(start_carried, step).epsilon == math.inf


def costs(init, step):
    run = {"graph": "ring:4", "rounds": 8, "sampling_rate": 0.1, "delta": 1e-5}
    return account(init, step, noise_multiplier=2, adversaries=["eavesdropper"], **run)[
        "eavesdropper"
    ]


PUBLIC = {
    "aliased": lambda round: _reused(round, torch.ones(4, 1)),
    "float64": lambda round: (
        round.of_agents(torch.full((4, 1), 2.0**30 + 1, dtype=torch.float64))
        - round.of_agents(torch.full((4, 1), 2.0**30, dtype=torch.float64))
    ),
    "integers": lambda round: (
        round.of_agents(torch.full((4, 1), 16777217)) - round.of_agents([[16777216]] * 4)
    ),
}


def _reused(round, buffer):
    made = round.of_agents(buffer)
    buffer.zero_()
    return made


@pytest.mark.parametrize("table", PUBLIC.values(), ids=PUBLIC.keys())
def test_public_numbers_are_the_same_in_a_run_as_in_its_trace(table):
    def step(state, round):
        s = clipped(state, round)
        return X(round.mix(s + round.noise(s, std=1.0) * table(round), kind="model"))

    where = dataclasses.replace(setting(GRAPH), dtype=torch.float32)
    scripts = trace(start, step, graph=GRAPH, rounds=1, noise_multiplier=None).scripts
    ends = []
    for root in (7, 8):
        randomness = SecretRandomness(root)
        engine = Engine(where, Bound(start, step), randomness=randomness, scripts=scripts)
        engine.advance(planted=dict(enumerate(where.shards)))
        ends.append(engine.models())
    assert float((ends[0] - ends[1]).abs().min()) > 0  # the noise is there


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (setting(ring(5)), "is not the planned one"),
        (dataclasses.replace(setting(GRAPH), sampling_rate=0.9), "is not the planned 0.5"),
    ],
    ids=["graph", "rate"],
)
def test_scripts_are_those_of_one_setting(where, said):
    def step(state, round):
        return X(round.mix(noised(clipped(state, round), round), kind="model"))

    scripts = trace(start, step, graph=GRAPH, rounds=2, noise_multiplier=None).scripts
    with pytest.raises(InputError, match=said):
        Engine(where, Bound(start, step), scripts=scripts.resting_on(Basis(0.5)))


def test_values_may_be_added_up_by_sum():
    def step(state, round):
        s = clipped(state, round)
        return X(round.mix(sum([s, round.noise(s, std=1.0)]), kind="model"))

    assert tried(start, step).planned == pytest.approx([1.0] * ROUNDS)
