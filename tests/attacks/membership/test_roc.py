"""Curves of scores, their areas, and rates that can or cannot be measured."""

import itertools

import numpy as np
import pytest

from overhear.attacks.membership.roc import interval, roc
from overhear.privacy.errors import InputError


def test_the_area_is_that_of_all_pairs():
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 6, size=200).astype(float)  # many ties
    inside = generator.random(200) < 0.4
    pairs = scores[inside][:, None] - scores[~inside][None, :]
    assert roc(scores, inside).auc == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_the_standard_error_is_that_of_repeated_draws():
    """2,000 draws of 60 and 90: their deviation is within 10 %, where 2 % is its own error."""
    generator = np.random.default_rng(1)
    inside = np.arange(150) < 60
    found = [roc(generator.standard_normal(150) + inside, inside) for _ in range(2000)]
    spread = np.std([one.auc for one in found])
    assert np.mean([one.auc_error for one in found]) == pytest.approx(spread, rel=0.1)


def test_a_rate_counts_no_more_false_positives_than_it_allows():
    scores = np.concatenate([np.arange(100.0), np.arange(100.0) + 0.5])
    found = roc(scores, np.arange(200) >= 100)
    for rate in (0.01, 0.05, 0.5, 1.0):
        at = found.at(rate)
        assert at.alarms == round(rate * 100)
        assert at.hits == min(at.alarms + 1, 100)


def test_ties_between_members_and_others_are_counted_together():
    found = roc(np.array([1.0, 1.0, 0.0]), np.array([True, False, False]))
    assert found.at(0.4).hits == 0
    assert found.at(0.5).hits == 1


def test_500_non_members_do_not_measure_a_thousandth():
    found = roc(np.arange(1000.0), np.arange(1000) >= 500)
    assert not found.at(0.001).measured
    assert found.at(0.001).needed == 1000
    assert found.at(0.01).measured


def test_limits_are_those_of_clopper_and_pearson():
    """2 of 10 at 95 %: as printed in textbooks."""
    low, high = interval(2, 10, confidence=0.95)
    assert (round(low, 4), round(high, 4)) == (0.0252, 0.5561)
    assert interval(0, 5, confidence=0.95)[0] == 0.0
    assert interval(5, 5, confidence=0.95)[1] == 1.0


def test_points_lead_to_the_end_and_never_fall():
    points = roc(np.arange(50.0), np.arange(50) % 3 == 0).points()
    assert points[-1] == (1.0, 1.0)
    assert all(a <= b and t <= u for (a, t), (b, u) in itertools.pairwise(points))


@pytest.mark.parametrize(
    ("scores", "inside", "said"),
    [
        (np.array([1.0, np.nan]), np.array([True, False]), "no numbers"),
        (np.array([1.0, 2.0]), np.array([True, True]), "0 others"),
        (np.zeros(3), np.array([True, False]), "must be"),
    ],
)
def test_what_is_no_experiment_is_refused(scores, inside, said):
    with pytest.raises(InputError, match=said):
        roc(scores, inside)
