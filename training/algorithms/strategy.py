"""A strategy over rounds as the table that a step reads, row by row.

    C is lower triangular, n = C^-1 z, and M = C'C is what one who sees all messages learns
    bands p      C[t, s] = 0 where t - s >= p: the optimum without what lies outside, or the best
                 strategy that is the same in every round, whichever leaves less noise
    long runs    above 200 rounds a strategy is the same in every round, a table of one row
rates        where learning rates differ, it is best for noise that reaches the models by them; a
             strategy of a long run is that of equal ones
    scale        the largest sum of M_ss over the rounds j, j + b, ... is 1

| symbol | name here  | shape           | meaning                                                |
|--------|------------|-----------------|--------------------------------------------------------|
| C      | matrix     | (T, T)          | strategy                                               |
| C_k    | strategies | (modes, T, T)   | of each eigenspace of W, where agents share their seed |
| w_ik   | shares     | (agents, modes) | how much of agent i lies in eigenspace k               |
| M_i    | -          | (T, T)          | sum_k w_ik C_k'C_k                                     |
| b      | period     | scalar          | rounds from one use of a record to the next; T of one  |
| p      | bands      | scalar          | rounds that the noise of a round takes part in         |

With the scale a record that is used every b-th round costs mu 1 at noise multiplier 1, if M has no
entry between two rounds of one pattern; the figure of a run is that of its trace, whatever the
scale is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...privacy.noise import over_time
from ...privacy.noise.correlated import decor_covariance
from ...privacy.noise.design import Kind, design, toeplitz_strategy
from ...privacy.noise.over_time import MOST_ROUNDS

if TYPE_CHECKING:
    from torch import Tensor

    from ..graphs.graph import Graph, Topology
    from ..step.round import Round


_NOTHING = 1e-9  # of an entry, over the largest one
_LONG_BANDS = 32  # coefficients by default in a run too long for a strategy of every round

Array = NDArray[np.float64]


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
        bands: p, rounds that the noise of a round takes part in; 0 is all of the run. Above 200
            rounds at most the period, and 0 is 32.
    """

    period: int = 0
    bands: int = 8

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check_numbers(period=self.period, bands=self.bands)


def graph_of(graph: Topology, *, algorithm: str) -> Graph:
    """The graph of all rounds, for whose weights a strategy is made.

    Raises:
        ValueError: it changes, or has no links.
    """
    static = graph.lasting
    if static is None or not static.has_links:
        what = "changes from round to round" if static is None else "has no links between agents"
        raise InputError(
            f"graph {graph.name!r} {what}, and the noise of {algorithm!r} is made for one way to "
            "mix; use a static graph with links"
        )
    return static


def row_of(table: Tensor, round: Round) -> Tensor:
    """A round's row of a strategy; of one that is the same in every round its only row."""
    return table[0] if len(table) == 1 else table[round.index - 1]


def strategy_table(
    weights: Array,
    *,
    rounds: int,
    period: int,
    bands: int,
    algorithm: str,
    ratio: float = 0.0,
    step_sizes: tuple[float, ...] = (),
) -> Tensor:
    """The best strategy for mixing weights as a table, row t from its diagonal backwards.

    Args:
        weights: W, (A, A), symmetric.
        rounds: T.
        period: b; 0 is T, and so is more.
        bands: p; 0 is T.
        algorithm: its name, for words.
        ratio: variance of pair secrets over that of own noise, which the strategy is best for.
        step_sizes: learning rate of each round; equal ones by default, and above 200 rounds.

    Returns:
        (T, p) float64; (1, p) above 200 rounds.

    Raises:
        ValueError: more rounds than a strategy is looked for, or weights that are not symmetric.
    """
    import torch

    held = _checked(weights, rounds=rounds, algorithm=algorithm)
    steps = weighed_steps(step_sizes, rounds=rounds)
    table = _table(held.tobytes(), len(held), ratio, *_asked(rounds, period, bands), steps)
    return torch.from_numpy(table.copy())


def joint_tables(
    weights: Array,
    *,
    rounds: int,
    period: int,
    bands: int,
    algorithm: str,
    step_sizes: tuple[float, ...] = (),
) -> Tensor:
    """The best strategy for each eigenspace of mixing weights; the arguments are those above.

    Returns:
        (modes, T, p) float64 in the order of `modes_of`; (modes, 1, p) above 200 rounds.

    Raises:
        ValueError: as above.
    """
    import torch

    held = _checked(weights, rounds=rounds, algorithm=algorithm)
    steps = weighed_steps(step_sizes, rounds=rounds)
    tables = _joint(held.tobytes(), len(held), *_asked(rounds, period, bands), steps)
    return torch.from_numpy(tables.copy())


def weighed_steps(step_sizes: tuple[float, ...], *, rounds: int) -> tuple[float, ...]:
    """The learning rates that a strategy is made for; () where it is that of equal ones.

    >>> weighed_steps((0.2, 0.1), rounds=2), weighed_steps((0.1,) * 500, rounds=500)
    ((0.2, 0.1), ())
    """
    return step_sizes if rounds <= over_time.MOST_DENSE else ()


def matrix_of(table: Array, *, rounds: int) -> Array:
    """C, (T, T), of a table.

    >>> matrix_of(np.array([[2.0, 0.5]]), rounds=3).tolist()
    [[2.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.0, 0.5, 2.0]]
    """
    C = np.zeros((rounds, rounds))
    for t in range(rounds):
        row = table[t if len(table) > 1 else 0][: t + 1]
        C[t, t - np.arange(len(row))] = row
    return C


def pair_variances(weights: Array, modes: over_time.Modes, *, ratio: float) -> Array:
    """(modes,) of own noise of variance 1 and pair secrets of variance `ratio`, on average.

    >>> W = np.full((2, 2), 0.5)
    >>> pair_variances(W, over_time.modes_of(W), ratio=3.0).round(9).tolist()
    [7.0, 1.0]
    """
    laplacian = decor_covariance(weights, local_variance=0.0, pair_variance=1.0)
    sizes = np.einsum("kij,ij->k", modes.projectors, laplacian)
    return np.asarray(1.0 + ratio * sizes / np.einsum("kii->k", modes.projectors))


def _checked(weights: Array, *, rounds: int, algorithm: str) -> Array:
    if rounds > MOST_ROUNDS:
        raise InputError(
            f"rounds={rounds} of {algorithm!r}: the best strategy is found for {MOST_ROUNDS} "
            "rounds at most; use fewer rounds, each of a larger batch"
        )
    return np.ascontiguousarray(weights, dtype=np.float64)


def _asked(rounds: int, period: int, bands: int) -> tuple[int, int, int]:
    """T, b and p, with what 0 stands for."""
    apart = min(period or rounds, rounds)
    if rounds > over_time.MOST_DENSE:
        return rounds, apart, min(bands or _LONG_BANDS, apart)
    return rounds, apart, min(bands or rounds, rounds)


class _Strategies:
    """Strategies of one run, and what their noise costs.

    Args:
        of_modes: K_k, (modes, T, T).
        weights: (modes,), of each in the mean over agents.
        shares: (agents, modes); agents that are alike stand here once.
    """

    def __init__(self, of_modes: Array, weights: Array, shares: Array, *, period: int) -> None:
        self._grams, self._weights, self._shares = of_modes, weights, shares
        self._period, self._rounds = period, of_modes.shape[1]

    def _learnt(self, strategies: Array) -> Array:
        """M_i, (agents, T, T)."""
        squares = strategies.transpose(0, 2, 1) @ strategies
        return np.einsum("ik,kst->ist", self._shares, squares)

    def cost_of_turns(self, strategies: Array) -> float:
        """Energy of the noise in the models where a turn of a record costs mu 1."""
        squares = strategies.transpose(0, 2, 1) @ strategies
        energies = np.trace(np.linalg.solve(squares, self._grams), axis1=1, axis2=2)
        largest = np.diagonal(self._learnt(strategies), axis1=1, axis2=2).max()
        return float(self._weights @ energies * largest)

    def scaled(self, strategies: Array) -> Array:
        """The same, where a record's turns cost mu 1 together."""
        diagonals = np.diagonal(self._learnt(strategies), axis1=1, axis2=2)  # (agents, T)
        turns = [diagonals[:, first :: self._period].sum(axis=1) for first in range(self._period)]
        return np.asarray(strategies / np.sqrt(np.max(turns)))

    def tables(self, every: Sequence[Array], *, bands: int) -> Array:
        """(modes, T, bands) of the candidate that costs least."""
        banded = [np.triu(strategies, 1 - bands) for strategies in every]
        for strategies in banded:  # what rounding left of the optimum, where it has nothing
            sizes = np.abs(strategies)
            strategies[sizes < _NOTHING * sizes.max(axis=(1, 2), keepdims=True)] = 0.0
        C = self.scaled(min(banded, key=self.cost_of_turns))
        found = np.zeros((len(C), self._rounds, bands))
        for back in range(bands):
            found[:, back:, back] = np.diagonal(C, -back, axis1=1, axis2=2)
        return found


def _long(filters: Array, shares: Array, *, rounds: int, period: int) -> Array:
    """(modes, 1, p), scaled, of filters (modes, p) with at most `period` coefficients."""
    bands = filters.shape[1]
    ending = np.cumsum(np.square(filters), axis=1)  # of the last columns, which the run cuts off
    columns = np.concatenate(
        [np.repeat(ending[:, -1:], rounds - bands, axis=1), ending[:, ::-1]], axis=1
    )
    of = shares @ columns  # (agents, T)
    worst = max(of[:, first::period].sum(axis=1).max() for first in range(period))
    return np.asarray(filters[:, None, :] / np.sqrt(worst))


@functools.lru_cache(64)
def _table(
    weights: bytes,
    agents: int,
    ratio: float,
    rounds: int,
    period: int,
    bands: int,
    steps: tuple[float, ...],
) -> Array:
    W = np.frombuffer(weights).reshape(agents, agents)
    modes = over_time.modes_of(W)
    costs = modes.weights * pair_variances(W, modes, ratio=ratio)

    def filtered() -> Array:
        return over_time.best_filter(
            modes.eigenvalues, weights=costs, rounds=rounds, bands=bands
        ).coefficients

    if rounds > over_time.MOST_DENSE:
        return _long(filtered()[None], np.ones((1, 1)), rounds=rounds, period=period)[0]
    of_modes = over_time.grams(modes.eigenvalues, rounds=rounds, step_sizes=steps)
    gram = np.einsum("k,kst->st", costs, of_modes)
    every = [over_time.strategy_of(gram, period=period)[None]]
    if bands < rounds and bands <= period:  # turns are counted one by one
        found = over_time.best_filter_of(gram, bands=bands).coefficients if steps else filtered()
        every.append(toeplitz_strategy(found, rounds)[None])
    strategies = _Strategies(gram[None], np.ones(1), np.ones((1, 1)), period=period)
    return strategies.tables(every, bands=bands)[0]


@functools.lru_cache(64)
def _joint(
    weights: bytes, agents: int, rounds: int, period: int, bands: int, steps: tuple[float, ...]
) -> Array:
    W = np.frombuffer(weights).reshape(agents, agents)
    modes = over_time.modes_of(W)
    shares = modes.shares[:1] if modes.alike else modes.shares
    asked = functools.partial(
        design, Kind.JOINT, W, rounds=rounds, step_sizes=steps, certified=False
    )
    if rounds > over_time.MOST_DENSE:
        filters = np.stack(asked(period=period, bands=bands).filters)
        return _long(filters, shares, rounds=rounds, period=period)
    every = [np.stack(asked(period=period).strategies())]
    if bands < rounds and bands <= period:
        every.append(np.stack(asked(bands=bands).strategies()))
    of_modes = over_time.grams(modes.eigenvalues, rounds=rounds, step_sizes=steps)
    return _Strategies(of_modes, modes.weights, shares, period=period).tables(every, bands=bands)
