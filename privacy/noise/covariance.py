"""What a covariance of noise across agents does: whom it hides, and what of it reaches the models.

Every round the agents add v ~ N(0, R) to their messages, for each coordinate alike, and mix:
x <- W (x - eta (g + v)).

| symbol | name here  | shape  | unit   | meaning                              |
|--------|------------|--------|--------|--------------------------------------|
| W      | weights    | (A, A) | -      | W[i, j]: weight i gives to j         |
| R      | covariance | (A, A) | norm^2 | noise on the sums of clipped gradients |
| M      | F^T F      | (A, A) | -      | cost of covariance: tr(M R)          |
| eta    | step_sizes | (T,)   | -      | learning rates of the rounds         |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validate import check_real, whole
from ..errors import InputError, InputTypeError

__all__ = ["cost_factor", "factor", "noise_floor", "square_matrix", "victim_information"]

Matrix = NDArray[np.float64]

_LARGEST = 1e150  # of a matrix; squares of what lies beyond are no floats
_ROUNDING = 1e-12  # of an agent's variance; noise below it is none


def victim_information(covariance: ArrayLike) -> Matrix:
    """[R^-1]_ii: squared sensitivity over noise of each agent's record, per clip_norm^2.

    Args:
        covariance: R, (A, A), symmetric and positive semidefinite, in norm^2.

    Returns:
        (A,) in 1 / norm^2; mu of a round is clip_norm times its square root, for an eavesdropper
        who knows no noise. Infinite where the noise of a combination of messages cancels.

    Raises:
        ValueError: If covariance is not a covariance.

    >>> victim_information(np.diag([1.0, 4.0])).tolist()
    [1.0, 0.25]
    """
    R = _covariance(covariance)
    std = np.sqrt(R.diagonal())
    scale = np.where(std > 0, std, 1.0)  # the verdict must not depend on the agents' units
    values, vectors = np.linalg.eigh(R / np.outer(scale, scale))
    live = values > _ROUNDING * len(R)
    if live.all():
        root = np.linalg.inv(np.linalg.cholesky(R / np.outer(scale, scale)))
        found = np.square(root).sum(axis=0)
    else:
        found = np.square(vectors[:, live]) @ (1.0 / values[live])
    with np.errstate(over="ignore"):  # hardly any noise: infinite
        found = found / scale / scale
    hidden = np.square(vectors[:, ~live]).sum(axis=1)
    return np.where(hidden > _ROUNDING, math.inf, found)


def factor(covariance: ArrayLike) -> Matrix:
    """B with B B^T = R, the symmetric root: noise B z of unit normals z has covariance R.

    Every source enters the rows of all agents that are correlated with each other, so a trace that
    takes an agent to know the sources in its row concludes, rightly for a common seed, that each
    knows all of them. For DECOR's pairwise seeds use `decor_factor`.

    Args:
        covariance: R, (A, A), symmetric and positive semidefinite, in norm^2.

    Returns:
        B, (A, A), in norm; mix noise with it in float64.

    Raises:
        ValueError: If covariance is not a covariance.

    >>> factor([[5.0, 4.0], [4.0, 5.0]]).round(9).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    R = _covariance(covariance)
    if np.count_nonzero(R) == np.count_nonzero(R.diagonal()):
        return np.diag(np.sqrt(R.diagonal()))  # independent noise: each agent knows its own alone
    values, vectors = np.linalg.eigh(R)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def noise_floor(
    weights: ArrayLike,
    covariance: ArrayLike,
    *,
    rounds: int = 1,
    step_sizes: Sequence[float] = (),
) -> float:
    """Noise energy in the models after mixing, per coordinate, all agents together.

    With learning rates eta_t the models after T rounds carry the noise
    -sum_t eta_t W^(T-t+1) v_t (exactly, where gradients do not depend on the models). Its expected
    squared norm over agents, divided by sum_t eta_t^2, is

        sum_t eta_t^2 tr(W^k R (W^k)^T) / sum_t eta_t^2,   k = T - t + 1;   tr(W R W^T) for T = 1.

    Args:
        weights: W, (A, A); symmetric if rounds > 1.
        covariance: R, (A, A), in norm^2.
        rounds: T >= 1.
        step_sizes: eta_1 .. eta_T; all equal if not given.

    Returns:
        The energy, in norm^2. For a doubly stochastic W it is at least 1 / (A bound), what one
        server would have to add.

    Raises:
        ValueError: If shapes disagree, a number is out of range or covariance is none.
        TypeError: If rounds is not an integer, or a value is no number.

    >>> W = np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> noise_floor(W, np.eye(2)), round(noise_floor(W, np.eye(2), rounds=100), 5)
    (1.25, 1.00333)
    """
    cost = cost_factor(weights, rounds=rounds, step_sizes=step_sizes)
    R = _covariance(covariance)
    if R.shape != cost.shape:
        raise InputError(f"covariance {R.shape} and weights {cost.shape} must have the same shape")
    return float(np.vdot(cost @ R, cost))


def cost_factor(weights: ArrayLike, *, rounds: int, step_sizes: Sequence[float]) -> Matrix:
    """F with F^T F = M; never M itself, whose small eigenvalues would be lost in rounding."""
    W = square_matrix("weights", weights)
    whole("rounds", rounds, "[1, inf)")
    for step_size in step_sizes:
        check_real("step size", step_size)
    eta = np.asarray(step_sizes if len(step_sizes) else np.ones(rounds), dtype=np.float64)
    if eta.shape != (rounds,) or not (np.isfinite(eta) & (eta >= 0)).all() or not eta.any():
        raise InputError(
            f"step_sizes of length {len(eta)} must be rounds={rounds} numbers >= 0, not all 0"
        )
    if rounds == 1:
        return W
    if not np.allclose(W, W.T, rtol=0, atol=1e-12):
        raise InputError(
            f"weights must be symmetric for rounds={rounds}; symmetrise W or use rounds=1"
        )
    values, vectors = np.linalg.eigh(W)
    if np.abs(values).max() > 1 + 1e-9:
        raise InputError(
            f"weights has eigenvalue {values[np.abs(values).argmax()]:.6g}, outside [-1, 1]; "
            "rows of a mixing matrix sum to 1"
        )
    shares = np.square(eta / eta.max())
    squares = np.square(values)
    # Noise of round t is mixed T - t + 1 times: the first round is the highest power.
    energy = squares * np.polyval(shares / shares.sum(), squares)
    return np.sqrt(energy)[:, None] * vectors.T


def square_matrix(name: str, matrix: ArrayLike) -> Matrix:
    """A float64 copy of a finite (A, A) matrix; TypeError or ValueError for anything else."""
    given = np.asarray(matrix)
    if given.dtype.kind not in "biuf":
        raise InputTypeError(f"{name} must hold real numbers, not {given.dtype}")
    found = np.array(given, dtype=np.float64)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size:
        raise InputError(
            f"{name} of shape {found.shape} must be square, one row and column an agent"
        )
    if not np.isfinite(found).all():
        wrong = found[~np.isfinite(found)][0]
        raise InputError(f"{name} holds {wrong}, which is not finite; every entry is a number")
    if not (largest := float(np.abs(found).max())) <= _LARGEST:
        raise InputError(
            f"{name} holds {largest}, which must be at most {_LARGEST}; choose another unit"
        )
    return found


def _covariance(matrix: ArrayLike) -> Matrix:
    R = square_matrix("covariance", matrix)
    size = float(np.abs(R).max())
    if np.abs(R - R.T).max() > _ROUNDING * size:
        raise InputError("covariance must be symmetric; average it with its transpose")
    lowest = float(np.linalg.eigvalsh(R).min())
    if lowest < -_ROUNDING * len(R) * size:
        raise InputError(
            f"covariance has eigenvalue {lowest:.3g} and must have none below 0; no noise has it"
        )
    return R
