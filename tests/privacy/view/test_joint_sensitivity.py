"""The largest move: between what a search over adversarial vectors finds and what is certified."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from overhear.privacy.accounting.accountant import composed_delta
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, group, poisson
from overhear.privacy.view.view import View, certificate, is_above, squared_joint_sensitivity


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


# A certificate is above M in exact arithmetic, and what it charges apart bounds what is seen.


def is_semidefinite(matrix: list[list[Fraction]]) -> bool:
    """By symmetric elimination in rational arithmetic, without any rounding."""
    work = [row[:] for row in matrix]
    for k in range(len(work)):
        pivot = work[k][k]
        if pivot < 0 or (pivot == 0 and any(work[k][j] != 0 for j in range(k, len(work)))):
            return False
        for i in range(k + 1, len(work)) if pivot else ():
            share = work[i][k] / pivot
            for j in range(k, len(work)):
                work[i][j] -= share * work[k][j]
    return True


def exact(lam: np.ndarray, M: np.ndarray) -> list[list[Fraction]]:
    return [
        [
            (Fraction(float(lam[i])) if i == j else Fraction(0))
            - (Fraction(float(M[i, j])) + Fraction(float(M[j, i]))) / 2
            for j in range(len(M))
        ]
        for i in range(len(M))
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 7), scale=st.integers(-6, 6))
def test_a_certificate_is_above_in_rational_arithmetic_and_as_small_as_the_joint_one(
    seed, size, scale
):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(rng.integers(1, size + 2), size)) * 10.0**scale
    M = half.T @ half
    vectors = rng.integers(0, size, size=size)
    lam = certificate(M, vectors.tolist())
    names = np.unique(vectors)
    assert is_semidefinite(exact(lam[np.searchsorted(names, vectors)], M))
    together = squared_joint_sensitivity(M, vectors.tolist())
    assert lam.sum() == pytest.approx(together, rel=1e-7)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_what_is_said_to_be_above_is_above_and_what_lies_below_is_not(seed, size):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size))
    M = half.T @ half
    top = float(np.linalg.eigvalsh(M)[-1])
    for share in (1.0 - 1e-9, 1.0 - 1e-15, 1.0, 1.0 + 1e-15, 1.0 + 1e-12):
        lam = np.full(size, share * top)
        assert not is_above(lam, M) or is_semidefinite(exact(lam, M))
    assert is_above(np.full(size, 1.0 + 1e-9) * top, M)


def test_contributions_that_no_noise_ties_together_are_charged_by_themselves():
    M = np.diag([1.0, 4.0, 0.25])
    assert certificate(M).tolist() == [1.0, 4.0, 0.25]
    view = View(contributions=np.eye(3), noise=np.diag([1.0, 0.5, 2.0]))
    assert view.shares([([0], [1.0]), ([1, 2], [1.0, 1.0])]) == pytest.approx([1.0, 4.25**0.5])
    assert view.shares([([], []), ([1], [0.0])]) == [0.0, 0.0]


def test_noise_that_cancels_makes_every_block_that_moves_infinite():
    view = View(contributions=np.array([[1.0, 0.0], [1.0, 1.0]]), noise=np.ones((2, 1)))
    assert view.shares([([0], [1.0]), ([1], [1.0]), ([], [])]) == [np.inf, np.inf, 0.0]
    with pytest.raises(InputError, match="must lie in one block each"):
        view.shares([([0], [1.0]), ([0], [1.0])])


RATES = (0.3, 0.7)

GRID = np.linspace(-9.0, 9.0, 361)  # of the whitened view; its cells add less than 2e-4


def hockey_stick(P: np.ndarray, Q: np.ndarray, epsilon: float) -> float:
    area = (GRID[1] - GRID[0]) ** 2
    return float(np.maximum(P - np.exp(epsilon) * Q, 0.0).sum() * area)


def densities(moves: np.ndarray, drawn: tuple[float, float]) -> np.ndarray:
    """Of a mixture over who takes part, each by a coin of its own; `moves` are whitened columns."""
    points = np.stack(np.meshgrid(GRID, GRID, indexing="ij"), axis=-1)
    found = np.zeros(points.shape[:2])
    for first in (0, 1):
        for second in (0, 1):
            weight = (drawn[0] if first else 1 - drawn[0]) * (drawn[1] if second else 1 - drawn[1])
            mean = moves @ np.array([first, second])
            found += weight * multivariate_normal(mean, np.eye(2)).pdf(points)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_two_holders_who_share_noise_lose_no_more_than_the_two_events(seed):
    # Exact integrals of a toy, so there is no false-alarm rate; the tolerance is that of the grid.
    rng = np.random.default_rng(seed)
    noise = np.eye(2) + rng.uniform(-0.8, 0.8, size=(2, 2))
    A = rng.uniform(-1.5, 1.5, size=(2, 2))
    view = View(contributions=A, noise=noise)
    shares = view.shares([([0], [1.0]), ([1], [1.0])])
    events = {Event(1.0 / mu, poisson(q)): 1 for mu, q in zip(shares, RATES, strict=True) if mu > 0}
    whitened = np.linalg.solve(noise, A)
    signs = [np.array(s) for s in ((1, 1), (1, -1))]
    for epsilon in (0.0, 0.4, 1.0):
        most = composed_delta(events, epsilon=epsilon)
        replaced = composed_delta(events, epsilon=epsilon, adjacency="replace-one")
        for sign in signs:
            there, gone = densities(whitened * sign, RATES), densities(whitened * 0.0, RATES)
            assert hockey_stick(there, gone, epsilon) <= most + 3e-4
            assert hockey_stick(gone, there, epsilon) <= most + 3e-4
            other = densities(-whitened * sign, RATES)
            assert hockey_stick(there, other, epsilon) <= replaced + 3e-4


def test_two_holders_who_enter_one_sum_lose_what_their_records_in_it_lose():
    # One noisy sum of both: the mixture is Bin(2, q) exactly, and a split charges more.
    q = 0.3
    A = np.array([[1.0, 1.0], [0.0, 0.0]])
    there = densities(A, (q, q))
    gone = densities(0.0 * A, (q, q))
    for epsilon in (0.2, 0.8):
        found = hockey_stick(there, gone, epsilon)
        most = composed_delta({Event(1.0, group(2, q)): 1}, epsilon=epsilon)
        split = composed_delta({Event(2**-0.5, poisson(q)): 2}, epsilon=epsilon)
        assert found == pytest.approx(most, abs=3e-4)
        assert split > most
