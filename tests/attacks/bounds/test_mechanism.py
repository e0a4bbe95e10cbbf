import math

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from overhear.attacks.bounds.mechanism import (
    Claim,
    Family,
    at_scale,
    declared_mu,
    epsilon,
    family,
    least_epsilon,
    least_epsilon_at,
    noise_scale,
    smallest_scale,
    total_variation,
)
from overhear.privacy import epsilon_from_mu, mu_from, noise_multiplier
from overhear.privacy.participation import Event, Reach, poisson

DELTA = 1e-5
SAMPLED = [
    Claim(rounds={(1.286, 0.1): 300}),
    Claim(rounds={(6.5855, 0.1): 300}),
    Claim(rounds={(0.8, 0.02): 100, (4.0, 1.0): 2}),
    Claim(rounds={(2.6, 0.1): 50}, adjacency="replace-one"),
    Claim(rounds={Event(2.6, poisson(0.1), Reach.BALL): 50}, adjacency="replace-one"),
]


def _exact_delta(loss: float, multiplier: float, rate: float) -> float:
    """Delta of one sampled round with the record against without: above z the loss is larger."""
    z = multiplier * math.log((math.exp(loss) - 1.0 + rate) / rate) + 0.5 / multiplier
    inside = (1.0 - rate) * ndtr(-z) + rate * ndtr(1.0 / multiplier - z)
    return float(inside - math.exp(loss) * ndtr(-z))


@pytest.mark.parametrize(("adjacency", "times"), [("add-or-remove-one", 1), ("replace-one", 2)])
def test_without_sampling_the_total_variation_is_that_of_two_normals(adjacency, times):
    claim = Claim(rounds={(2.0, 1.0): 3, (5.0, 1.0): 1}, adjacency=adjacency)
    mu = times * math.sqrt(3 / 4 + 1 / 25)
    assert declared_mu(claim) == pytest.approx(mu, rel=1e-14)
    assert total_variation(claim) == pytest.approx(2.0 * ndtr(mu / 2.0) - 1.0, rel=1e-9)
    assert epsilon(claim, DELTA) == pytest.approx(epsilon_from_mu(mu, DELTA), rel=1e-12)


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0])
def test_the_total_variation_of_one_sampled_round_is_the_rate_times_that_of_the_normals(
    rate, multiplier
):
    found = total_variation(Claim(rounds={(multiplier, rate): 1}))
    exact = rate * (2.0 * ndtr(0.5 / multiplier) - 1.0)
    assert exact <= found <= exact * (1.0 + 1e-4)


@pytest.mark.parametrize("rate", [0.5, 0.1])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0])
def test_what_is_read_off_a_sampled_claim_is_never_above_its_exact_epsilon(rate, multiplier):
    exact = brentq(lambda x: _exact_delta(x, multiplier, rate) - DELTA, 1e-9, 60.0, rtol=1e-13)
    found = least_epsilon_at(Claim(rounds={(multiplier, rate): 1}), 1.0, DELTA)
    assert exact * (1.0 - 2e-4) <= found <= exact


@pytest.mark.parametrize("rounds", [1, 300, 10_000])
@pytest.mark.parametrize("target", [1.0, 8.0])
def test_at_rates_next_to_one_it_is_not_above_the_closed_form(rounds, target):
    multiplier = math.sqrt(rounds) / mu_from(target, DELTA)
    found = least_epsilon_at(Claim(rounds={(multiplier, 1.0 - 1e-13): rounds}), 1.0, DELTA)
    assert target * (1.0 - 2e-4) <= found <= target


@pytest.mark.parametrize("claim", SAMPLED)
@pytest.mark.parametrize("leaked", [0.004, 0.1, 0.4])
def test_every_larger_scale_of_the_noise_leaks_less(claim, leaked):
    scale = noise_scale(claim, leaked)
    assert total_variation(at_scale(claim, scale)) <= leaked
    assert total_variation(at_scale(claim, scale * 1.01)) < leaked
    assert total_variation(at_scale(claim, scale * (1.0 - 1e-4))) > leaked


@pytest.mark.parametrize("claim", SAMPLED)
def test_what_the_claim_itself_leaks_gives_its_own_epsilon_from_below(claim):
    leaked = total_variation(claim)
    assert noise_scale(claim, leaked) == pytest.approx(1.0, rel=1e-5)
    # Within a ball a record that is replaced by none is attained, and no more is known to be.
    ball = any(event.reach is Reach.BALL for event in claim.events)
    adjacency = "add-or-remove-one" if ball else claim.adjacency
    attained = Claim(rounds=claim.rounds, adjacency=adjacency)
    truth = epsilon(attained, DELTA)
    assert truth * (1.0 - 3e-4) <= least_epsilon(claim, leaked, DELTA) < truth
    assert truth <= epsilon(claim, DELTA)


@pytest.mark.parametrize("claim", SAMPLED)
def test_more_leaked_means_less_noise_and_a_larger_epsilon(claim):
    leaks = [-0.1, 1e-18, 0.01, 0.1, 0.3, 0.6]
    scales = [noise_scale(claim, leaked) for leaked in leaks]
    bounds = [least_epsilon(claim, leaked, DELTA) for leaked in leaks]
    assert scales[:2] == [math.inf, math.inf]
    assert bounds[:2] == [0.0, 0.0]
    assert scales == sorted(scales, reverse=True)
    assert bounds == sorted(bounds)


def test_the_noise_of_a_claim_without_sampling_plays_no_part_in_its_bound():
    bounds = {
        least_epsilon(Claim(rounds={(multiplier, 1.0): 2}), 0.3, DELTA)
        for multiplier in (0.0, 0.5, 7.0, math.inf)
    }
    assert len(bounds) == 1
    assert noise_scale(Claim(rounds={(0.5, 1.0): 1}), 2.0 * ndtr(0.5) - 1.0) == pytest.approx(2.0)


def test_half_the_noise_shows_as_scale_one_half():
    claim = Claim(rounds={(2.0, 0.1): 300})
    weak = at_scale(claim, 0.5)
    leaked = total_variation(weak)
    assert noise_scale(claim, leaked) == pytest.approx(0.5, rel=1e-5)
    assert least_epsilon(claim, leaked, DELTA) == pytest.approx(epsilon(weak, DELTA), rel=3e-4)


def test_more_than_sampling_allows_is_bounded_without_the_mechanism():
    claim = Claim(rounds={(1.0, 0.01): 10})
    assert 1.0 - 0.99**10 < 0.5  # no record is in more often than that
    assert noise_scale(claim, 0.5) == 0.0
    exact = math.log((1.5 - 2.0 * DELTA) / 0.5)
    assert exact * 0.999 < least_epsilon(claim, 0.5, DELTA) < exact


def test_close_to_what_sampling_allows_the_bound_is_still_sound():
    claim = Claim(rounds={(1.0, 0.01): 10})
    leaked = 0.9999 * -math.expm1(10 * math.log1p(-0.01))
    assert 0.0 <= noise_scale(claim, leaked) < 0.2
    assert least_epsilon(claim, leaked, DELTA) > 0.0


def test_rounds_that_always_take_part_add_to_what_sampling_allows():
    claim = Claim(rounds={(1.0, 0.01): 10, (3.0, 1.0): 1})
    leaked = total_variation(at_scale(claim, 0.5))
    assert leaked > 1.0 - 0.99**10
    assert noise_scale(claim, leaked) == pytest.approx(0.5, rel=1e-5)


def test_sampled_rounds_without_noise_are_bounded_without_the_mechanism():
    claim = Claim(rounds={(0.0, 0.1): 3})
    assert family(claim) is Family.ANY
    assert noise_scale(claim, 0.2) == 0.0
    assert 0.0 < least_epsilon(claim, 0.2, DELTA) < math.log(1.2 / 0.8)


@pytest.mark.parametrize("rounds", [{(1.0, 0.0): 5}, {(math.inf, 0.1): 5}])
def test_a_claim_that_nothing_is_released_is_contradicted_by_any_leak(rounds):
    claim = Claim(rounds=rounds)
    assert epsilon(claim, DELTA) == total_variation(claim) == 0.0
    assert noise_scale(claim, 0.1) == 0.0
    assert least_epsilon(claim, 0.1, DELTA) > 0.0


def test_a_very_weak_claim_is_not_taken_for_contradicted():
    assert noise_scale(Claim(rounds={(0.02, 1.0): 1}), 0.999) > 1.0
    assert noise_scale(Claim(rounds={(0.0, 1.0): 1}), 0.999) == math.inf
    weak = Claim(rounds={(0.06, 0.01): 10, (2.0, 1.0): 1})
    assert noise_scale(weak, total_variation(weak)) >= 1.0
    assert least_epsilon(weak, total_variation(weak), DELTA) < epsilon(weak, DELTA)


def test_a_claim_keeps_its_own_rounds_and_compares_by_value():
    rounds = {(1.0, 0.1): 300}
    claim = Claim(rounds=rounds)
    rounds[2.0, 0.1] = 1
    assert claim == Claim(rounds={(1.0, 0.1): 300})
    assert hash(claim) == hash(Claim(rounds={(1.0, 0.1): 300}))
    assert claim != Claim(rounds={(1.0, 0.1): 300}, adjacency="replace-one")


def test_a_scale_multiplies_every_round():
    claim = Claim(rounds={(1.0, 0.1): 3, (2.0, 1.0): 1, (math.inf, 0.5): 2})
    scaled = Claim(rounds={(3.0, 0.1): 3, (6.0, 1.0): 1, (math.inf, 0.5): 2})
    assert at_scale(claim, 3.0) == scaled
    assert smallest_scale(claim) == 0.1


def test_the_calibrated_multiplier_comes_back_through_what_it_leaks():
    least = noise_multiplier(epsilon=3.0, delta=DELTA, rounds=300, sampling_rate=0.1)
    leaked = total_variation(Claim(rounds={(least, 0.1): 300}))
    other = Claim(rounds={(1.0, 0.1): 300})
    assert noise_scale(other, leaked) == pytest.approx(least, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rounds": {}}, "rounds is empty"),
        ({"rounds": {(1.0, 1.3): 1}}, "sampling_rate=1.3"),
        ({"rounds": {(-1.0, 0.3): 1}}, "noise_multiplier=-1.0"),
        ({"rounds": {(1.0, 0.3): 0}}, "rounds=0"),
        ({"rounds": {(1.0, 0.3): 1}, "adjacency": "both"}, "adjacency='both'"),
    ],
)
def test_what_is_no_mechanism_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Claim(**wrong)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_scale_is_refused(scale):
    with pytest.raises(ValueError, match="scale="):
        at_scale(Claim(rounds={(1.0, 0.1): 1}), scale)


def test_what_no_finite_audit_shows_is_refused():
    for leaked in (1.0, math.nan):
        with pytest.raises(ValueError, match="leaked="):
            least_epsilon(Claim(rounds={(1.0, 0.1): 1}), leaked, DELTA)


def test_batches_of_fixed_size_lose_at_least_what_poisson_batches_do():
    """Records that add nothing leave one that is there or blank: at no scale is more attained."""
    for adjacency in ("replace-one", "zero-out"):
        fixed = Claim(rounds={Event(1.0, poisson(0.1), Reach.PLACE): 50}, adjacency=adjacency)
        coins = Claim(rounds={Event(1.0, poisson(0.1)): 50})
        for scale in (0.7, 1.0, 2.0):
            found = least_epsilon_at(fixed, scale, DELTA)
            assert found == pytest.approx(least_epsilon_at(coins, scale, DELTA), rel=1e-9)
            assert 0 < found < epsilon(at_scale(fixed, scale), DELTA)
    lottery = Event(1.0, poisson(0.1), coin=0.9, otherwise=Event(1.0, poisson(0.1), Reach.PLACE))
    assert least_epsilon_at(Claim(rounds={lottery: 50}), 1.0, DELTA) == 0.0
