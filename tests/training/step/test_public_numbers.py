"""Public random numbers: the same wherever they are drawn, new in every round, and no noise."""

import math
from dataclasses import replace

import pytest
import torch

from overhear.attacks.checks.checks import engine_checks
from overhear.attacks.checks.sensitivity import value_check
from overhear.attacks.checks.watched_run import watch
from overhear.privacy.errors import InputError
from overhear.training import Round, account
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.graphs.topologies import ring
from overhear.training.step.operations import PublicNumbers
from overhear.training.step.script import Script
from tests.training.contract import bare_round, check_rows, setting
from tests.training.states import State, start

LEVELS = 128.0


def rounded(message, uniform):
    """Stochastic quantisation: up or down to a level, unbiased over the uniform numbers."""
    return torch.floor(message * LEVELS + uniform) / LEVELS


def quantised(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = state.x - 0.1 * (sums + round.noise(sums, std=noise_std))
    return State(round.mix(round.postprocess(rounded, noisy, round.public(7)), kind="model"))


def kept_by_mask(model, uniform):
    return torch.where(uniform < 0.8, model, torch.zeros_like(model))


def dropped_out(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    """Gradients at a model of which a public mask, the same for all, drops coordinates."""
    mask = round.public(11, same=True)
    point = round.postprocess(kept_by_mask, state.x, mask)
    sums = round.clipped_sums(point, batch=round.draw(), clip_norm=clip_norm)
    return State(round.mix(state.x - 0.1 * (sums + round.noise(sums, std=noise_std)), kind="model"))


def hidden_by_public(state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0):
    """A false twin: what everybody can draw again hides nothing."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    fake = noise_std * round.public(7, kind="normal")
    return State(round.mix(state.x - 0.1 * (sums + fake), kind="model"))


def quantised_clean(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    """Another one: rounding at random, of a clean sum, is no noise."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    sent = round.postprocess(rounded, sums, round.public(7))
    return State(round.mix(state.x - 0.1 * (sent + round.noise(sent, std=noise_std)), kind="model"))


def cost(step) -> float:
    run = {"graph": "ring:5", "rounds": 10, "sampling_rate": 0.1, "delta": 1e-5}
    found = account(start, step, noise_multiplier=2, adversaries=["eavesdropper"], **run)
    return found["eavesdropper"].joint_sensitivity


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (quantised, 1.0),
        (dropped_out, 1.0),
        (hidden_by_public, math.inf),
        (quantised_clean, math.inf),
    ],
)
def test_functions_of_noised_values_and_public_numbers_cost_what_the_values_do(step, expected):
    assert cost(step) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("step", [quantised, dropped_out, hidden_by_public])
def test_a_run_does_what_is_traced(step):
    check_rows(Bound(start, step), ring(5))


def test_numbers_are_the_same_in_every_precision_and_process_and_new_in_every_round_and_call():
    """Means of 5 x 4000 numbers within 5 standard errors; false alarm 6e-7 each."""

    def drawn(seed, round=1, call=0, kind="uniform", same=False, of=range(5), width=4000):
        asked = PublicNumbers.of(seed, kind=kind, same=same, round=round, call=call)
        return asked.rows(of, width=width)

    u, z = drawn(7), drawn(7, kind="normal")
    assert torch.equal(drawn(7, of=[3, 4]), u[3:])  # a rank draws its own rows
    assert torch.equal(u.float().double(), u)
    assert bool(((u >= 0.0) & (u < 1.0)).all())
    assert abs(float(u.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / u.numel())
    assert abs(float(z.square().mean()) - 1.0) < 5 * math.sqrt(2 / z.numel())
    others = [drawn(8), drawn(7, round=2), drawn(7, call=1), u.roll(1, dims=0)]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([u.ravel(), other.ravel()]))[0, 1])) < 0.036
    assert torch.equal(drawn(7, same=True), u[:1].expand(5, -1))


def test_they_never_meet_the_secret_noise_of_a_root_that_equals_the_seed():
    public = PublicNumbers.of(7, kind="normal", same=False, round=1, call=0).rows([0], width=8)
    how = {"round": 1, "call": 0, "rows": [0], "width": 8, "dtype": torch.float64}
    secret = SecretRandomness(root=7).normal(**how)
    assert not set(public.ravel().tolist()) & set(secret.ravel().tolist())


def test_a_run_in_single_precision_quantises_by_the_same_numbers():
    of = replace(setting(ring(5)), dtype=torch.float32)
    run = Engine(of, Bound(start, quantised), randomness=SecretRandomness(3))
    run.advance()
    assert run.models().dtype is torch.float32


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"seed": 1.5}, TypeError, "round.public seed=1.5 must be an integer"),
        ({"seed": True}, TypeError, "must be an integer"),
        ({"seed": -1}, InputError, "round.public seed=-1 must lie in"),
        ({"seed": 1, "kind": "poisson"}, InputError, "must be 'uniform' or 'normal'"),
        ({"seed": 1, "same": 1}, TypeError, "must be True or False"),
        ({"seed": 1, "block": 4}, InputError, "block=4"),
    ],
)
def test_bad_arguments_are_named(how, error, said):
    with pytest.raises(error, match=said):
        Round(bare_round(), Script(round=1)).public(**how)


@pytest.mark.slow
@pytest.mark.parametrize("step", [quantised, dropped_out])
def test_a_run_with_them_is_audited(step):
    bound = Bound(start, step, noise_multiplier=1.0)
    found = engine_checks(setting(ring(5)), bound, rounds=3, randomness=SecretRandomness(9))
    assert [one.name for one in found if not one.passed] == []


def test_the_audit_sees_numbers_that_are_not_those_of_their_seed(monkeypatch):
    other = PublicNumbers.of(8, kind="uniform", same=False, round=1, call=0)
    bound = Bound(start, quantised, noise_multiplier=1.0)
    sound = TensorRound.public
    monkeypatch.setattr(
        TensorRound, "public", lambda self, asked, *, block: sound(self, other, block=block)
    )
    run = watch(setting(ring(5)), bound, rounds=2, randomness=SecretRandomness(9))
    found = value_check(run)
    assert not found.passed
    assert "are not those of their seed" in found.words
