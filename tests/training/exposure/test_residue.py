"""What cancels to rounding error: refused where an adversary sees it without enough noise."""

import math

import numpy as np
import pytest
import torch

from overhear.privacy.errors import UndeclaredOperation, UnsupportedView
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.whole_run import whole_run_joint_sensitivities
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.training.states import State, start


def _sent(value):
    """A step that sends a function of x, a clipped sum s and noise n, and keeps its model."""

    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        round.broadcast(value(round, state.x, s, round.noise(s, std=1.0)), kind="odd")
        return state

    return step


def _kept(value):
    """The same, returned as the state."""

    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(value(round, state.x, s, round.noise(s, std=1.0)))

    return step


def _largest(step, name="eavesdropper", graph=None):
    of = trace(start, step, graph=graph or ring(5), rounds=3, noise_multiplier=1.0)
    ((_, found),) = joint_sensitivities(of, [name], sampling_rate=0.1)
    return found.largest


def _other(round, s, std=1.0):
    return round.noise(s, std=std)


def _mean_less_parts(round, _, s, n):
    return round.download(round.average(s + n) - round.average(s) - round.average(n), kind="d")


UNHIDDEN = {
    "sum and noise": lambda r, x, s, n: ((s + n) - n) - s,
    "sum and model": lambda r, x, s, n: ((s + x) - x) - s,
    "message": lambda r, x, s, n: r.own(r.broadcast(s + n, kind="m")) - n - s,
    "mean": _mean_less_parts,
    "coarse model": lambda r, x, s, n: ((s + 1e6 * x) - 1e6 * x) + n,
    "coarse message": lambda r, x, s, n: (
        1e8 * r.own(r.broadcast(s + n, kind="m")) - 1e8 * n - 1e8 * s + _other(r, s)
    ),
    "made large": lambda r, x, s, n: 1e9 * (((s + n) - n) - s) + n,
    "coarse noise": lambda r, x, s, n: (s + (z := _other(r, s, 1e10))) - z + n,
}


@pytest.mark.parametrize("value", UNHIDDEN.values(), ids=UNHIDDEN)
@pytest.mark.parametrize("step", [_sent, _kept])
def test_what_cancels_to_rounding_error_is_refused(step, value):
    for name in ("neighbour", "all-others", *(["final-models"] if step is _kept else [])):
        with pytest.raises(UnsupportedView, match="cancels to rounding error") as refused:
            _largest(step(value), name)
    assert "leave the terms that cancel out" in str(refused.value)
    assert "agent " in str(refused.value)


def test_the_sentence_names_the_message_or_the_field():
    value = UNHIDDEN["sum and noise"]
    with pytest.raises(UnsupportedView, match=r"^odd of agent 0 to 1, 4: .* agent 0's data"):
        _largest(_sent(value))
    with pytest.raises(UnsupportedView, match=r"^state x, row 0: "):
        _largest(_kept(value))


def test_one_message_alone_and_all_rounds_together_are_refused_likewise():
    step = _sent(UNHIDDEN["sum and noise"])
    with pytest.raises(UnsupportedView, match="rounding error"):
        _largest(step, "single-message")
    of = trace(start, step, graph=ring(5), rounds=3, noise_multiplier=1.0)
    with pytest.raises(UnsupportedView, match="rounding error"):
        whole_run_joint_sensitivities(
            of, ["eavesdropper"], participation="every", sampling_rate=0.1
        )


def test_the_residue_is_there_in_floats():
    """What row 7 of the table sends: in float32 a function of s, and by its coefficients 0."""
    generator = torch.Generator().manual_seed(0)
    s, b = (torch.randn(1000, generator=generator) for _ in range(2))
    assert float((((s + b) - b) - s).abs().max()) > 0


HIDDEN = {
    "model": lambda r, x, s, n: (x - (s + n)) - x,
    "noise": lambda r, x, s, n: ((s + (z := _other(r, s))) - z) + n,
    "message": lambda r, x, s, n: r.own(r.broadcast(s + n, kind="m")) - n - s + _other(r, s),
    "in pieces": lambda r, x, s, n: (x - 0.01 * s) - 0.01 * n,
}


@pytest.mark.parametrize("value", HIDDEN.values(), ids=HIDDEN)
def test_a_residue_far_below_the_noise_changes_no_figure(value):
    assert _largest(_sent(value)) == pytest.approx(1.0, rel=1e-12)


def test_a_residue_that_another_message_uncovers_is_refused():
    """Both messages are s + n, and their difference is the residue alone."""

    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        n, z = round.noise(s, std=1.0), round.noise(s, std=1.0)
        round.broadcast(((s + z) - z) + n, kind="first")
        round.broadcast(s + n, kind="second")
        return state

    with pytest.raises(UnsupportedView, match="rounding error"):
        _largest(step)


def test_rounding_of_what_is_noised_already_is_no_release():
    """The residue of (y + x) - x is a function of the noised y, which is sent as well."""

    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        y = s + round.noise(s, std=1.0)
        round.broadcast((y + 1e5 * state.x) - 1e5 * state.x, kind="first")
        round.broadcast(y, kind="second")
        return state

    assert _largest(step) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("halves", [1, 2])
def test_clean_data_that_is_rounded_before_its_noise_comes_is_refused(halves):
    """((s + x) + n) - x less the s + n that is sent is rounding of s alone: no noise is in it."""

    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        n, large, total = round.noise(s, std=1.0), 1e5 * state.x, 1e5 * state.x
        for _ in range(halves):
            total = total + (1.0 / halves) * s
        round.broadcast((total + n) - large, kind="first")
        round.broadcast(s + n, kind="second")
        return state

    with pytest.raises(UnsupportedView, match="rounding error"):
        _largest(step)


def test_a_victim_without_any_noise_is_infinitely_exposed_and_nothing_is_refused():
    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        round.broadcast(((s + state.x) - state.x) - s, kind="odd")
        return State(round.mix(s, kind="clean"))

    assert _largest(step) == math.inf


def test_noise_that_rounding_absorbs_is_refused():
    for value in (
        lambda r, x, s, n: 1e10 * s + n,
        lambda r, x, s, n: (s + 1e7 * x) + n,
        lambda r, x, s, n: s + _other(r, s, 1e-8),
    ):
        with pytest.raises(UndeclaredOperation, match="float32 rounding it is lost"):
            _largest(_sent(value))


def test_noise_known_to_the_adversary_hides_no_residue():
    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        z = round.noise(s, std=1.0)
        shared = round.noise(s, std=1.0, known_to=[frozenset({1})] * round.agents)
        round.broadcast((((s + z) - z) - s) + shared, kind="odd")
        return state

    assert _largest(step, "neighbour:4") == 0.0
    with pytest.raises(UnsupportedView, match=r"unknown to neighbour:1"):
        _largest(step, "neighbour:1")


def test_a_term_times_zero_is_no_residue():
    assert _largest(_sent(lambda r, x, s, n: 0.0 * s)) == 0.0
    assert _largest(_sent(lambda r, x, s, n: (s + n) + 0.0 * s)) == pytest.approx(1.0)


def test_a_residue_that_grows_with_the_round_is_looked_at_in_every_round():
    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        z = round.noise(s, std=1.0)
        by = 1e9 if round.index == 3 else 1.0
        round.broadcast(by * (((s + z) - z) - s) + round.noise(s, std=1.0), kind="odd")
        return state

    with pytest.raises(UnsupportedView, match="rounding error"):
        _largest(step)


def test_a_secret_of_bounded_with_a_residue_is_refused():
    def value(round, x, s, n):
        return round.bounded(_same, (s + x) - x, lipschitz=1.0, blame="-") + n

    with pytest.raises(UndeclaredOperation, match="rounding error, which its bound"):
        _largest(_sent(value))


def _same(secret):
    return secret


def test_the_size_of_a_residue_is_that_of_float32():
    """1,000 normal s and b: no residue of ((s + b) - b) - s is beyond what is counted."""
    generator = torch.Generator().manual_seed(1)
    s, b = (torch.randn(1000, generator=generator) for _ in range(2))
    left = np.abs((((s + b) - b) - s).double().numpy())
    counted = 2.0**-24 * (2 * b.abs() + 2 * s.abs()).double().numpy()
    assert (left <= counted).all()
