import math

import numpy as np
import pytest

from overhear.attacks.bounds.loss_threshold import loss_canaries
from overhear.attacks.bounds.lower_bounds import Guesses, total_error
from overhear.attacks.bounds.mechanism import Claim

CLAIM = Claim(rounds={(1.39, 1.0): 1})
HOW = {"claim": CLAIM, "delta": 1e-5, "confidence": 0.95}


def _coins(canaries: int = 4000) -> np.ndarray:
    return np.random.default_rng(3).random(canaries) < 0.5


def test_a_loss_below_the_threshold_is_a_guess_of_in():
    coins = _coins()
    losses = np.where(coins, 0.2, 0.9)
    losses[:900] = 1.1 - losses[:900]
    found = loss_canaries(losses, coins, threshold=0.5, **HOW)
    same = total_error(Guesses(scores=0.5 - losses, included=coins), **HOW)
    assert found.epsilon == same.epsilon > 0.0
    assert (found.false_alarms, found.misses) == (same.false_alarms, same.misses)
    assert (found.name, found.threshold) == ("loss canaries", 0.5)
    assert found.assumptions.startswith("Sees the final models alone; about 0 on small convex")


def test_losses_that_know_nothing_of_the_coins_bound_nearly_nothing():
    # Above 0 with probability .05 at most, whatever the seed.
    losses = np.random.default_rng(4).exponential(size=4000)
    assert loss_canaries(losses, _coins(), threshold=0.7, **HOW).epsilon == 0.0


def test_members_with_higher_losses_bound_nothing():
    coins = _coins()
    assert loss_canaries(np.where(coins, 2.0, 1.0), coins, threshold=1.5, **HOW).epsilon == 0.0


def test_a_loss_at_the_threshold_is_an_error_and_a_diverged_one_a_guess_of_out():
    coins = np.array([True, False, True, False])
    losses = np.array([1.0, 1.0, math.inf, math.inf])
    found = loss_canaries(losses, coins, threshold=1.0, **HOW)
    assert (found.false_alarms, found.misses) == (1, 2)


@pytest.mark.parametrize("threshold", [math.inf, math.nan])
def test_a_threshold_that_decides_nothing_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold="):
        loss_canaries([0.1, 0.2], [True, False], threshold=threshold, **HOW)


def test_losses_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="1 of 2 scores are not numbers"):
        loss_canaries([0.1, math.nan], [True, False], threshold=0.5, **HOW)
