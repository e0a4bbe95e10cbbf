"""Noise that is correlated over time: every agent takes part of its noise back in later rounds.

Bellet et al., MAFALDA-SGD, arXiv 2510.17480.

    1  n_i = C^-1 z_i,  z_i ~ N(0, s^2 I) over rounds, made and known by agent i alone
    2  X = C'C minimises tr(Kbar X^-1); X_ss sums to 1 over each pattern, X_st = 0 within one
    3  C is lower triangular: n_t = (z_t - sum_(j<t) C_tj n_j) / C_tt

| symbol | name here    | shape  | unit | meaning                                           |
|--------|--------------|--------|------|---------------------------------------------------|
| Kbar   | gram         | (T, T) | -    | sum over agents of what noise costs, over A       |
| C      | matrix       | (T, T) | -    | strategy                                          |
| b      | period       | scalar | -    | a record is used in rounds j, j + b, ..           |
| s      | noise_std    | scalar | norm | noise multiplier times clip norm                  |

All rounds are one release. A record that is used in one pattern costs mu = 1 / noise multiplier,
whoever sees all messages and knows no noise of the victim; one that is used more often costs more.

Where we differ from the paper: the optimum is found on the dual, with a certificate; learning rates
may differ from round to round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, check_real, whole
from .correlated import Matrix, square_matrix
from .dual import Optimum, optimum

# What reaches the models of the noise that is added: a Gram matrix for each eigenvalue of W.
#
# Every round x_t = W (x_(t-1) - eta_t (g_t + n_t)), so the models after round t hold the noise of
# round s as eta_s W^(t-s+1) n_s. The energy of all of it, over agents, rounds and coordinates
# alike, is tr(K Cov(n)) / (A T), and K splits over the eigenspaces of a symmetric W:
#
#     K_k[s, s'] = eta_s eta_s' sum_(t >= s, s') lambda_k^(t-s+1) lambda_k^(t-s'+1)
#
# | symbol   | name here    | shape        | meaning                                               |
# |----------|--------------|--------------|-------------------------------------------------------|
# | W        | weights      | (A, A)       | symmetric mixing weights                              |
# | lambda_k | eigenvalues  | (modes,)     | different eigenvalues of W                            |
# | Pi_k     | projectors   | (modes, A, A)| onto their eigenspaces                                |
# | u_ik^2   | shares       | (A, modes)   | [Pi_k]_ii: how much of agent i lies in eigenspace k   |
# | K_k      | grams        | (modes, T, T)| what noise of an eigenspace costs                     |
# | eta      | step_sizes   | (T,)         | learning rates, relative to each other                |
#
# A record is used in the rounds of one pattern: j, j + b, j + 2 b, .. for a period b. Period T is
# one use, period 1 is every round.

MOST_ROUNDS = 10_000
MOST_DENSE = 200  # rounds of designs that are T x T matrices
MOST_AGENTS = 200  # projectors of all eigenspaces are held
_SAME = 1e-9  # eigenvalues closer than this are one
_RIDGE = 1e-9  # of the largest eigenvalue of all Gram matrices: where W is singular noise is free


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Modes:
    """The eigenspaces of mixing weights.

    Attributes:
        eigenvalues: (modes,), different ones, rising.
        bases: of each eigenspace, (A, dimension), orthonormal columns.
        projectors: (modes, A, A), onto each eigenspace; they sum to the identity.
        shares: (A, modes), the diagonals of the projectors; rows sum to 1.
    """

    eigenvalues: Matrix
    bases: tuple[Matrix, ...]
    projectors: NDArray[np.float64]
    shares: Matrix

    @property
    def alike(self) -> bool:
        """Whether no agent can be told from another by its shares, as on a ring or a torus."""
        return bool(np.abs(self.shares - self.shares[:1]).max() < _SAME)

    @property
    def weights(self) -> Matrix:
        """(modes,), the mean share of each eigenspace; they sum to 1."""
        return np.asarray(self.shares.mean(axis=0))

    def filtered(self, values: ArrayLike) -> Matrix:
        """(A, A), the matrix with the same eigenvectors and one value an eigenspace."""
        return np.asarray(np.tensordot(np.asarray(values), self.projectors, axes=1))


def modes_of(weights: ArrayLike) -> Modes:
    """The eigenspaces of symmetric mixing weights.

    Args:
        weights: W, (A, A), symmetric, with eigenvalues in [-1, 1].

    Raises:
        ValueError: weights that are not symmetric, or no mixing matrix.

    >>> found = modes_of([[0.75, 0.25], [0.25, 0.75]])
    >>> found.eigenvalues.round(9).tolist(), found.alike
    ([0.5, 1.0], True)
    """
    W = square_matrix("weights", weights)
    if len(W) > MOST_AGENTS:
        raise InputError(
            f"weights of {len(W)} agents are more than the {MOST_AGENTS} that a design takes; "
            "use independent noise"
        )
    if not np.allclose(W, W.T, rtol=0, atol=1e-12):
        raise InputError(
            "weights must be symmetric for a design of noise; use metropolis weights on undirected "
            "links"
        )
    values, vectors = np.linalg.eigh((W + W.T) / 2)
    if np.abs(values).max() > 1 + 1e-9:
        raise InputError(
            f"weights has eigenvalue {values[np.abs(values).argmax()]:.6g}, outside [-1, 1]; "
            "rows of a mixing matrix sum to 1"
        )
    # Equal eigenvalues are one eigenspace; no choice of its basis changes the projector.
    starts = [0, *(np.flatnonzero(np.diff(values) > _SAME) + 1).tolist(), len(values)]
    spans = list(itertools.pairwise(starts))
    projectors = np.stack([vectors[:, a:b] @ vectors[:, a:b].T for a, b in spans])
    return Modes(
        eigenvalues=np.array([values[a:b].mean() for a, b in spans]),
        bases=tuple(np.ascontiguousarray(vectors[:, a:b]) for a, b in spans),
        projectors=projectors,
        shares=np.stack([p.diagonal() for p in projectors], axis=1),
    )


def grams(eigenvalues: ArrayLike, *, rounds: int, step_sizes: Sequence[float] = ()) -> Matrix:
    """K_k, (modes, T, T), positive definite.

    Where W is singular, mixing removes some noise altogether, and no optimum is attained: a ridge
    of 1e-9 of the largest eigenvalue counts such noise, and with it the energies, and their lower
    bounds, are above those without by some 1e-4.

    >>> grams([0.5], rounds=2).round(4).tolist()
    [[[0.3125, 0.125], [0.125, 0.25]]]
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    eta = checked_steps(rounds, step_sizes)
    lag = np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
    left = rounds - np.maximum.outer(np.arange(rounds), np.arange(rounds))  # rounds that hold both
    found = np.empty((len(values), rounds, rounds))
    for of, value in zip(found, values, strict=True):
        powers = np.concatenate([[1.0], np.cumprod(np.full(rounds, value))])
        energy = np.concatenate([[0.0], np.cumsum(np.square(powers[1:]))])
        of[:] = powers[lag] * energy[left] * np.outer(eta, eta)
    if rounds <= MOST_DENSE:
        largest = max(float(np.linalg.eigvalsh(of)[-1]) for of in found)
    else:
        largest = max(float(np.abs(of).sum(axis=1).max()) for of in found)
    smallest = min(float(of.diagonal().min()) for of in found)
    if smallest < _RIDGE * largest:
        found += _RIDGE * largest * np.eye(rounds)
    return found


def patterns(rounds: int, period: int) -> list[NDArray[np.int64]]:
    """The rounds, from 0, of each pattern j, j + period, ..

    >>> [p.tolist() for p in patterns(5, 2)]
    [[0, 2, 4], [1, 3]]
    """
    return [np.arange(j, rounds, period) for j in range(period)]


def checked_steps(rounds: int, step_sizes: Sequence[float]) -> Matrix:
    """Learning rates relative to their largest, (T,).

    Raises:
        ValueError: not one for each round, or one that is not above 0.
    """
    for size in step_sizes:
        check_real("step size", size)
    eta = np.asarray(step_sizes if len(step_sizes) else np.ones(rounds), dtype=np.float64)
    if eta.shape != (rounds,) or not (np.isfinite(eta) & (eta > 0)).all():
        raise InputError(
            f"step_sizes of length {len(eta)} must be rounds={rounds} finite numbers above 0; "
            "give the learning rate of each round"
        )
    if eta.min() < 1e-6 * eta.max():
        raise InputError(
            f"step_sizes, the learning rates, from {eta.min():g} to {eta.max():g} must lie within "
            "a factor of 1e6 for a design of noise; end the run where the learning rate vanishes"
        )
    return np.asarray(eta / eta.max())


def count(name: str, value: SupportsIndex, most: int) -> int:
    """A whole number of rounds from 1 to `most`, or it is refused."""
    return whole(name, value, f"[1, {most}]", "choose another number of rounds")


def strategy_of(gram: Matrix, *, period: int) -> Matrix:
    """C, (T, T), of the best noise over time that every agent makes for itself.

    Args:
        gram: (T, T), of the mean agent: those of `grams`, weighted as `modes_of` says.
        period: b: a record is used at most in rounds j, j + b, ..

    Source: MAFALDA-SGD, arXiv 2510.17480.

    >>> C = strategy_of(np.tri(3).T @ np.tri(3), period=3)  # of sums over three rounds
    >>> C.diagonal().round(3).tolist(), (C**2).sum(axis=0).round(6).tolist()  # one use costs mu 1
    ([0.866, 0.935, 1.0], [1.0, 1.0, 1.0])
    """
    found = optimum(gram[None], np.ones((1, 1)), patterns(len(gram), period))
    return lower_factor(found.precisions[0])


def lower_factor(precision: Matrix) -> Matrix:
    """C, lower triangular with C'C = precision: Cholesky with time reversed.

    >>> lower_factor(np.array([[5.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 0.0], [2.0, 1.0]]
    """
    upper = np.linalg.cholesky(precision[::-1, ::-1]).T
    return np.ascontiguousarray(upper[::-1, ::-1], dtype=np.float64)


# Strategies with p coefficients that are the same in every round: for long runs.
#
# C is lower triangular with C[t, t-j] = c_j for j < p, so noise C^-1 z goes through 1 / c(x), what
# an eigenspace with eigenvalue lambda makes of it is the series
#
#     h(x) = lambda / ((1 - lambda x) c(x)),     cost = sum_(j < T) (T - j) h_j^2,
#
# and its derivative by c_j takes h / c. A filter of p coefficients over T rounds is all that a
# value or a gradient costs. Columns of C of one pattern do not meet where p <= period, so a record
# costs the sum of their norms.

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


def best_filter(eigenvalues: ArrayLike, *, weights: ArrayLike, rounds: int, bands: int) -> Filter:
    """The c of norm 1 whose noise costs least, added up over eigenspaces by their weights.

    Args:
        eigenvalues: (modes,) of W.
        weights: (modes,), at least 0.
        rounds: T.
        bands: p, at most T.

    >>> found = best_filter([1.0], weights=[1.0], rounds=50, bands=2)
    >>> found.coefficients.round(4).tolist()
    [0.8158, 0.5783]
    """
    from scipy.signal import lfilter

    values = np.asarray(eigenvalues, dtype=np.float64)
    shares = np.asarray(weights, dtype=np.float64)
    # What mixing removes, or nothing weighs, costs nothing.
    used = (values != 0) & (shares > 0)
    values, shares = values[used], shares[used]
    heard = np.cumprod(np.repeat(values[:, None], rounds, axis=1), axis=1)  # lambda^1 .. lambda^T
    left = rounds - np.arange(rounds)
    if not used.any():
        return Filter(coefficients=np.eye(1, bands)[0], cost=0.0)

    # The log of the cost of c at norm 1, and its slope.
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

    return _minimised(cost, bands=bands, mean=float(shares @ values / shares.sum()))


def best_filter_of(gram: Matrix, *, bands: int) -> Filter:
    """The same for any Gram matrix, such as that of learning rates that differ.

    With G = C^-1 the cost is tr(K G G'), and its derivative by c_j is -2 tr(G G' K G S_j), S_j the
    shift by j rounds.

    Args:
        gram: K, (T, T), positive definite.
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
        period: b.
    """
    of = shares / shares.sum(axis=0)
    total = 0.0
    for k, value in enumerate(modes.eigenvalues):
        total += float(modes.weights[k]) * diagonal_bound(float(value), of[:, k] @ multipliers)
    largest = [
        sum(float(multiplier[taken].max()) for taken in patterns(rounds, period))
        for multiplier in multipliers
    ]
    return total**2 / float(np.mean(largest)) / rounds


def one_precision_bound(modes: Modes, *, rounds: int, period: int) -> float:
    """What noise costs at least that all agents make alike over time, per agent and round."""
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
