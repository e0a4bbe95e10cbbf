"""What a proof allows, and guesses that contradict it."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.attacks.membership.roc import (
    ProvenLimit,
    Rate,
    allowed_by_pair,
    exceeds,
    interval,
    measure,
    roc,
)
from overhear.privacy.accounting.request import Adjacency
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, Reach, poisson

DELTA = 1e-5


def limit_of(claim: Claim) -> ProvenLimit:
    return ProvenLimit(claim=claim, epsilon=epsilon(claim, DELTA), delta=DELTA)


def test_the_limit_of_a_gaussian_is_its_own_curve():
    limit = limit_of(Claim(rounds={(2.0, 1.0): 4}))  # mu = 1
    for rate in (0.001, 0.01, 0.3):
        assert limit.true_positive_rate(rate) == pytest.approx(ndtr(ndtri(rate) + 1.0), rel=1e-6)


def test_a_mean_of_a_replaced_record_has_a_curve_below_its_pair():
    event = Event(2.0, poisson(0.1), Reach.BALL)
    claim = Claim(rounds={event: 4}, adjacency=Adjacency.REPLACE_ONE)
    limit = limit_of(claim)
    assert limit.true_positive_rate(0.01) < allowed_by_pair(limit.epsilon, DELTA, 0.01)
    assert limit.true_positive_rate(1.0) == 1.0


def test_a_rate_exceeds_only_beyond_both_intervals():
    limit = limit_of(Claim(rounds={(1.0, 1.0): 1}))  # .092 at .01
    above = Rate(asked=0.01, hits=400, members=1000, alarms=10, others=1000)
    within = Rate(asked=0.01, hits=110, members=1000, alarms=10, others=1000)
    assert exceeds(above, limit, tests=20)
    assert not exceeds(within, limit, tests=20)


@pytest.mark.parametrize(
    ("claim", "games"),
    [
        (Claim(rounds={(2.0, 1.0): 4}), 20),
        pytest.param(Claim(rounds={(1.0, 0.1): 60}), 3, marks=pytest.mark.slow),
    ],
)
def test_what_is_proven_is_never_contradicted(claim, games):
    """Scores as good as the proof allows, games of 3,000 coins: each errs below 1e-6."""
    limit, generator = limit_of(claim), np.random.default_rng(2)
    for _ in range(games):
        coins = generator.random(3000) < 0.5
        moved = np.zeros(3000)
        for event, rounds in claim.events.items():
            multiplier, rate = event.noise_multiplier, event.moves.rate
            batches = generator.binomial(rounds, rate, size=3000)
            moved += batches * coins + multiplier * math.sqrt(rounds) * generator.standard_normal(
                3000
            )
        assert not measure({("average", "best"): moved}, coins, limit).contradicted


def test_a_quarter_of_the_noise_is_contradicted():
    """mu 2 where .5 is proven, and 4,000 coins: 399 of 400 guesses are right."""
    limit, generator = limit_of(Claim(rounds={(4.0, 1.0): 4})), np.random.default_rng(3)
    coins = generator.random(4000) < 0.5
    scores = 2.0 * coins + generator.standard_normal(4000)
    found = measure({("average", "best"): scores, ("owner", "none"): -scores}, coins, limit)
    assert found.guesser == ("average", "best")
    assert found.contradicted
    assert found.epsilon > limit.epsilon
    assert found.made == 400


def test_order_alone_counts():
    """A score that is transformed by a rising function guesses the same."""
    limit, generator = limit_of(Claim(rounds={(2.0, 1.0): 4})), np.random.default_rng(4)
    coins = generator.random(2000) < 0.5
    scores = coins + generator.standard_normal(2000)
    first = measure({("a", "b"): scores}, coins, limit)
    assert measure({("a", "b"): np.exp(3.0 * scores) - 7.0}, coins, limit) == first


def test_an_attack_that_is_sure_of_members_alone_is_heard():
    """A fifth of the members stands out, and all else is chance: the surest 400 are all right."""
    limit, generator = limit_of(Claim(rounds={(4.0, 1.0): 4})), np.random.default_rng(5)
    coins = generator.random(4000) < 0.5
    scores = generator.standard_normal(4000)
    scores[np.flatnonzero(coins)[:400]] += 20.0
    found = measure({("average", "best"): scores}, coins, limit)
    assert (found.right, found.made) == (400, 400)
    assert found.contradicted


# Curves of scores, their areas, and rates that can or cannot be measured.


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
