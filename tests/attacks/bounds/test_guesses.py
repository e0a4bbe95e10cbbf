import math

import numpy as np
import pytest
from scipy.stats import binom

from overhear.attacks.bounds.evidence import SHARE, headline, held_out
from overhear.attacks.bounds.lower_bounds import (
    Errors,
    Guesses,
    best_threshold,
    errors_at_zero,
    surest,
    total_error,
)
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.attacks.bounds.one_run_bounds import ranked
from tests.attacks.bounds.simulated_scores import simulated_scores

COINS = np.array([True, True, False, False, True])


def test_a_ratio_of_zero_is_an_error_whatever_the_coin():
    found = errors_at_zero(Guesses(scores=np.zeros(5), included=COINS))
    assert found == Errors(false_alarms=2, misses=3, out=2, inside=3)


def test_infinite_ratios_are_guesses_like_others():
    scores = np.array([np.inf, -np.inf, np.inf, -np.inf, 1.0])
    found = errors_at_zero(Guesses(scores=scores, included=COINS))
    assert found == Errors(false_alarms=1, misses=1, out=2, inside=3)


def test_the_surest_are_those_farthest_from_zero_and_the_first_of_equals():
    scores = np.array([0.5, -0.5, np.inf, 0.1, -2.0])
    guesses = Guesses(scores=scores, included=COINS)
    assert surest(guesses, 3).tolist() == [2, 4, 0]
    assert errors_at_zero(guesses, among=surest(guesses, 3)) == Errors(1, 1, 1, 2)


def test_later_changes_of_the_arrays_do_not_reach_the_guesses():
    scores, coins = np.ones(5), COINS.copy()
    guesses = Guesses(scores=scores, included=coins)
    scores[:], coins[:] = -1.0, False
    assert errors_at_zero(guesses) == Errors(2, 0, 2, 3)
    with pytest.raises(ValueError, match="read-only"):
        guesses.scores[0] = 0.0


@pytest.mark.parametrize(
    ("scores", "coins", "words"),
    [
        (np.zeros(4), COINS, r"scores of shape \(4,\)"),
        (np.zeros(0), np.zeros(0, dtype=bool), "at least one canary"),
        (np.zeros((5, 1)), COINS[:, None], r"\(5, 1\)"),
        (np.array([0, 1, np.nan, np.nan, 1]), COINS, "2 of 5 scores are not numbers"),
    ],
)
def test_what_is_no_audit_is_refused(scores, coins, words):
    with pytest.raises(ValueError, match=words):
        Guesses(scores=scores, included=coins)


def test_coins_that_are_no_truth_values_are_refused():
    with pytest.raises(TypeError, match="dtype int64"):
        Guesses(scores=np.zeros(3), included=np.array([0, 1, 1]))


@pytest.mark.parametrize("heads", [0, 1000, 400])
def test_coins_that_cannot_have_been_fair_are_refused(heads):
    with pytest.raises(ValueError, match=f"{heads} of 1000 canaries; a fair assignment"):
        Guesses(scores=np.zeros(1000), included=np.arange(1000) < heads)


def test_coins_that_fell_unevenly_by_chance_are_not():
    assert Guesses(scores=np.zeros(1000), included=np.arange(1000) < 450).included.sum() == 450
    assert Guesses(scores=np.zeros(5), included=np.ones(5, dtype=bool)).included.sum() == 5


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
