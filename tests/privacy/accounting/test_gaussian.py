"""Facts about the closed forms between mu and (epsilon, delta)."""

import math

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.privacy.accounting.gaussian import delta_from_mu, epsilon_from_mu, mu_from

MUS = st.floats(-6.0, 3.0).map(lambda power: 10.0**power)
DELTAS = st.floats(-300.0, -0.3).map(lambda power: 10.0**power)


def exact_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, Theorem 8, with 80 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(80):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        u = (epsilon / mu - mu / 2) / mpmath.sqrt(2)
        second = mpmath.exp(epsilon) * mpmath.erfc(u + mu / mpmath.sqrt(2))
        return float((mpmath.erfc(u) - second) / 2)


def test_no_distance_leaks_nothing():
    assert delta_from_mu(0.0, 0.0) == 0.0
    assert epsilon_from_mu(0.0, 1e-5) == 0.0


def test_infinite_distance_leaks_everything():
    assert delta_from_mu(math.inf, 5.0) == 1.0
    assert epsilon_from_mu(math.inf, 1e-5) == math.inf


def test_infinite_epsilon_needs_no_delta():
    assert delta_from_mu(3.0, math.inf) == 0.0


def test_at_epsilon_zero_delta_is_the_total_variation_distance():
    for mu in (1e-6, 0.3, 2.0, 9.0):
        assert delta_from_mu(mu, 0.0) == pytest.approx(
            math.erf(mu / math.sqrt(8.0)), rel=1e-12, abs=0.0
        )


@pytest.mark.parametrize(
    ("epsilon", "multiplier"), [(1.0, 3.7306316348159374), (50.0, 0.14976060756083476)]
)
def test_multiplier_of_one_full_batch_round_has_the_golden_value(epsilon, multiplier):
    assert 1.0 / mu_from(epsilon, 1e-5) == pytest.approx(multiplier, rel=1e-12)


def test_dp_accounting_finds_the_same_epsilon_and_noise():
    for multiplier in (0.3, 1.0, 7.0):
        theirs = dp_accounting.get_epsilon_gaussian(multiplier, 1e-6)
        assert epsilon_from_mu(1.0 / multiplier, 1e-6) == pytest.approx(theirs, rel=1e-9)
    theirs = dp_accounting.get_sigma_gaussian(0.7, 1e-6)
    assert 1.0 / mu_from(0.7, 1e-6) == pytest.approx(theirs, rel=1e-9)


def test_delta_of_close_hypotheses_is_free_of_cancellation():
    for u in (3.0, 30.0):
        epsilon = 1e-6 * (u + 5e-7)
        assert delta_from_mu(1e-6, epsilon) == pytest.approx(
            exact_delta(1e-6, epsilon), rel=1e-11, abs=0.0
        )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(mu=MUS, u=st.floats(-30.0, 36.0))
def test_delta_keeps_nine_digits_from_tiny_to_huge_mu(mu, u):
    epsilon = max(0.0, mu * (u + mu / 2))
    exact = exact_delta(mu, epsilon)
    if exact > 1e-300:
        assert delta_from_mu(mu, epsilon) == pytest.approx(exact, rel=1e-9, abs=0.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(mu=MUS, delta=DELTAS)
def test_epsilon_and_mu_invert_each_other_on_the_safe_side(mu, delta):
    epsilon = epsilon_from_mu(mu, delta)
    assert delta_from_mu(mu, epsilon) <= delta * (1 + 1e-12)
    if epsilon > 0.0:
        back = mu_from(epsilon, delta)
        assert back == pytest.approx(mu, rel=1e-9, abs=0.0)
        assert delta_from_mu(back, epsilon) <= delta * (1 + 1e-12)


def test_delta_falls_with_epsilon_and_rises_with_mu():
    assert delta_from_mu(1.0, 1.0) > delta_from_mu(1.0, 1.0 + 1e-6)
    assert delta_from_mu(1.0, 1.0) < delta_from_mu(1.0 + 1e-6, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: delta_from_mu(-1.0, 1.0), "mu=-1.0 must be at least 0"),
        (lambda: delta_from_mu(math.nan, 1.0), "mu=nan must be"),
        (lambda: delta_from_mu(1.0, -0.1), "epsilon=-0.1 must be"),
        (lambda: epsilon_from_mu(1.0, 0.0), "delta=0.0 must lie strictly between 0 and 1"),
        (lambda: epsilon_from_mu(1.0, 1.0), "delta=1.0 must lie"),
        (lambda: mu_from(math.inf, 1e-5), "epsilon=inf must be at least 0 and finite"),
        (lambda: mu_from(1.0, math.nan), "delta=nan must lie"),
    ],
)
def test_values_outside_their_range_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
