"""The noise of all planned rounds is new, and is what was asked for."""

from unittest.mock import patch

import numpy as np
import pytest
import torch

from overhear.attacks.checks.noise_streams import _note_equal, _Sources, stream_check
from overhear.attacks.checks.result import Finding
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.attacks.checks.watched import PRIVATE, a_setting
from tests.training.contract import bound_to

ROUNDS = 60


def _of(name, rounds=ROUNDS, dtype=torch.float32, **how):
    graph = ring(5)
    bound = bound_to(name, graph, rounds=rounds, **how)
    setting = a_setting(graph, min_max=bound.blocks == 2, dtype=dtype)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=rounds, noise_multiplier=bound.noise_multiplier
    )
    return setting, bound, traces


def _check(name="dpdl", **how):
    return _checked(_of(name, **how))


def _checked(of):
    generator = np.random.default_rng(3)
    return stream_check(*of, randomness=SecretRandomness(7), generator=generator)


@pytest.mark.some_quick(4)
@pytest.mark.parametrize(("name", "form"), PRIVATE)
def test_a_sound_run_passes(name, form):
    found = _check(name, form=form, rounds=5)
    assert found.passed, found.words
    assert "of 5 of 5 planned rounds (5 by running them without records)" in found.words


def test_without_noise_there_is_nothing_to_find():
    assert _check("dp-dpsgd", noise_std=0.0, rounds=3).passed


def test_what_time_does_not_allow_is_drawn_from_the_seeds():
    with patch("overhear.attacks.checks.noise_streams._SECONDS", 0.0):
        found = _check()
    assert found.passed, found.words
    assert "of 60 of 60 planned rounds (0 by running" in found.words


def _stream(of):
    sound = SecretRandomness.counter

    def counter(self, purpose, *, round, call, row):
        at = of(round, call, row) if purpose is Purpose.NOISE else (round, call, row)
        return sound(self, purpose, round=at[0], call=at[1], row=at[2])

    return patch.object(SecretRandomness, "counter", counter)


@pytest.mark.parametrize("seconds", [0.0, 2.0])
@pytest.mark.parametrize(
    "of",
    [
        lambda round, call, row: (round % 20, call, row),
        lambda round, call, row: (round, call, 3 if row == 4 and round > 50 else row),
        lambda round, call, row: (round, call, row % 8),
    ],
)
def test_a_stream_that_comes_again_is_found(of, seconds):
    with _stream(of), patch("overhear.attacks.checks.noise_streams._SECONDS", seconds):
        found = _check()
    assert not found.passed
    assert "sources are others again" in found.words


def test_a_stream_that_comes_again_scaled_and_with_its_sign_turned_is_found():
    sound = SecretRandomness.normal

    def normal(self, **how):
        if how["round"] == 40:
            return -1.3 * sound(self, **{**how, "round": 31})
        return sound(self, **how)

    with patch.object(SecretRandomness, "normal", normal):
        found = _check()
    assert "in round 40 is source" in found.words


@pytest.mark.parametrize("of", [lambda r: 0.5 if r >= 33 else 1.0, lambda r: 0.7 ** (r == ROUNDS)])
@pytest.mark.parametrize("owner", [SecretRandomness, TensorRound])
def test_less_noise_in_late_rounds_is_found(of, owner):
    if owner is SecretRandomness:
        sound = SecretRandomness.normal

        def changed(self, **how):
            return sound(self, **how) * of(how["round"])

        planted = patch.object(SecretRandomness, "normal", changed)
        words = "times the variance of standard normal noise"
    else:
        inner = TensorRound.noise

        def changed(self, like, **how):
            return type(like)(inner(self, like, **how).rows * of(self.index))

        planted = patch.object(TensorRound, "noise", changed)
        words = "is not what was requested"
    with planted:
        found = _check()
    assert not found.passed
    assert words in found.words


@pytest.mark.parametrize("name", ["whisper", "decor", "cdp-dsgd"])
def test_a_factor_that_is_not_the_declared_one_is_found(name):
    sound = TensorRound.noise

    def noise(self, like, *, std, factor=None, known_to=None):
        wrong = None if factor is None else factor * (1.0 + 0.01 * (self.index == 4))
        return sound(self, like, std=std, factor=wrong, known_to=known_to)

    with patch.object(TensorRound, "noise", noise):
        found = _check(name, rounds=4)
    assert "in round 4 is not what was requested: it is 1.01 times" in found.words


def test_a_source_of_zeros_is_named_without_a_warning():
    """Numbers are divided by the largest of their source, which is 0 there."""
    values = np.random.default_rng(0).normal(size=(5, 64))
    values[2] = 0.0
    found = Finding()
    _note_equal(found, _Sources(places=np.arange(15).reshape(5, 3), values=values))
    assert found.p == 0.0
    assert found.what == "source 8 of noise call 7 in round 6 is 0 or no number"
