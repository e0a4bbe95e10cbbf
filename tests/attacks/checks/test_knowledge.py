"""Who makes noise is declared to know it."""

import pytest

from overhear.attacks.checks.checks import knowledge_check
from overhear.training.engine.tensor_round import TensorRound
from tests.attacks.checks.watched import PRIVATE, a_run, sound_run, with_bug
from tests.attacks.planted.catalogue import CATALOGUE


@pytest.mark.parametrize(("name", "form"), PRIVATE)
def test_a_sound_run_passes(name, form):
    found = knowledge_check(sound_run(name, form=form))
    assert found.passed, found.words


def test_every_agent_and_source_is_looked_at():
    assert knowledge_check(sound_run("dp-dpsgd")).tests == 3 * 5  # rounds, agents
    assert knowledge_check(sound_run("dpdl")).tests == 3 * 15  # rounds, links with self-loops
    assert knowledge_check(sound_run("whisper")).tests == 3 * 5 * 5  # everybody has the seed
    assert knowledge_check(sound_run("cdp-dsgd")).tests == 0  # the server's is known to nobody


@pytest.mark.parametrize(("name", "agents"), [("whisper", "1, 2, 3, 4"), ("decor", "1, 2, 3, 4")])
def test_agents_who_hold_a_seed_that_is_declared_unknown_to_them_are_named(name, agents):
    found = with_bug("seed known to more than declared", knowledge_check, name)
    assert not found.passed
    assert f"agents {agents} can subtract noise declared unknown" in found.words
    assert "agent 1 makes source" in found.words
    assert "known to agent 0" in found.words


def test_a_sources_noise_that_its_seed_does_not_give_is_found(monkeypatch):
    run = a_run("dp-dpsgd", rounds=2)
    run.rounds[2].recorded.noise[0][3] = run.rounds[2].recorded.noise[0][4]
    found = knowledge_check(run)
    assert not found.passed
    assert "1 sources are not what their seed gives" in found.words


@pytest.mark.parametrize("name", ["noise halved", "no noise on biases"])
def test_noise_of_another_size_is_no_fault_of_knowledge(name):
    """The makers make it again in the size that it has, or in the declared one."""
    with CATALOGUE[name].plant():
        run = a_run("dp-dpsgd", rounds=2)
    found = knowledge_check(run)
    assert found.passed, found.words


def test_another_round_than_was_traced_fails(monkeypatch):
    sound = TensorRound.noise

    def noise(self, like, **how):
        sound(self, like, **how)
        return sound(self, like, **how)

    monkeypatch.setattr(TensorRound, "noise", noise)
    found = knowledge_check(a_run("dp-dpsgd", rounds=2))
    assert not found.passed
    assert "Not what was traced" in found.words
