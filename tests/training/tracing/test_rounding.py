"""What late noise stands beside: steps that ask for a floor, and their sound neighbours."""

from typing import NamedTuple

import pytest
import torch

from overhear.training.graphs.topologies import ring
from overhear.training.step.handles import Agents
from overhear.training.step.values import UndeclaredOperation
from overhear.training.tracing.trace import trace

STD = 0.25
PAIRS = torch.tensor([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])


class State(NamedTuple):
    """A model, and something that was released beside it."""

    x: Agents
    y: Agents


def init(round):
    return State(round.initial(), round.initial())


def floor(value):
    """By name the size of what the noise of a round stands beside, and its deviation."""

    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(value(round, state, s), kind="model"), state.y)

    found = trace(init, step, graph=ring(3), rounds=1, noise_multiplier=None)
    parts = found.scripts.floor_of(1, None).parts
    return {p.what: (round(p.size, 9), round(p.deviation, 9)) for p in parts if p.what}


def noise(round, s, **how):
    return round.noise(s, std=STD, **how)


def change(round, state):
    how = {"learning_rate": 0.1, "batch": round.draw(), "clip_norm": 1.0}
    return round.local_update(state.x, steps=2, **how)


LATE = {
    "noise on the model": (lambda r, v, s: v.x - 0.1 * s + noise(r, s), {"state x": (1.0, STD)}),
    "scaled alike": (lambda r, v, s: 0.1 * (v.x - s + noise(r, s)), {"state x": (1.0, STD)}),
    "data on a noisy model": (lambda r, v, s: v.x + noise(r, s) - s, {"state x": (1.0, STD)}),
    "local steps": (lambda r, v, s: v.x + change(r, v) + noise(r, s), {"state x": (1.0, STD)}),
    "times and over a factor": (
        lambda r, v, s: (1e6 * v.x - s) / 1e6 + noise(r, s),
        {"state x": (1.0, STD)},
    ),
    "values that cancel": (
        lambda r, v, s: s + v.x - v.y + noise(r, s),
        {"state x": (2.0, STD), "state y": (1.0, STD)},
    ),
    "a momentum": (
        lambda r, v, s: v.x - (0.9 * v.y + s + noise(r, s)),
        {"state y": (0.9, STD)},
    ),
    "what was received": (
        lambda r, v, s: r.mix(v.x, kind="before") - s + noise(r, s),
        {"state x": (1.0, STD)},
    ),
    "a result of a function": (
        lambda r, v, s: r.postprocess(lambda x: 2.0 * x, v.x) - s + noise(r, s),
        {"result of postprocess": (1.0, STD)},
    ),
    "noise of a server": (
        lambda r, v, s: r.download(
            (mean := r.average(v.x - s)) + r.noise(mean, std=STD), kind="mean"
        ),
        {"state x": (3.0, STD)},  # two additions of the mean, and one before
    ),
    "small noise beside pairs": (
        lambda r, v, s: v.x + (s + noise(r, s, factor=100 * PAIRS)) + noise(r, s),
        {"state x": (1.0, STD)},
    ),
    "noise that was received": (
        lambda r, v, s: v.x - s + r.mix(noise(r, s), kind="share"),
        {"state x": (2.0, round(STD / 3**0.5, 9))},
    ),
    "pairs alone hide no rounding": (
        lambda r, v, s: v.x + s + noise(r, s, factor=PAIRS),
        {"state x": (1.0, 0.0)},
    ),
}

BARE = {
    "noise first": lambda r, v, s: v.x - 0.1 * (s + noise(r, s)),
    "momentum of what is noised": lambda r, v, s: 0.9 * v.y + (s + noise(r, s)) - v.x,
    "cancelling later": lambda r, v, s: (s + noise(r, s)) + v.x - v.y,
    "local steps": lambda r, v, s: v.x + (change(r, v) + noise(r, s)),
    "noise of a server": lambda r, v, s: (
        v.x + r.download((mean := r.average(s)) + r.noise(mean, std=STD), kind="mean")
    ),
    "small noise beside pairs": lambda r, v, s: (
        v.x + (s + noise(r, s) + noise(r, s, factor=100 * PAIRS))
    ),
}


@pytest.mark.parametrize("kind", LATE)
def test_late_noise_asks_for_a_floor(kind):
    value, expected = LATE[kind]
    assert floor(value) == expected


@pytest.mark.parametrize("kind", BARE)
def test_noise_that_meets_data_first_asks_for_nothing(kind):
    assert floor(BARE[kind]) == {}


def test_a_model_that_counts_as_seen_is_rounded_as_it_is_seen():
    def two_steps(round, state, s):
        half = state.x - (s + noise(round, s))
        again = round.clipped_sums(half, batch=round.draw(), clip_norm=1.0)
        return half - (again + noise(round, again))

    def late(round, state, s):
        half = state.x - (s + noise(round, s))
        again = round.clipped_sums(half, batch=round.draw(), clip_norm=1.0)
        return half - again + noise(round, again)

    assert floor(two_steps) == {}
    assert floor(late) == {"state x": (1.0, STD)}


def test_data_that_rounds_carry_without_noise_are_data_of_the_next_round():
    def delayed(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(state.y + noise(round, s), kind="model"), state.y - s)

    found = trace(init, delayed, graph=ring(3), rounds=5, noise_multiplier=None)
    assert found.scripts.floor_of(1, None).parts == (("state y", 5.0, STD),)


@pytest.mark.parametrize(
    "value",
    [
        lambda r, v, s: v.x + noise(r, s) - v.y + s,
        lambda r, v, s: v.x + noise(r, s) - 0.999 * v.x + s,
    ],
)
def test_data_on_noise_that_was_rounded_to_a_coarser_grid_is_refused(value):
    with pytest.raises(UndeclaredOperation, match="rounded beside other values more than once"):
        floor(value)
