"""Noise that is correlated across agents: it hides each message and cancels when messages mix.

A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD: Correlated Noise Across Agents for Differentially
Private Decentralized Learning", arXiv 2501.14644 (from its second version on CorN-DSGD,
"Optimizing Privacy-Utility Trade-off in Decentralized Learning with Generalized Correlated Noise").
Y. Allouah, A. Koloskova, A. El Firdoussi, M. Jaggi, R. Guerraoui, "The Privacy Power of Correlated
Noise in Decentralized Learning" (DECOR), ICML 2024, arXiv 2405.01031.

    a round      x <- W (x - eta (g + v)),  v ~ N(0, R) across agents, for each coordinate alike
    LDP          R = a I
    DECOR        R = a I + c L:  own noise, and one secret seed a link, added at one end and
                 subtracted at the other
    Whisper      R minimises tr(W R W^T)  subject to  [R^-1]_ii <= bound for every agent i

The solver works on the dual: F^T F = M (F = W for one round), one weight lam_i > 0 an agent,
l = diag(lam)^.5.

    U s V^T = (F l)^T            singular values, U (A, A)
    R^-1    = l^-1 U s U^T l^-1  (then R M R = l^2: stationary)
    d_i     = [R^-1]_ii;  R d_max is feasible for bound 1 and costs sum(s) d_max
    lower bound on every feasible cost: sum(s)^2 / sum(lam)
    log lam <- log lam + K^-1 diag(U s U^T) log(d),  K_ij = sum_kl U_ik U_jk U_il U_jl s_k s_l/(s_k + s_l)

| symbol | name here                    | shape  | unit        | meaning                            |
|--------|------------------------------|--------|-------------|------------------------------------|
| W      | weights                      | (A, A) | -           | W[i, j]: weight i gives to j       |
| R      | covariance                   | (A, A) | norm^2      | noise on sums of clipped gradients |
| a, c   | local_variance, pair_variance| scalar | norm^2      | DECOR's two kinds of noise         |
| L      | Laplacian of the links       | (A, A) | -           | self-loops do not count            |
| M      | F^T F                        | (A, A) | -           | what a unit of covariance costs    |
| eta    | step_sizes                   | (T,)   | -           | learning rates of the rounds       |

What R guarantees, and for whom: an eavesdropper reads g + v of all agents. One record moves one
row of g by at most clip_norm (twice that if the record is replaced), so a round is
mu-GDP for agent i with mu = clip_norm * sqrt([R^-1]_ii) <= clip_norm * sqrt(bound), and rounds add
up as mu^2. This holds for an onlooker who knows *no* noise. An agent that can compute its own row
of Whisper's v from a common seed computes everybody's: against it epsilon is infinite. A DECOR
agent knows its own noise and the seeds of its own links. If an agent drops out of a round, what
its noise was to cancel stays, and what hid its neighbours is gone: R speaks about full attendance.

Where we differ from the paper: the printed constraint has its inequality reversed; the dual is
solved by Newton steps to a certified gap, and the covariance is scaled until the constraint holds,
where a general semidefinite solver returns matrices that violate it slightly. The cost can be that
of the final models (`rounds`); the papers' cost, one round, is greedy. Calibration of the bound is
left to the accountant: bound = 1 / noise_multiplier^2 with R in units of clip_norm^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "WhisperNoise",
    "decor_covariance",
    "decor_factor",
    "factor",
    "noise_floor",
    "optimise_covariance",
    "victim_information",
    "whisper_covariance",
]

Matrix = NDArray[np.float64]

_RIDGE = 1e-9  # share of M's largest eigenvalue; noise then grows to 180 times that of LDP at most
_SINGULAR = 1e-6  # singular values of F below this share of the largest: R would grow without limit
_GAP = 1e-10  # the usual end is 1e-14; above 1e-6 the golden tables would show it
_STEPS = 200  # 6 to 12 are usual
_LONGEST = 4.0  # of a Newton step, in log lam
_ROUNDING = 1e-12  # relative: below this a square of noise is none


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WhisperNoise:
    """An optimised covariance with its certificate.

    Attributes:
        covariance: R, (A, A), read-only; variance per coordinate on the sums of clipped gradients.
        bound: the largest [R^-1]_ii, in 1 / norm^2.
        objective: tr(M R), the expected noise energy per coordinate, all agents together.
        gap: proven relative distance of the (ridged) objective from the optimum, >= 0 up to
            rounding.
        iterations: Newton steps taken.
        ridge: what was added to M's diagonal; 0 when W is not singular.
    """

    covariance: Matrix
    bound: float
    objective: float
    gap: float
    iterations: int
    ridge: float

    def __post_init__(self) -> None:
        """Check what later figures rest on."""
        largest = float(victim_information(self.covariance).max())
        if not largest <= self.bound * (1 + 1e-9):
            raise ValueError(
                f"largest [R^-1]_ii = {largest} exceeds bound={self.bound}; multiply the "
                "covariance by their ratio"
            )
        self.covariance.setflags(write=False)


def decor_covariance(weights: ArrayLike, *, local_variance: float, pair_variance: float) -> Matrix:
    """R = a I + c L: independent noise, and noise that cancels over each link.

    Args:
        weights: W or an adjacency matrix, (A, A); a link is where an entry off the diagonal is not
            zero, in both directions. The sizes of the entries do not matter.
        local_variance: a, variance of an agent's own noise, in norm^2, >= 0; with 0 the sum of all
            messages is free of noise and `victim_information` is infinite.
        pair_variance: c, variance of the noise of one link, in norm^2, >= 0.

    Returns:
        R, (A, A).

    Raises:
        ValueError: If weights is not square and finite, a link has one direction only, or a
            variance is negative or not finite.

    Source: Allouah et al. 2024, Algorithm 1.

    Examples:
        >>> R = decor_covariance(np.ones((3, 3)), local_variance=1.0, pair_variance=2.0)
        >>> R[0].tolist(), round(2 * float(victim_information(R)[0]) ** 0.5, 6)  # mu for 2C, C=1
        ([5.0, -2.0, -2.0], 1.309307)
    """
    root = decor_factor(weights, local_variance=local_variance, pair_variance=pair_variance)
    laplacian = _incidence(_links(weights))
    del root  # built for its checks alone: products of square roots would round R
    return local_variance * np.eye(len(laplacian)) + pair_variance * (laplacian @ laplacian.T)


def decor_factor(weights: ArrayLike, *, local_variance: float, pair_variance: float) -> Matrix:
    """The noise sources behind `decor_covariance`, one column each.

    Args:
        weights: W or an adjacency matrix, (A, A), with links in both directions.
        local_variance: a, in norm^2, >= 0.
        pair_variance: c, in norm^2, >= 0.

    Returns:
        B, (A, A + links), with B B^T = R: first every agent's own source, then one source a link
        i < j in lexicographic order, added by i and subtracted by j. Exactly the agents whose rows
        a column enters know that source.

    Raises:
        ValueError: As `decor_covariance`.

    Examples:
        >>> decor_factor(np.ones((2, 2)), local_variance=1.0, pair_variance=4.0).tolist()
        [[1.0, 0.0, 2.0], [0.0, 1.0, -2.0]]
    """
    for name, value in (("local_variance", local_variance), ("pair_variance", pair_variance)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}={value} must lie in [0, inf); it is a variance, not a ratio")
    incidence = _incidence(_links(weights))
    own = math.sqrt(local_variance) * np.eye(len(incidence))
    return np.hstack([own, math.sqrt(pair_variance) * incidence])
