import math

import numpy as np
import pytest
from scipy.stats import binom

from overhear.attacks.bounds.evidence import SHARE, headline, held_out
from overhear.attacks.bounds.lower_bounds import Guesses, best_threshold, total_error
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.attacks.bounds.one_run_bounds import ranked
from tests.attacks.bounds.simulated_scores import simulated_scores

DELTA = 1e-5
ONE = Claim(rounds={(1.0, 1.0): 1})
HOW = {"claim": ONE, "delta": DELTA, "confidence": 0.95}


def _guesses(count: int, *, seed: int, shift: float = 0.0, claim: Claim = ONE) -> Guesses:
    rng = np.random.default_rng(seed)
    coins = rng.integers(2, size=count).astype(bool)
    return Guesses(scores=simulated_scores(claim, coins, generator=rng) + shift, included=coins)


def test_a_threshold_that_is_off_is_found():
    """m = 5,000 scores moved by 3 nats: at ratio 0 nearly nothing is left of epsilon 4.4."""
    moved = _guesses(5000, seed=1, shift=3.0)
    assert total_error(moved, **HOW).epsilon < 1.5
    found = headline(moved, **HOW)
    assert found.name == "held-out threshold"
    assert found.threshold == pytest.approx(3.0, abs=1.0)
    assert found.guesses == 4000
    assert 3.0 < found.epsilon < epsilon(ONE, DELTA)


def test_a_sound_headline_is_the_fixed_threshold_at_nearly_the_whole_confidence():
    sound = _guesses(5000, seed=2)
    found = headline(sound, **HOW)
    alone = ranked(sound, **(HOW | {"confidence": 1 - (1 - SHARE) * 0.05}))
    assert found.epsilon == pytest.approx(alone.epsilon, rel=1e-9)
    assert found.confidence == 0.95
    assert found.epsilon > 0.99 * ranked(sound, **HOW).epsilon


@pytest.mark.parametrize("shift", [0.0, pytest.param(2.0, marks=pytest.mark.slow)])
def test_a_headline_is_above_the_truth_as_rarely_as_it_says(shift):
    """1,000 audits of m = 200; of a valid bound 73 or more exceed with probability 1e-3."""
    over = sum(
        headline(_guesses(200, seed=seed, shift=shift), **HOW).exceeds(epsilon(ONE, DELTA))
        for seed in range(1000)
    )
    assert over < binom.isf(1e-3, 1000, 0.05)


def test_few_canaries_keep_the_threshold_of_zero():
    few = Guesses(scores=np.full(8, 3.0), included=np.arange(8) % 2 == 0)
    assert held_out(few, **HOW).threshold == 0.0


def test_scores_that_decide_leave_the_threshold_finite():
    coins = np.arange(1000) % 2 == 0
    found = held_out(Guesses(scores=np.where(coins, math.inf, -math.inf), included=coins), **HOW)
    assert (found.threshold, found.errors) == (0.0, 0)


def test_the_nearest_of_equal_thresholds_is_taken():
    scores = np.array([-3.0, -2.0, 2.0, 3.0])
    assert best_threshold(scores, np.array([False, False, True, True])) == 0.0
