"""Facts about composed losses at the edges of their arithmetic."""

import pytest

from overhear.privacy.accounting.accountant import delta, epsilon
from overhear.privacy.accounting.dominating_pairs import Pair, Round, discretised_pair
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.accounting.privacy_loss import compose, tilt_for_epsilon


def test_a_tilt_of_zero_composes_and_a_negative_one_is_refused():
    ten = Round(noise_multiplier=1.0, sampling_rate=0.1, count=10)
    rounds = [discretised_pair(ten, Pair.REMOVE, missing=1e-12)]
    known = compose(rounds, tilt=tilt_for_epsilon(rounds, 1.0)).delta(1.0)
    assert compose(rounds, tilt=0.0).delta(1.0) == pytest.approx(known, rel=1e-3)
    with pytest.raises(ValueError, match=r"tilt=-0\.5 must be at least 0"):
        compose(rounds, tilt=-0.5)


@pytest.mark.parametrize("multiplier", [0.03, 0.04, 0.06])
@pytest.mark.parametrize("rate", [1e-4, 0.5])
@pytest.mark.parametrize("dlt", [1e-100, 1e-300])
def test_little_noise_and_tiny_delta_stay_below_the_unsampled_round(multiplier, rate, dlt):
    # Warnings are errors here: no loss leaves the integers and no share overflows.
    found = epsilon(noise_multiplier=multiplier, delta=dlt, rounds=1, sampling_rate=rate)
    whole = epsilon_from_mu(1.0 / multiplier, dlt)
    assert 0.5 * whole < found <= whole


@pytest.mark.parametrize("rate", [1e-4, 0.5])
def test_an_epsilon_above_every_loss_of_one_direction_is_answered(rate):
    # Adding a record to a round loses at most -log(1 - rate) nats.
    found = delta(noise_multiplier=0.04, epsilon=2000.0, rounds=1, sampling_rate=rate)
    assert 0.0 < found < 1.0


def test_a_constant_loss_needs_no_more_tilt_than_floats_resolve():
    found = epsilon(noise_multiplier=0.011, delta=1e-7, rounds=10_000, sampling_rate=1e-4)
    assert 0.0 < found < epsilon_from_mu(100.0 / 0.011, 1e-7)
