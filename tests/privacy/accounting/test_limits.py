"""Facts about the most rounds, the largest rate and the least scale that a target allows."""

import math

import numpy as np
import pytest

from overhear.privacy.accounting import limits
from overhear.privacy.accounting.accountant import composed_epsilon, epsilon, noise_multiplier
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.accounting.limits import max_rounds, max_sampling_rate, scale_for
from overhear.privacy.participation import Event, Reach, poisson

# noise_multiplier, epsilon, delta, sampling_rate
ROUNDS = [
    (1.0, 2.0, 1e-5, 0.01), (7.0, 0.05, 1e-6, 1e-4), (0.5, 50.0, 1e-10, 0.3),
    (30.0, 1.0, 1e-10, 0.01), (20.0, 3.0, 1e-3, 1.0), (1.0, 0.05, 1e-5, 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("multiplier", "eps", "dlt", "rate"), ROUNDS)
def test_the_most_rounds_meet_the_target_and_one_more_does_not(multiplier, eps, dlt, rate):
    setting = {"noise_multiplier": multiplier, "delta": dlt, "sampling_rate": rate}
    most = max_rounds(epsilon=eps, **setting)
    assert most == 0 or epsilon(rounds=most, **setting) <= eps
    assert epsilon(rounds=most + 1, **setting) > eps


def test_rounds_of_full_batches_follow_from_the_closed_form():
    # T rounds are sqrt(T) / 20 standard deviations; epsilon 1 at delta 1e-5 allows 1 / 3.7306.
    assert max_rounds(noise_multiplier=20.0, epsilon=1.0, delta=1e-5, sampling_rate=1.0) == 28
    assert math.floor((20 / 3.7306316) ** 2) == 28


@pytest.mark.parametrize(
    "how",
    [
        {"adjacency": "replace-one"},
        {"adjacency": "replace-one", "reach": "ball"},
        {"accountant": "rdp"},
        {"accountant": "gdp-clt"},
    ],
    ids=["replace", "profile", "rdp", "clt"],
)
def test_limits_by_every_accountant_meet_its_own_epsilon(how):
    setting = {"noise_multiplier": 2.0, "delta": 1e-5, **how}
    most = max_rounds(epsilon=2.0, sampling_rate=0.02, **setting)
    assert epsilon(rounds=most, sampling_rate=0.02, **setting) <= 2.0
    assert epsilon(rounds=most + 1, sampling_rate=0.02, **setting) > 2.0
    rate = max_sampling_rate(epsilon=2.0, rounds=most, **setting)
    assert 0.02 * (1 - 1e-4) < rate < 0.021
    assert epsilon(rounds=most, sampling_rate=rate, **setting) <= 2.0


def test_few_evaluations_find_a_million_rounds(monkeypatch):
    asked = []

    def counted(**setting):
        asked.append(setting["rounds"])
        return epsilon(**setting)

    monkeypatch.setattr(limits, "epsilon_of", counted)
    assert max_rounds(noise_multiplier=7.0, epsilon=0.05, delta=1e-6, sampling_rate=1e-4) > 10**6
    assert len(asked) <= 12


@pytest.mark.parametrize(
    ("multiplier", "eps", "dlt", "rounds"),
    [
        (1.0, 2.0, 1e-5, 1000),
        (1.0, 2.0, 1e-5, 1),
        (7.0, 0.05, 1e-6, 10**6),
        (30.0, 1.0, 1e-10, 10**6),
        (0.7, 8.0, 1e-3, 300),
    ],
)
def test_the_largest_rate_meets_the_target_and_a_larger_one_does_not(multiplier, eps, dlt, rounds):
    setting = {"noise_multiplier": multiplier, "delta": dlt, "rounds": rounds}
    rate = max_sampling_rate(epsilon=eps, **setting)
    assert 0.0 < rate < 1.0
    assert epsilon(sampling_rate=rate, **setting) <= eps
    assert epsilon(sampling_rate=rate * (1 + 1e-4), **setting) > eps


def test_the_largest_rate_inverts_the_least_noise():
    least = noise_multiplier(epsilon=1.0, delta=1e-5, rounds=1000, sampling_rate=0.01)
    rate = max_sampling_rate(noise_multiplier=least, epsilon=1.0, delta=1e-5, rounds=1000)
    assert rate == pytest.approx(0.01, rel=1e-4)


def test_rates_have_their_limits():
    target = {"epsilon": 1.0, "delta": 1e-5, "rounds": 10}
    assert max_sampling_rate(noise_multiplier=12.0, **target) == 1.0
    assert max_sampling_rate(noise_multiplier=11.0, **target) < 1.0
    assert max_sampling_rate(noise_multiplier=0.0, **target) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate=0 costs nothing: any number"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf costs nothing"),
        ({"noise_multiplier": 1e6}, "rounds=10000000 still meet the target"),
        ({"epsilon": 0.0}, "epsilon=0.0 must be at least 1e-12"),
        ({"sampling_rate": 1.5}, "did you mean batch_size"),
        ({"accountant": "rdp", "adjacency": "replace-one"}, "does not cover adjacency"),
    ],
)
def test_a_limit_that_does_not_exist_is_refused(change, message):
    setting = {"noise_multiplier": 1.0, "epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.01}
    with pytest.raises(ValueError, match=message):
        max_rounds(**{**setting, **change})


def test_the_scale_of_equal_rounds_is_their_noise_multiplier():
    target = {"epsilon": 1.0, "delta": 1e-5}
    least = noise_multiplier(rounds=1000, sampling_rate=0.01, **target)
    assert scale_for({(1.0, 0.01): 1000}, **target) == pytest.approx(least, rel=1e-5)
    assert scale_for({(4.0, 0.01): 1000}, **target) == pytest.approx(least / 4, rel=1e-5)


def test_the_scale_of_full_batches_adds_squares():
    rounds = [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0)]
    scale = scale_for(rounds, epsilon=1.0, delta=1e-5)
    expected = 3.7306316348 * math.sqrt(1 + 4 + 0.25)
    assert expected * (1 - 1e-9) <= scale <= expected * (1 + 1e-5)
    doubled = scale_for(rounds, epsilon=1.0, delta=1e-5, adjacency="replace-one")
    assert doubled == pytest.approx(2 * scale, rel=1e-5)


@pytest.mark.some_quick(2)
@pytest.mark.parametrize("reach", ["sum", "ball"])
@pytest.mark.parametrize("eps", [0.05, 1.0, 20.0])
def test_the_least_scale_meets_the_target_and_a_smaller_one_does_not(eps, reach):
    kinds = {(1.0, 0.01): 300, (0.5, 0.002): 200, (3.0, 0.2): 5}
    rounds = {Event(m, poisson(q), Reach(reach)): n for (m, q), n in kinds.items()}
    how = {"delta": 1e-6, "adjacency": "replace-one"}
    scale = scale_for(rounds, epsilon=eps, **how)

    def spent(s):
        scaled = {e._replace(noise_multiplier=s * e.noise_multiplier): n for e, n in rounds.items()}
        return composed_epsilon(scaled, **how)

    assert spent(scale) <= eps
    assert spent(scale * (1 - 1e-4)) > eps


@pytest.mark.slow
def test_hundreds_of_decaying_rounds_are_scaled_to_their_target():
    rounds = [(0.25 ** (-k / 300), 0.02) for k in range(300)]
    scale = scale_for(rounds, epsilon=2.0, delta=1e-5)
    assert composed_epsilon([(scale * m, q) for m, q in rounds], delta=1e-5) <= 2.0
    smaller = [(0.999 * scale * m, q) for m, q in rounds]
    assert composed_epsilon(smaller, delta=1e-5) > 2.0


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ([], "rounds is empty"),
        ([(0.0, 0.1), (1.0, 0.1)], "stays 0 at every scale"),
        ([(1.0, 1e-7)], "the probability that a record is ever sampled"),
        ([(1.0, 1.3)], "did you mean batch_size"),
        ([(-1.0, 0.3)], r"noise_multiplier=-1\.0 must be at least 0"),
    ],
)
def test_rounds_that_no_scale_helps_are_refused(rounds, message):
    with pytest.raises(ValueError, match=message):
        scale_for(rounds, epsilon=1.0, delta=1e-5)


def test_rounds_that_sample_nobody_need_no_noise():
    assert scale_for([(0.0, 0.0), (1.0, 0.0)], epsilon=1.0, delta=1e-5) == 0.0
    assert np.isfinite(scale_for([(0.0, 0.0), (1.0, 0.5)], epsilon=1.0, delta=1e-5))


@pytest.mark.parametrize(("multiplier", "rate"), [(0.2, 0.00325), (0.2, 0.5), (0.1, 0.01)])
def test_a_delta_below_the_grids_reach_falls_back_to_taking_part(multiplier, rate):
    """Sampling never costs more than taking part, which has a closed form."""
    found = composed_epsilon({(multiplier, rate): 1}, delta=1e-14)
    assert found <= epsilon_from_mu(1.0 / multiplier, 1e-14)
