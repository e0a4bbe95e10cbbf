"""Tail probabilities against another library's, and against samples where they are bounds."""

import numpy as np
import pytest
from scipy import stats

from overhear.training.noise_tests import laws


@pytest.mark.parametrize(("total", "count"), [(10.0, 100), (900.0, 100), (1e-6, 3), (7e5, 10**6)])
def test_sums_of_squares_are_chi_square(total, count):
    expected = 2 * min(stats.chi2.cdf(total, count), stats.chi2.sf(total, count))
    assert float(laws.squares(total, count)) == pytest.approx(expected, rel=0.05, abs=1e-300)


def test_no_probability_is_below_the_exact_one_by_more_than_rounding():
    # 2,000 sums of 40 numbers: each p is at least what another library says.
    totals = np.linspace(0.1, 200, 2000)
    exact = 2 * np.minimum(stats.chi2.cdf(totals, 40), stats.chi2.sf(totals, 40))
    assert (laws.squares(totals, 40) >= np.minimum(exact, 1.0) * (1 - 1e-9)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_has_probability_0(bad):
    assert laws.squares([bad, 5.0], 5)[0] == 0


@pytest.mark.parametrize(("found", "count"), [(0, 10), (3, 10), (10, 10), (40, 1000)])
def test_counts_are_binomial(found, count):
    law = stats.binom(count, 0.02)
    assert float(laws.at_least(found, count, 0.02)) == pytest.approx(law.sf(found - 1))
    assert float(laws.at_most(found, count, 0.02)) == pytest.approx(law.cdf(found))
    assert laws.at_least(count + 1, count, 0.02) == laws.binomial(count + 1, count, 0.02) == 0


def test_a_share_beyond_a_threshold_is_two_sided():
    assert laws.beyond([1.0, 3.0]) == pytest.approx(2 * stats.norm.sf([1.0, 3.0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_value_of_a_sampler_is_as_frequent_as_the_bound_allows(dtype):
    # n = 2e6 of one generator: about n^2 / 2 / 2^24 = 119,000 pairs are equal in float32, where the
    # bound allows 2e6. A root is given, so the outcome repeats.
    z = np.abs(np.random.default_rng(1).standard_normal(2_000_000, dtype=dtype) * dtype(0.37))
    ordered = np.sort(z)
    assert (ordered[1:] == ordered[:-1]).sum() < z.size**2 / 2 * laws.ATOM / 4
    assert (z == 0).sum() < z.size * laws.ATOM * 10
