import bisect
import math
from functools import lru_cache

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from overhear.attacks.bounds.lower_bounds import (
    Errors,
    Guesses,
    LowerBound,
    from_total,
    ideal,
    surest,
    total_error,
    upper_limit,
)
from overhear.attacks.bounds.mechanism import Claim, at_scale, epsilon, total_variation
from overhear.attacks.bounds.one_run_bounds import ideal_ranked, ranked
from overhear.attacks.bounds.one_run_bounds import tail as ranked_tail
from overhear.privacy import epsilon_from_mu, mu_from, noise_multiplier
from overhear.privacy.accounting.trade_off import GaussianCurve, trade_off
from overhear.privacy.participation import Event, Reach, poisson
from tests.attacks.bounds.simulated_scores import simulated_scores

DELTA = 1e-5
HOW = {"delta": DELTA, "confidence": 0.95}
# Of 1,000 audits, each above the truth with probability .05: more than 67 has probability .0074,
# and 25 or fewer 5e-5.
AUDITS, MOST_ABOVE, HARDLY = 1000, 67, 25


def _one_round(target: float, adjacency: str = "add-or-remove-one") -> Claim:
    reach = 2.0 if adjacency == "replace-one" else 1.0
    return Claim(rounds={(reach / mu_from(target, DELTA), 1.0): 1}, adjacency=adjacency)


def _sampled(target: float, rate: float = 0.1, rounds: int = 300) -> Claim:
    least = noise_multiplier(epsilon=target, delta=DELTA, rounds=rounds, sampling_rate=rate)
    return Claim(rounds={(least, rate): rounds})


@lru_cache(maxsize=4)
def _audits(claim: Claim, canaries: int) -> tuple[Guesses, ...]:
    generator = np.random.default_rng(11)
    coins = generator.random((AUDITS, canaries)) < 0.5
    scores = simulated_scores(claim, coins, generator=generator)
    return tuple(Guesses(scores=s, included=c) for s, c in zip(scores, coins, strict=True))


def _halves(errors: int, canaries: int) -> Errors:
    half = canaries // 2
    return Errors(
        false_alarms=errors // 2, misses=errors - errors // 2, out=half, inside=canaries - half
    )


@pytest.mark.parametrize("trials", [1, 40, 5000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.44, 0.9])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_at_the_limit_so_few_errors_have_just_the_risk(trials, share, confidence):
    errors = int(share * trials)
    limit = upper_limit(errors, trials, confidence)
    risk = float(binom.cdf(errors, trials, limit))
    assert (1.0 - confidence) * (1.0 - 1e-4) <= risk <= 1.0 - confidence


def test_no_limit_below_one_without_trials_or_a_right_guess():
    assert upper_limit(0, 0, 0.95) == upper_limit(7, 7, 0.95) == 1.0


@pytest.mark.parametrize(("target", "printed"), [(1.0, 0.76), (3.0, 2.72), (8.0, 7.61)])
def test_the_ideal_of_one_gaussian_is_that_of_its_expected_errors(target, printed):
    found = ideal(_one_round(target), canaries=5000, **HOW)
    mu = mu_from(target, DELTA)
    limit = upper_limit(5000 * float(ndtr(-mu / 2.0)), 5000, 0.95)
    assert found == pytest.approx(epsilon_from_mu(-2.0 * float(ndtri(limit)), DELTA), rel=1e-6)
    assert found == pytest.approx(printed, abs=0.005)
    assert ideal(_one_round(target, "replace-one"), canaries=5000, **HOW) == pytest.approx(found)


@pytest.mark.parametrize(("target", "printed"), [(1.0, 0.755), (3.0, 2.691), (8.0, 7.522)])
def test_the_ideal_of_sampled_rounds_is_nearly_that_of_one(target, printed):
    assert ideal(_sampled(target), canaries=5000, **HOW) == pytest.approx(printed, abs=0.0015)


@pytest.mark.parametrize("claim", [_one_round(3.0), _sampled(3.0)])
def test_the_ideal_rises_with_canaries_and_stays_below_the_proof(claim):
    found = [ideal(claim, canaries=m, **HOW) for m in (1, 20, 500, 5000, 10**7)]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert epsilon(claim, DELTA) * 0.99 < found[-1] < epsilon(claim, DELTA)


@pytest.mark.parametrize("target", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("canaries", [100, 5000, 10**6])
@pytest.mark.parametrize("make", [_one_round, _sampled])
def test_at_the_expected_errors_no_bound_is_above_the_truth(target, canaries, make):
    claim = make(target)
    errors = round(0.5 * canaries * (1.0 - total_variation(claim)))
    counts = _halves(errors, canaries)
    total = from_total(counts, claim=claim, **HOW)
    assert total.epsilon < target
    assert total.noise_scale > 1.0


@pytest.mark.parametrize("claim", [_one_round(3.0), _sampled(3.0)])
def test_fewer_errors_give_a_larger_bound_that_stays_finite(claim):
    counts = [5000, 2600, 2400, 1800, 900, 0]
    found = [from_total(_halves(e, 5000), claim=claim, **HOW).epsilon for e in counts]
    assert found == sorted(found)
    assert found[:2] == [0.0, 0.0]
    assert found[2] > 0.0
    assert math.isfinite(found[-1])


def test_more_confidence_costs_some_of_the_bound():
    claim, counts = _one_round(3.0), _halves(1800, 5000)
    found = [
        from_total(counts, claim=claim, delta=DELTA, confidence=c).epsilon
        for c in (0.5, 0.95, 0.999)
    ]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("target", [1.0, 3.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_total_error_is_above_the_truth_in_no_more_than_one_audit_in_twenty(target):
    claim = _one_round(target)
    found = [total_error(g, claim=claim, **HOW).epsilon for g in _audits(claim, 5000)]
    above = sum(bound > target for bound in found)
    assert HARDLY < above <= MOST_ABOVE  # and hardly less: no confidence is wasted
    assert np.median(found) == pytest.approx(ideal(claim, canaries=5000, **HOW), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("target", [1.0, 8.0])
@pytest.mark.parametrize("seen", [np.asarray, np.sign, lambda x: np.clip(x, -0.3, 0.9), np.exp])
def test_ranked_is_above_the_truth_in_no_more_than_one_audit_in_twenty(target, seen):
    """Whatever is made of a ratio: itself, its sign, what is left of it between bounds."""
    claim = _one_round(target)
    rng = np.random.default_rng(3)
    drawn = [Guesses(scores=seen(g.scores), included=g.included) for g in _audits(claim, 400)]
    order = [rng.permutation(400) for _ in drawn]  # of equal scores, which tells nothing
    mixed = [
        Guesses(scores=g.scores[o], included=g.included[o])
        for g, o in zip(drawn, order, strict=True)
    ]
    found = [ranked(g, claim=claim, **HOW).epsilon for g in mixed]
    assert sum(bound > target for bound in found) <= MOST_ABOVE
    if seen is np.asarray:
        counted = [total_error(g, claim=claim, **HOW).epsilon for g in mixed]
        assert sum(bound > target for bound in found) > HARDLY
        # Counts have few values, and so a coarse median: in the mean it is 2 % and more.
        assert np.mean(found) > 1.015 * np.mean(counted)
        assert np.median(found) == pytest.approx(ideal_ranked(claim, canaries=400, **HOW), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("target", [3.0, 8.0])
def test_ranked_of_sampled_rounds_shows_more_than_counts_and_is_as_seldom_above_the_truth(target):
    """More than 25 are above: read on the worse of both orders it would be 15 of 1,000."""
    claim, top = _sampled(target, rounds=50), 500 // 3

    def won(guesses: Guesses) -> int:
        right = (guesses.scores > 0.0) == guesses.included
        return int(right.sum() + 2 * right[surest(guesses, top)].sum())

    drawn = sorted(_audits(claim, 500), key=won)
    first = bisect.bisect_left(
        drawn, x=True, key=lambda g: ranked(g, claim=claim, **HOW).exceeds(target)
    )
    assert HARDLY < AUDITS - first <= MOST_ABOVE
    middle = ranked(drawn[AUDITS // 2], claim=claim, **HOW).epsilon
    assert middle == pytest.approx(ideal_ranked(claim, canaries=500, **HOW), rel=0.05)
    assert middle > 1.03 * ideal(claim, canaries=500, **HOW)


def test_rounds_of_many_kinds_keep_counts():
    coins = np.arange(100) % 2 == 0
    guesses = Guesses(scores=np.where(coins, 1.0, -1.0), included=coins)
    for kinds, name in ((8, "ranked"), (9, "total error")):
        claim = Claim(rounds={(1.0 + 0.1 * k, 0.5): 1 for k in range(kinds)})
        assert ranked(guesses, claim=claim, **HOW).name == name


def test_the_mean_of_both_orders_is_what_one_sampled_round_loses():
    z, curve = np.linspace(-12.0, 13.0, 200_001), trade_off({(1.0, 0.1): 1})
    out = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    inside = 0.9 * out + 0.1 * out * np.exp(z - 0.5)
    for x in (0.0, 0.05, 0.5):
        ways = ((inside, out), (out, inside))
        both = [np.maximum(a - math.exp(x) * b, 0.0).sum() * (z[1] - z[0]) for a, b in ways]
        assert curve.mean_delta(x) == pytest.approx(sum(both) / 2.0, rel=1e-2)
        assert curve.delta(x) == pytest.approx(max(both), rel=1e-2)


@pytest.mark.slow
def test_noise_that_is_too_small_to_be_tried_is_not_rejected():
    """Who sees the round knows the coin of all that are in it: 9 of 10 here."""
    rng, claim = np.random.default_rng(3), Claim(rounds={(0.1, 0.9): 1})
    coins = rng.random(4000) < 0.5
    seen = (coins & (rng.random(4000) < 0.9)) + rng.normal(size=4000) * 0.1
    weight = 0.9 * np.exp(np.minimum((seen - 0.5) / 0.01, 700.0))
    guesses = Guesses(scores=np.log(weight + 0.1), included=coins)
    assert not ranked(guesses, claim=claim, **HOW).exceeds(200.0)


@pytest.mark.parametrize(("canaries", "mu"), [(30, 0.5), (100, 1.0), (400, 1.6)])
def test_so_many_ranked_right_guesses_have_at_most_the_probability_that_is_said(canaries, mu):
    rng, top = np.random.default_rng(0), canaries // 3
    coins = rng.random((20_000, canaries)) < 0.5
    seen = rng.normal(size=coins.shape) + mu * (coins - 0.5)
    surest = np.argsort(-np.abs(seen), axis=1)
    right = np.take_along_axis((seen > 0.0) == coins, surest, axis=1)
    won = right.sum(axis=1) + 2 * right[:, :top].sum(axis=1)
    for share in (0.05, 0.01):
        least = int(np.quantile(won, 1.0 - share)) + 1
        simulated = float((won >= least).mean())
        said = ranked_tail(GaussianCurve(mu=mu), canaries, least)
        error = math.sqrt(simulated / 20_000)
        assert simulated - 3.0 * error < said < 1.1 * simulated + 3.0 * error


@pytest.mark.parametrize("target", [2.0, 6.0])
@pytest.mark.slow
def test_total_error_covers_sampled_rounds_as_well(target):
    claim = _sampled(target, rate=0.2, rounds=20)
    bounds = [total_error(g, claim=claim, **HOW) for g in _audits(claim, 500)]
    assert sum(b.epsilon > target for b in bounds) <= MOST_ABOVE
    assert HARDLY < sum(b.noise_scale < 1.0 for b in bounds) <= MOST_ABOVE


@pytest.mark.slow
def test_total_error_covers_the_game_of_replacing_one():
    claim = Claim(rounds={(5.0, 0.2): 20}, adjacency="replace-one")
    truth = epsilon(claim, DELTA)
    found = [total_error(g, claim=claim, **HOW).epsilon for g in _audits(claim, 500)]
    assert HARDLY < sum(bound > truth for bound in found) <= MOST_ABOVE


@pytest.mark.parametrize("claim", [_one_round(3.0), _sampled(3.0, rate=0.2, rounds=20)])
def test_half_of_the_declared_noise_contradicts_the_claim(claim):
    generator = np.random.default_rng(5)
    coins = generator.random(2000) < 0.5
    weak = simulated_scores(at_scale(claim, 0.5), coins, generator=generator)
    for estimator in (total_error, ranked):
        found = estimator(
            Guesses(scores=weak, included=coins), claim=claim, delta=DELTA, confidence=0.999
        )
        assert found.epsilon > epsilon(claim, DELTA)
        assert found.noise_scale < 0.7


def test_a_ball_never_raises_the_bound():
    one = Claim(rounds={(2.6, 0.1): 50}, adjacency="replace-one")
    event = Event(2.6, poisson(0.1), Reach.BALL)
    ball = Claim(rounds={event: 50}, adjacency="replace-one")
    counts = _halves(1500, 5000)
    alone, within = (from_total(counts, claim=c, **HOW) for c in (one, ball))
    assert within.noise_scale > alone.noise_scale
    assert within.epsilon < epsilon(at_scale(ball, within.noise_scale), HOW["delta"])


def test_scores_that_say_nothing_bound_nothing():
    coins = np.random.default_rng(7).random(5000) < 0.5
    guesses = Guesses(scores=np.zeros(5000), included=coins)
    for estimator in (total_error, ranked):
        found = estimator(guesses, claim=_sampled(3.0), **HOW)
        assert (found.epsilon, found.errors, found.noise_scale) == (0.0, 5000, math.inf)


def test_the_counts_of_a_bound_are_those_of_its_guesses():
    coins = np.arange(10) < 5
    scores = np.where(coins, 1.0, -1.0)
    scores[[0, 7, 8]] *= -1.0
    found = total_error(Guesses(scores=scores, included=coins), claim=_one_round(3.0), **HOW)
    assert (found.canaries, found.guesses, found.threshold) == (10, 10, 0.0)
    assert (found.false_alarms, found.misses, found.errors) == (2, 1, 3)
    assert "independent" in found.assumptions
    assert found.assumptions.endswith(".")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"delta": 0.0}, "delta=0"),
        ({"confidence": 1.0}, "confidence=1"),
        ({"confidence": math.nan}, "confidence=nan"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        from_total(_halves(3, 10), claim=_one_round(3.0), **{**HOW, **wrong})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"epsilon": -1.0}, r"epsilon=-1\.0"),
        ({"guesses": 11}, "guesses=11"),
        ({"misses": 10}, "misses=10"),
        ({"noise_scale": math.nan}, "noise_scale=nan"),
    ],
)
def test_what_no_audit_finds_is_refused(wrong, words):
    sound = {
        "name": "total error",
        "epsilon": 1.0,
        "canaries": 10,
        "guesses": 10,
        "false_alarms": 1,
        "misses": 2,
        "threshold": 0.0,
        "noise_scale": None,
        "assumptions": "None.",
        **HOW,
    }
    with pytest.raises(ValueError, match=words):
        LowerBound(**{**sound, **wrong})


def test_an_audit_without_canaries_is_refused():
    with pytest.raises(ValueError, match="canaries=0"):
        ideal(_one_round(3.0), canaries=0, **HOW)


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
