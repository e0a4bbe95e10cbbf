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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..covariance import Matrix
from .dual import optimum
from .workload import MOST_DENSE, count, grams, modes_of, patterns

__all__ = ["TimeStrategy", "lower_factor", "time_strategy"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TimeStrategy:
    """A strategy over time with its certificate.

    Attributes:
        matrix: C, (T, T), lower triangular, read-only; a record costs mu 1 at noise multiplier 1.
        period: rounds between two uses of a record.
        energy: of the noise in the models, per agent, round and coordinate, at noise std 1.
        lower_bound: proven for every noise that agents make each for itself over time.
    """

    matrix: Matrix
    period: int
    energy: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """Proven relative distance of the energy from the optimum."""
        return self.energy / self.lower_bound - 1.0


def time_strategy(
    weights: ArrayLike,
    *,
    rounds: int,
    period: int | None = None,
    step_sizes: Sequence[float] = (),
) -> TimeStrategy:
    """The best noise over time that every agent makes for itself.

    Args:
        weights: W, (A, A), symmetric mixing weights.
        rounds: T, from 1 to 200.
        period: b: a record is used at most in rounds j, j + b, ..; T, one use, when None, and 1 for
            a record that may be used in every round.
        step_sizes: learning rate of each round; all equal when not given.

    Returns:
        C with its certificate; every diagonal entry is above 0.

    Raises:
        ValueError: weights that are no symmetric mixing matrix, or numbers out of range.
        TypeError: a number that is none.

    Source: MAFALDA-SGD, arXiv 2510.17480.

    >>> ring = np.eye(4) / 3 + (np.eye(4)[[1, 2, 3, 0]] + np.eye(4)[[3, 0, 1, 2]]) / 3
    >>> found = time_strategy(ring, rounds=6)
    >>> round(found.energy, 6), found.gap < 1e-9
    (0.626012, True)
    """
    rounds = count("rounds", rounds, MOST_DENSE)
    period = rounds if period is None else count("period", period, rounds)
    modes = modes_of(weights)
    of_modes = grams(modes.eigenvalues, rounds=rounds, step_sizes=step_sizes)
    return strategy_of(np.einsum("k,kst->st", modes.weights, of_modes), period=period)


def strategy_of(gram: Matrix, *, period: int) -> TimeStrategy:
    """The best strategy for one Gram matrix, (T, T), of the mean agent."""
    rounds = len(gram)
    found = optimum(gram[None], np.ones((1, 1)), patterns(rounds, period))
    matrix = lower_factor(found.precisions[0])
    matrix.setflags(write=False)
    return TimeStrategy(
        matrix=matrix,
        period=period,
        energy=found.cost / rounds,
        lower_bound=found.lower_bound / rounds,
    )


def lower_factor(precision: Matrix) -> Matrix:
    """C, lower triangular with C'C = precision: Cholesky with time reversed.

    >>> lower_factor(np.array([[5.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 0.0], [2.0, 1.0]]
    """
    upper = np.linalg.cholesky(precision[::-1, ::-1]).T
    return np.ascontiguousarray(upper[::-1, ::-1], dtype=np.float64)
