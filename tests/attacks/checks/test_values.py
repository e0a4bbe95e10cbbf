"""What counts as known is formed again, and what is not as its trace says is named."""

import pytest

from overhear.attacks.checks.sensitivity import value_check
from overhear.attacks.checks.watched_run import watch
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.tensor_round import PublicValues, TensorRound
from overhear.training.step.values import Agents
from tests.attacks.checks.sensitivity_faults import FAULTS
from tests.attacks.checks.watched import IN_A_PRECISION, a_run
from tests.training.engine.test_public_values import engine, first, late
from tests.training.states import start


@pytest.mark.some_quick(8)
@pytest.mark.parametrize(("name", "form", "dtype"), IN_A_PRECISION)
def test_a_sound_run_passes(name, form, dtype):
    found = value_check(a_run(name, form=form, dtype=dtype))
    assert found.passed, found.words
    assert found.tests > 20


def test_a_function_that_gets_the_clean_own_gradient_is_named():
    with FAULTS["function_of_the_clean_gradient"]():
        found = value_check(a_run("dpdl", rounds=1))
    assert not found.passed
    assert "_pull_released (agent 0) is called with another value than it is given" in found.words


def test_a_result_that_is_not_what_the_function_returned_is_named():
    with FAULTS["result_with_the_clean_gradient"]():
        found = value_check(a_run("dpdl", rounds=1))
    assert "_pull_released returned another value than the round goes on with" in found.words


def test_gradients_at_another_model_are_found(monkeypatch):
    sound = TensorRound.own

    def own(self, value):
        return Agents(sound(self, value).rows + 1e-6)

    monkeypatch.setattr(TensorRound, "own", own)
    found = value_check(a_run("dpdl", rounds=1))
    assert "that an operation is given is off in row 0" in found.words


def test_another_initial_model_is_found(monkeypatch):
    sound = TensorRound.initial

    def initial(self, *, block=0):
        return Agents(sound(self, block=block).rows + 1.0)

    monkeypatch.setattr(TensorRound, "initial", initial)
    assert "the initial model is not the public one" in value_check(a_run("dp-dpsgd")).words


@pytest.mark.parametrize(("step", "passed"), [(late, False), (first, True)])
def test_noise_that_is_lost_beside_a_large_model_is_found(monkeypatch, step, passed):
    monkeypatch.setattr(PublicValues, "note", lambda *_: None)  # the engine's floor is off
    sound = engine(step)
    found = value_check(watch(sound.setting, Bound(start, step), rounds=1))
    assert found.passed is passed
    assert passed or "in round 1 its noise is lost beside state x, which adds" in found.words
