"""SGDA without privacy: decentralised stochastic gradient descent ascent, the min-max reference.

T. Lin, C. Jin, M. Jordan, "On gradient descent ascent for nonconvex-concave minimax problems", ICML
2020; each agent steps on its own batch, then mixes, as in D-PSGD.

    1  g_i = (1/B) sum_b grad_b F(z_i), of both blocks
    2  x_i <- sum_j W_ij (x_j - eta_x gx_j);  y_i <- Proj(sum_j W_ij (y_j + eta_y gy_j))

| symbol | name here       | shape    | meaning                                    |
|--------|-----------------|----------|--------------------------------------------|
| x      | x               | (A, D_x) | models                                     |
| y      | y               | (A, D_y) | dual variables                             |
| z      |                 |          | the point (x, y)                           |
| W      | round.weights   | (E, 1)   | mixing weights                             |
| eta_x  | learning_rate   | scalar   | step size of the models                    |
| eta_y  | learning_rate_y | scalar   | step size of the dual variables            |
| B      | batch_size      | scalar   | public normaliser: the expected batch size |

Where we differ from the paper: the paper has one agent. Batches are Poisson samples and the mean
divides by their expected size. Nothing is clipped and no noise is added, so epsilon is infinite for
every adversary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...privacy.errors import within
from .algorithm import Algorithm
from .min_max_step import stepped

if TYPE_CHECKING:
    from ..step.handles import Agents
    from ..step.round import Round


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters: the step size of the dual variables."""

    learning_rate_y: float = 0.1

    def __post_init__(self) -> None:
        """Check the range."""
        within("learning_rate_y", self.learning_rate_y, "(0, inf)")


class State(NamedTuple):
    """Models (A, D_x) and dual variables (A, D_y)."""

    x: Agents
    y: Agents


def init(round: Round) -> State:
    """Every agent starts from the same public point."""
    return State(round.initial(), round.initial(block=1))


def step(
    state: State, round: Round, *, learning_rate: float, learning_rate_y: float, batch_size: float
) -> State:
    """One round; the numbers are the steps above."""
    gx, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=None)  # 1
    along, rates = (gx / batch_size, gy / batch_size), (learning_rate, learning_rate_y)
    return State(*stepped(round, (state.x, state.y), along=along, rates=rates))  # 2


ALGORITHM = Algorithm(
    name="sgda",
    init=init,
    step=step,
    settings=Settings,
    private=False,
    private_counterpart="dpmixsgd",
    blocks=2,
)
