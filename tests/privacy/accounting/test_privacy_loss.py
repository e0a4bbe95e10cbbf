"""Facts about composed losses at the edges of their arithmetic."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from overhear.privacy.accounting.accountant import delta, epsilon
from overhear.privacy.accounting.dominating_pairs import (
    DiscretisedPair,
    Pair,
    Round,
    discretised_pair,
)
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.accounting.privacy_loss import compose, tilt_for_delta, tilt_for_epsilon
from overhear.privacy.participation import poisson


def test_a_tilt_of_zero_composes_and_a_negative_one_is_refused():
    ten = Round(noise_multiplier=1.0, moves=poisson(0.1), pair=Pair.REMOVE, count=10)
    rounds = [discretised_pair(ten, missing=1e-12)]
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


def test_blocks_of_blocks_count_what_their_windows_displace():
    rounds = Round(noise_multiplier=100.0, moves=poisson(0.01), pair=Pair.REMOVE, count=2_000_000)
    pair = discretised_pair(rounds, missing=1e-26, step=0.02)
    tilt = tilt_for_delta([pair], 1e-6)
    composed = compose([pair], tilt=tilt)
    single = compose([replace(pair, count=1000)], tilt=tilt)  # one transform, and no block
    window = math.exp(-28.0)
    # Of two levels of blocks each displaces a window's share, beside what the transforms round.
    assert composed.displaced > 2.0 * window + 1e-15 * rounds.count**0.5
    assert composed.displaced < 1e-8
    assert 1e-12 < single.displaced < 2e-12


def test_chunks_of_different_rounds_count_what_their_windows_displace():
    kinds = [
        Round(noise_multiplier=1.0 + k / 100, moves=poisson(0.1), pair=Pair.REMOVE, count=1)
        for k in range(70)
    ]
    pairs = [discretised_pair(r, missing=1e-20, step=0.02) for r in kinds]
    assert compose(pairs, tilt=1.0).displaced > 2.0 * math.exp(-28.0)  # 64 and 6
    assert compose(pairs[:60], tilt=1.0).displaced < 1e-12


def test_displaced_probability_adds_the_most_that_it_can_to_delta():
    pair = discretised_pair(
        Round(noise_multiplier=2.0, moves=poisson(1.0), pair=Pair.REMOVE, count=4), missing=1e-20
    )
    tilt = tilt_for_delta([pair], 1e-5)
    clean = replace(compose([pair], tilt=tilt), displaced=0.0)
    moved = replace(clean, displaced=1e-3)
    epsilon = clean.epsilon(1e-5)
    # Wherever the probability was, it adds no more: a search over places.
    places = epsilon + np.linspace(0.0, 20.0, 200_001)
    untilted = 1e-3 * np.exp(clean.log_scale - tilt * places)
    most = float((untilted * -np.expm1(epsilon - places)).max())
    added = moved.delta(epsilon) - clean.delta(epsilon)
    assert added == pytest.approx(most, rel=1e-5)
    assert moved.delta(moved.epsilon(1e-5)) <= 1e-5 * (1.0 + 1e-9)
    assert moved.epsilon(1e-5) > epsilon + 1e-5
    assert moved.epsilon(1e-300) == math.inf


def test_a_window_has_room_for_the_splits_of_the_grid():
    # Nearly all sums are the largest one; what the grid's splits lift above it must not come back
    # at the foot of the window.
    drop, top = -3.0, 0.7
    pair = DiscretisedPair(
        losses=np.array([drop, top]), log_masses=np.log([1e-3, 1.0 - 1e-3]), missing=1e-300,
        count=900,
    )  # fmt: skip
    for at in (900 * top - 10.0, 900 * top - 0.5):
        exact = sum(
            binom.pmf(k, 900, 1e-3) * max(0.0, -math.expm1(at - ((900 - k) * top + k * drop)))
            for k in range(10)
        )
        for tilt in (0.0, 0.3):
            found = compose([pair], tilt=tilt)
            assert exact <= found.delta(at) < 1.01 * exact
            assert (
                found.start * found.grid
                < 900 * top
                < (found.start + found.tilted.size - 9) * (found.grid)
            )
