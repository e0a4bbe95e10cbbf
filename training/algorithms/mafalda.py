"""MAFALDA-SGD: each agent's own noise, part of which it takes back in later rounds.

A. Bellet, E. Cyffers, D. Frey, R. Gaudel, D. Lerévérend, F. Taïani, "Unified Privacy Guarantees for
Decentralized Learning via Matrix Factorization", 2025, arXiv 2510.17480.

    1  C minimises the noise in the models, sum over rounds and agents, at equal mu of a record that
       is used in rounds j, j + b, ...
    2  n_i = C^-1 z_i over the rounds,  z_i ~ N(0, s^2 C^2 I), made and known by agent i alone
    3  x_i <- sum_j W_ij (x_j - eta (sum_b clip(grad_b F(x_j), C) + n_j,t) / B)

| symbol | name here     | shape  | meaning                                                  |
|--------|---------------|--------|----------------------------------------------------------|
| x      | x             | (A, D) | models                                                   |
| W      | round.weights | (E, 1) | mixing weights                                           |
| C of 1 | strategy      | (T, p) | strategy over rounds; row t from its diagonal backwards  |
| n      | past          | (A, D) | noise that the last p - 1 rounds added, latest first     |
| b      | period        | scalar | rounds between two uses of a record; 0 is one use        |
| p      | bands         | scalar | rounds that a round's noise takes part in; 0 is all      |
| C of 3 | clip_norm     | scalar | bound on one example's gradient                          |
| s C    | noise_std     | scalar | noise on a sum of gradients that C^-1 is relative to     |
| B      | batch_size    | scalar | public normaliser: the expected batch size               |
| eta    | learning_rate | scalar | step size                                                |

What protects from whom: every agent knows its own noise and no other's, so a neighbour learns of a
record what an eavesdropper does. All rounds are one release. State [privacy] participation =
{ cycle = b } with the same b: a record that may be in every round would cost far more, and
independent noise would be better for it.

Where we differ from the paper: the optimum is found on the dual, with a certificate. Above 200
rounds the strategy is the same in every round, with 32 coefficients or fewer. By default 8
bands are kept of it, which cost less memory and next to no noise; the paper keeps all (bands = 0).
With at most as many bands as the cycle is long a turn of a record is over before its next one, and
its secret coin amplifies. Published and repaired form are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graphs.graph import Topology
from .algorithm import Algorithm
from .dp_ftrl import State, init
from .strategy import Settings, graph_of, row_of, strategy_table

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.round import Round


def prepare(
    *, graph: Topology, rounds: int, period: int, bands: int, step_sizes: tuple[float, ...] = ()
) -> dict[str, object]:
    """Step 1: the strategy, for the mixing weights of the run.

    Raises:
        ValueError: a graph that changes or has no links, weights that are not symmetric, or more
            than 10,000 rounds.
    """
    table = strategy_table(
        graph_of(graph, algorithm="mafalda").weights,
        rounds=rounds,
        period=period,
        bands=bands,
        algorithm="mafalda",
        step_sizes=step_sizes,
    )
    return {"strategy": table}


def step(
    state: State,
    round: Round,
    *,
    strategy: Tensor,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round: step, then mix; the numbers are the steps above."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    fresh = round.noise(sums, std=noise_std)
    noise, past = round.remembered(fresh, state.past, row=row_of(strategy, round))  # 2
    x = state.x - learning_rate * (sums + noise) / batch_size
    return State(round.mix(x, kind="model"), past)  # 3


ALGORITHM = Algorithm(name="mafalda", init=init, step=step, settings=Settings, prepare=prepare)
