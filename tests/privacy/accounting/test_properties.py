"""Properties that hold for any numbers: directions, inverses, and what cannot change a figure."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.privacy import (
    View,
    composed_epsilon,
    decor_covariance,
    decor_factor,
    delta,
    delta_from_mu,
    epsilon,
    epsilon_from_mu,
    mu_from,
    noise_floor,
    noise_multiplier,
    risk_of_mu,
    victim_information,
    whisper_covariance,
)
from overhear.privacy.accounting.trade_off import trade_off

few = settings(max_examples=6, deadline=None, derandomize=True)
many = settings(max_examples=100, deadline=None, derandomize=True)

adjacencies = st.sampled_from(["add-or-remove-one", "replace-one"])
multipliers = st.floats(0.3, 30.0)
rates = st.floats(1e-4, 0.9)
counts = st.integers(1, 300)
log_deltas = st.floats(math.log(1e-10), math.log(1e-3))
mus = st.floats(1e-3, 30.0)
seeds = st.integers(0, 2**32 - 1)
CLOSE = 1 + 1e-4  # bounds are upper bounds to within this


# The accountant, in each argument


@few
@given(m=multipliers, q=rates, t=counts, log_delta=log_deltas, adjacency=adjacencies)
def test_epsilon_falls_with_noise_and_delta_and_rises_with_rounds_and_sampling(
    m, q, t, log_delta, adjacency
):
    dlt = math.exp(log_delta)

    def found(m=m, q=q, t=t, d=dlt, adjacency=adjacency):
        return epsilon(noise_multiplier=m, sampling_rate=q, rounds=t, delta=d, adjacency=adjacency)

    here = found()
    more = (found(m=m / 1.1), found(q=1.1 * q), found(t=t + 1 + t // 10))
    more += (found(d=dlt / 2), found(adjacency="replace-one"), found(q=1.0))
    assert min(more) >= here / CLOSE
    if here > 1e-3:
        assert min(more[:4]) > here
    assert found(m=1.1 * m) <= here * CLOSE


@few
@given(m=multipliers, q=rates, t=counts, share=st.floats(0.0, 5.0), adjacency=adjacencies)
def test_delta_falls_with_noise_and_epsilon_and_rises_with_rounds_and_sampling(
    m, q, t, share, adjacency
):
    eps = share * q * math.sqrt(t * math.expm1(m**-2))  # deviations of the loss of many rounds

    def found(m=m, q=q, t=t, eps=eps, adjacency=adjacency):
        return delta(
            noise_multiplier=m, sampling_rate=q, rounds=t, epsilon=eps, adjacency=adjacency
        )

    here = found()
    more = (found(m=m / 1.1), found(q=1.1 * q), found(t=t + 1 + t // 10))
    more += (found(eps=eps / 1.1), found(adjacency="replace-one"), found(q=1.0))
    assert min(more) >= here * (1 - 1e-3) - 1e-25
    if 1e-20 < here < 0.5:
        assert min(more[:3]) > here
    assert 0.0 <= here <= 1.0


@few
@given(eps=st.floats(0.05, 20.0), q=rates, t=counts, log_delta=log_deltas, adjacency=adjacencies)
def test_noise_falls_with_the_target_and_rises_with_rounds_and_sampling(
    eps, q, t, log_delta, adjacency
):
    dlt = min(math.exp(log_delta), -0.01 * math.expm1(t * math.log1p(-q)))

    def found(eps=eps, q=q, t=t, d=dlt, adjacency=adjacency):
        return noise_multiplier(
            epsilon=eps, sampling_rate=q, rounds=t, delta=d, adjacency=adjacency
        )

    here = found()
    more = (found(eps=eps / 1.1), found(d=dlt / 2), found(q=1.1 * q), found(t=t + 1 + t // 10))
    assert min(more) > here
    assert found(adjacency="replace-one") >= here / CLOSE


@few
@given(seed=seeds, adjacency=adjacencies)
def test_rounds_cost_at_least_any_part_of_them_and_at_most_as_if_all_were_the_worst(
    seed, adjacency
):
    rng = np.random.default_rng(seed)
    rounds = {
        (float(m), float(q)): int(n)
        for m, q, n in zip(
            rng.uniform(0.5, 5.0, 3),
            rng.uniform(1e-3, 0.5, 3),
            rng.integers(1, 200, 3),
            strict=True,
        )
    }
    whole = composed_epsilon(rounds, delta=1e-6, adjacency=adjacency)
    for left_out in rounds:
        part = {setting: n for setting, n in rounds.items() if setting != left_out}
        assert composed_epsilon(part, delta=1e-6, adjacency=adjacency) <= whole * CLOSE
    worst = (min(m for m, _ in rounds), max(q for _, q in rounds))
    assert whole <= CLOSE * composed_epsilon(
        {worst: sum(rounds.values())}, delta=1e-6, adjacency=adjacency
    )


@few
@given(m=multipliers, q=rates, t=counts, adjacency=adjacencies)
def test_the_trade_off_falls_lies_under_the_diagonal_and_is_convex_if_both_ways_are_alike(
    m, q, t, adjacency
):
    curve = trade_off({(m, q): t}, adjacency=adjacency)
    rates = np.linspace(0.0, 1.0, 401)
    misses = curve.false_negative_rates(rates)
    assert np.all(np.diff(misses) <= 1e-15)
    assert np.all(misses <= 1 - rates + 1e-15)
    if adjacency == "replace-one":  # the lower of two curves has a corner where they cross
        assert np.all(np.diff(misses, 2) >= -1e-7)
    assert np.all(misses >= 0.0)


# The closed form


@many
@given(mu=mus, eps=st.floats(0.0, 60.0))
def test_delta_of_mu_rises_with_mu_and_falls_with_epsilon(mu, eps):
    here = delta_from_mu(mu, eps)
    assert delta_from_mu(1.01 * mu, eps) >= here
    assert delta_from_mu(mu, 1.01 * eps) <= here * (1 + 1e-12)  # rounding, where eps is 0 nearly
    assert here <= 2 * risk_of_mu(mu).advantage  # delta(0), the largest of all
    assert delta_from_mu(mu, 0.0) == pytest.approx(risk_of_mu(mu).advantage, rel=1e-12)


@many
@given(mu=mus, log_delta=log_deltas)
def test_epsilon_of_mu_mu_of_epsilon_and_delta_invert_one_another(mu, log_delta):
    dlt = math.exp(log_delta)
    eps = epsilon_from_mu(mu, dlt)
    assert delta_from_mu(mu, eps) <= dlt
    assert epsilon_from_mu(1.01 * mu, dlt) >= eps
    assert epsilon_from_mu(mu, 0.9 * dlt) >= eps
    if eps > 1e-6:
        assert mu_from(eps, dlt) == pytest.approx(mu, rel=1e-6)
        assert delta_from_mu(mu, eps) == pytest.approx(dlt, rel=1e-6, abs=0.0)


@many
@given(one=mus, other=mus, log_delta=log_deltas)
def test_two_gaussian_releases_cost_less_than_their_sum_and_more_than_each(one, other, log_delta):
    dlt = math.exp(log_delta)
    both = epsilon_from_mu(math.hypot(one, other), dlt)
    parts = [epsilon_from_mu(mu, dlt / 2) for mu in (one, other)]
    assert max(epsilon_from_mu(mu, dlt) for mu in (one, other)) <= both <= sum(parts) * (1 + 1e-9)


# Views


def drawn_view(seed: int, *, rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 3)), rng.normal(size=(rows, rows + 2))


@many
@given(seed=seeds, columns=st.sampled_from([[0], [0, 1], [0, 1, 2]]))
@pytest.mark.slow
def test_seeing_less_or_knowing_less_noise_never_helps_the_adversary(seed, columns):
    A, B = drawn_view(seed)
    mu = View(contributions=A, noise=B).mu(columns)
    assert View(contributions=A[1:], noise=B[1:]).mu(columns) <= mu * (1 + 1e-9)
    more_noise = np.hstack([B, np.random.default_rng(seed + 1).normal(size=(4, 2))])
    assert View(contributions=A, noise=more_noise).mu(columns) <= mu * (1 + 1e-9)
    assert View(contributions=A, noise=B).mu(columns[:1]) <= mu * (1 + 1e-9)


@many
@given(seed=seeds, columns=st.sampled_from([[0], [0, 1], [0, 1, 2]]))
@pytest.mark.slow
def test_what_an_adversary_computes_from_its_messages_changes_nothing(seed, columns):
    A, B = drawn_view(seed)
    mu = View(contributions=A, noise=B).mu(columns)
    rng = np.random.default_rng(seed + 2)
    mixed = rng.normal(size=(4, 4)) + 4 * np.eye(4)
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    order = rng.permutation(4)
    units = 10.0 ** rng.integers(-12, 12, size=(4, 1))
    for left, right in (
        (mixed @ A, mixed @ B),
        (A[order], B[order]),
        (units * A, units * B),
        (A, B @ rotation),
        (np.vstack([A, mixed @ A]), np.vstack([B, mixed @ B])),
    ):
        assert View(contributions=left, noise=right).mu(columns) == pytest.approx(mu, rel=1e-6)


@pytest.mark.slow
@many
@given(seed=seeds, factor=st.floats(0.1, 10.0))
def test_mu_is_in_proportion_to_the_bound_and_against_the_noise(seed, factor):
    A, B = drawn_view(seed)
    mu = View(contributions=A, noise=B).mu([0, 1])
    assert View(contributions=A, noise=B).mu([0, 1], factor) == pytest.approx(factor * mu)
    assert View(contributions=A, noise=factor * B).mu([0, 1]) == pytest.approx(mu / factor)
    assert View(contributions=A, noise=B).mu([0, 1], bounds=[1.0, 0.0]) == pytest.approx(
        View(contributions=A, noise=B).mu([0])
    )


# Correlated noise


def ring_weights(agents: int) -> np.ndarray:
    W = np.zeros((agents, agents))
    for i in range(agents):
        W[i, [i, (i + 1) % agents, (i - 1) % agents]] = (0.5, 0.25, 0.25)
    return W


@few
@given(agents=st.integers(3, 9), own=st.floats(0.01, 10.0), pair=st.floats(0.0, 10.0), seed=seeds)
def test_decor_noise_hides_more_the_more_there_is_and_its_sources_make_its_covariance(
    agents, own, pair, seed
):
    W = ring_weights(agents)
    R = decor_covariance(W, local_variance=own, pair_variance=pair)
    B = decor_factor(W, local_variance=own, pair_variance=pair)
    assert np.allclose(B @ B.T, R, rtol=1e-12, atol=1e-12)
    hidden = victim_information(R)
    more = decor_covariance(W, local_variance=1.1 * own, pair_variance=pair)
    assert np.all(victim_information(more) < hidden)
    assert np.all(hidden <= (1 + 1e-9) / own)
    victim = int(np.random.default_rng(seed).integers(agents))
    mu = View(contributions=np.eye(agents), noise=B).mu([victim])
    assert mu**2 == pytest.approx(float(hidden[victim]), rel=1e-8)


@few
@given(agents=st.sampled_from([3, 5, 7]), bound=st.floats(1e-3, 1e3), factor=st.floats(0.1, 10.0))
def test_whisper_keeps_its_bound_scales_with_it_and_beats_independent_noise(agents, bound, factor):
    W = ring_weights(agents)
    R = whisper_covariance(W, bound=bound)
    assert victim_information(R).max() <= bound
    assert victim_information(R).max() == pytest.approx(bound, rel=1e-9)
    assert noise_floor(W, R) <= noise_floor(W, np.eye(agents) / bound)
    scaled = whisper_covariance(W, bound=factor * bound)
    assert noise_floor(W, scaled) * factor == pytest.approx(noise_floor(W, R), rel=1e-8)
