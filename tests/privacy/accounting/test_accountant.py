"""Facts about epsilon, delta and noise multipliers of many rounds."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.privacy.accounting.accountant import (
    composed_delta,
    composed_epsilon,
    delta,
    epsilon,
    noise_multiplier,
)
from overhear.privacy.accounting.gaussian import delta_from_mu, epsilon_from_mu
from overhear.privacy.accounting.request import Accountant, Adjacency
from overhear.privacy.errors import InputError

ADD = Adjacency.ADD_OR_REMOVE_ONE
REPLACE = Adjacency.REPLACE_ONE
# epsilon, delta, rounds, sampling_rate, adjacency, noise_multiplier, relative tolerance
GOLDEN = [
    (1.0, 1e-5, 1, 1.0, ADD, 3.7306316348159374, 1e-6),
    (50.0, 1e-5, 1, 1.0, ADD, 0.14976060756083476, 5e-5),
    (1.0, 1e-5, 1, 1.0, REPLACE, 7.461263269631875, 1e-6),
    (1.0, 1e-5, 14062, 0.004266666666666667, ADD, 2.0248612110510393, 2e-4),
    (8.0, 1e-5, 14062, 0.004266666666666667, ADD, 0.6557081723150046, 2e-4),
    (1.0, 1e-5, 1000, 0.01, ADD, 1.4146195190966298, 2e-4),
    (0.05, 1e-5, 1000, 0.01, ADD, 18.32715186798487, 2e-4),
    (20.0, 1e-5, 1000, 0.01, ADD, 0.44194380208612527, 3e-4),
    (0.05, 1e-6, 1000000, 0.0001, ADD, 6.966, 4e-3),
    (2.0, 1e-5, 100, 0.5, ADD, 10.067571458837973, 2e-4),
    (0.5, 1e-5, 1, 0.01, ADD, 0.7935733010315129, 2e-4),
    (5.0, 1e-3, 3000, 0.032, ADD, 1.3963867702670176, 2e-4),
    (1.0, 1e-5, 1000, 0.01, REPLACE, 2.3644053179301268, 2e-4),
]


@pytest.mark.parametrize(("eps", "dlt", "rounds", "rate", "adjacency", "least", "tol"), GOLDEN)
def test_least_noise_has_the_golden_value_and_meets_its_target(
    eps, dlt, rounds, rate, adjacency, least, tol
):
    setting = {"rounds": rounds, "sampling_rate": rate, "adjacency": adjacency}
    found = noise_multiplier(epsilon=eps, delta=dlt, **setting)
    assert found == pytest.approx(least, rel=tol)
    assert found >= least * (1 - 1e-6) or least == 6.966  # that one is a rounded value
    assert epsilon(noise_multiplier=found, delta=dlt, **setting) <= eps * (1 + 1e-4)
    assert delta(noise_multiplier=found, epsilon=eps, **setting) <= dlt * (1 + 1e-3)


@pytest.mark.parametrize(("uses", "eps"), [(1, 0.62205), (2, 1.00044), (4, 1.82824)])
def test_several_releases_of_one_batch_count_as_one_louder_release(uses, eps):
    found = epsilon(
        noise_multiplier=2.0 / math.sqrt(uses), delta=1e-5, rounds=1000, sampling_rate=0.01
    )
    assert found == pytest.approx(eps, abs=1e-3)


def test_replacing_a_record_doubles_once():
    setting = {"noise_multiplier": 2.0, "delta": 1e-5, "rounds": 1000, "sampling_rate": 0.02}
    assert epsilon(**setting, adjacency="replace-one") == pytest.approx(2.603, abs=1e-3)
    assert epsilon(**setting) == pytest.approx(1.330, abs=1e-3)


def one_round_delta(multiplier: float, rate: float, eps: float, *, replace: bool) -> float:
    """The hockey-stick divergence of one sampled round, by integration on a fine grid."""
    shift = 1.0 / multiplier
    z, step = np.linspace(-12.0 - shift, 12.0 + 2 * shift, 400_001, retstep=True)
    here, there, away = (np.exp(-0.5 * (z - c) ** 2) for c in (0.0, shift, -shift))
    mixed = (1 - rate) * here + rate * there
    pairs = (
        [(mixed, (1 - rate) * here + rate * away)] if replace else [(mixed, here), (here, mixed)]
    )
    scale = step / math.sqrt(2 * math.pi)
    return max(float(np.maximum(p - math.exp(eps) * q, 0.0).sum()) * scale for p, q in pairs)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.7])
@pytest.mark.parametrize("multiplier", [0.3, 1.0])
@pytest.mark.parametrize("eps", [0.0, 0.05, 1.0, 4.0])
def test_one_round_is_its_hockey_stick_integral_from_above(adjacency, rate, multiplier, eps):
    exact = one_round_delta(multiplier, rate, eps, replace=adjacency is REPLACE)
    found = delta(
        noise_multiplier=multiplier, epsilon=eps, rounds=1, sampling_rate=rate, adjacency=adjacency
    )
    # The reference itself rounds at about 1e-17.
    assert exact * (1 - 1e-7) - 1e-15 <= found <= exact * (1 + 1e-3) + 1e-15


def test_composition_is_what_a_simulation_of_the_loss_shows():
    # n = 400,000 sums of 20 losses; delta-hat = mean (1 - e^(eps - L))_+ in [0, 1]. A bound of
    # five standard errors raises a false alarm with probability below 1e-6.
    n, rounds, rate, shift, eps = 400_000, 20, 0.1, 1.0, 1.0
    generator = np.random.default_rng(7)
    loss = np.zeros(n)
    for _ in range(rounds):
        z = generator.standard_normal(n) + shift * (generator.random(n) < rate)
        loss += np.log1p(rate * np.expm1(shift * z - shift**2 / 2))
    excess = np.maximum(-np.expm1(eps - loss), 0.0)
    found = delta(noise_multiplier=1.0, epsilon=eps, rounds=rounds, sampling_rate=rate)
    assert abs(found - excess.mean()) < 5 * excess.std() / math.sqrt(n)


def inverted_log_delta(multiplier: float, rate: float, rounds: int, eps: float) -> float:
    """Log delta of the "remove" pair by Laplace inversion along a line, for many rounds.

    delta(eps) = 1/(2 pi i) int E[e^(z L)]^T e^(-z eps) / (z (z + 1)) dz, with no grid of losses.
    """
    shift = 1.0 / multiplier
    x, step = np.linspace(-14.0, 14.0 + shift, 4001, retstep=True)
    mass = (1 - rate) * np.exp(-(x**2) / 2) + rate * np.exp(-((x - shift) ** 2) / 2)
    loss = np.log1p(rate * np.expm1(shift * x - shift**2 / 2))
    log_mass = np.log(mass * step / math.sqrt(2 * math.pi))

    def tilted(t: float) -> tuple[float, float, np.ndarray]:
        top = np.logaddexp.reduce(log_mass + t * loss)
        weights = np.exp(log_mass + t * loss - top)
        return float(top), float(weights @ loss), weights

    low, high = 1e-3, 1e5
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rounds * tilted(middle)[1] < eps else (low, middle)
    top, mean, weights = tilted(low)
    spread = math.sqrt(rounds * float(weights @ (loss - mean) ** 2))
    s = (np.arange(1000) + 0.5) * (0.04 / spread)
    moments = np.exp(1j * np.outer(s, loss - mean)) @ weights
    z = low + 1j * s
    values = moments**rounds * np.exp(1j * s * (rounds * mean - eps)) / (z * (z + 1))
    return rounds * top - low * eps + math.log(float(values.real.sum()) * (s[1] - s[0]) / math.pi)


@pytest.mark.parametrize(
    ("multiplier", "rate", "rounds", "eps"),
    [(7.0, 1e-4, 10**6, 0.05), (60.0, 0.01, 10**6, 1.0), (10.0, 1e-4, 10**6, 0.06)],
)
def test_a_million_rounds_agree_with_a_transform_without_a_grid(multiplier, rate, rounds, eps):
    exact = inverted_log_delta(multiplier, rate, rounds, eps)
    found = delta(noise_multiplier=multiplier, epsilon=eps, rounds=rounds, sampling_rate=rate)
    assert exact <= math.log(found) <= exact + 2e-3


def test_dp_accounting_agrees_where_its_grid_suffices():
    from dp_accounting.pld import privacy_loss_distribution

    for relation in (Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE):
        theirs = privacy_loss_distribution.from_gaussian_mechanism(
            1.0,
            sampling_prob=0.1,
            value_discretization_interval=1e-3,
            neighboring_relation=_relation(relation),
        ).self_compose(50)
        ours = epsilon(
            noise_multiplier=1.0, delta=1e-6, rounds=50, sampling_rate=0.1, adjacency=relation
        )
        assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=1e-3)


def _relation(adjacency):
    from dp_accounting import NeighboringRelation

    if adjacency is Adjacency.REPLACE_ONE:
        return NeighboringRelation.REPLACE_ONE
    return NeighboringRelation.ADD_OR_REMOVE_ONE


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    eps=st.floats(0.05, 20.0),
    rate=st.sampled_from([1e-3, 0.02, 0.3]),
    rounds=st.sampled_from([1, 30, 2000]),
    adjacency=st.sampled_from(list(Adjacency)),
)
def test_noise_multiplier_and_delta_invert_each_other(eps, rate, rounds, adjacency):
    setting = {"rounds": rounds, "sampling_rate": rate, "adjacency": adjacency}
    least = noise_multiplier(epsilon=eps, delta=1e-6, **setting)
    reached = delta(noise_multiplier=least, epsilon=eps, **setting)
    assert reached == pytest.approx(1e-6, rel=2e-3, abs=0.0)
    less = delta(noise_multiplier=least * (1 - 1e-3), epsilon=eps, **setting)
    assert less > 1e-6


def test_less_noise_more_rounds_and_more_sampling_cost_more():
    start = {"noise_multiplier": 1.0, "delta": 1e-5, "rounds": 100, "sampling_rate": 0.05}
    here = epsilon(**start)
    for change in ({"noise_multiplier": 0.99}, {"rounds": 101}, {"sampling_rate": 0.0505}):
        assert epsilon(**{**start, **change}) > here
    assert epsilon(**start, adjacency="replace-one") > here


def test_extremes_have_their_limits():
    setting = {"delta": 1e-5, "rounds": 10, "sampling_rate": 0.1}
    assert epsilon(noise_multiplier=0.0, **setting) == math.inf
    assert epsilon(noise_multiplier=math.inf, **setting) == 0.0
    assert epsilon(noise_multiplier=0.0, **{**setting, "sampling_rate": 0.0}) == 0.0
    assert delta(noise_multiplier=0.0, epsilon=1.0, rounds=10, sampling_rate=0.1) == 1.0
    assert noise_multiplier(epsilon=1.0, delta=1e-5, rounds=10, sampling_rate=0.0) == 0.0


def test_rates_near_one_approach_the_closed_form():
    sampled = epsilon(noise_multiplier=3.0, delta=1e-5, rounds=4, sampling_rate=1 - 1e-9)
    assert sampled == pytest.approx(epsilon_from_mu(2.0 / 3.0, 1e-5), rel=1e-4)


@pytest.mark.parametrize("multiplier", [0.011, 0.3, 1e4])
@pytest.mark.parametrize("rounds", [1, 10**4])
def test_extreme_noise_stays_between_no_amplification_and_nothing(multiplier, rounds):
    for rate in (1e-4, 0.5):
        found = epsilon(noise_multiplier=multiplier, delta=1e-7, rounds=rounds, sampling_rate=rate)
        assert 0.0 <= found <= epsilon_from_mu(math.sqrt(rounds) / multiplier, 1e-7) * (1 + 1e-6)


def test_equal_rounds_listed_one_by_one_are_the_same_rounds():
    listed = composed_epsilon([(1.0, 0.01)] * 500, delta=1e-5)
    assert listed == epsilon(noise_multiplier=1.0, delta=1e-5, rounds=500, sampling_rate=0.01)
    assert composed_epsilon({(1.0, 0.01): 500}, delta=1e-5) == listed


def test_growing_full_batch_releases_add_their_squares():
    rounds = [(1.0 / (0.1 * 1.1**t), 1.0) for t in range(10)]
    assert composed_epsilon(rounds, delta=1e-5) == pytest.approx(2.0924389, abs=1e-6)


def test_one_full_first_round_dominates_many_sampled_ones():
    # n = 20,000, batches of 10 and a first batch of 2,000, multiplier 1.
    later = {(1.0, 0.0005): 2000}
    assert composed_epsilon(later, delta=1e-5) == pytest.approx(0.0975, abs=5e-4)
    both = composed_epsilon({**later, (1.0, 0.1): 1}, delta=1e-5)
    assert both == pytest.approx(1.687, abs=2e-3)
    quiet = composed_epsilon({**later, (5.0, 0.1): 1}, delta=1e-5)
    assert quiet == pytest.approx(0.1233, abs=5e-4)


def test_distinct_rounds_compose_in_any_order_and_in_chunks():
    multipliers = np.geomspace(1.0, 2.0, 200)
    rounds = [(float(m), 0.02) for m in multipliers]
    found = composed_epsilon(rounds, delta=1e-5)
    assert composed_epsilon(rounds[::-1], delta=1e-5) == pytest.approx(found, rel=1e-6)
    quietest, loudest = (
        epsilon(noise_multiplier=m, delta=1e-5, rounds=200, sampling_rate=0.02) for m in (2.0, 1.0)
    )
    assert quietest < found < loudest
    grouped = composed_epsilon({(float(m), 0.02): 10 for m in multipliers[4::10]}, delta=1e-5)
    assert grouped == pytest.approx(found, rel=5e-3)


def test_an_unsampled_round_is_free_and_a_noiseless_one_is_not():
    assert composed_epsilon([(0.0, 0.0), (2.0, 1.0)], delta=1e-5) == epsilon_from_mu(0.5, 1e-5)
    assert composed_epsilon([(0.0, 0.1), (2.0, 1.0)], delta=1e-5) == math.inf


@pytest.mark.parametrize("rounds", [1, 50])
def test_equal_rounds_composed_are_rounds_of_the_scalar_question(rounds):
    pairs = [(2.0, 0.1)] * rounds
    setting = {"noise_multiplier": 2.0, "rounds": rounds, "sampling_rate": 0.1}
    assert composed_epsilon(pairs, delta=1e-5) == epsilon(delta=1e-5, **setting)
    assert composed_delta(pairs, epsilon=0.5) == delta(epsilon=0.5, **setting)


@pytest.mark.parametrize("function", [epsilon, delta])
@pytest.mark.parametrize("name", ["noise_multiplier", "sampling_rate"])
def test_one_entry_a_round_is_no_number(function, name):
    setting = {"noise_multiplier": 1.0, "rounds": 2, "sampling_rate": 0.1}
    spent = {"delta": 1e-5} if function is epsilon else {"epsilon": 1.0}
    with pytest.raises(TypeError, match=f"{name}=.* must be a number"):
        function(**{**setting, **spent, name: [0.1, 0.2]})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"contributions": 0}, ValueError, "contributions=0 must be at least 1"),
        ({"contributions": 1.5}, TypeError, r"contributions=1\.5 must be an integer"),
    ],
)
def test_contributions_that_are_no_count_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        composed_epsilon([(1.0, 0.1), (2.0, 0.1)], delta=1e-5, **change)


def test_composed_delta_inverts_composed_epsilon():
    rounds = {(1.0, 0.01): 500, (3.0, 0.2): 20, (4.0, 1.0): 1}
    for adjacency in Adjacency:
        how = {"adjacency": adjacency}
        eps = composed_epsilon(rounds, delta=1e-6, **how)
        found = composed_delta(rounds, epsilon=eps, **how)
        assert found == pytest.approx(1e-6, rel=2e-3, abs=0.0)
    full = [(2.0, 1.0)] * 4
    assert composed_delta(full, epsilon=1.0) == delta_from_mu(1.0, 1.0)
    assert composed_delta([(0.0, 0.1)], epsilon=1.0) == 1.0
    assert composed_delta([(0.0, 0.0)], epsilon=1.0) == 0.0


BALL = {"adjacency": "replace-one", "reach": "ball"}


@pytest.mark.parametrize("rate", [1e-4, 0.02, 0.5])
@pytest.mark.parametrize("multiplier", [0.3, 2.0])
@pytest.mark.parametrize("eps", [0.0, 0.01, 1.0, 6.0])
def test_one_round_of_a_ball_is_joint_convexity(rate, multiplier, eps):
    exact = rate * delta_from_mu(2.0 / multiplier, math.log1p(math.expm1(eps) / rate))
    found = delta(noise_multiplier=multiplier, epsilon=eps, rounds=1, sampling_rate=rate, **BALL)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-3) + 1e-20


def plain_profile_delta(multiplier: float, rate: float, rounds: int, eps: float) -> float:
    """Delta of composed joint convexity: the curve's losses on a plain grid, untilted."""
    grid, reach = 2e-4, 30.0
    losses = np.arange(0.0, reach, grid)
    inner = np.log1p(np.expm1(losses) / rate)
    curve = rate * np.array([delta_from_mu(2.0 / multiplier, x) for x in inner])
    # Between grid points the curve is linear in e^eps; -d curve / d e^eps is Q(loss > eps).
    beyond_q = -np.diff(curve) / np.diff(np.exp(losses))
    q = np.append(beyond_q[:-1] - beyond_q[1:], beyond_q[-1])  # Q of losses grid, 2 grid, ...
    p = q * np.exp(losses[1:])
    masses = np.concatenate([q[::-1], [1.0 - p.sum() - q.sum()], p])  # P is Q of the mirror image
    size = 1 << 19
    spectrum = np.fft.rfft(np.roll(np.pad(masses, (0, size - masses.size)), -q.size))
    total = np.fft.irfft(spectrum**rounds, size)
    composed = (np.arange(size) - size // 2) * grid
    total = np.roll(total, size // 2)
    return float(np.maximum(-np.expm1(eps - composed), 0.0) @ total)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("multiplier", "rate", "rounds", "eps"), [(2.0, 0.02, 300, 1.5), (1.0, 0.1, 10, 5.0)]
)
def test_composed_joint_convexity_agrees_with_a_plain_transform(multiplier, rate, rounds, eps):
    plain = plain_profile_delta(multiplier, rate, rounds, eps)
    found = delta(
        noise_multiplier=multiplier, epsilon=eps, rounds=rounds, sampling_rate=rate, **BALL
    )
    assert found == pytest.approx(plain, rel=2e-3)


def test_a_ball_costs_no_less_than_a_sum_and_nothing_more_in_full_batches():
    setting = {"noise_multiplier": 2.0, "delta": 1e-5, "rounds": 1000, "sampling_rate": 0.02}
    assert epsilon(**setting, adjacency="replace-one") == pytest.approx(2.603, abs=1e-3)
    assert epsilon(**setting, **BALL) == pytest.approx(4.7235, abs=1e-3)
    several = epsilon(**setting, adjacency="replace-one", contributions=3)
    assert several == epsilon(**setting, adjacency="replace-one")
    full = {**setting, "sampling_rate": 1.0}
    assert epsilon(**full, **BALL) == epsilon(**full, adjacency="replace-one")
    nearly = epsilon(**{**setting, "rounds": 4, "sampling_rate": 1 - 1e-9}, **BALL)
    assert nearly == pytest.approx(epsilon_from_mu(2.0, 1e-5), rel=1e-4)


@pytest.mark.parametrize(("eps", "rate", "rounds"), [(0.05, 1e-4, 10**6), (8.0, 0.02, 500)])
def test_the_least_noise_of_a_ball_meets_its_target(eps, rate, rounds):
    setting = {"rounds": rounds, "sampling_rate": rate, **BALL}
    least = noise_multiplier(epsilon=eps, delta=1e-6, **setting)
    assert epsilon(noise_multiplier=least, delta=1e-6, **setting) <= eps * (1 + 1e-4)
    reached = delta(noise_multiplier=least, epsilon=eps, **setting)
    assert reached == pytest.approx(1e-6, rel=1e-3, abs=0.0)
    alone = noise_multiplier(
        epsilon=eps, delta=1e-6, rounds=rounds, sampling_rate=rate, adjacency=REPLACE
    )
    assert least > alone


def test_four_thousand_different_rounds_compose():
    rounds = [(float(m), 0.01) for m in np.geomspace(1.0, 4.0, 4000)]
    assert composed_epsilon(rounds, delta=1e-5) == pytest.approx(1.7542, rel=1e-3)


def test_renyi_bound_lies_above_and_the_limit_theorem_below():
    setting = {"noise_multiplier": 1.0, "delta": 1e-5, "rounds": 1000, "sampling_rate": 0.01}
    exact = epsilon(**setting)
    renyi = epsilon(**setting, accountant="rdp")
    assert renyi == pytest.approx(2.1014, abs=1e-3)
    assert renyi > exact
    assert epsilon(**setting, accountant="gdp-clt") < exact
    assert Accountant.RDP.kind == "upper bound"
    assert Accountant.GDP_CLT.kind == "approximation, may be too small"


@pytest.mark.slow
def test_opacus_bound_lies_just_above():
    setting = {"noise_multiplier": 1.0, "delta": 1e-5, "rounds": 1000, "sampling_rate": 0.01}
    exact = epsilon(**setting)
    assert exact < epsilon(**setting, accountant="prv") < exact + 0.03


@pytest.mark.parametrize("accountant", ["rdp", "gdp-clt"])
def test_noise_by_other_accountants_meets_their_own_epsilon(accountant):
    setting = {"delta": 1e-5, "rounds": 300, "sampling_rate": 0.02, "accountant": accountant}
    least = noise_multiplier(epsilon=2.0, **setting)
    assert epsilon(noise_multiplier=least, **setting) == pytest.approx(2.0, rel=1e-4)


def test_delta_by_other_accountants_matches_their_epsilon():
    setting = {"noise_multiplier": 1.2, "rounds": 300, "sampling_rate": 0.02}
    for accountant in ("rdp", "gdp-clt"):
        eps = epsilon(delta=1e-5, accountant=accountant, **setting)
        found = delta(epsilon=eps, accountant=accountant, **setting)
        assert found == pytest.approx(1e-5, rel=1e-3, abs=0.0)


GOOD = {"noise_multiplier": 1.0, "delta": 1e-5, "rounds": 10, "sampling_rate": 0.1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling_rate": 1.3}, r"sampling_rate=1.3 must lie in \[0, 1\]; did you mean batch_siz"),
        ({"sampling_rate": math.nan}, "sampling_rate=nan must"),
        ({"delta": 0.0}, "delta=0.0 must lie strictly between 0 and 1"),
        ({"delta": 1.5}, "delta=1.5 must"),
        ({"delta": math.nan}, "delta=nan must"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0 must be at least 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan must"),
        ({"rounds": 0}, "rounds=0 must lie in"),
        ({"rounds": 10**9}, "rounds=1000000000 must lie in"),
        ({"adjacency": "zero-one"}, "adjacency='zero-one' must be one of 'add-or-remove-one'"),
        ({"accountant": "moments"}, "accountant='moments' must be one of 'pld'"),
        ({"accountant": "rdp", "adjacency": "replace-one"}, "does not cover adjacency"),
        ({"accountant": "prv", "adjacency": "replace-one"}, "does not cover adjacency"),
        ({"accountant": "gdp-clt", "adjacency": "replace-one"}, "does not cover adjacency"),
    ],
)
def test_a_mistake_is_refused_with_name_value_and_bound(change, message):
    with pytest.raises(ValueError, match=message):
        epsilon(**{**GOOD, **change})


@pytest.mark.parametrize("rounds", [10.0, 2.5, "10", True, None])
def test_rounds_must_be_an_integer(rounds):
    with pytest.raises(TypeError, match="must be an integer, such as 2"):
        epsilon(**{**GOOD, "rounds": rounds})


@pytest.mark.parametrize("eps", [-1.0, 0.0, math.inf, math.nan])
def test_a_target_must_be_positive_and_finite(eps):
    with pytest.raises(ValueError, match=f"epsilon={eps} must be at least 1e-12"):
        noise_multiplier(epsilon=eps, delta=1e-5, rounds=10, sampling_rate=0.1)


def test_a_delta_that_needs_no_noise_is_refused():
    with pytest.raises(ValueError, match="the probability that a record is ever sampled"):
        noise_multiplier(epsilon=1.0, delta=1e-3, rounds=1, sampling_rate=1e-4)


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds is empty"):
        composed_epsilon([], delta=1e-5)


def test_delta_below_what_plain_floats_add_up_is_still_found():
    found = delta(noise_multiplier=1.0, epsilon=30.0, rounds=2, sampling_rate=0.99)
    always = delta_from_mu(math.sqrt(2.0), 30.0)
    assert always < 1e-90
    assert 0.5 * always < found < always


def test_importing_the_module_loads_no_heavy_library():
    code = (
        "import sys, overhear.privacy.accounting.accountant; "
        "print([m for m in ('scipy', 'dp_accounting', 'opacus', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_prv_refuses_what_its_grid_cannot_hold(noise):
    """At .001 the grid took more memory than there was; at .01 Opacus' own error came through."""
    with pytest.raises(InputError, match="of Opacus cannot resolve 3 rounds"):
        epsilon(noise_multiplier=noise, rounds=3, sampling_rate=0.1, delta=1e-5, accountant="prv")
