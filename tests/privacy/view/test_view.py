"""The view of an adversary."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.privacy import UnsupportedView, View, epsilon_from_mu
from overhear.privacy.view.view import squared_joint_sensitivity

LAPLACIAN = np.array([[2, -1, -1], [-1, 2, -1], [-1, -1, 2.0]])
PAIRS = math.sqrt(2) * np.array([[1, 1, 0], [-1, 0, 1], [0, -1, -1.0]])  # edges 12, 13, 23
TRIANGLE = np.hstack([np.eye(3), PAIRS])  # own noise and pairwise seeds: covariance I + 2 L


def correlated(rho: float, size: int = 2) -> View:
    covariance = np.full((size, size), rho) + (1 - rho) * np.eye(size)
    return View(contributions=np.eye(size), noise=np.linalg.cholesky(covariance))


def test_triangle_of_correlated_noise_seen_from_outside():
    assert np.allclose(TRIANGLE @ TRIANGLE.T, np.eye(3) + 2 * LAPLACIAN)
    mu = View(contributions=np.eye(3), noise=TRIANGLE).mu([0], 2.0)
    assert mu == pytest.approx(1.3093073414159542, abs=1e-12)
    assert epsilon_from_mu(mu, 1e-5) == pytest.approx(5.99882, abs=1e-4)
    assert epsilon_from_mu(math.sqrt(10) * mu, 1e-5) == pytest.approx(25.5450, abs=1e-4)


def test_triangle_seen_by_an_agent_who_knows_its_two_seeds():
    keep = [0, 1, 3]  # the noise of agents 1 and 2, and the seed that they share
    mu = View(contributions=np.eye(3)[:2], noise=TRIANGLE[:2][:, keep]).mu([0], 2.0)
    assert mu == pytest.approx(1.5491933384829668, abs=1e-12)
    assert epsilon_from_mu(mu, 1e-5) == pytest.approx(7.32937, abs=1e-4)


def test_triangle_without_any_unknown_noise_is_infinite_and_named():
    view = View(contributions=np.eye(3), noise=np.zeros((3, 0)), messages=["a", "b", "c"])
    assert view.mu([1]) == math.inf
    assert view.leaks([1]) == ("b",)


@pytest.mark.parametrize(("rho", "mu_squared"), [(0, 2), (0.5, 4), (-0.5, 4), (0.9, 20)])
def test_two_correlated_releases_of_one_record(rho, mu_squared):
    assert correlated(rho).mu([0, 1]) ** 2 == pytest.approx(mu_squared, rel=1e-12)


@pytest.mark.parametrize(
    ("rho", "sum_rule", "certificate"), [(0.5, 7.5, 6.0), (0.9, 39.642857142857146, 30.0)]
)
def test_three_correlated_releases_cannot_all_align(rho, sum_rule, certificate):
    view = correlated(rho, 3)
    assert np.abs(view.information([0, 1, 2])).sum() == pytest.approx(sum_rule, rel=1e-12)
    assert view.mu([0, 1, 2]) ** 2 == pytest.approx(certificate, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 6))
def test_the_largest_move_is_an_upper_bound_between_search_and_sum_rule(seed, size):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size + 1))
    M = root @ root.T
    bound, best = squared_joint_sensitivity(M), 0.0
    for _ in range(5):  # local search from random unit vectors: a lower bound
        x = rng.normal(size=(size, size))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        for _ in range(300):
            for i in range(size):
                pull = M[i] @ x - M[i, i] * x[i]
                x[i] = pull / np.linalg.norm(pull)
        best = max(best, float(np.trace(x.T @ M @ x)))
    assert best <= bound * (1 + 1e-12)
    assert bound <= np.abs(M).sum() * (1 + 1e-12)
    assert bound <= best * (1 + 1e-5)


@pytest.mark.parametrize(("rounds", "mu_squared"), [(3, 2.4661), (50, 5.263018097900593)])
def test_noise_on_released_momentum_with_one_use_in_the_first_round(rounds, mu_squared):
    view = View(contributions=0.9 ** np.arange(rounds)[:, None], noise=np.eye(rounds))
    assert view.mu([0]) ** 2 == pytest.approx(mu_squared, rel=1e-9)


def test_noise_inside_the_momentum_recursion_protects_every_round():
    lags = np.subtract.outer(np.arange(50), np.arange(50))
    recursion = np.where(lags >= 0, 0.9 ** np.maximum(lags, 0), 0.0)
    view = View(contributions=recursion[:, :1], noise=recursion)
    assert view.mu([0]) ** 2 == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("signal", "std", "mu_squared"), [(1e-6, 1e-7, 101.0), (9e-8, 1e-10, 810_001.0)]
)
def test_a_small_but_real_release_counts(signal, std, mu_squared):
    view = View(contributions=np.array([[1.0], [signal]]), noise=np.diag([1.0, std]))
    assert view.mu([0]) ** 2 == pytest.approx(mu_squared, rel=1e-9)


def test_a_message_scaled_by_1e_8_gives_the_same_mu():
    A, B = np.array([[1.0, 0.5], [0.25, 2.0]]), np.array([[1.0, 0.3], [0.2, 1.0]])
    scale = np.array([[1e-8], [1.0]])
    scaled = View(contributions=scale * A, noise=scale * B)
    assert scaled.mu([0, 1]) == pytest.approx(View(contributions=A, noise=B).mu([0, 1]), rel=1e-9)


def test_a_duplicated_message_teaches_nothing():
    once = View(contributions=np.eye(2), noise=np.eye(2))
    twice = View(contributions=np.vstack([np.eye(2)] * 2), noise=np.vstack([np.eye(2)] * 2))
    assert twice.mu([0, 1]) == once.mu([0, 1])


def test_two_messages_with_one_noise_leak_and_are_both_named():
    view = View(
        contributions=[[1.0], [2.0]] * np.ones(1), noise=np.ones((2, 1)), messages=["a", "b"]
    )
    assert view.mu([0]) == math.inf
    assert set(view.leaks([0])) == {"a", "b"}


def test_noise_far_below_its_message_is_no_noise():
    assert View(contributions=np.ones((1, 1)), noise=np.full((1, 1), 1e-13)).mu([0]) == math.inf


def test_information_is_refused_where_noise_cancels():
    view = View(contributions=np.ones((1, 1)), noise=np.zeros((1, 1)))
    with pytest.raises(UnsupportedView, match="cancels"):
        view.information([0])


def test_an_unbounded_contribution_is_infinite_only_where_it_is_seen():
    view = View(contributions=np.array([[1.0, 0.0]]), noise=np.eye(1))
    assert view.mu([0], bounds=[math.inf]) == math.inf
    assert view.mu([0, 1], bounds=[1.0, math.inf]) == 1.0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 7), sources=st.integers(1, 9))
def test_elimination_agrees_with_the_pseudo_inverse(seed, rows, sources):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(rows, 3)) * (rng.random((rows, 3)) < 0.6)
    B = rng.normal(size=(rows, sources)) * (rng.random((rows, sources)) < 0.4)
    view = View(contributions=A, noise=B)
    left = np.linalg.svd(B)[0][:, np.linalg.matrix_rank(B) :]
    exposed = np.abs(left.T @ A).max(axis=0, initial=0.0) > 1e-9
    for column in range(3):
        if exposed[column]:
            assert view.mu([column]) == math.inf
        else:
            expected = A[:, column] @ np.linalg.pinv(B @ B.T) @ A[:, column]
            assert view.mu([column]) ** 2 == pytest.approx(expected, rel=1e-5, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_direction_of_gradients_exceeds_mu(seed):
    rng = np.random.default_rng(seed)
    view = View(contributions=rng.normal(size=(4, 2)), noise=rng.normal(size=(4, 6)))
    M, mu = view.information([0, 1]), view.mu([0, 1], bounds=[1.0, 0.5])
    for _ in range(50):
        moves = rng.normal(size=(2, 5))  # one vector of D=5 for each contribution
        moves *= np.array([[1.0], [0.5]]) / np.linalg.norm(moves, axis=1, keepdims=True)
        assert np.trace(moves.T @ M @ moves) <= mu**2 * (1 + 1e-12)


def test_shapes_and_values_are_checked():
    with pytest.raises(ValueError, match="one row per message"):
        View(contributions=np.eye(2), noise=np.eye(3))
    with pytest.raises(ValueError, match="not finite"):
        View(contributions=np.array([[math.nan]]), noise=np.eye(1))
    with pytest.raises(ValueError, match="one number >= 0"):
        View(contributions=np.eye(1), noise=np.eye(1)).mu([0], bounds=[-1.0])


@pytest.mark.parametrize(
    ("contributions", "noise"),
    [
        ([[1.0], [1.0], [0.05]], [[1.0, 0.0], [1.0, 1e-11], [0.0, 1.0]]),
        ([[1.0], [1.0], [0.005]], [[1.0, 0.0], [1.0, 1e-10], [0.0, 1.0]]),
        ([[1.0], [1.0 + 5e-13]], [[1.0, 0.0], [1.0, 1e-13]]),
    ],
)
def test_a_leak_that_rounding_may_hide_is_refused(contributions, noise):
    view = View(contributions=np.array(contributions), noise=np.array(noise))
    with pytest.raises(UnsupportedView, match="rounding"):
        view.mu([0])


def test_a_redundant_message_among_entangled_noise_is_no_leak():
    A = np.array([[1, 0], [0, 1 / 3], [0, 1 / 3], [0, 1 / 3]])
    B = np.array([[1, 1], [1 / 3, 2 / 3], [1 / 3, 2 / 3], [1 / 3, 2 / 3]])
    once = View(contributions=A[:2], noise=B[:2])
    assert View(contributions=A, noise=B).mu([0]) == pytest.approx(once.mu([0]), rel=1e-12)


@pytest.mark.parametrize("weak", [1e-11, 1e-13, 1e-15])
def test_a_weak_source_in_one_message_still_uncovers_another(weak):
    """Two messages differ by a trace of the noise that alone hides the third."""
    noise = np.array([[1.0, weak], [1.0, 0.0], [0.0, 1.0]])
    view = View(contributions=np.array([[0.0], [0.0], [1.0]]), noise=noise)
    assert math.isinf(view.mu([0]))


def test_what_is_surely_shown_is_infinite_whatever_else_may_be_rounding():
    contributions, noise = np.array([[1.0], [1.0 + 3e-13], [1.0]]), np.array([[0.0], [1.0], [1.0]])
    assert View(contributions=contributions, noise=noise).mu([0]) == math.inf
    with pytest.raises(UnsupportedView, match="is indistinguishable from rounding"):
        View(contributions=contributions[1:], noise=noise[1:]).mu([0])
