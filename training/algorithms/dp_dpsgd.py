"""DP-DPSGD: D-PSGD with per-example clipping and Gaussian noise on each agent's gradient.

J. Xu, W. Zhang, F. Wang, "A(DP)^2SGD: Asynchronous decentralized parallel stochastic gradient
descent with differential privacy", IEEE TPAMI 2022; here its synchronous form.

    1  g~_i = (1/B) (sum_b clip(grad_b F(x_i), C) + z_i),   z_i ~ N(0, s^2 C^2 I)
    2  x_i <- sum_j W_ij x_j - eta g~_i                     mix-then-step
    3  x_i <- sum_j W_ij (x_j - eta g~_j)                   step-then-mix, in place of 2

| symbol | name here     | shape  | meaning                                    |
|--------|---------------|--------|--------------------------------------------|
| x      | x             | (A, D) | models                                     |
| W      | round.weights | (E, 1) | mixing weights                             |
| C      | clip_norm     | scalar | bound on one example's gradient            |
| s C    | noise_std     | scalar | noise on the sum of clipped gradients      |
| B      | batch_size    | scalar | public normaliser: the expected batch size |
| eta    | learning_rate | scalar | step size                                  |

Where we differ from the paper: the original does not clip, so its sensitivity has no bound; ours
clips each example, or with clip_per="user" the sum over all examples of a user. Either order costs
one Gaussian release a round against every adversary.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...privacy.batches.sampling import Per
from .algorithm import Algorithm
from .dsgd import State, init

if TYPE_CHECKING:
    from ..step.round import Round


class Order(enum.StrEnum):
    """Which comes first in a round."""

    MIX_THEN_STEP = "mix-then-step"
    STEP_THEN_MIX = "step-then-mix"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters.

    Attributes:
        order: of mixing and stepping.
        clip_per: "record" clips each example's gradient; "user" draws whole users, each by a coin
            of its own, and clips the sum of each user's gradients.
    """

    order: Order = Order.MIX_THEN_STEP
    clip_per: Per = Per.RECORD


def step(
    state: State,
    round: Round,
    *,
    order: Order,
    clip_per: Per = Per.RECORD,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    batch = round.draw(per=clip_per)
    sums = round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm, per=clip_per)  # 1
    noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    if order is Order.STEP_THEN_MIX:
        return State(round.mix(state.x - learning_rate * noisy, kind="model"))  # 3
    return State(round.mix(state.x, kind="model") - learning_rate * noisy)  # 2


def unsteered(settings: Settings) -> str | None:
    """Why steered figures do not cover the step: an order, or users' sums."""
    if settings.order is not Order.STEP_THEN_MIX:
        return (
            "gradients are taken at models before they are mixed; with "
            f'order = "{Order.STEP_THEN_MIX.value}" they are not'
        )
    if settings.clip_per is not Per.RECORD:
        return "sums of a user's gradients are clipped, which are of more than one score"
    return None


ALGORITHM = Algorithm(name="dp-dpsgd", init=init, step=step, settings=Settings, unsteered=unsteered)
