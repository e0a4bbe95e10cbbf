"""What late noise stands beside: steps that ask for a floor, and their sound neighbours."""

import functools
from typing import NamedTuple

import pytest
import torch

from overhear.privacy.errors import UndeclaredOperation, UnsupportedView
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import ring
from overhear.training.step.handles import Agents
from overhear.training.tracing.scripts import Basis
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


def sums(round, state):
    return round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)


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
    "a momentum": (lambda r, v, s: v.x - (0.9 * v.y + s + noise(r, s)), {"state y": (0.9, STD)}),
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


@pytest.mark.parametrize(
    ("clip_norm", "finite", "kept"), [(None, False, 0), (None, True, 1), (1.0, False, 1)]
)
def test_a_floor_falls_where_nothing_is_clipped_and_no_figure_is_finite(clip_norm, finite, kept):
    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        return State(round.mix(state.x - s + noise(round, s), kind="model"), state.y)

    found = trace(init, step, graph=ring(3), rounds=5, noise_multiplier=None)
    scripts = found.scripts.resting_on(Basis(sampling_rate=0.1), finite=finite)
    assert len(scripts.floor_of(1, None).parts) == kept


def test_data_that_cancel_leave_rounding_of_any_size_where_they_are_not_clipped():
    def step(state, round, clip_norm):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        m = round.own(round.broadcast(state.x + s, kind="bare"))
        return State(round.mix(m - s - state.x + noise(round, s), kind="model"), state.y)

    def figure(clip_norm):
        of = functools.partial(step, clip_norm=clip_norm)
        found = trace(init, of, graph=ring(6), rounds=1, noise_multiplier=STD)
        ((_, one),) = joint_sensitivities(found, ["final-models"], sampling_rate=1.0)
        return one.largest

    assert figure(1.0) == 0
    with pytest.raises(UnsupportedView, match="cancels to rounding error"):
        figure(None)


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


def _noise_of(row):
    """A step whose model is rounded before its noise comes in, and a row beside it."""

    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        z = noise(round, s)
        x = round.mix(state.x - 0.1 * s - 0.1 * z, kind="model")
        return row(round, state, x, s, z)

    return step


def _sent(value):
    return _noise_of(lambda r, v, x, s, z: State(x, r.mix(value(r, v, s, z), kind="beside")))


def _sensitivity(step, adversary="eavesdropper", *, agents=3):
    found = trace(init, step, graph=ring(agents), rounds=2, noise_multiplier=STD)
    ((_, one),) = joint_sensitivities(found, [adversary], sampling_rate=0.1)
    return one.largest


@pytest.mark.parametrize(
    "step",
    [
        _sent(lambda r, v, s, z: s + z),  # less its model it is the rounding of x - s
        _sent(lambda r, v, s, z: v.x - 0.1 * z - 0.1 * s),  # in another order
        _sent(lambda r, v, s, z: 3.0 * s + (3.0 * z + 1e-3 * noise(r, s))),  # and little noise
        _noise_of(lambda r, v, x, s, z: State(x, s + z)),  # kept, and released at the end
    ],
)
def test_late_noise_that_another_row_holds_is_refused(step):
    with pytest.raises(UnsupportedView, match="noise came in that other rows hold as well"):
        _sensitivity(step)


@pytest.mark.parametrize(
    "step",
    [
        _sent(lambda r, v, s, z: s + noise(r, s)),  # noise of its own
        _noise_of(lambda r, v, x, s, z: State(x, x)),
        _sent(lambda r, v, s, z: 0.5 * (v.x - v.y)),
        lambda v, r: State(  # what is sent is made part of what is kept
            0.5 * (x := v.x - (s := sums(r, v)) - noise(r, s)) + 0.5 * r.mix(x, kind="m"), v.y
        ),
    ],
)
def test_late_noise_of_one_row_has_its_figure(step):
    assert 1.0 <= _sensitivity(step) < 2.0


class Tracker(NamedTuple):
    x: Agents
    y: Agents
    last: Agents


def _tracker(round):
    return Tracker(round.initial(), 0.0 * round.initial(), 0.0 * round.initial())


def test_rounding_of_a_sum_that_had_its_noise_first_is_a_function_of_it():
    """Gradient tracking over two steps: the tracker less the last sum is a rounding of the first,
    beside no noise, of which every release holds what was rounded."""

    def step(state, round):
        x, y, last = state
        for _ in range(2):
            new = (s := sums(round, state)) + noise(round, s)
            y, last = y + new - last, new
            x = x - 0.1 * y
        return Tracker(round.mix(x, kind="model"), round.mix(y, kind="tracker"), last)

    found = trace(_tracker, step, graph=ring(3), rounds=2, noise_multiplier=STD)
    ((_, one),) = joint_sensitivities(found, ["eavesdropper"], sampling_rate=0.1)
    assert one.largest == pytest.approx(1.0)


def test_late_noise_on_a_large_graph_is_looked_at_quickly():
    step = _noise_of(lambda r, v, x, s, z: State(x, v.y))
    assert _sensitivity(step, "neighbour", agents=200) == pytest.approx(1.0)
