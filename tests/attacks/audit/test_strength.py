import math

import numpy as np
import pytest
from scipy.stats import binom

from overhear.attacks.audit.canary_noise import DECLARED, Strength, likeliest, log_mixture
from overhear.attacks.bounds.lower_bounds import upper_limit
from overhear.attacks.bounds.mechanism import Claim, total_variation

Q, V = 0.2, 2.0


def _statistics(count: int, *, gain: float, noise: float, seed: int, q: float = Q):
    rng = np.random.default_rng(seed)
    coins = rng.integers(2, size=count).astype(bool)
    part = coins & (rng.random(count) < q)
    v = np.full(count, V)
    return gain * v * part + noise * math.sqrt(V) * rng.normal(size=count), v, coins


@pytest.mark.parametrize("one", [Strength(1.0, 0.5), Strength(2.0, 1.0), Strength(8.0, 1.0)])
@pytest.mark.parametrize("q", [0.2, 1.0])
def test_the_strength_is_found_without_coins(one, q):
    s, v, _ = _statistics(2000, gain=one.gain, noise=one.noise, seed=1, q=q)
    assert likeliest(s, v, q=q, replace=False) == one


def test_opposite_records_are_told_by_their_strength():
    rng = np.random.default_rng(2)
    v = np.full(1000, V)
    s = v * rng.choice([-1.0, 1.0], size=1000) + 0.5 * math.sqrt(V) * rng.normal(size=1000)
    assert likeliest(s, v, q=1.0, replace=True) == Strength(1.0, 0.5)


def test_a_sound_run_keeps_what_is_declared():
    """300 rounds of n = 250; another strength is taken with probability e^-8 a strength at most."""
    taken = [
        likeliest(*_statistics(250, gain=1.0, noise=1.0, seed=seed)[:2], q=Q, replace=False)
        for seed in range(300)
    ]
    assert sum(one != DECLARED for one in taken) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_a_strength_that_is_read_from_scores_costs_no_confidence(noise):
    """500 audits of 100 canaries in 6 rounds whose true noise is `noise` times the declared one.

    The bound on what leaks is held against the truth of that noise; of a valid one at 95 % more
    than 41 are above with probability 1e-3.
    """
    truth = total_variation(Claim(rounds={(noise / math.sqrt(V), Q): 6}))
    over, rng = 0, np.random.default_rng(3)
    for _ in range(500):
        coins = rng.integers(2, size=100).astype(bool)
        scores, v = np.zeros(100), np.full(100, V)
        for _ in range(6):
            part = coins & (rng.random(100) < Q)
            s = v * part + noise * math.sqrt(V) * rng.normal(size=100)
            scores += log_mixture(likeliest(s, v, q=Q, replace=False).exponent(s, v), Q)
        wrong = ((scores > 0) != coins).sum()
        over += 1 - 2 * upper_limit(float(wrong), 100, 0.95) > truth
    assert over <= binom.isf(1e-3, 500, 0.05)


def test_nothing_is_read_from_rounds_that_show_nothing():
    assert likeliest(np.zeros(3), np.zeros(3), q=Q, replace=False) == DECLARED
