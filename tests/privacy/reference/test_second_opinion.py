"""The bracket around an epsilon: what it confirms, what it contradicts, and why it is absent."""

import math

import pytest

from overhear.privacy import SecondOpinion, composed_epsilon, epsilon, second_opinion
from overhear.privacy.participation import Event, group
from overhear.privacy.reference import second_opinion as module

ROUNDS = {(1.0, 0.01): 1000}
OURS = 1.8283


def test_a_right_figure_is_confirmed():
    found = second_opinion(ROUNDS, ours=OURS, delta=1e-5)
    assert found.by.startswith("dp-accounting 0.")
    assert found.because == ""
    assert 0.9 * OURS < found.optimistic < OURS < 1.001 * found.pessimistic
    assert found.confirms
    assert not found.contradicts
    assert found.ratio == pytest.approx(1.0, abs=1e-3)
    assert all(0.0 < interval < 1e-2 for interval in found.intervals)


def test_a_figure_below_its_lower_bound_is_contradicted():
    low = second_opinion(ROUNDS, ours=OURS, delta=1e-5).optimistic
    found = second_opinion(ROUNDS, ours=0.9999 * low, delta=1e-5)
    assert found.contradicts
    assert not found.confirms
    assert not second_opinion(ROUNDS, ours=low, delta=1e-5).contradicts


def test_a_figure_inside_a_wide_bracket_but_well_below_its_top_is_not_confirmed():
    rounds = {(1.0, 0.00427): 14062}  # its lower bound is half of epsilon
    ours = epsilon(noise_multiplier=1.0, sampling_rate=0.00427, rounds=14062, delta=1e-5)
    assert second_opinion(rounds, ours=ours, delta=1e-5).confirms
    found = second_opinion(rounds, ours=0.95 * ours, delta=1e-5)
    assert not found.contradicts
    assert not found.confirms


def test_a_larger_figure_than_its_upper_bound_is_loose_not_wrong():
    found = second_opinion(ROUNDS, ours=2.5, delta=1e-5)
    assert found.confirms
    assert found.ratio > 1.3


@pytest.mark.parametrize(
    ("rounds", "how", "said"),
    [
        (ROUNDS, {"ours": math.inf}, "no finite figure"),
        ({(0.0, 0.1): 1}, {}, "a round has no noise"),
        (ROUNDS, {"delta": 1e-12}, "below 1e-10"),
        ({Event(2.0, group(3, 0.1)): 9}, {"adjacency": "replace-one"}, "replaced together"),
        ({(7.0, 1e-4): 10**6}, {"delta": 1e-6}, "rounding errors"),
        ({(1.0 + k / 99, 0.01): 9 for k in range(99)}, {}, "0.5 seconds"),
    ],
)
def test_the_reason_stands_where_there_is_none(rounds, how, said):
    found = second_opinion(rounds, **{"ours": OURS, "delta": 1e-5, **how})
    assert said in found.because
    assert (found.optimistic, found.pessimistic, found.ratio) == (None, None, None)
    assert not found.contradicts
    assert not found.confirms


def test_the_same_rounds_are_asked_about_once(monkeypatch):
    asked = []
    ask = module.epsilon_estimate
    monkeypatch.setattr(module, "epsilon_estimate", lambda *a, **k: asked.append(a) or ask(*a, **k))
    rounds = {(2.5, 0.031): 10, (3.5, 0.029): 7}
    first = second_opinion(rounds, ours=1.0, delta=1e-5)
    second = second_opinion(dict(reversed(rounds.items())), ours=1.1, delta=1e-5)
    assert len(asked) == 2  # from above and from below
    assert first.pessimistic == second.pessimistic


def test_nothing_released_is_nothing_on_both_sides():
    found = second_opinion({}, ours=0.0, delta=1e-5)
    assert (found.optimistic, found.pessimistic, found.ratio) == (0.0, 0.0, 1.0)
    assert found.confirms


def test_an_opinion_has_a_bracket_or_a_reason():
    with pytest.raises(ValueError, match="either a bracket or a reason"):
        SecondOpinion(by="x", ours=1.0)
    with pytest.raises(ValueError, match="either a bracket or a reason"):
        SecondOpinion(by="x", ours=1.0, optimistic=0.5, pessimistic=1.0, because="no")


@pytest.mark.some_quick(1)
@pytest.mark.parametrize(
    ("rounds", "delta"),
    [
        ({(1.082048505819729, 3.2173706586004284e-05): 16, (5.594, 0.00056425): 7}, 9.22e-7),
        ({(0.757, 3.6e-4): 453}, 9.1e-4),
        ({(0.7857939, 4.5791e-5): 1163}, 5.85e-7),
    ],
)
def test_small_epsilons_are_within_a_thousandth_of_the_pessimistic_estimate(rounds, delta):
    ours = composed_epsilon(rounds, delta=delta)
    found = second_opinion(rounds, ours=ours, delta=delta)
    assert 0 < ours < 0.03
    assert found.optimistic <= ours <= 1.001 * found.pessimistic
