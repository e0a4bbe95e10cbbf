"""The kinds of noise that are compared, and what a design of one of them says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ..covariance import Matrix
from .over_time import lower_factor

__all__ = ["Design", "Kind", "toeplitz_strategy"]


class Kind(StrEnum):
    """Along what noise is correlated."""

    INDEPENDENT = "independent"
    ACROSS = "across agents"
    TIME = "over time"
    JOINT = "joint"
    PAIRS = "pair secrets"

    @property
    def has_memory(self) -> bool:
        """Whether noise of a round is partly taken back later."""
        return self in (Kind.TIME, Kind.JOINT, Kind.PAIRS)

    @property
    def common_seed(self) -> bool:
        """Whether every agent can compute all noise.

        >>> [str(kind) for kind in Kind if kind.common_seed]
        ['across agents', 'joint']
        """
        return self in (Kind.ACROSS, Kind.JOINT)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Design:
    """Noise of one kind.

    Attributes:
        kind: of it.
        rounds: T.
        period: b: a record is used in rounds j, j + b, ..
        energy: of the noise in the models, per agent, round and coordinate, at noise multiplier 1.
        lower_bound: of the energy of every noise of the same sensitivity: of this kind, of
            kind "joint" of any kind where `of_all`.
        of_all: whether the bound holds for every noise; else for noise that has the eigenvectors
            of W.
        bands: coefficients of the strategy over time; 1 has no memory.
        precisions: (modes, T, T), or none where the strategy is a filter.
        filters: of each eigenspace, scaled; none where it is dense.
        variances: (modes,), of noise across agents, relative to that of the rest; of pair secrets
            1 + r times the Laplacian's eigenvalue.
        ratio: r of pair secrets; 0 else.
    """

    kind: Kind
    rounds: int
    period: int
    energy: float
    lower_bound: float
    of_all: bool
    bands: int
    precisions: Matrix | None = None
    filters: tuple[Matrix, ...] = ()
    variances: Matrix | None = None
    ratio: float = 0.0

    @property
    def gap(self) -> float:
        """Relative distance from the lower bound, 0 but for rounding; `inf` where none is known."""
        return self.energy / self.lower_bound - 1.0 if self.lower_bound > 0 else math.inf

    def strategies(self) -> list[Matrix]:
        """C of each eigenspace, (T, T), lower triangular, or one for all of them.

        >>> from .design import design
        >>> ring = np.eye(4) / 3 + (np.eye(4)[[1, 2, 3, 0]] + np.eye(4)[[3, 0, 1, 2]]) / 3
        >>> found = design(Kind.JOINT, ring, rounds=6, period=3)
        >>> len(found.strategies()), round(found.energy, 6), found.gap < 1e-6
        (3, 0.740224, True)
        """
        if self.precisions is not None:
            return [lower_factor(one) for one in self.precisions]
        return [toeplitz_strategy(one, self.rounds) for one in self.filters]


def toeplitz_strategy(coefficients: Matrix, rounds: int) -> Matrix:
    """C, (T, T), lower triangular, with the same coefficients in every round.

    >>> toeplitz_strategy(np.array([1.0, 0.5]), 2).tolist()
    [[1.0, 0.0], [0.5, 1.0]]
    """
    from scipy.linalg import toeplitz

    column = np.zeros(rounds)
    column[: len(coefficients)] = coefficients[:rounds]
    return np.asarray(toeplitz(column, np.zeros(rounds)))
