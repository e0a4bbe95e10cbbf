import numpy as np
import pytest

from overhear.attacks.bounds.lower_bounds import Errors, Guesses, errors_at_zero, surest

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
