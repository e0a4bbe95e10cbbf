"""Facts about what the best adversary achieves, and about the curve it is read from."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from overhear.privacy.accounting.accountant import delta
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.accounting.risk import Risk, composed_risk, risk, risk_of_mu
from overhear.privacy.accounting.trade_off import GaussianCurve, trade_off

RATES = np.array([1e-8, 1e-6, 1e-4, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
# (noise multiplier, sampling rate, rounds), advantage, Bayes risk at prior .5, .1 and .9, hits at
# .1; riskcal 1.5.1: accountant = riskcal.accountants.CTDAccountant(), accountant.step(
# noise_multiplier=m, sample_rate=q) T times, pld = accountant.get_pld(grid_step=1e-4), then
# get_advantage_from_pld(pld), get_bayes_risk_from_pld(pld, prior), 1 - get_beta_from_pld(pld, .1).
RISKCAL = [
    ((1.0, 0.01, 1000), 0.161018421, (0.419490790, 0.0999981614, 0.0999999439), 0.194178685),
    ((0.8, 0.02, 500), 0.310139773, (0.344930113, 0.0992883646, 0.0992884526), 0.328092444),
    ((5.0, 0.5, 100), 0.382917522, (0.308541239, 0.0985591738, 0.0985593574), 0.390616334),
]


def run(multiplier, rate, rounds, **options):
    return risk(noise_multiplier=multiplier, sampling_rate=rate, rounds=rounds, **options)


def test_full_batches_have_the_closed_form():
    found = run(2.0, 1.0, 9, prior_hit_rate=0.001)
    mu = 3.0 / 2.0
    assert found.mu == pytest.approx(mu, rel=1e-15)
    assert found.mu_fit_error == 0.0
    assert found.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-12)
    assert found.bayes_risk == pytest.approx(norm.cdf(-mu / 2), rel=1e-12)
    for rate, hit in found.true_positive_rates:
        assert hit == pytest.approx(norm.cdf(mu + norm.ppf(rate)), rel=1e-12)
    assert found.reconstruction == found.true_positive_rates[0][1]
    assert run(2.0, 1.0, 9, adjacency="replace-one").mu == pytest.approx(2 * mu, rel=1e-15)


def test_the_advantage_is_far_below_what_one_epsilon_delta_pair_allows():
    epsilon, slack = epsilon_from_mu(0.5, 1e-5), 1e-5
    pair = (math.expm1(epsilon) + 2 * slack) / (math.exp(epsilon) + 1)
    assert pair == pytest.approx(0.760, abs=1e-3)
    assert risk_of_mu(0.5).advantage == pytest.approx(0.197, abs=1e-3)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_lines_approach_the_closed_form_as_the_rate_approaches_one(adjacency):
    lines = trade_off({(2.0, 1.0 - 1e-13): 4}, adjacency=adjacency)
    exact = trade_off({(2.0, 1.0): 4}, adjacency=adjacency)
    assert not isinstance(lines, GaussianCurve)
    excess = exact.false_negative_rates(RATES) - lines.false_negative_rates(RATES)
    assert np.all(excess > 0.0)
    assert np.all(excess < 1e-4 * (1.0 - exact.false_negative_rates(RATES)))


@pytest.mark.parametrize("multiplier", [0.1, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("rate", [1e-2, 0.2, 0.9])
def test_one_sampled_round_has_the_curve_of_its_best_threshold(multiplier, rate):
    far = 1.0 / multiplier

    def mixture(z):
        return (1 - rate) * ndtr(z) + rate * ndtr(z - far)

    added = (1 - rate) * RATES + rate * ndtr(far + ndtri(RATES))
    cuts = [brentq(lambda z, a=a: mixture(z) - a, -40, 40 + far, xtol=1e-14) for a in RATES]
    true = np.maximum(added, ndtr(cuts))
    found = 1.0 - trade_off({(multiplier, rate): 1}).false_negative_rates(RATES)
    assert np.all(found >= true)
    assert np.all(found <= true * (1 + 1e-4) + 1e-12)


@pytest.mark.parametrize(("setting", "advantage", "bayes", "hits"), RISKCAL)
def test_riskcal_has_the_same_figures(setting, advantage, bayes, hits):
    for prior, expected in zip((0.5, 0.1, 0.9), bayes, strict=True):
        assert run(*setting, prior=prior).bayes_risk == pytest.approx(expected, rel=2e-5)
    found = run(*setting)
    assert found.advantage == pytest.approx(advantage, rel=2e-5)
    assert found.true_positive_rates[2][1] == pytest.approx(hits, rel=2e-4)


@pytest.mark.slow
def test_the_envelope_of_dp_accountings_deltas_is_the_same():
    # riskcal's own curve falls below this envelope for small rates: .00401 at .001 where the
    # deltas that it is given allow .00407, and .00265 on a finer grid.
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=1e-4
    ).self_compose(1000)
    epsilons = np.linspace(0.0, 3.0, 601)
    deltas = np.array(pld.get_delta_for_epsilon(epsilons))
    curve = trade_off({(1.0, 0.01): 1000})
    for rate, hit in ((0.001, 0.0040685), (0.01, 0.0291394), (0.1, 0.1942026)):
        found = 1.0 - float(curve.false_negative_rates(rate))
        assert found == pytest.approx(np.min(deltas + np.exp(epsilons) * rate), rel=2e-5)
        assert found == pytest.approx(hit, rel=2e-5)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("setting", [(1.0, 0.01, 1000), (0.5, 0.3, 7), (0.6, 0.00427, 14062)])
def test_the_curve_is_the_accountants(setting, adjacency):
    multiplier, rate, rounds = setting
    curve = trade_off({(multiplier, rate): rounds}, adjacency=adjacency)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        known = delta(
            noise_multiplier=multiplier, epsilon=epsilon, rounds=rounds, sampling_rate=rate,
            adjacency=adjacency,
        )  # fmt: skip
        assert curve.delta(epsilon) == pytest.approx(known, rel=2e-4)
        lines = 1.0 - known - math.exp(epsilon) * RATES
        assert np.all(curve.false_negative_rates(RATES) >= lines - 2e-4 * (known + RATES))


def test_the_likelihood_ratio_test_is_never_better_and_almost_as_good():
    # n = 400,000 runs of each kind. The threshold is the quantile of one sample, so the standard
    # error of the hit rate is below sqrt(h/n) + slope sqrt(a/n); 5 of them fail 1 run in 10^6.
    n, multiplier, rate, rounds = 400_000, 1.0, 0.1, 20
    generator = np.random.default_rng(20)

    def losses(*, present):
        total = np.zeros(n)
        for _ in range(rounds):
            z = generator.standard_normal(n)
            if present:
                z += (generator.random(n) < rate) / multiplier
            total += np.log1p(rate * np.expm1(z / multiplier - 0.5 / multiplier**2))
        return total

    absent, present = losses(present=False), losses(present=True)
    curve = trade_off({(multiplier, rate): rounds})
    for a in (0.001, 0.01, 0.1):
        threshold = np.quantile(absent, 1.0 - a)
        measured = float(np.mean(present > threshold))
        bound = 1.0 - float(curve.false_negative_rates(a))
        error = math.sqrt(bound / n) + math.exp(threshold) * math.sqrt(a / n)
        assert abs(measured - bound) < 5 * error


def test_without_noise_everything_is_known_and_without_data_nothing():
    bare = run(0.0, 0.5, 3)
    assert (bare.advantage, bare.bayes_risk, bare.reconstruction) == (1.0, 0.0, 1.0)
    assert [hit for _, hit in bare.true_positive_rates] == [1.0, 1.0, 1.0]
    assert bare.mu == math.inf
    for blind in (run(1.0, 0.0, 3), run(math.inf, 0.5, 3)):
        assert (blind.advantage, blind.bayes_risk, blind.mu) == (0.0, 0.5, 0.0)
        assert blind.reconstruction == pytest.approx(1e-6, rel=1e-9)
        for rate, hit in blind.true_positive_rates:
            assert hit == pytest.approx(rate, rel=1e-12)


def test_with_little_noise_the_adversary_needs_the_record_to_be_sampled():
    ever = 1.0 - 0.5**3
    for adjacency in ("add-or-remove-one", "replace-one"):
        found = run(0.02, 0.5, 3, adjacency=adjacency)
        assert found.advantage == pytest.approx(ever, rel=1e-7)
        assert ever <= found.advantage


def test_the_curve_ends_where_tests_end_and_is_its_own_mirror_image():
    curve = trade_off({(1.0, 0.05): 50})
    assert float(curve.false_negative_rates(1.0)) == 0.0
    assert float(curve.false_negative_rates(0.0)) == pytest.approx(1.0, abs=1e-12)
    rates = np.linspace(0.0, 1.0, 2001)
    misses = curve.false_negative_rates(rates)
    assert np.all(np.diff(misses) < 0.0)
    assert np.all(misses <= 1.0 - rates)
    inner = slice(1, -1)
    back = curve.false_negative_rates(misses[inner])
    assert np.abs(back - rates[inner]).max() < 2e-5


@pytest.mark.slow
@given(
    multiplier=st.floats(0.3, 20.0),
    rate=st.floats(1e-4, 0.999),
    rounds=st.integers(1, 2000),
    replace=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_more_noise_fewer_rounds_and_rarer_sampling_help(multiplier, rate, rounds, replace):
    adjacency = "replace-one" if replace else "add-or-remove-one"
    base = run(multiplier, rate, rounds, adjacency=adjacency)
    for other in ((1.1 * multiplier, rate, rounds), (multiplier, rate / 1.1, rounds)):
        less = run(*other, adjacency=adjacency)
        for name in ("advantage", "reconstruction"):
            assert getattr(less, name) <= getattr(base, name) * (1 + 1e-4) + 1e-8
        assert less.bayes_risk >= base.bayes_risk * (1 - 1e-4) - 1e-8
    more = run(multiplier, rate, rounds + 1, adjacency=adjacency)
    assert more.advantage >= base.advantage * (1 - 1e-4) - 1e-8
    assert base.bayes_risk == pytest.approx(0.5 * (1 - base.advantage), abs=1e-12)


def test_mu_covers_the_curve_and_overstates_it_by_its_error():
    found = run(0.8, 0.02, 500)
    curve = trade_off({(0.8, 0.02): 500})
    rates = ndtr(np.linspace(-4.75, 4.75, 313))  # not the rates of the fit
    gap = curve.false_negative_rates(rates) - GaussianCurve(mu=found.mu).false_negative_rates(rates)
    assert gap.min() >= -1e-6
    assert found.mu_fit_error == pytest.approx(gap.max(), rel=1e-3)
    assert found.mu == pytest.approx(1.0409, abs=1e-3)
    many = run(50.0, 0.1, 10_000)  # the central limit
    assert many.mu == pytest.approx(0.1 * 100 / 50, rel=0.01)
    assert many.mu_fit_error < 1e-3


def test_rounds_that_differ_compose():
    one = run(1.0, 0.01, 1000)
    assert composed_risk([(1.0, 0.01)] * 1000) == one
    assert composed_risk({(1.0, 0.01): 400, (1.0 + 1e-12, 0.01): 600}).advantage == pytest.approx(
        one.advantage, rel=1e-4
    )
    full = composed_risk([(2.0, 1.0), (1.0, 1.0), (1.0, 0.0)])
    assert full == risk_of_mu(math.sqrt(1.25))
    mixed = composed_risk({(1.0, 0.01): 10, (1.0, 1.0): 1})
    assert full.advantage > mixed.advantage > risk_of_mu(1.0).advantage


def test_a_million_rounds_reach_the_central_limit():
    found = run(7.0, 1e-4, 1_000_000)
    assert found.mu == pytest.approx(1e-4 * 1000 * math.sqrt(math.expm1(1 / 49)), rel=0.01)


@pytest.mark.slow
def test_a_thousand_different_rounds_compose():
    found = composed_risk([(1.0 + 0.004 * k, 0.02) for k in range(1000)])
    assert found.advantage == pytest.approx(0.1245, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": 1.0}, "prior=1.0 must lie strictly between 0 and 1"),
        ({"prior": math.nan}, "prior=nan"),
        ({"prior_hit_rate": 1.5}, "must lie in"),
        ({"false_positive_rates": [-0.1]}, "must lie in"),
        ({"adjacency": "substitute"}, "adjacency='substitute' must be one of"),
    ],
)
def test_wrong_requests_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        run(1.0, 0.1, 10, **options)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="did you mean batch_size"):
        run(1.0, 1.3, 10)
    with pytest.raises(ValueError, match="noise_multiplier=-1"):
        run(-1.0, 0.1, 10)
    with pytest.raises(TypeError, match="rounds="):
        run(1.0, 0.1, 2.5)
    with pytest.raises(ValueError, match="rounds is empty"):
        composed_risk([])
    with pytest.raises(ValueError, match="mu=-1"):
        risk_of_mu(-1.0)
    with pytest.raises(ValueError, match="epsilon=-1"):
        trade_off({(1.0, 0.1): 10}).delta(-1.0)
    with pytest.raises(ValueError, match=r"advantage=1\.5 must lie in"):
        Risk(
            advantage=1.5, true_positive_rates=(), prior=0.5, bayes_risk=0.0, prior_hit_rate=0.0,
            reconstruction=0.0, mu=1.0, mu_fit_error=0.0,
        )  # fmt: skip
