"""What an infinite figure is called, and the messages that are named for it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from overhear.privacy import EAVESDROPPER, Accountant, Statement, Status, neighbour
from overhear.training import build_graph
from overhear.training.exposure import whole_run
from overhear.training.exposure.dense_rounds import witness
from overhear.training.exposure.guarantees import calibrated_multiplier, guarantee, run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.sensitivity import JointSensitivity
from overhear.training.exposure.whole_run import InAllRounds, replace_infinite_by_whole_run
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing.trace import AlgorithmTrace, trace

AT = Statement(delta=1e-5)


class Kept(NamedTuple):
    x: Agents
    z: Agents


def start(round: Round) -> Kept:
    """Noise that is drawn once, and used in every round."""
    x = round.initial()
    return Kept(x, round.noise(x, std=1.0))


def quiet(round: Round) -> Kept:
    x = round.initial()
    return Kept(x, x * 0.0)


def sums(x: Agents, round: Round, clip_norm: float | None = 1.0) -> Any:
    return round.clipped_sums(x, batch=round.draw(), clip_norm=clip_norm)


def reused(state: Kept, round: Round) -> Kept:
    x = state.x - round.mix(sums(state.x, round) + state.z, kind="masked")
    return Kept(x, state.z)


def clean(state: Kept, round: Round) -> Kept:
    return Kept(state.x - round.mix(sums(state.x, round), kind="clear"), state.z)


def unclipped(state: Kept, round: Round) -> Kept:
    return Kept(round.mix(state.x - sums(state.x, round, None), kind="model"), state.z)


def local_steps(state: Kept, round: Round) -> Kept:
    """The second gradient is taken at a model that no message shows, and that has no noise."""
    inside = state.x - sums(state.x, round)
    total = sums(inside, round) + inside
    return Kept(round.mix(total + round.noise(total, std=1.0), kind="half"), state.z)


def shared(state: Kept, round: Round) -> Kept:
    both = sums(state.x, round) + sums(state.x, round)
    return Kept(round.mix(both + round.noise(both, std=1.0), kind="sum"), state.z)


def shared_beside_a_leak(state: Kept, round: Round) -> Kept:
    after = shared(state, round)
    round.broadcast(sums(state.x, round), kind="clear")
    return after


def traced(step: Callable[..., Any], init: Callable[..., Any] = quiet, rounds: int = 9) -> Any:
    return trace(init, step, graph=build_graph("ring", 5), rounds=rounds, noise_multiplier=1.0)


def settled(of: AlgorithmTrace, name: str = "eavesdropper") -> JointSensitivity:
    found = joint_sensitivities(of, [name], sampling_rate=0.1)
    ((_, one),) = replace_infinite_by_whole_run(of, found, how=InAllRounds(0.1))
    return one._replace(noise_multiplier=None)  # of steps whose noise is of one size at any


def test_noise_that_is_used_again_is_shown_by_an_earlier_message():
    found = settled(traced(reused, start))
    assert (found.largest, found.status) == (math.inf, Status.NO_PROTECTION)
    assert found.because == (
        "the noise cancels between: masked of agent 0 to 1, 4 in round 1, which showed it; masked "
        "of agent 0 to 1, 4 in round 2"
    )


def test_reuse_is_found_however_long_the_run_is(monkeypatch):
    monkeypatch.setattr(whole_run, "MOST_WORK", 3e3)  # enough for four rounds of one pair
    found = settled(traced(reused, start, rounds=400))
    assert found.status is Status.NO_PROTECTION
    assert "masked of agent 0 to 1, 4 in round 1, which showed it" in found.because


def test_what_no_message_bears_out_stays_infinite(monkeypatch):
    """One method takes a small number for zero where the other does not."""
    monkeypatch.setattr(whole_run, "witness", lambda *_, **__: ())
    found = settled(traced(reused, start))
    assert (found.largest, found.status) == (math.inf, Status.CANNOT_BE_EXPRESSED)
    assert "of all rounds together: " in found.because


@pytest.mark.parametrize("name", ["eavesdropper", "neighbour:1"])
def test_a_message_without_noise_is_named_with_its_sender_and_round(name):
    found = settled(traced(clean), name)
    assert found.status is Status.NO_PROTECTION
    assert found.because == (
        "sent or kept without noise that the adversary does not know: clear of agent 0 to 1, 4 in "
        "round 1"
    )


def test_without_clipping_the_first_message_that_shows_it_is_named():
    found = settled(traced(unclipped))
    assert found.status is Status.NO_PROTECTION
    assert found.because.startswith("gradients are not clipped, so one record's influence has no")
    assert found.because.endswith("does not know: model of agent 0 to 1, 4 in round 1")


def test_what_only_the_closed_view_shows_cannot_be_expressed():
    found = settled(traced(local_steps))
    assert (found.largest, found.status) == (math.inf, Status.CANNOT_BE_EXPRESSED)
    assert "gradients are taken" in found.because
    assert "no message shows it" in found.because
    who = EAVESDROPPER
    assert witness(traced(local_steps), who, victim=0) == ()
    assert witness(traced(local_steps), who, victim=0, closed=True)


def test_two_batches_of_one_sum_are_counted_as_one_that_a_record_is_in_twice():
    found = settled(traced(shared))
    assert (found.largest, found.status) == (1.0, Status.PROVEN)
    assert found.because.startswith("2 batches enter what is released as one sum")
    multiplier = calibrated_multiplier(found, statement=AT, epsilon=4.0)
    assert run_epsilon(found, statement=AT, noise_multiplier=multiplier) <= 4.0


def test_a_leak_beside_batches_that_share_noise_leaves_no_protection():
    found = settled(traced(shared_beside_a_leak))
    assert (found.largest, found.status) == (math.inf, Status.NO_PROTECTION)
    assert "clear of agent 0 to 1, 4" in found.because


def test_a_run_too_large_for_a_view_of_all_rounds_cannot_be_expressed(monkeypatch):
    monkeypatch.setattr(whole_run, "MOST_WORK", 0.0)
    found = settled(traced(reused, start))
    assert found.status is Status.CANNOT_BE_EXPRESSED
    assert "too large for a view of all its rounds" in found.because


def test_names_of_a_long_run_are_those_of_the_round_alone(monkeypatch):
    monkeypatch.setattr("overhear.training.exposure.dense_rounds._MOST_ENTRIES", 0)
    shown = witness(traced(reused, start), EAVESDROPPER, victim=0)
    assert shown == ("masked of agent 0 to 1, 4 in round 2",)


def test_a_run_that_leaks_nothing_has_no_witness():
    assert witness(traced(shared), neighbour(1), victim=0) == ()


@pytest.mark.parametrize("step", [clean, reused, shared, local_steps, unclipped])
@pytest.mark.parametrize("multiplier", [0.0, 2.0])
def test_no_infinite_guarantee_is_proven(step, multiplier):
    of = traced(step, start)
    for name in ("eavesdropper", "neighbour", "final-models", "single-message"):
        said = guarantee(name, settled(of, name), statement=AT, noise_multiplier=multiplier)
        assert said.status.is_finite == math.isfinite(said.epsilon)


def test_no_noise_is_no_protection_even_where_nothing_else_can_be_expressed():
    said = guarantee("eavesdropper", settled(traced(shared)), statement=AT, noise_multiplier=0.0)
    assert said.status is Status.NO_PROTECTION
    assert "noise multiplier is 0" in said.because


def test_a_record_that_is_never_drawn_is_proven_to_be_safe():
    of = traced(clean)
    ((_, found),) = joint_sensitivities(of, ["eavesdropper"], sampling_rate=0.0)
    any_noise = found._replace(noise_multiplier=None)
    said = guarantee("eavesdropper", any_noise, statement=AT, noise_multiplier=2.0)
    assert (said.epsilon, said.status) == (0.0, Status.PROVEN)
    assert said.because == "no record is ever in a batch"


def test_a_figure_that_the_accountant_has_no_bound_for_cannot_be_expressed(monkeypatch):
    from overhear.training.exposure import guarantees

    def noisy(state: Kept, round: Round) -> Kept:
        own = sums(state.x, round)
        return Kept(round.mix(own + round.noise(own, std=1.0), kind="model"), state.z)

    monkeypatch.setattr(guarantees.accounting, "epsilon", lambda **_: math.inf)
    statement = Statement(delta=1e-5, accountant=Accountant.RDP)
    found = settled(traced(noisy))
    said = guarantee("eavesdropper", found, statement=statement, noise_multiplier=2.0)
    assert said.status is Status.CANNOT_BE_EXPRESSED
    assert "accountant='rdp' gives no finite bound at this delta" in said.because
