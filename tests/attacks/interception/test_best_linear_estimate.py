import numpy as np
import pytest

from overhear.attacks.interception.replay import (
    best_weights,
    determined,
    seen_combination,
)


def _equations(seed: int, *, equations: int = 9, unknowns: int = 4, sources: int = 9):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(equations, unknowns)), rng.normal(size=(equations, sources))


@pytest.mark.parametrize("seed", range(3))
def test_the_covariance_is_that_of_generalised_least_squares(seed):
    A, B = _equations(seed)
    found = best_weights(A, B, targets=[0, 1, 2, 3])
    expected = np.linalg.inv(A.T @ np.linalg.inv(B @ B.T) @ A)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-8)


def test_the_errors_of_drawn_equations_have_the_declared_covariance():
    A, B = _equations(1)
    found = best_weights(A, B, targets=[0, 2])
    rng = np.random.default_rng(0)
    truth, noise = rng.normal(size=(4, 1)), rng.normal(size=(9, 50_000))
    errors = found.rows @ (A @ truth + B @ noise) - truth[[0, 2]]
    measured = errors @ errors.T / 50_000
    # n = 50000 normals; each entry within 6 standard errors (at most 6 sqrt(2/n) of the scale):
    # false alarms below 1e-8.
    scale = np.sqrt(np.outer(np.diag(found.covariance), np.diag(found.covariance)))
    assert np.abs(measured - found.covariance).max() < 6 * np.sqrt(2 / 50_000) * scale.max()


def test_an_unknown_that_always_comes_with_another_is_not_identified():
    A = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 1.0], [0.0, 0.0, 1.0]])
    found = best_weights(A, np.eye(3), targets=[0, 1, 2])
    assert found.identified == (2,)


def test_scaling_the_equations_changes_nothing():
    A, B = _equations(2)
    by = np.logspace(-8, 8, 9)[:, None]
    one, two = (best_weights(a, b, targets=[1]) for a, b in ((A, B), (by * A, by * B)))
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-6)


def test_noise_that_cancels_between_equations_leaves_a_clean_estimate():
    A, B = np.array([[1.0], [0.0]]), np.array([[0.7], [0.7]])
    found = best_weights(A, B, targets=[0])
    assert found.clean == (True,)
    np.testing.assert_allclose(found.rows, [[1.0, -1.0]], atol=1e-12)


def test_equations_that_repeat_one_another_are_no_more_than_one():
    A, B = np.array([[1.0], [1.0], [1.0]]), np.array([[0.5], [0.5], [0.5]])
    assert best_weights(A, B, targets=[0]).covariance[0, 0] == pytest.approx(0.25)


def test_sums_of_equations_are_determined_and_their_parts_are_not():
    equations = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    rows = np.array([[1.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert determined(rows, equations).tolist() == [True, False, True]


def test_a_target_that_is_no_column_is_refused():
    with pytest.raises(ValueError, match=r"targets \[4\] must lie in \[0, 4\)"):
        best_weights(*_equations(0), targets=[4])


def test_a_combination_is_told_exactly_where_no_other_unknown_stands_in_the_way():
    hidden = np.array([[1.0, -0.9, 2.0], [0.0, 0.0, 1.0]])
    assert seen_combination(hidden, columns=[0, 1]) == pytest.approx([1.0, -0.9])
    assert seen_combination(hidden[:1], columns=[0, 1]) is None  # the third one is not known
    both = np.vstack([hidden, [0.0, 1.0, 0.0]])
    assert seen_combination(both, columns=[0, 1]) is None  # each is told alone
    found = best_weights(hidden, np.eye(2), targets=np.array([[1.0, -0.9, 0.0]]))
    assert found.identified == (0,)
    assert found.rows[0] == pytest.approx([1.0, -2.0])
