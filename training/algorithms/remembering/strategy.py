"""A strategy over rounds as the table that a step reads, row by row.

    C is lower triangular, n = C^-1 z, and M = C'C is what one who sees all messages learns
    bands p      C[t, s] = 0 where t - s >= p: the optimum without what lies outside, or the best
                 strategy that is the same in every round, whichever leaves less noise
    scale        the largest sum of M_ss over the rounds j, j + b, ... is 1

| symbol | name here | shape  | meaning                                                |
|--------|-----------|--------|--------------------------------------------------------|
| C      | matrix    | (T, T) | strategy                                               |
| b      | period    | scalar | rounds from one use of a record to the next; T of one  |
| p      | bands     | scalar | rounds that the noise of a round takes part in         |

With the scale a record that is used every b-th round costs mu 1 at noise multiplier 1, if M has no
entry between two rounds of one pattern; the figure of a run is that of its trace, whatever the
scale is.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ....privacy.errors import InputError
from ....privacy.noise.design.design import design
from ....privacy.noise.design.kinds import Kind
from ....privacy.noise.design.over_time import time_strategy
from ....privacy.noise.design.workload import grams, modes_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MOST_ROUNDS", "Settings", "strategy_table"]

_NOTHING = 1e-9  # of an entry, where those of a diagonal are about 1
MOST_ROUNDS = 200  # of a run whose optimum is looked for


def _check_numbers(*, period: int, bands: int) -> None:
    """Refuse a period or a number of bands that is none.

    Raises:
        ValueError: below 0.
    """
    for name, value, zero in (("period", period, "one use"), ("bands", bands, "all rounds")):
        if value < 0:
            raise InputError(f"{name}={value} must be at least 1, or 0 for {zero}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters.

    Attributes:
        period: b, rounds from one use of a record to the next that the strategy is made for; 0 is
            one use in the run.
        bands: p, rounds that the noise of a round takes part in; 0 is all of the run.
    """

    period: int = 0
    bands: int = 8

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check_numbers(period=self.period, bands=self.bands)


def strategy_table(
    weights: NDArray[np.float64], *, rounds: int, period: int, bands: int, algorithm: str
) -> Tensor:
    """The best strategy for mixing weights as a table, row t from its diagonal backwards.

    Args:
        weights: W, (A, A), symmetric.
        rounds: T.
        period: b; 0 is T, and so is more.
        bands: p; 0 is T.
        algorithm: its name, for words.

    Returns:
        (T, p) float64.

    Raises:
        ValueError: more rounds than an optimum is looked for, or weights that are not symmetric.

    >>> import torch
    >>> found = strategy_table(np.ones((1, 1)), rounds=4, period=0, bands=2, algorithm="a")
    >>> columns = found[:, 0] ** 2 + torch.cat([found[1:, 1], torch.zeros(1)]) ** 2
    >>> round(float(columns.max()), 6)
    1.0
    """
    import torch

    if rounds > MOST_ROUNDS:
        raise InputError(
            f"rounds={rounds} of {algorithm!r}: the best strategy is found for {MOST_ROUNDS} "
            "rounds at most; use fewer rounds, each of a larger batch"
        )
    held = np.ascontiguousarray(weights, dtype=np.float64)
    table = _table(
        held.tobytes(),
        len(held),
        rounds,
        min(period or rounds, rounds),
        min(bands or rounds, rounds),
    )
    return torch.from_numpy(table.copy())


def _cost_of_turns(W: NDArray[np.float64], C: NDArray[np.float64]) -> float:
    """Energy of noise C^-1 z in the models, where the largest column of C is what a turn costs."""
    modes = modes_of(W)
    gram = np.einsum("k,kst->st", modes.weights, grams(modes.eigenvalues, rounds=len(C)))
    M = C.T @ C
    return float(np.trace(np.linalg.solve(M, gram)) * M.diagonal().max())


@functools.lru_cache(64)
def _table(
    weights: bytes, agents: int, rounds: int, period: int, bands: int
) -> NDArray[np.float64]:
    W = np.frombuffer(weights).reshape(agents, agents)
    found = time_strategy(W, rounds=rounds, period=period)
    C = np.triu(found.matrix, 1 - bands)
    C[np.abs(C) < _NOTHING] = 0.0  # what rounding left of the optimum, where it has nothing
    if bands < rounds and bands <= period:  # turns are counted one by one
        made = design(Kind.TIME, W, rounds=rounds, bands=bands, certified=False)
        C = min(C, made.strategies()[0], key=functools.partial(_cost_of_turns, W))
    of_columns = np.square(C).sum(axis=0)
    worst = max(of_columns[first::period].sum() for first in range(period))
    C /= np.sqrt(worst)
    table = np.zeros((rounds, bands))
    for back in range(bands):
        table[back:, back] = np.diagonal(C, -back)
    return table
