import numpy as np
import pytest

from overhear.privacy.view.view import View, matched_filter


def _random(rows: int, contributions: int, sources: int, seed: int = 0) -> View:
    rng = np.random.default_rng(seed)
    return View(
        contributions=rng.normal(size=(rows, contributions)), noise=rng.normal(size=(rows, sources))
    )


@pytest.mark.parametrize("sources", [8, 12])
def test_the_filter_is_that_of_the_inverted_covariance(sources):
    view = _random(8, 3, sources)
    A, B = np.asarray(view.contributions), np.asarray(view.noise)
    found = matched_filter(view, [0, 2])
    expected = np.linalg.solve(B @ B.T, A[:, [0, 2]])
    np.testing.assert_allclose(found.weights, expected, rtol=1e-8)
    np.testing.assert_allclose(found.information, A[:, [0, 2]].T @ expected, rtol=1e-8)
    assert not found.is_perfect


def test_the_information_is_that_of_the_view():
    view = _random(8, 3, 9, seed=1)
    found = matched_filter(view, [1])
    np.testing.assert_allclose(found.information, view.information([1]), rtol=1e-9)


def test_messages_whose_noise_cancels_are_combined_without_noise():
    view = _random(8, 3, 5, seed=2)
    A, B = np.asarray(view.contributions), np.asarray(view.noise)
    found = matched_filter(view, [0, 2])
    assert found.is_perfect
    np.testing.assert_allclose(found.revealing @ B, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.revealing @ A[:, [0, 2]], found.revealed, atol=1e-12)


def test_a_message_that_repeats_another_reveals_nothing_and_adds_nothing():
    once = View(contributions=np.array([[1.0]]), noise=np.array([[2.0]]))
    twice = View(contributions=np.array([[1.0], [3.0]]), noise=np.array([[2.0], [6.0]]))
    for view in (once, twice):
        found = matched_filter(view, [0])
        assert not found.is_perfect
        assert found.information.item() == pytest.approx(0.25)


def test_a_rescaled_message_says_the_same():
    view = _random(6, 2, 7, seed=3)
    by = np.array([1e-8, 1.0, 1e6, 1.0, 1.0, 1.0])[:, None]
    scaled = View(
        contributions=by * np.asarray(view.contributions), noise=by * np.asarray(view.noise)
    )
    one, other = matched_filter(view, [0, 1]), matched_filter(scaled, [0, 1])
    np.testing.assert_allclose(one.information, other.information, rtol=1e-7)
    np.testing.assert_allclose(one.weights, by * other.weights, rtol=1e-7, atol=1e-12)


def test_scores_are_as_far_apart_as_the_information_says():
    """n = 20,000 draws of a score; mean and variance within 5 standard errors (6e-7 each)."""
    view = _random(5, 2, 6, seed=4)
    A, B = np.asarray(view.contributions), np.asarray(view.noise)
    found, c = matched_filter(view, [0, 1]), np.array([1.0, -0.5])
    rng = np.random.default_rng(5)
    seen = B @ rng.normal(size=(6, 20_000)) + (A @ c)[:, None]
    s = c @ found.weights.T @ seen
    v = float(c @ found.information @ c)
    assert s.mean() == pytest.approx(v, abs=5 * np.sqrt(v / 20_000))
    assert s.var() == pytest.approx(v, rel=5 * np.sqrt(2 / 20_000))


def test_a_column_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"column=3 must lie in \[0, 3\)"):
        matched_filter(_random(4, 3, 4), [3])
