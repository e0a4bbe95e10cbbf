"""Every message and end state equals its row, and what is not as declared is named."""

import pytest
import torch

from overhear.attacks.checks.checks import message_check
from overhear.attacks.checks.sensitivity import value_check
from overhear.attacks.checks.watched_run import watch
from overhear.training.algorithms import Form, dp_cga
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.tensor_round import PublicValues, TensorRound
from overhear.training.graphs.topologies import build_graph, star
from overhear.training.step.values import Agents
from tests.attacks.checks.sensitivity_faults import FAULTS
from tests.attacks.checks.watched import IN_A_PRECISION, PRIVATE, a_run, sound_run, with_bug
from tests.training.engine.test_public_values import engine, first, late
from tests.training.states import start

SINGLE = torch.float32


@pytest.mark.parametrize(("name", "form"), PRIVATE)
def test_a_sound_run_passes(name, form):
    found = message_check(sound_run(name, form=form))
    assert found.passed, found.words
    assert found.p is None
    assert found.tests >= 4 * 5  # end states of three rounds and the start


@pytest.mark.parametrize("name", ["dpdl", "whisper", "dpmixsgd", "dyn-d2p"])
def test_a_sound_run_in_single_precision_passes(name):
    found = message_check(a_run(name, dtype=SINGLE))
    assert found.passed, found.words


@pytest.mark.parametrize("graph", [star(4), build_graph("full", 4)], ids=["star", "full"])
def test_other_graphs_pass(graph):
    assert message_check(a_run("dpdl", graph=graph)).passed


def test_clipped_means_pass():
    found = message_check(a_run("dp-cga", settings=dp_cga.Settings(clip=dp_cga.Clip.BATCH)))
    assert found.passed, found.words


@pytest.mark.some_quick(5)
@pytest.mark.parametrize("name", ["dpdl", "dp-dpsgd", "dpmixsgd"])
@pytest.mark.parametrize("bug", ["clipping after averaging", "mean by the realised size"])
@pytest.mark.parametrize("dtype", [torch.float64, SINGLE], ids=["float64", "float32"])
def test_wrong_sums_are_found(name, bug, dtype):
    assert not with_bug(bug, message_check, name, dtype=dtype).passed


def test_a_clean_own_gradient_is_found_and_named():
    found = with_bug("clean self-gradient", message_check)
    assert not found.passed
    # of three rounds five own rows each
    assert "15 differ, first: in round 1 message cross-gradient of agent 0 is off" in found.words


def test_one_wrong_coordinate_of_one_message_is_found(monkeypatch):
    sound = TensorRound.broadcast

    def broadcast(self, value, *, kind):
        if self.index == 2 and kind == "momentum":
            rows = value.rows.clone()
            rows[3, 17] += 1e-9
            value = Agents(rows)
        return sound(self, value, kind=kind)

    monkeypatch.setattr(TensorRound, "broadcast", broadcast)
    found = message_check(a_run("dpdl"))
    assert not found.passed
    assert "1 differ, first: in round 2 message momentum of agent 3" in found.words


def test_a_message_that_the_trace_does_not_have_is_found(monkeypatch):
    sound = Engine.advance

    def advance(self, **how):
        sound(self, **how)
        for tap in self.taps:
            tap(tap.of(round=self.round)[0])

    monkeypatch.setattr(Engine, "advance", advance)
    found = message_check(a_run("dp-dpsgd"))
    assert not found.passed
    assert "Not what was traced: round 1 has Messages" in found.words


def test_values_of_bounded_are_said_to_be_as_recorded():
    words = message_check(sound_run("dpdl", form=Form.PUBLISHED)).words
    assert "3 values of `bounded` taken as recorded" in words


# What counts as known is formed again, and what is not as its trace says is named.


@pytest.mark.some_quick(8)
@pytest.mark.parametrize(("name", "form", "dtype"), IN_A_PRECISION)
def test_a_sound_run_passes_of_values(name, form, dtype):
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
