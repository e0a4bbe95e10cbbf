"""DP-FTRL: the noise of a trusted sum, part of which later rounds take back.

P. Kairouz, B. McMahan, S. Song, O. Thakkar, A. Thakurta, Z. Xu, "Practical and Private (Deep)
Learning Without Sampling or Shuffling", ICML 2021, arXiv 2103.00039; with the strategy of
S. Denisov, B. McMahan, K. Rush, A. Smith, A. Guha Thakurta, "Improved Differential Privacy for SGD
via Optimal Private Linear Operators on Adaptive Streams", NeurIPS 2022, arXiv 2202.08312.

    1  C minimises the noise in the prefix sums of the gradients, over all rounds, at equal mu of a
       record that is used in rounds j, j + b, ...
    2  n_i = C^-1 z_i over the rounds,  z_i ~ N(0, s^2 C^2 I / A), made by agent i
    3  g = (1/A) sum_i (sum_b clip(grad_b F(x), C) + n_i,t)    a trusted sum; its terms are unseen
    4  x <- x - eta g / B

| symbol | name here     | shape  | meaning                                                   |
|--------|---------------|--------|-----------------------------------------------------------|
| x      | x             | (A, D) | models, equal on all agents                               |
| C of 1 | strategy      | (T, p) | strategy over rounds; row t from its diagonal backwards   |
| n      | past          | (A, D) | shares of noise that the last p - 1 rounds added          |
| b      | period        | scalar | rounds between two uses of a record; 0 is one use         |
| p      | bands         | scalar | rounds that a round's noise takes part in; 0 is all       |
| C of 3 | clip_norm     | scalar | bound on one example's gradient                           |
| s C    | noise_std     | scalar | noise on the sum of all agents' gradients, relative to C  |
| B      | batch_size    | scalar | public normaliser: an agent's expected batch              |
| eta    | learning_rate | scalar | step size                                                 |

x_t = x_0 - eta / B sum_{s <= t} g_s is the regularised leader of a linear loss, so a step is one of
SGD and the noise in the models is that of prefix sums. A star whose centre is trusted with the sum:
links carry the mean gradient alone. An agent knows its share of the noise, an A-th of the variance.

Where we differ from the papers: the agents make the noise in shares that the trusted sum adds up,
in place of the centre, so no party knows all of it. The strategy is the optimal one in place of a
binary tree. By default 8 bands are kept of it; the papers keep all (bands = 0). No momentum and no
restarts. Published and repaired form are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .algorithm import Algorithm
from .strategy import Settings, row_of, strategy_table

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.handles import Agents
    from ..step.round import Round


class State(NamedTuple):
    """The models, and what is kept of the noise of the rounds before, (A, D) each."""

    x: Agents
    past: tuple[Agents, ...]


def prepare(
    *, rounds: int, period: int, bands: int, step_sizes: tuple[float, ...] = ()
) -> dict[str, object]:
    """Step 1: the strategy of prefix sums.

    Raises:
        ValueError: more than 10,000 rounds.
    """
    table = strategy_table(
        np.ones((1, 1)),
        rounds=rounds,
        period=period,
        bands=bands,
        algorithm="dp-ftrl",
        step_sizes=step_sizes,
    )
    return {"strategy": table}


def init(round: Round, *, strategy: Tensor) -> State:
    """Every agent starts from the same public model, and remembers no noise."""
    x = round.initial()
    return State(x, (0.0 * x,) * (strategy.shape[1] - 1))


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
    """One round; the numbers are the steps above."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    share = round.noise(sums, std=noise_std / round.agents**0.5)
    noise, past = round.remembered(share, state.past, row=row_of(strategy, round))  # 2
    mean = round.average(sums + noise)  # 3
    gradient = round.download(mean / batch_size, kind="gradient")
    return State(state.x - learning_rate * gradient, past)  # 4


ALGORITHM = Algorithm(name="dp-ftrl", init=init, step=step, settings=Settings, prepare=prepare)
