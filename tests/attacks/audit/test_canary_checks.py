"""What the checks of the canaries' noise find in draws, and in games of a small engine."""

import math
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from overhear.attacks.audit.canaries import drawn_norms
from overhear.attacks.audit.canary_noise import (
    CanaryNoise,
    absent_check,
    canary_checks,
    clipping_check,
    independence_check,
    of_observed_size,
    of_renewed_size,
)
from overhear.attacks.audit.game import CanaryGame
from overhear.attacks.audit.observed_rows import shares_noise
from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import ALGORITHMS
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.training import contract

WHOLE = {"dp-fedavg"}  # whole vectors of an agent, in which no record can be planted
PRIVATE = sorted({name for name, known in ALGORITHMS.items() if known.private} - WHOLE)
SHAPE = (4, 12, 200)  # hosts, rounds, canaries


def _noise(change=None, *, present: float = 0.1, seed: int = 0, v: float = 2.0) -> CanaryNoise:
    """Draws as a sound engine has them; `change(z, part, norms)` gives those of a faulty one."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=SHAPE)
    part = (rng.random(SHAPE) < present) * rng.choice([-1.0, 1.0], size=SHAPE)
    drawn = drawn_norms(4, 175, 25, far=1.8e15, generator=rng)
    norms = np.broadcast_to(drawn[:, None], SHAPE)
    if change is not None:
        z = change(z, part, norms)
    return CanaryNoise(
        name="eavesdropper", standard=z, information=np.full(SHAPE, v), part=part,
        sign=rng.choice([-1.0, 1.0], size=SHAPE), norms=norms, host=np.arange(4),
        run=np.zeros(4, dtype=int), rounds=np.arange(1, 13), rate=np.full(12, 0.2),
    )  # fmt: skip


def _gain(where, gain: float):
    """A canary that adds `gain` times what it may, of v = 2."""

    def change(z, part, norms):
        return z + np.where(where(norms), (gain - 1) * part * math.sqrt(2.0), 0.0)

    return change


def _common(z, part, norms):
    x = np.random.default_rng(5).normal(size=(1, *SHAPE[1:]))
    return 0.9 * z + math.sqrt(0.19) * x


def _common_size(z, part, norms):
    return z * np.exp(0.4 * np.random.default_rng(5).normal(size=(1, *SHAPE[1:])))


def _one_round(z, part, norms):
    z = z.copy()
    z[:, 7] *= 0.8
    return z


def _one_host(z, part, norms):
    return z * np.array([1.0, 0.9, 1.0, 1.0])[:, None, None]


def _heavy(z, part, norms):
    return np.random.default_rng(6).standard_t(5, size=SHAPE) * math.sqrt(3 / 5)


def _clamped(z, part, norms):
    return np.clip(z, -2.5, 2.5)


def _repeated(z, part, norms):
    z = z.copy()
    z[:, 6:] = z[:, :6]
    return z


FAULTS = {
    "all noise at .95": ("absent canaries", lambda z, part, norms: 0.93 * z),
    "one round at .8": ("absent canaries", _one_round),
    "one host at .9": ("absent canaries", _one_host),
    "heavy tails": ("absent canaries", _heavy),
    "clamped": ("absent canaries", _clamped),
    "uniform": (
        "absent canaries",
        lambda z, part, norms: np.random.default_rng(1).uniform(-(3**0.5), 3**0.5, SHAPE),
    ),
    "not around 0": ("absent canaries", lambda z, part, norms: z + 0.08),
    "clipped to 1.2 C": ("clipping", _gain(lambda norms: norms > 0, 1.25)),
    "20 to 90 clip norms": ("clipping", _gain(lambda n: (n > 20) & (n < 90), 1.8)),
    "above 500": ("clipping", _gain(lambda norms: norms > 500, 2.0)),
    "dropped beyond 1e9": ("clipping", _gain(lambda norms: norms > 1e9, 0.0)),
    "normalised": ("clipping", _gain(lambda norms: norms < 1, 2.0)),
    "agent 2": ("clipping", _gain(lambda n: np.arange(4)[:, None, None] == 2, 1.6)),
    "noise common to hosts": ("independence", _common),
    "size common to hosts": ("independence", _common_size),
    "noise of earlier rounds": ("independence", _repeated),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_its_kind_fails_its_check(fault):
    name, change = FAULTS[fault]
    checks = {one.name: one for one in canary_checks([_noise(change)], replace=False)}
    assert not checks[name].passed
    assert "fails with p" in checks[name].words
    others = {"clipping": "absent canaries", "independence": "clipping"}.get(name)
    if others == "absent canaries":
        assert checks[others].passed  # a clipping fault is no fault of the noise


def _half_in_late_rounds(z, part, norms):
    return z * np.where(np.arange(12) < 6, 1.0, 0.5)[:, None]


SIZES = {
    "half of it": lambda z, part, norms: 0.5 * z,
    "twice": lambda z, part, norms: 2.0 * z,
    "next to none": lambda z, part, norms: 1e-9 * z,
    "by round": _half_in_late_rounds,
    "by host": _one_host,
}


@pytest.mark.parametrize("size", SIZES)
def test_noise_of_another_size_is_no_fault_of_clipping_or_independence(size):
    absent, clipping, independence = canary_checks([_noise(SIZES[size])], replace=False)
    assert not absent.passed
    assert clipping.passed, clipping.words
    assert independence.passed, independence.words


def test_without_noise_no_size_is_renewed():
    """Nothing is divided by 0."""
    none = _noise(lambda z, part, norms: 0.0 * z)
    absent, clipping, independence = canary_checks([none], replace=False)
    assert not absent.passed
    assert independence.passed, independence.words
    assert np.isfinite(of_renewed_size(none)).all()
    assert np.array_equal(of_observed_size(none), none.standard)
    assert clipping.tests


def test_renewed_and_observed_sizes_are_of_the_same_law():
    """2 x 9,600 draws of sound ones: distances from the normal law, p > 1e-6 each (Massart)."""
    of = _noise(lambda z, part, norms: 7.0 * z, present=0.3)
    renewed = np.sort(of_renewed_size(of).ravel())
    there = np.sort(of_observed_size(of)[of.part != 0])
    for z in (renewed, there):
        steps = np.arange(len(z) + 1) / len(z)
        uniform = ndtr(z)
        distance = max((steps[1:] - uniform).max(), (uniform - steps[:-1]).max())
        assert 2 * math.exp(-2 * len(z) * distance**2) > 1e-6
    absent = of.part == 0
    assert np.array_equal(of_observed_size(of)[absent], of.standard[absent])


def test_sound_draws_pass_with_p_that_are_no_smaller_than_uniform():
    """100 sets of draws, three checks each: below .01 lie at most 10 with probability .99999."""
    found = [
        one.p
        for seed in range(100)
        for one in canary_checks([_noise(seed=seed)], replace=False)
        if one.p is not None
    ]
    assert len(found) == 300
    assert min(found) > 1e-6
    assert sum(p < 0.01 for p in found) <= 12


def test_opposite_records_in_every_batch_are_tested_as_well():
    always = _noise(lambda z, part, norms: 0.9 * z, present=1.0)
    found = absent_check([always], replace=True)
    assert not found.passed
    assert found.tests > 0


def test_nothing_to_look_at_passes():
    assert canary_checks([], replace=False) == []
    one = replace(_noise(), standard=np.full(SHAPE, np.nan))
    for check in (absent_check([one], replace=False), clipping_check([one])):
        assert (check.passed, check.p, check.tests) == (True, None, 0)
    assert independence_check([one]).passed


def _played(name: str = "dpdl", *, q: float = 0.3, change=None, seed: int = 0, **how):
    graph = ring(5)
    bound = contract.bound_to(name, graph)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=40, noise_multiplier=bound.noise_multiplier
    )
    adversaries = {
        one: dict.fromkeys((0, 2, 3), parse_adversary(one, 5))
        for one in ("eavesdropper", "neighbour:1", "final-models")
    }
    batch_clipped = name == "dp-cga"
    game = CanaryGame(
        setting=contract.setting(graph, rate=q, min_max=bound.blocks == 2), bound=bound,
        traces=traces, rounds=4, clip_norm=contract.CLIP, adversaries=adversaries,
        canaries=12 if batch_clipped else 60, apart=shares_noise(traces, adversaries),
        batch_clipped=batch_clipped, **how,
    )  # fmt: skip
    with change() if change else patch.object(torch, "pi", math.pi):
        played = game.play(generator=np.random.default_rng(seed))
    return canary_checks(played.noise, replace=game.replace)


@pytest.mark.parametrize("v", [1e4, 1e6])
def test_scores_that_are_all_equal_are_in_no_order(v):
    """Under so little noise "there" underflows, and every absent canary has the same score."""
    found = absent_check([_noise(present=0.01, v=v)], replace=False)
    assert found.passed, found.words


@pytest.mark.some_quick(3)
@pytest.mark.parametrize(
    ("name", "q", "is_replaced"),
    [
        (name, q, is_replaced)
        for number, name in enumerate(PRIVATE)
        for pair, (q, is_replaced) in enumerate(product((1.0, 0.3), (False, True)))
        # Every algorithm in one of the four pairs, three of them in all.
        if pair == number % 4 or name in ("dp-dpsgd", "dpdl", "dpmixsgd")
    ],
)
def test_a_sound_engine_passes(name, q, is_replaced):
    for check in _played(name, q=q, replace=is_replaced):
        assert check.passed, check.words


@contextmanager
def _halved_in_large_batches():
    sound = TensorRound.noise

    def noise(self, like, *, std, factor=None, known_to=None):
        z = sound(self, like, std=std, factor=factor, known_to=known_to)
        share = 0.3 if self.index % 2 else 1.0
        return type(like)(z.rows * share)

    with patch.object(TensorRound, "noise", noise):
        yield


def test_noise_that_is_small_in_some_rounds_is_found():
    absent, *_ = _played(change=_halved_in_large_batches)
    assert not absent.passed
    assert "declared variance" in absent.words
