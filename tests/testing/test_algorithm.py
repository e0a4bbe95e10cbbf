"""The contract as a check for users: it passes a sound algorithm and finds each fault."""

import math
import traceback
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from overhear.privacy.errors import InputError
from overhear.testing import check_algorithm
from overhear.training import ALGORITHMS, Agents, Algorithm, Round
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import TensorRound


class State(NamedTuple):
    x: Agents
    y: Agents


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    decay: float = 0.9


def init(round: Round) -> State:
    return State(round.initial(), 0.0 * round.initial())


def momentum(fault: str = "") -> Algorithm:
    """An algorithm that behaves otherwise on tensors than in its trace."""

    def step(state, round, *, decay, learning_rate, clip_norm, noise_std, batch_size):
        runs = not any("tracing" in one.filename for one in traceback.extract_stack())
        if runs and fault == "std":
            noise_std = noise_std / 2
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        noise = round.noise(sums, std=noise_std)
        if runs and fault == "unsent":
            noise = 0.0 * noise
        if runs and fault == "again":
            noise = noise + round.noise(sums, std=noise_std)
        y = decay * state.y + (sums + noise) / batch_size
        kind = "other" if runs and fault == "kind" else "model"
        rate = learning_rate * (2.0 if runs and fault == "rate" else 1.0)
        return State(round.mix(state.x - rate * y, kind=kind), y)

    return Algorithm(name="momentum", init=init, step=step, settings=Settings)


def test_a_sound_algorithm_passes_with_other_settings_too():
    check_algorithm(momentum(), settings={"decay": 0.5}, graph="ring:3")


@pytest.mark.slow
@pytest.mark.some_cases(8)  # of every one the contract is tested in training/
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_registry_passes(name):
    check_algorithm(ALGORITHMS[name])


@pytest.mark.parametrize("fault", ["std", "unsent", "again", "kind", "rate"])
def test_an_algorithm_that_runs_otherwise_than_it_is_traced_is_found(fault):
    with pytest.raises(AssertionError, match="trace"):
        check_algorithm(momentum(fault), graph="ring:3")


def test_what_is_no_algorithm_is_refused():
    with pytest.raises(InputError, match="is a function; it must be an Algorithm"):
        check_algorithm(init)
    with pytest.raises(InputError, match="must read"):
        check_algorithm(momentum(), graph="ring")


def half(z, of):
    return math.sqrt(0.5) * z


def shared(z, of):
    z[1] = z[0]
    return z


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda draw, of: half(draw(**of), of), "is not standard normal"),
        (lambda draw, of: shared(draw(**of), of), "two noise sources of call 0 go together"),
        (lambda draw, of: draw(**{**of, "round": of["round"] // 2}), "in two rounds that follow"),
    ],
    ids=["half", "shared", "again"],
)
def test_noise_that_is_not_what_is_declared_is_found(monkeypatch, change, said):
    class Faulty(SecretRandomness):
        def normal(self, **of):
            return change(super().normal, of)

    monkeypatch.setattr("overhear.testing.algorithm.SecretRandomness", Faulty)
    with pytest.raises(AssertionError, match=said):
        check_algorithm(momentum(), graph="ring:3")


def test_noise_that_is_added_with_another_deviation_is_found(monkeypatch):
    noise = TensorRound.noise

    def weak(self, like, *, std, factor=None, known_to=None):
        return noise(self, like, std=std / 2, factor=factor, known_to=known_to)

    monkeypatch.setattr(TensorRound, "noise", weak)
    with pytest.raises(AssertionError, match="is not what the trace says"):
        check_algorithm(momentum(), graph="ring:3")


def test_a_record_that_moves_a_sum_by_more_than_its_clip_norm_is_found(monkeypatch):
    sums = TensorRound.clipped_sums

    def loose(self, *given, clip_norm=None, **named):
        return sums(self, *given, clip_norm=clip_norm and 2 * clip_norm, **named)

    monkeypatch.setattr(TensorRound, "clipped_sums", loose)
    with pytest.raises(AssertionError, match="is 2 its bound"):
        check_algorithm(momentum(), graph="ring:3")
