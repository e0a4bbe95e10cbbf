"""What reaches the models of the noise that is added: a Gram matrix for each eigenvalue of W.

Every round x_t = W (x_(t-1) - eta_t (g_t + n_t)), so the models after round t hold the noise of
round s as eta_s W^(t-s+1) n_s. The energy of all of it, over agents, rounds and coordinates alike,
is tr(K Cov(n)) / (A T), and K splits over the eigenspaces of a symmetric W:

    K_k[s, s'] = eta_s eta_s' sum_(t >= s, s') lambda_k^(t-s+1) lambda_k^(t-s'+1)

| symbol   | name here    | shape        | meaning                                               |
|----------|--------------|--------------|-------------------------------------------------------|
| W        | weights      | (A, A)       | symmetric mixing weights                              |
| lambda_k | eigenvalues  | (modes,)     | different eigenvalues of W                            |
| Pi_k     | projectors   | (modes, A, A)| onto their eigenspaces                                |
| u_ik^2   | shares       | (A, modes)   | [Pi_k]_ii: how much of agent i lies in eigenspace k   |
| K_k      | grams        | (modes, T, T)| what noise of an eigenspace costs                     |
| eta      | step_sizes   | (T,)         | learning rates, relative to each other                |

A record is used in the rounds of one pattern: j, j + b, j + 2 b, .. for a period b. Period T is one
use, period 1 is every round.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._validate import check_real, whole
from ...errors import InputError
from ..covariance import Matrix, square_matrix

__all__ = ["Modes", "checked_steps", "count", "grams", "modes_of", "patterns"]

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
