"""What a proof allows, and guesses that contradict it."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.attacks.membership.roc import ProvenLimit, Rate, allowed_by_pair, exceeds, measure
from overhear.privacy.accounting.request import Adjacency
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
