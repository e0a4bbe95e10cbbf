"""DP-SGDA: central descent ascent with noise that a trusted server adds to the mean gradient.

Z. Yang, S. Hu, Y. Lei, K. R. Varshney, S. Lyu, Y. Ying, "Differentially private SGDA for minimax
problems", UAI 2022.

    1  g  = (1/A) sum_i sum_b clip(grad_b F(z_i), C)         a trusted sum; nobody sees its terms
    2  g~ = (g + n / A) / B,   n ~ N(0, s^2 C^2 I), both blocks of it, known to nobody
    3  x <- x - eta_x g~_x;    y <- Proj(y + eta_y g~_y)     the same on all agents

| symbol | name here       | shape    | meaning                                         |
|--------|-----------------|----------|-------------------------------------------------|
| x      | x               | (A, D_x) | models, equal on all agents                     |
| y      | y               | (A, D_y) | dual variables, equal on all agents             |
| g      | mean            | (1, .)   | mean of the agents' sums of clipped gradients   |
| C      | clip_norm       | scalar   | bound on one example's gradient, x and y as one |
| s C    | noise_std       | scalar   | noise on the sum of all agents' gradients       |
| B      | batch_size      | scalar   | public normaliser: an agent's expected batch    |
| eta_x  | learning_rate   | scalar   | step size of the models                         |
| eta_y  | learning_rate_y | scalar   | step size of the dual variables                 |

One record moves the vector g by at most C / A and the noise on each of its coordinates is s C / A:
one Gaussian release a round, for one who reads what the server sends and for every agent.

Where we differ from the paper: it takes the losses to be Lipschitz in x and in y and adds noise for
each; here an example's gradient is clipped, both blocks as one vector. Batches are Poisson samples.
It is no decentralised algorithm: the graph's links carry nothing, and the trust is in the sum.
Published and repaired form are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .algorithm import Algorithm
from .sgda import Settings, State, init

if TYPE_CHECKING:
    from ..step.round import Round


def step(
    state: State,
    round: Round,
    *,
    learning_rate: float,
    learning_rate_y: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    sums = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=clip_norm)  # 1
    share = noise_std / round.agents
    means = [round.average(block) for block in sums]
    noisy = [(mean + round.noise(mean, std=share)) / batch_size for mean in means]  # 2
    gx = round.download(noisy[0], kind="gradient")
    gy = round.download(noisy[1], kind="dual-gradient")
    return State(  # 3
        state.x - learning_rate * gx, round.project(state.y + learning_rate_y * gy)
    )


ALGORITHM = Algorithm(name="dp-sgda", init=init, step=step, settings=Settings, blocks=2)
