import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from overhear.attacks.bounds.lower_bounds import Guesses
from overhear.attacks.bounds.mechanism import Claim, at_scale, epsilon
from overhear.attacks.bounds.one_run_bounds import (
    guesses_made,
    largest_rejected_epsilon,
    one_run_f_dp,
    one_run_pure,
)
from overhear.privacy import epsilon_from_mu, mu_from
from tests.attacks.bounds.simulated_scores import simulated_scores

DELTA = 1e-5
HOW = {"delta": DELTA, "confidence": 0.95}


def _one_round(target: float) -> Claim:
    return Claim(rounds={(1.0 / mu_from(target, DELTA), 1.0): 1})


def _guesses(canaries: int, wrong: int) -> Guesses:
    """The first `guesses_made` are surest, and `wrong` of them are wrong."""
    coins = np.arange(canaries) % 2 == 0
    scores = np.where(coins, 1.0, -1.0)
    scores[: guesses_made(canaries)] *= 2.0
    scores[:wrong] *= -1.0
    return Guesses(scores=scores, included=coins)


def _drawn(claim: Claim, canaries: int, generator: np.random.Generator) -> Guesses:
    coins = generator.random(canaries) < 0.5
    return Guesses(scores=simulated_scores(claim, coins, generator=generator), included=coins)


def _rejects(mu: float, canaries: int, made: int, right: int, risk: float) -> bool:
    """Algorithm 3 of Mahloujifar et al. as it is printed, one step at a time, for a Gaussian."""
    r, h = [0.0] * (right + 1), [0.0] * (right + 1)
    r[right], h[right] = risk * right / canaries, risk * (made - right) / canaries
    for i in range(right - 1, -1, -1):
        h[i] = max(h[i + 1], float(ndtr(ndtri(min(r[i + 1], 1.0)) - mu)))
        r[i] = r[i + 1] + i / (made - i) * (h[i] - h[i + 1])
    return r[0] + h[0] > made / canaries


@pytest.mark.parametrize(("canaries", "wrong"), [(60, 9), (300, 20), (300, 33), (2000, 50)])
def test_the_largest_gaussian_that_is_rejected_is_that_of_the_printed_algorithm(canaries, wrong):
    found = one_run_f_dp(_guesses(canaries, wrong), claim=_one_round(3.0), **HOW)
    made = guesses_made(canaries)
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        rejected = _rejects(middle, canaries, made, made - wrong, 0.05)
        low, high = (middle, high) if rejected else (low, middle)
    least, most = (epsilon_from_mu(mu, DELTA) for mu in (max(low - 1e-4, 0.0), low + 1e-9))
    assert least <= found.epsilon <= most
    assert found.epsilon > 0.0
    assert (found.guesses, found.errors) == (made, wrong)


def test_rounds_that_nearly_always_take_part_are_read_like_one_gaussian():
    guesses = _guesses(1000, 12)
    alone = one_run_f_dp(guesses, claim=Claim(rounds={(2.0, 1.0): 4}), **HOW)
    nearly = one_run_f_dp(guesses, claim=Claim(rounds={(2.0, 1.0 - 1e-9): 4}), **HOW)
    assert alone.epsilon * 0.99 < nearly.epsilon <= alone.epsilon * (1.0 + 1e-6)
    assert nearly.noise_scale == pytest.approx(alone.noise_scale, rel=5e-3)


def test_the_printed_example_of_steinke_nasr_and_jagielski_comes_out():
    found = largest_rejected_epsilon(canaries=1000, made=100, right=75, delta=1e-4, risk=0.05)
    assert found == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize(("made", "right"), [(100, 75), (500, 290), (500, 500)])
def test_without_delta_the_bound_is_the_binomial_tail_alone(made, right):
    found = largest_rejected_epsilon(canaries=5000, made=made, right=right, delta=1e-300, risk=0.05)
    tail = float(binom.sf(right - 1, made, 1.0 / (1.0 + math.exp(-found))))
    assert tail == pytest.approx(0.05, rel=1e-6)


def test_a_larger_delta_costs_some_of_the_bound():
    found = [
        largest_rejected_epsilon(canaries=5000, made=500, right=400, delta=d, risk=0.05)
        for d in (1e-9, 1e-5, 1e-4, 1e-3)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] - 0.1


CLAIMS = [
    _one_round(3.0),
    Claim(rounds={(2.6, 0.1): 300}),
    Claim(rounds={(2.6, 0.1): 30}, adjacency="replace-one"),
]


@pytest.mark.some_quick(1)
@pytest.mark.parametrize(
    "claim", [CLAIMS[0], CLAIMS[1], pytest.param(CLAIMS[2], marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("estimator", [one_run_f_dp, one_run_pure])
def test_more_right_guesses_give_a_larger_bound_that_stays_finite(claim, estimator):
    found = [
        estimator(_guesses(1000, wrong), claim=claim, **HOW).epsilon
        for wrong in (100, 50, 45, 20, 5, 0)
    ]
    assert found == sorted(found)
    assert found[:2] == [0.0, 0.0]
    assert 0.0 < found[3] < found[-1] < math.inf


@pytest.mark.parametrize("target", [1.0, 8.0])
def test_audits_of_one_gaussian_stay_below_the_truth(target):
    # 400 audits of 1,000 canaries. Above the truth with probability .05 each, more than 33 have
    # probability .0024; both bounds are far more conservative than that.
    claim, generator = _one_round(target), np.random.default_rng(21)
    drawn = [_drawn(claim, 1000, generator) for _ in range(400)]
    curves = [one_run_f_dp(g, claim=claim, **HOW).epsilon for g in drawn]
    pure = [one_run_pure(g, claim=claim, **HOW).epsilon for g in drawn]
    assert sum(bound > target for bound in curves) <= 33
    assert sum(bound > target for bound in pure) <= 33
    assert np.median(pure) < np.median(curves) < target


@pytest.mark.slow
def test_audits_of_sampled_rounds_stay_below_the_truth():
    # 20 audits of 1,000 canaries, each above the truth with probability .05: more than 4 have
    # probability .0026.
    claim, generator = Claim(rounds={(1.5, 0.2): 10}), np.random.default_rng(22)
    truth = epsilon(claim, DELTA)
    drawn = [_drawn(claim, 1000, generator) for _ in range(20)]
    curves = [one_run_f_dp(g, claim=claim, **HOW) for g in drawn]
    pure = [one_run_pure(g, claim=claim, **HOW).epsilon for g in drawn]
    assert sum(bound.epsilon > truth for bound in curves) <= 4
    assert all((b.noise_scale < 1.0) == (b.epsilon > truth) for b in curves)
    assert np.median(pure) < np.median([b.epsilon for b in curves])


@pytest.mark.parametrize(
    ("target", "curve", "pure"), [(1, 0.39, 0.29), (3, 1.58, 1.11), (8, 4.3, 2.9)]
)
def test_five_thousand_canaries_show_as_much_as_they_should(target, curve, pure):
    claim, generator = _one_round(float(target)), np.random.default_rng(23)
    drawn = [_drawn(claim, 5000, generator) for _ in range(60)]
    found = [one_run_f_dp(g, claim=claim, **HOW).epsilon for g in drawn]
    assert np.median(found) > curve
    assert np.median([one_run_pure(g, claim=claim, **HOW).epsilon for g in drawn]) > pure


@pytest.mark.parametrize("claim", CLAIMS[:2])
def test_a_third_of_the_declared_noise_contradicts_the_claim(claim):
    guesses = _drawn(at_scale(claim, 1.0 / 3.0), 5000, np.random.default_rng(24))
    found = one_run_f_dp(guesses, claim=claim, delta=DELTA, confidence=0.999)
    assert found.epsilon > epsilon(claim, DELTA)
    assert found.noise_scale < 1.0


@pytest.mark.parametrize(
    "claim",
    [
        Claim(rounds={(0.0, 0.1): 30}),
        Claim(rounds={(1.0, 1e-4): 3}),  # no scale of which explains so much
    ],
)
def test_without_a_curve_the_bound_is_the_one_for_every_mechanism(claim):
    guesses = _guesses(1000, 5)
    found = one_run_f_dp(guesses, claim=claim, **HOW)
    assert found.epsilon == one_run_pure(guesses, claim=claim, **HOW).epsilon > 0.0
    assert found.name == "one-run f-DP"


def test_the_number_of_guesses_depends_on_the_number_of_canaries_alone():
    assert [guesses_made(m) for m in (1, 99, 250, 1000, 5000, 20_000)] == [
        1, 99, 100, 100, 500, 2000,
    ]  # fmt: skip
    found = one_run_pure(_guesses(5000, 3), claim=CLAIMS[0], **HOW)
    assert (found.guesses, found.threshold, found.noise_scale) == (500, 2.0, None)
    assert "500 guesses of 5000" in found.assumptions


@pytest.mark.parametrize("estimator", [one_run_f_dp, one_run_pure])
def test_numbers_out_of_range_are_refused(estimator):
    for wrong, words in (({"delta": 1.0}, "delta=1"), ({"confidence": 0.0}, "confidence=0")):
        with pytest.raises(ValueError, match=words):
            estimator(_guesses(100, 3), claim=CLAIMS[0], **{**HOW, **wrong})
