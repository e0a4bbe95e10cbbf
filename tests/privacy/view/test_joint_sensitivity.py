"""The largest move: between what a search over adversarial vectors finds and what is certified."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overhear.privacy.view.view import View, squared_joint_sensitivity


def block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    total = np.zeros((sum(map(len, blocks)),) * 2)
    at = 0
    for block in blocks:
        total[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return total


def correlated(size: int = 3, rho: float = 0.5) -> np.ndarray:
    return np.linalg.inv(np.full((size, size), rho) + (1 - rho) * np.eye(size))


def searched(M: np.ndarray, vectors: np.ndarray, rng: np.random.Generator) -> float:
    """A lower bound: vectors whose parts share a norm of 1, improved in turn, from random."""
    best, k = 0.0, len(M)
    for _ in range(4):
        x = rng.normal(size=(k, k))
        for v in np.unique(vectors):
            x[vectors == v] /= np.linalg.norm(x[vectors == v])
        found = 0.0
        for _ in range(20_000):  # some climb slowly: 2.6e-5 short after 600
            for v in np.unique(vectors):
                pull = M[vectors == v] @ x
                x[vectors == v] = pull / np.linalg.norm(pull)
            before, found = found, float(np.trace(x.T @ M @ x))
            if found - before <= 1e-10 * found:
                break
        best = max(best, found)
    return best


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 4), blocks=st.integers(1, 3))
@example(seed=42242973, count=3, blocks=2)
def test_no_vectors_move_further_and_some_move_as_far(seed, count, blocks):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(blocks, count, count + 1)) * rng.uniform(0.3, 2.0, (blocks, 1, 1))
    M = block_diagonal([root @ root.T for root in roots])
    vectors = np.tile(np.arange(count), blocks)
    bound, best = squared_joint_sensitivity(M, vectors.tolist()), searched(M, vectors, rng)
    assert best <= bound * (1 + 1e-12)
    assert bound <= best * (1 + 1e-5)
    # Parts that were vectors of their own could move at least as far.
    assert bound <= squared_joint_sensitivity(M) * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_vectors_within_their_bounds_do_not_exceed_the_view_s_mu(seed):
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, 4, 2)), rng.normal(size=(2, 4, 6))
    view = View(
        contributions=np.block([[A[0], np.zeros((4, 2))], [np.zeros((4, 2)), A[1]]]),
        noise=np.block([[B[0], np.zeros((4, 6))], [np.zeros((4, 6)), B[1]]]),
        vectors=[0, 1, 0, 1],
    )
    mu = view.mu([0, 1, 2, 3], bounds=[1.0, 0.5, 1.0, 0.5])
    M = view.information([0, 1, 2, 3])
    for _ in range(200):
        x = rng.normal(size=(4, 5)) * rng.exponential(size=(4, 1))  # how it is split varies
        for parts, bound in (([0, 2], 1.0), ([1, 3], 0.5)):
            x[parts] *= bound / np.linalg.norm(x[parts])
        assert np.trace(x.T @ M @ x) <= mu**2 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("diagonal", "vectors", "expected"),
    [([1.0, 4.0], [0, 0], 4.0), ([2.0, 1.0, 1.0, 3.0], [0, 1, 0, 1], 5.0), ([1.0, 4.0], [], 5.0)],
)
def test_without_correlation_every_vector_costs_its_dearest_part(diagonal, vectors, expected):
    assert squared_joint_sensitivity(np.diag(diagonal), vectors) == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("blocks", [2, 3])
def test_blocks_that_are_released_alike_cost_what_one_of_them_does(blocks):
    M = block_diagonal([correlated()] * blocks)
    assert squared_joint_sensitivity(correlated()) == pytest.approx(6.0, rel=1e-9)
    assert squared_joint_sensitivity(M, [0, 1, 2] * blocks) == pytest.approx(6.0, rel=1e-9)


def test_a_search_that_stops_at_once_still_gives_a_bound(monkeypatch):
    M = block_diagonal([correlated(), 2.0 * correlated(3, -0.3)])
    best = squared_joint_sensitivity(M, [0, 1, 2] * 2)
    monkeypatch.setattr("overhear.privacy.view.view._SWEEPS", 0)
    assert squared_joint_sensitivity(M, [0, 1, 2] * 2) >= best * (1 - 1e-9)


def test_parts_of_one_vector_are_told_apart_from_vectors_of_their_own():
    noise = np.diag([1.0, 0.5])
    apart = View(contributions=np.eye(2), noise=noise)
    together = View(contributions=np.eye(2), noise=noise, vectors=[7, 7])
    assert apart.mu([0, 1]) ** 2 == pytest.approx(5.0, rel=1e-12)
    assert together.mu([0, 1]) ** 2 == pytest.approx(4.0, rel=1e-9)
    assert together.mu([0]) ** 2 == pytest.approx(1.0, rel=1e-12)
    assert together.mu([0, 1], bounds=[math.inf, math.inf]) == math.inf


def test_vectors_are_checked():
    with pytest.raises(ValueError, match="1 vectors for 2 contributions"):
        View(contributions=np.eye(2), noise=np.eye(2), vectors=[0])
    view = View(contributions=np.eye(2), noise=np.eye(2), vectors=[0, 0])
    with pytest.raises(ValueError, match="differ between parts of one vector"):
        view.mu([0, 1], bounds=[1.0, 2.0])
