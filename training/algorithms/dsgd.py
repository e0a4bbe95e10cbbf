"""D-PSGD without privacy: the reference that every private algorithm is compared with.

X. Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017.

    1  g_i = (1/B) sum_b grad_b F(x_i)
    2  x_i <- sum_j W_ij x_j - eta g_i

| symbol | name here     | shape  | meaning                                    |
|--------|---------------|--------|--------------------------------------------|
| x      | x             | (A, D) | models                                     |
| W      | round.weights | (E, 1) | mixing weights                             |
| eta    | learning_rate | scalar | step size                                  |
| B      | batch_size    | scalar | public normaliser: the expected batch size |

Where we differ from the paper: batches are Poisson samples and the mean divides by their expected
size. Nothing is clipped and no noise is added, so epsilon is infinite for every adversary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .algorithm import Algorithm

if TYPE_CHECKING:
    from ..step.handles import Agents
    from ..step.round import Round


class State(NamedTuple):
    """The models, (A, D)."""

    x: Agents


def init(round: Round) -> State:
    """Every agent starts from the same public model."""
    return State(round.initial())


def step(state: State, round: Round, *, learning_rate: float, batch_size: float) -> State:
    """One round; the numbers are the steps above."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=None)  # 1
    return State(round.mix(state.x, kind="model") - learning_rate * (sums / batch_size))  # 2


ALGORITHM = Algorithm(
    name="dsgd", init=init, step=step, private=False, private_counterpart="dp-dpsgd"
)
