"""DM-HSGD without privacy: gradient tracking on recursive estimates, the min-max reference.

W. Xian, F. Huang, Y. Zhang, H. Huang, "A faster decentralized algorithm for nonconvex minimax
problems", NeurIPS 2021. z = (x, y), g(z; batch) the mean gradient of a batch.

    1  d_0 = g(z_0; large batch);  u_0 = W d_0
    2  (x, y)_t+1 = W (x_t - eta_x ux_t), Proj(W (y_t + eta_y uy_t))
    3  d_t = g(z_t; batch_t) + (1 - beta) (d_t-1 - g(z_t-1; batch_t))        the same batch twice
    4  u_t = W (u_t-1 + d_t - d_t-1)

| symbol       | name here              | shape    | meaning                                      |
|--------------|------------------------|----------|----------------------------------------------|
| x, y         | x, y                   | (A, .)   | models and dual variables                    |
| z_t-1        | x_before, y_before     | (A, .)   | the point before                             |
| d            | dx, dy                 | (A, .)   | recursive estimates of an agent's gradient   |
| u            | ux, uy                 | (A, .)   | trackers: estimates of the mean gradient     |
| W            | round.weights          | (E, 1)   | mixing weights                               |
| beta         | beta_x, beta_y         | scalar   | weight of the plain gradient, one a block    |
| eta_x, eta_y | learning_rate(_y)      | scalar   | step sizes                                   |
| b            | batch_size             | scalar   | public normaliser: the expected batch size   |
| b_0          | initial_batch          | scalar   | expected size of the large first batch       |

W keeps means, so the mean of the trackers is the mean of the estimates at any time.

Where we differ from the paper: batches are Poisson samples and the mean divides by their expected
size; an agent with fewer records than initial_batch takes all of them. A round steps first, along
the trackers of the round before, and estimates the gradient where it arrives. Nothing is clipped
to a public norm and no noise is added, so epsilon is infinite for every adversary. With a
clip_quantile the difference of a record's two gradients is clipped, as one vector, to the
norm at that quantile of its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .algorithm import Algorithm
from .min_max_step import FirstBatch, Recursion, mixed, quantile_of, stepped

if TYPE_CHECKING:
    from ..step.handles import Agents
    from ..step.round import Round


class State(NamedTuple):
    """Points now and before, estimates and trackers; one (A, D_x) and one (A, D_y) of each."""

    x: Agents
    y: Agents
    x_before: Agents
    y_before: Agents
    dx: Agents
    dy: Agents
    ux: Agents
    uy: Agents


def init(
    round: Round, *, initial_batch: float, clip_quantile: float | None, records: float
) -> State:
    """Step 1: the public point, and the gradient of a large batch there."""
    first = FirstBatch.of(initial_batch, records=records)
    x, y = round.initial(), round.initial(block=1)
    batch = round.draw(first.sampling_rate)
    at = quantile_of(clip_quantile)
    sx, sy = round.clipped_sums((x, y), batch=batch, clip_norm=None, quantile=at)
    dx, dy = sx / first.size, sy / first.size
    return State(x, y, x, y, dx, dy, *mixed(round, (dx, dy)))


def step(
    state: State,
    round: Round,
    *,
    beta_x: float,
    beta_y: float,
    learning_rate: float,
    learning_rate_y: float,
    clip_quantile: float | None,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    rates = learning_rate, learning_rate_y
    z = stepped(round, (state.x, state.y), along=(state.ux, state.uy), rates=rates)  # 2
    sx, sy = round.clipped_sums(
        z,
        (state.x, state.y),
        batch=round.draw(),
        coefs=(1.0, (beta_x - 1.0, beta_y - 1.0)),
        clip_norm=None,
        quantile=quantile_of(clip_quantile),
    )
    dx = sx / batch_size + (1.0 - beta_x) * state.dx  # 3
    dy = sy / batch_size + (1.0 - beta_y) * state.dy
    u = mixed(round, (state.ux + dx - state.dx, state.uy + dy - state.dy))  # 4
    return State(*z, state.x, state.y, dx, dy, *u)


ALGORITHM = Algorithm(
    name="dm-hsgd",
    init=init,
    step=step,
    settings=Recursion,
    private=False,
    private_counterpart="dpmixsgd",
    blocks=2,
    released=("x", "y"),
)
