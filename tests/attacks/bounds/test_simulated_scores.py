import math

import numpy as np
import pytest

from overhear.attacks.bounds.mechanism import Claim, total_variation
from tests.attacks.bounds.simulated_scores import simulated_scores

CLAIMS = [
    Claim(rounds={(0.8, 1.0): 1}),
    Claim(rounds={(0.8, 1.0): 1}, adjacency="replace-one"),
    Claim(rounds={(1.5, 0.2): 30}),
    Claim(rounds={(2.0, 0.2): 30}, adjacency="replace-one"),
    Claim(rounds={(1.0, 0.05): 20, (2.0, 0.5): 10, (3.0, 1.0): 2}),
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_errors_of_the_ratio_test_are_half_of_what_total_variation_leaves(claim):
    # 400,000 canaries; five standard deviations: false alarm rate 6e-7.
    generator = np.random.default_rng(1)
    coins = generator.random(400_000) < 0.5
    scores = simulated_scores(claim, coins, generator=generator)
    errors = float(((scores > 0.0) != coins).mean())
    expected = 0.5 * (1.0 - total_variation(claim))
    assert abs(errors - expected) < 5.0 * math.sqrt(0.25 / coins.size)


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.adjacency == "add-or-remove-one"])
def test_the_ratio_has_mean_one_without_the_record(claim):
    # E_out[P_in / P_out] = 1; 400,000 canaries, five standard deviations of the sample.
    out = np.zeros(400_000, dtype=bool)
    ratio = np.exp(simulated_scores(claim, out, generator=np.random.default_rng(2)))
    assert abs(ratio.mean() - 1.0) < 5.0 * ratio.std() / math.sqrt(out.size)


def test_the_scores_of_one_gaussian_have_its_mean_and_deviation():
    inside = np.ones(400_000, dtype=bool)
    claim = Claim(rounds={(2.0, 1.0): 9})  # mu = 1.5
    scores = simulated_scores(claim, inside, generator=np.random.default_rng(3))
    assert abs(scores.mean() - 1.125) < 5.0 * 1.5 / math.sqrt(inside.size)
    assert abs(scores.std() - 1.5) < 5.0 * 1.5 / math.sqrt(2.0 * inside.size)


def test_losses_too_large_for_single_precision_stay_finite():
    claim = Claim(rounds={(0.02, 0.5): 3})
    coins = np.arange(1000) % 2 == 0
    scores = simulated_scores(claim, coins, generator=np.random.default_rng(4))
    assert np.isfinite(scores).all()
    assert scores.max() > 1000.0


def test_rounds_that_sample_nobody_say_nothing():
    claim = Claim(rounds={(1.0, 0.0): 5, (math.inf, 0.5): 5})
    coins = np.array([[True, False]])
    found = simulated_scores(claim, coins, generator=np.random.default_rng(5))
    assert found.tolist() == [[0.0, 0.0]]


def test_rounds_without_noise_are_refused():
    with pytest.raises(ValueError, match=r"noise_multiplier=0\.0"):
        simulated_scores(
            Claim(rounds={(0.0, 0.5): 1}), np.array([True]), generator=np.random.default_rng(6)
        )
