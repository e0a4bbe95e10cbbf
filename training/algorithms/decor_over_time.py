"""DECOR over time: own noise and secrets of pairs, part of which is taken back in later rounds.

It has no paper of its own, and joins the noise of two:

Y. Allouah, A. Koloskova, A. El Firdoussi, M. Jaggi, R. Guerraoui, "The Privacy Power of Correlated
Noise in Decentralized Learning", ICML 2024, arXiv 2405.01031: secrets that pairs add and subtract.
A. Bellet, E. Cyffers, D. Frey, R. Gaudel, D. Lerévérend, F. Taïani, "Unified Privacy Guarantees for
Decentralized Learning via Matrix Factorization", 2025, arXiv 2510.17480: memory.

    1  C minimises the noise in the models at equal mu of a record that is used in rounds j, j + b,
       ..., for noise of the covariance that step 2 has across agents
    2  z_i = a^.5 u_i + (a r)^.5 sum over links {i, j} of +- p_ij,  u_i, p_ij ~ N(0, s^2 C^2 I)
             p_ij is made by both ends from a seed of theirs, added by i and subtracted by j > i
    3  n_i = C^-1 z_i over the rounds
    4  x_i <- sum_j W_ij (x_j - eta (sum_b clip(grad_b F(x_j), C) + n_j,t) / B)

| symbol | name here     | shape        | meaning                                                  |
|--------|---------------|--------------|----------------------------------------------------------|
| x      | x             | (A, D)       | models                                                   |
| W      | round.weights | (E, 1)       | mixing weights, symmetric; their links share seeds       |
| C of 1 | strategy      | (T, p)       | strategy over rounds; row t from its diagonal backwards  |
| F      | shared.factor | (A, sources) | z = F (u, p); own sources, then those of pairs           |
| n      | past          | (A, D)       | noise that the last p - 1 rounds added, latest first     |
| r      | correlation   | scalar       | variance of a pair's noise over that of own noise        |
| a      | -             | scalar       | so that max_i [R^-1]_ii = 1 for R = F F'                 |
| b      | period        | scalar       | rounds between two uses of a record; 0 is one use        |
| p      | bands         | scalar       | rounds that a round's noise takes part in; 0 is all      |
| C of 4 | clip_norm     | scalar       | bound on one example's gradient                          |
| s C    | noise_std     | scalar       | noise on a sum that F and C^-1 are relative to           |
| B      | batch_size    | scalar       | public normaliser: the expected batch size               |
| eta    | learning_rate | scalar       | step size                                                |

What protects from whom: an eavesdropper knows no seed, and all rounds are one release to it. A
neighbour knows the seeds of its own links and its own noise, over all rounds, and a record costs
more behind what is left; an agent all of whose neighbours pool what they know has its own noise
alone, of variance a. State [privacy] participation = { cycle = b } with the same b.

r is that of `overhear.privacy.noise.design` unless it is given: the best against an eavesdropper.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...privacy.noise.correlated import check_pair_ratio, decor_factor
from ...privacy.noise.design import Kind, design
from ..graphs.graph import Topology
from . import strategy as of_strategy
from .algorithm import Algorithm
from .correlated_step import SharedNoise, shared_noise, unsteered
from .dp_ftrl import State, init
from .strategy import graph_of, row_of, strategy_table, weighed_steps

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.round import Round


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters.

    Attributes:
        correlation: variance of a pair's noise over that of own noise, at least 0; 0 is MAFALDA.
            By default the best one for the graph and the rounds.
        period: b, as of mafalda.
        bands: p, as of mafalda.
    """

    correlation: float | None = None
    period: int = 0
    bands: int = 8

    def __post_init__(self) -> None:
        """Check the ranges."""
        of_strategy.Settings(period=self.period, bands=self.bands)
        if self.correlation is not None:
            check_pair_ratio(self.correlation, best="the best one")


@functools.lru_cache(64)
def _best_ratio(
    weights: bytes, agents: int, rounds: int, period: int, bands: int, steps: tuple[float, ...]
) -> float:
    W = np.frombuffer(weights).reshape(agents, agents)
    apart = min(period or rounds, rounds)
    few = min(bands, apart) if 0 < bands < rounds else None
    return design(
        Kind.PAIRS, W, rounds=rounds, period=apart, bands=few, step_sizes=steps, certified=False
    ).ratio


def prepare(
    *,
    graph: Topology,
    rounds: int,
    correlation: float | None,
    period: int,
    bands: int,
    step_sizes: tuple[float, ...] = (),
) -> dict[str, object]:
    """Steps 1 and 2: the strategy, the factor, and who knows each of its sources.

    Raises:
        ValueError: a graph that changes or has no links, weights that are not symmetric, or more
            rounds than a strategy is looked for.
    """
    weights = graph_of(graph, algorithm="decor-over-time").weights
    table_of = functools.partial(
        strategy_table,
        weights,
        rounds=rounds,
        period=period,
        bands=bands,
        algorithm="decor-over-time",
        step_sizes=step_sizes,
    )
    table = table_of()  # refuses what has none
    if correlation is None:
        held = np.ascontiguousarray(weights, dtype=np.float64)
        steps = weighed_steps(step_sizes, rounds=rounds)
        correlation = _best_ratio(held.tobytes(), len(held), rounds, period, bands, steps)
    if correlation > 0:
        table = table_of(ratio=correlation)
    sources = decor_factor(weights, local_variance=1.0, pair_variance=correlation)
    sources = sources[:, sources.any(axis=0)]  # no pairs where the ratio is 0
    known_to = [frozenset(np.flatnonzero(column).tolist()) for column in sources.T]
    return {"strategy": table, "shared": shared_noise(sources, known_to)}


def step(
    state: State,
    round: Round,
    *,
    strategy: Tensor,
    shared: SharedNoise,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round: step, then mix; the numbers are the steps above."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    fresh = shared.drawn(round, sums, std=noise_std)  # 2
    noise, past = round.remembered(fresh, state.past, row=row_of(strategy, round))  # 3
    x = state.x - learning_rate * (sums + noise) / batch_size
    return State(round.mix(x, kind="model"), past)  # 4


ALGORITHM = Algorithm(
    name="decor-over-time",
    init=init,
    step=step,
    settings=Settings,
    prepare=prepare,
    unsteered=unsteered,
)
