"""Vectors that are clipped in parts, such as the layers of a network, each to its own bound."""

import math

import pytest
import torch

from overhear.attacks.checks.checks import engine_checks
from overhear.privacy.errors import InputError
from overhear.training import Round, account
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.graphs.topologies import ring
from tests.training.contract import check_rows, setting, traced
from tests.training.states import State, start

PARTS = (12, 3, 6, 2)  # weights and biases of the network of `setting`
SHARES = (0.7, 0.1, 0.5, 0.5)  # of the clip norm: their squares add up to 1


def by_layer(
    state: State, round: Round, *, clip_norm: float = 0.2, noise_std: float = 0.4, shares=SHARES
) -> State:
    bounds = tuple(share * clip_norm for share in shares)
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=bounds, parts=PARTS)
    return State(round.mix(state.x - 0.1 * (sums + round.noise(sums, std=noise_std)), kind="model"))


def each_whole(
    state: State, round: Round, *, clip_norm: float = 0.2, noise_std: float = 0.4
) -> State:
    """A false twin: every part to the whole clip norm moves the vector by twice of it."""
    return by_layer(state, round, clip_norm=clip_norm, noise_std=noise_std, shares=(1.0,) * 4)


@pytest.mark.parametrize(("step", "expected"), [(by_layer, 1.0), (each_whole, 2.0)])
def test_the_bound_is_the_root_of_the_sum_of_squared_bounds(step, expected):
    run = {"graph": "ring:5", "rounds": 20, "sampling_rate": 0.1, "delta": 1e-5}
    found = account(start, step, noise_multiplier=2, adversaries=["eavesdropper"], **run)
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(expected)
    assert found["eavesdropper"].status == "proven"


def test_a_run_does_what_is_traced():
    check_rows(Bound(start, by_layer), ring(5))


def test_each_part_of_each_record_is_within_its_bound():
    of = setting(ring(5))
    engine = Engine(of, Bound(start, by_layer), randomness=SecretRandomness(5))
    engine.start()
    recorded = Recorded()
    one = {agent: shard.take(torch.arange(1)) for agent, shard in enumerate(of.shards)}
    engine.advance(planted=one, recorded=recorded)
    (sums,) = recorded.contributions
    whole = engine._every.gradients.clipped_sums(
        engine._every.initial[None].expand(5, -1), (range(5), range(5)),
        [one[agent] for agent in range(5)], clip_norm=None,
    )  # fmt: skip
    parts = zip(sums.split(PARTS, dim=1), whole.split(PARTS, dim=1), SHARES, strict=True)
    for part, unclipped, share in parts:
        factor = (0.2 * share / unclipped.norm(dim=1, keepdim=True)).clamp(max=1.0)
        torch.testing.assert_close(part, factor * unclipped, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"clip_norm": (1.0, 1.0)}, "the number of coordinates of each part"),
        ({"clip_norm": 1.0, "parts": PARTS}, "the number of coordinates of each part"),
        ({"clip_norm": (1.0,), "parts": PARTS}, "has 1 bounds for 4 parts"),
        ({"clip_norm": (1.0, -1.0), "parts": (20, 3)}, "positive and finite"),
        ({"clip_norm": (1.0, math.inf), "parts": (20, 3)}, "positive and finite"),
        ({"clip_norm": (1.0, None), "parts": (20, 3)}, "no number"),
        ({"clip_norm": (1.0, 1.0), "parts": (23, 0)}, "at least one coordinate"),
        ({"clip_norm": (1.0, 1.0), "parts": (22.5, 0.5)}, "no number of coordinates"),
    ],
)
def test_bad_parts_are_named(how, said):
    def step(state: State, round: Round) -> State:
        round.clipped_sums(state.x, batch=round.draw(), **how)
        return state

    with pytest.raises((InputError, TypeError), match=said):
        traced(start, step, ring(5))


def test_parts_of_another_length_are_told_when_the_run_begins():
    def step(state: State, round: Round) -> State:
        round.clipped_sums(state.x, batch=round.draw(), clip_norm=(1.0, 1.0), parts=(20, 4))
        return state

    with pytest.raises(InputError, match=r"have 24 coordinates, and a vector has 23"):
        Engine(setting(ring(5)), Bound(start, step)).advance()


@pytest.mark.slow
def test_a_run_is_audited():
    bound = Bound(start, by_layer, noise_multiplier=2.0)
    every = engine_checks(setting(ring(5)), bound, rounds=3, randomness=SecretRandomness(9))
    assert [(one.name, one.words) for one in every if not one.passed] == []
