"""Figures that are stated of whole runs: recursions, sampling, and stopping early.

Noise multiplier 1, clip norm 1, add-or-remove and delta 1e-5 unless a test says otherwise.
"""

import math

import numpy as np
import pytest

from overhear.privacy import View, epsilon, epsilon_from_mu

BETA = 0.01  # of DPMixSGD: a round keeps 1 - BETA of the estimate before


def recursion(rounds: int) -> np.ndarray:
    """(T, T): what round t still holds of round s."""
    lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    return np.where(lags >= 0, (1.0 - BETA) ** np.maximum(lags, 0), 0.0)


@pytest.mark.parametrize(("rounds", "mu"), [(5, 2.2361), (20, 4.4721)])
def test_repaired_dpmixsgd_without_sampling_adds_its_rounds_up(rounds, mu):
    view = View(contributions=recursion(rounds), noise=recursion(rounds))
    assert view.mu(range(rounds)) == pytest.approx(mu, abs=5e-5)


@pytest.mark.parametrize(("rounds", "mu"), [(1, 1.99), (2, 2.80025), (5, 4.36211), (20, 8.11632)])
def test_published_dpmixsgd_repeats_a_record_of_one_batch_for_ever(rounds, mu):
    used = recursion(rounds)[:, :1] * np.array([1.0, BETA - 1.0])  # at the new and the old model
    view = View(contributions=used, noise=np.eye(rounds))
    assert view.mu([0, 1]) == pytest.approx(mu, abs=5e-6)


def test_four_releases_of_one_batch_are_not_four_events():
    of_one_batch = epsilon(noise_multiplier=0.5, delta=1e-5, rounds=1000, sampling_rate=0.01)
    as_if_independent = epsilon(noise_multiplier=1.0, delta=1e-5, rounds=4000, sampling_rate=0.01)
    assert of_one_batch == pytest.approx(13.36, abs=5e-3)
    assert as_if_independent == pytest.approx(3.72, abs=5e-3)


def test_poisson_amplification_is_not_that_of_shuffled_batches():
    # One epoch of shuffled batches of these numbers is proven to cost at least 6.05.
    poisson = epsilon(noise_multiplier=0.8, delta=1e-6, rounds=1000, sampling_rate=1e-3)
    assert poisson == pytest.approx(0.468, abs=5e-4)


def test_a_running_epsilon_is_exceeded_far_more_often_than_delta():
    # n = 40,000 paths of 1,000 rounds, each mu = .05: the standard error of the share is .002, so
    # five of them beside the rounding of .18 raise a false alarm with probability below 1e-6.
    n, mu, rounds, delta = 40_000, 0.05, 1000, 1e-3
    running = [epsilon_from_mu(mu * math.sqrt(t), delta) for t in range(1, rounds + 1)]
    draw = np.random.default_rng(11)
    loss, exceeded = np.zeros(n), np.zeros(n, dtype=bool)
    for limit in running:
        loss += mu * draw.standard_normal(n) + mu**2 / 2
        exceeded |= loss > limit
    assert abs(exceeded.mean() - 0.18) < 0.005 + 5 * math.sqrt(0.18 * 0.82 / n)
    assert (loss > running[-1]).mean() < 0.01  # at the planned end it is rare
