"""What some rounds of a run in turns cost, and what a message of them says of a replaced record."""

import pytest

from overhear.privacy import epsilon, epsilon_from_mu
from overhear.privacy.errors import UnsupportedView
from overhear.training import Round, account
from overhear.training.exposure.events import accounted
from overhear.training.exposure.guarantees import run_epsilon
from tests.training.states import State, start

RUN = {
    "graph": "ring:3", "rounds": 12, "sampling_rate": 0.05, "delta": 1e-5, "noise_multiplier": 2.0,
    "participation": {"cycle": 4}, "adversaries": ["eavesdropper", "single-message"],
}  # fmt: skip


def mean_of_a_ball(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    batch = round.draw()
    mean = round.clipped_mean(state.x, batch=batch, batch_size=8.0, clip_norm=clip_norm)
    noise = round.noise(mean, std=noise_std)
    return State(round.mix(state.x - mean - noise, kind="model"))


@pytest.fixture(scope="module")
def known():
    return account("dp-dpsgd", **RUN)


@pytest.mark.parametrize("name", RUN["adversaries"])
@pytest.mark.parametrize("rounds", [[2, 6, 10], [10, 6, 2], list(range(1, 13)), [0, 4, 8, 12]])
def test_listed_rounds_may_be_all_turns_of_one_record(known, name, rounds):
    of = known.joint_sensitivities[name]
    three = epsilon(noise_multiplier=2.0, delta=1e-5, sampling_rate=0.2, rounds=3)
    spent = run_epsilon(of, statement=known.said_of, noise_multiplier=2.0, rounds=rounds)
    assert spent == pytest.approx(three, rel=1e-6)


@pytest.mark.parametrize("name", RUN["adversaries"])
@pytest.mark.parametrize("rounds", [13, [13], [1, 5, 9, 13]])
def test_rounds_beyond_a_run_in_turns_have_no_figure(known, name, rounds):
    of = known.joint_sensitivities[name]
    with pytest.raises(UnsupportedView, match="round 13 is beyond the 12"):
        run_epsilon(of, statement=known.said_of, noise_multiplier=2.0, rounds=rounds)


def test_a_round_beyond_the_plan_is_not_accounted_as_the_plan(known):
    with pytest.raises(UnsupportedView, match="round 13 is beyond"):
        accounted(known.joint_sensitivities["eavesdropper"], [*range(1, 14)])


def test_a_replaced_record_and_the_other_one_are_in_messages_of_turns_of_their_own():
    numbers = {**RUN, "rounds": 2, "participation": {"cycle": 2}, "sampling_rate": 0.5}
    found = account(start, mean_of_a_ball, adjacency="replace-one", **numbers)
    # Each is in one of two messages, for sure, and moves it from one end of the ball to the other.
    truth = epsilon_from_mu(2.0 * 2.0**0.5 / 2.0, 1e-5)
    assert found["single-message"].epsilon >= truth


def test_an_explanation_says_that_mu_is_that_of_one_turn_of_several(known):
    words = str(known.explain("eavesdropper"))
    assert "mu 0.5 in each of 3 turns of the record" in words
    assert "all rounds together" not in words
