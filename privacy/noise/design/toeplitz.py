"""Strategies with p coefficients that are the same in every round: for long runs.

C is lower triangular with C[t, t-j] = c_j for j < p, so noise C^-1 z goes through 1 / c(x), what an
eigenspace with eigenvalue lambda makes of it is the series

    h(x) = lambda / ((1 - lambda x) c(x)),     cost = sum_(j < T) (T - j) h_j^2,

and its derivative by c_j takes h / c. A filter of p coefficients over T rounds is all that a value
or a gradient costs. Columns of C of one pattern do not meet where p <= period, so a record costs
the sum of their norms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..covariance import Matrix
from .dual import Optimum, optimum
from .workload import Modes, grams, patterns

__all__ = [
    "Filter",
    "best_filter",
    "best_filter_of",
    "diagonal_bound",
    "filter_cost",
    "lower_bound",
    "one_precision_bound",
    "stretched",
]

_MOST_SUMMED = 1_000  # rounds of a bound that needs all of a Gram matrix
_FEW = 24  # the same where agents differ
_Cost = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]
_DENSE = 100  # rounds of the design whose multipliers are stretched to those of a long run


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Filter:
    """A Toeplitz strategy.

    Attributes:
        coefficients: (p,), c_0 .. c_(p-1), of norm 1; c_0 is above 0.
        cost: of T rounds, at noise of standard deviation 1.
    """

    coefficients: Matrix
    cost: float


def best_filter(
    eigenvalues: ArrayLike, *, weights: ArrayLike, rounds: int, bands: int, floor: float = 0.0
) -> Filter:
    """The c of norm 1 whose noise costs least, added up over eigenspaces by their weights.

    Args:
        eigenvalues: (modes,) of W.
        weights: (modes,), at least 0.
        rounds: T.
        bands: p, at most T.
        floor: least cost, where mixing removes noise altogether.

    >>> found = best_filter([1.0], weights=[1.0], rounds=50, bands=2)
    >>> found.coefficients.round(4).tolist()
    [0.8158, 0.5783]
    """
    from scipy.signal import lfilter

    values = np.asarray(eigenvalues, dtype=np.float64)
    shares = np.asarray(weights, dtype=np.float64)
    used = (values != 0) & (shares > 0)
    values, shares = values[used], shares[used]
    heard = np.cumprod(np.repeat(values[:, None], rounds, axis=1), axis=1)  # lambda^1 .. lambda^T
    left = rounds - np.arange(rounds)
    if not used.any():
        return Filter(coefficients=np.eye(1, bands)[0], cost=floor)

    def cost(tail: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        c = np.concatenate([[1.0], tail])
        with np.errstate(over="ignore", invalid="ignore"):
            h = lfilter([1.0], c, heard, axis=1)
            energy = float(shares @ (np.square(h) @ left))
        if not energy < 1e200:  # 1 / c grows without bound
            return 1e3, np.zeros_like(tail)
        again, weighed = lfilter([1.0], c, h, axis=1), shares[:, None] * left * h
        slope = [-2.0 * np.vdot(weighed[:, j:], again[:, : rounds - j]) for j in range(1, bands)]
        size = float(c @ c)
        return float(np.log(energy * size)), np.asarray(slope) / energy + 2.0 * tail / size

    mean = float(shares @ values / shares.sum())
    found = _minimised(cost, bands=bands, mean=mean)
    return replace(found, cost=max(found.cost, floor))


def best_filter_of(gram: Matrix, *, bands: int) -> Filter:
    """The same for any Gram matrix, such as that of learning rates that differ.

    With G = C^-1 the cost is tr(K G G'), and its derivative by c_j is -2 tr(G G' K G S_j), S_j the
    shift by j rounds.

    Args:
        gram: K, (T, T), positive definite.
        bands: p, at most T.

    >>> from .workload import grams
    >>> plain = grams([1.0], rounds=50)[0]
    >>> best_filter_of(plain, bands=2).coefficients.round(4).tolist()
    [0.8158, 0.5783]
    """
    from scipy.linalg import solve_triangular, toeplitz

    rounds = len(gram)

    def cost(tail: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        column = np.zeros(rounds)
        column[:bands] = [1.0, *tail]
        C = toeplitz(column, np.zeros(rounds))
        with np.errstate(over="ignore", invalid="ignore"):
            G = solve_triangular(C, np.eye(rounds), lower=True, check_finite=False)
            N = G.T @ gram @ G
            energy = float(np.trace(N))
        if not energy < 1e200:  # C^-1 grows without bound
            return 1e3, np.zeros_like(tail)
        P = G @ N
        slope = np.array([-2.0 * np.trace(P, offset=j) for j in range(1, bands)])
        size = float(column @ column)
        return float(np.log(energy * size)), slope / energy + 2.0 * tail / size

    return _minimised(cost, bands=bands)


def _minimised(cost: _Cost, *, bands: int, mean: float = 1.0) -> Filter:
    """The filter of least cost, from coefficients that are best for averages of such a mean.

    Args:
        cost: the logarithm of the cost and its slope, by all coefficients but the first, which is
            1.
        bands: p.
        mean: eigenvalue.
    """
    from scipy.optimize import minimize

    start = np.ones(bands)
    for j in range(1, bands):
        start[j] = start[j - 1] * (j - 0.5) / j * mean  # (1 - x)^(-1/2), best for full averages
    if bands == 1:
        tail, value = np.zeros(0), cost(np.zeros(0))[0]
    else:
        options = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-10}
        found = minimize(cost, start[1:], jac=True, method="L-BFGS-B", options=options)
        tail, value = found.x, float(found.fun)
    c = np.concatenate([[1.0], tail])
    return Filter(coefficients=c / np.linalg.norm(c), cost=float(np.exp(value)))


def filter_cost(coefficients: Matrix, eigenvalue: float, *, rounds: int) -> float:
    """What noise of standard deviation 1 costs in an eigenspace through a filter.

    >>> round(filter_cost(np.array([1.0]), 0.5, rounds=2), 4)
    0.5625
    """
    from scipy.signal import lfilter

    heard = np.cumprod(np.full(rounds, eigenvalue))
    h = lfilter([1.0], coefficients, heard)
    return float(np.square(h) @ (rounds - np.arange(rounds)))


def stretched(modes: Modes, shares: Matrix, *, rounds: int, period: int) -> Matrix:
    """Dual multipliers of a long run, (constraints, T), from those of a short one."""
    uses = -(-rounds // period)
    short = min(_DENSE if len(shares) == 1 else _FEW, rounds)
    of = grams(modes.eigenvalues, rounds=short)
    found: Optimum = optimum(of, shares, patterns(short, max(1, -(-short // uses))))
    diagonals = np.diagonal(found.multipliers, axis1=1, axis2=2)
    at = np.linspace(0.0, 1.0, rounds)
    return np.stack([np.interp(at, np.linspace(0.0, 1.0, short), d) for d in diagonals])


def lower_bound(
    modes: Modes, shares: Matrix, multipliers: Matrix, *, rounds: int, period: int
) -> float:
    """What every noise of the same sensitivity costs at least, per agent and round.

    Args:
        modes: of W.
        shares: w_ik, (constraints, modes).
        multipliers: (constraints, T), the diagonals of L_i, above 0.
        rounds: T.
        period: b.

    >>> from .workload import modes_of
    >>> modes = modes_of([[0.75, 0.25], [0.25, 0.75]])
    >>> bound = lower_bound(modes, modes.shares[:1], np.ones((1, 6)), rounds=6, period=6)
    >>> round(bound, 4)
    0.8964
    """
    of = shares / shares.sum(axis=0)
    total = 0.0
    for k, value in enumerate(modes.eigenvalues):
        total += float(modes.weights[k]) * diagonal_bound(float(value), of[:, k] @ multipliers)
    largest = [
        sum(float(one[taken].max()) for taken in patterns(rounds, period)) for one in multipliers
    ]
    return total**2 / float(np.mean(largest)) / rounds


def one_precision_bound(modes: Modes, *, rounds: int, period: int) -> float:
    """What noise costs at least that all agents make alike over time, per agent and round.

    >>> from .workload import modes_of
    >>> modes = modes_of([[0.75, 0.25], [0.25, 0.75]])
    >>> round(one_precision_bound(modes, rounds=6, period=6), 4)
    1.1676
    """
    if rounds > _MOST_SUMMED:
        return 0.0
    uses, short = -(-rounds // period), min(_DENSE, rounds)
    mean = np.einsum("k,kst->st", modes.weights, grams(modes.eigenvalues, rounds=short))
    found = optimum(mean[None], np.ones((1, 1)), patterns(short, max(1, -(-short // uses))))
    at = np.linspace(0.0, 1.0, rounds)
    v = np.interp(at, np.linspace(0.0, 1.0, short), found.multipliers[0].diagonal())
    whole = np.zeros((rounds, rounds))
    for weight, value in zip(modes.weights, modes.eigenvalues, strict=True):
        whole += weight * grams([float(value)], rounds=rounds)[0]
    squares = np.linalg.eigvalsh(np.sqrt(v)[:, None] * whole * np.sqrt(v))
    total = float(np.sqrt(np.maximum(squares, 0.0)).sum())
    return total**2 / sum(float(v[p].max()) for p in patterns(rounds, period)) / rounds


def diagonal_bound(eigenvalue: float, multipliers: Sequence[float] | Matrix) -> float:
    """Tr (L^.5 K L^.5)^.5 for diagonal L, (T,): the inverse of K has three diagonals.

    K = B'B with B^-1 = (1 - lambda shift) / lambda.

    >>> roots = np.sqrt(np.linalg.eigvalsh([[0.3125, 0.125], [0.125, 0.25]]))
    >>> round(diagonal_bound(0.5, [1.0, 1.0]), 6), round(float(roots.sum()), 6)
    (1.030776, 1.030776)
    """
    from scipy.linalg import eigvalsh_tridiagonal

    if abs(eigenvalue) < 1e-8:  # costs nothing, and bounds nothing
        return 0.0
    v = np.asarray(multipliers, dtype=np.float64)
    main = np.full(len(v), 1.0 + eigenvalue**2)
    main[0] = 1.0  # of (1 - lambda shift)(1 - lambda shift)'
    side = np.full(len(v) - 1, -eigenvalue)
    least = eigvalsh_tridiagonal(main / v, side / np.sqrt(v[:-1] * v[1:]))
    return float(abs(eigenvalue) * np.sqrt(1.0 / np.maximum(least, 1e-300)).sum())
