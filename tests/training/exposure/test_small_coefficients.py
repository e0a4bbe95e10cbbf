"""A coefficient that no noise covers is shown, however small it is beside others of its column."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from overhear.privacy.errors import UnsupportedView
from overhear.privacy.view.view import View
from overhear.training import Agents, account
from overhear.training.graphs.topologies import ring

RUN = {"graph": "ring:5", "rounds": 3, "sampling_rate": 0.1, "delta": 1e-5, "batch_size": 3.0,
    "noise_multiplier": 2.0, "learning_rate": 0.1}  # fmt: skip


class State(NamedTuple):
    x: Agents
    a: Agents
    b: Agents


def init(round):
    x = round.initial()
    return State(x, 0.0 * x, 0.0 * x)


def _in_one_round(round, state, s, a, std):
    z = round.noise(s, std=std)
    round.broadcast(a * s + z, kind="hint")
    round.broadcast(z, kind="noise")
    return state.a, state.b


def _by_mixing(round, state, s, a, std):
    z = round.noise(s, std=std)
    round.mix(a * s + z, kind="hint")
    round.mix(z, kind="noise")
    return state.a, state.b


def _a_round_later(round, state, s, a, std):
    z = round.noise(s, std=std)
    round.broadcast(a * s + z, kind="hint")
    round.broadcast(state.a, kind="noise of the last round")
    return z, state.b


def _of_two_fields(round, state, s, a, std):
    z = round.noise(s, std=std)
    round.broadcast(state.a, kind="hint")
    round.broadcast(state.b, kind="noise")
    return a * s + z, z


def _of_shared_noise(round, state, s, a, std):
    z = round.noise(s, std=std, factor=_spread(round.agents))
    round.broadcast(a * s + z, kind="hint")
    round.broadcast(z, kind="noise")
    return state.a, state.b


def _beside_a_large_one(round, state, s, a, std):
    z, other = (round.noise(s, std=std, factor=_spread(round.agents)) for _ in range(2))
    round.broadcast(s + z + other, kind="large")
    round.broadcast(a * s + z, kind="hint")
    round.broadcast(z, kind="noise")
    return state.a, state.b


def _large_one_first(round, state, s, a, std):
    z, other = round.noise(s, std=std), round.noise(s, std=std)
    round.broadcast(s + z, kind="large")
    round.broadcast(a * s + z + other, kind="hint")
    round.broadcast(z + other, kind="noise")
    return state.a, state.b


def _shared_and_a_round_later(round, state, s, a, std):
    z, other = (round.noise(s, std=std, factor=_spread(round.agents)) for _ in range(2))
    round.broadcast(s + z + other, kind="large")
    round.broadcast(state.a, kind="hint")
    round.broadcast(state.b, kind="noise")
    return a * s + z, z


def _spread(agents):
    turned = (torch.roll(torch.eye(agents), k, 0) for k in (1, 2))
    return torch.eye(agents) + sum(w * of for w, of in zip((0.4, 0.13), turned, strict=True))


EXACT = [_in_one_round, _by_mixing, _a_round_later, _of_two_fields, _of_shared_noise]
LOST = [_beside_a_large_one, _large_one_first, _shared_and_a_round_later]


def spent(hint, small):
    def step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        noisy = (s + round.noise(s, std=noise_std)) / batch_size
        kept = hint(round, state, s, small, noise_std)
        return State(round.mix(state.x - learning_rate * noisy, kind="model"), *kept)

    return account(init, step, **RUN, adversaries=["eavesdropper"], released=("x",))["eavesdropper"]


@pytest.mark.parametrize("small", [1e-6, 1e-13, 1e-17])
@pytest.mark.parametrize("hint", EXACT)
def test_a_small_part_of_a_sum_whose_noise_is_sent_too_is_infinite(hint, small):
    found = spent(hint, small)
    assert math.isinf(found.epsilon)
    assert found.status == "no protection"


@pytest.mark.parametrize("small", [1e-6, 1e-13, 1e-17])
@pytest.mark.parametrize("hint", LOST)
def test_where_rounding_of_a_large_part_hides_it_there_is_no_figure(hint, small):
    if small == 1e-6:
        assert math.isinf(spent(hint, small).epsilon)
        return
    with pytest.raises(UnsupportedView, match="is indistinguishable from rounding"):
        spent(hint, small)


@pytest.mark.parametrize("hint", [*EXACT, *LOST])
def test_without_the_small_part_the_same_messages_are_proven(hint):
    found = spent(hint, 0.0)
    assert found.status == "proven"
    assert 1.0 <= found.joint_sensitivity < 2.5


def test_parts_that_mixing_makes_small_with_their_noise_are_covered():
    """40 mixings on a ring of 81: an agent 40 hops away holds 3^-40 of a sum, and of its noise.

    The mixing matrix to that power is singular to rounding, so that rows without noise are there.
    """
    mixed = np.linalg.matrix_power(ring(81).weights, 40)
    mu = View(contributions=mixed, noise=mixed).mu([0])
    assert abs(mixed[:, 0]).min() < 1e-12 * abs(mixed[:, 0]).max() < 1
    assert 0.5 < mu < 1.0
    noise = mixed.copy()
    noise[40, 0] *= 1.0 - 1e-6
    with pytest.raises(UnsupportedView, match="is indistinguishable from rounding"):
        View(contributions=mixed, noise=noise).mu([0])


def test_two_momenta_that_fade_at_two_rates_stay_proven():
    """J^2 of all rounds is the sum over rounds of the squared row sums, by hand."""
    rounds = 8

    def step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        slow, fast = 0.9 * state.a + s, 0.001 * state.b + s  # it ends at 1e-21
        sent = slow + fast + round.noise(s, std=noise_std)
        x = round.mix(state.x - learning_rate * sent / batch_size, kind="model")
        return State(x, slow, fast)

    found = account(init, step, **RUN | {"rounds": rounds}, released=("x",))["eavesdropper"]
    rows = [sum(0.9**k + 0.001**k for k in range(t + 1)) for t in range(rounds)]
    assert found.joint_sensitivity == pytest.approx(math.sqrt(sum(r * r for r in rows)), rel=1e-9)
    assert found.status == "proven"
