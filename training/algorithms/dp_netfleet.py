"""DP-NETFLEET: gradient tracking with K local steps between two exchanges, on noisy gradients.

X. Zhang, M. Fang, Z. Liu, H. Yang, J. Liu, Z. Zhu, "NET-FLEET: Achieving linear convergence speedup
for fully decentralized federated learning with heterogeneous data", MobiHoc 2022, arXiv 2208.08490;
with clipping and noise.

    repeat K times, agent i by itself:
        1  n_i <- (1/B) (sum_b clip(grad_b F(x_i), C) + z),  z ~ N(0, s^2 C^2 I)
        2  y_i <- y_i + n_i - g_i;  g_i <- n_i
        3  x_i <- x_i - eta y_i
    4  send x_i and y_i;  x_i <- sum_j W_ij x_j;  y_i <- sum_j W_ij y_j

| symbol | name here     | shape  | meaning                                               |
|--------|---------------|--------|-------------------------------------------------------|
| x      | x             | (A, D) | models                                                |
| y      | y             | (A, D) | trackers: estimates of the mean gradient              |
| g      | g             | (A, D) | the noisy gradient that each agent stored last        |
| y - g  | correction    | (A, D) | what the others' gradients add; constant in a round   |
| K      | local_steps   | scalar | local steps a round                                   |
| W      | round.weights | (E, 1) | mixing weights                                        |
| C      | clip_norm     | scalar | bound on one example's gradient                       |
| s C    | noise_std     | scalar | noise on the sum of clipped gradients                 |
| B      | batch_size    | scalar | public normaliser: the expected batch size            |
| eta    | learning_rate | scalar | step size                                             |

The correction is constant because y + n - g takes out what the step before put in. W keeps means,
so the mean of the trackers is the mean of the stored gradients at any time.

Where we differ from the paper: it has neither clipping nor noise. Here a gradient is clipped and
noised once, when it is evaluated, and differences take the stored noisy value: a difference with a
fresh clean one would leave gradients in the trackers that no noise covers. Trackers start at 0
without a release. The models of the local steps cross no link, but gradients are taken there, so
they count as seen, and each of the K batches costs one release of its own, not 1/sqrt(K) of one.
With one batch for the round its K gradients are released jointly: joint sensitivity sqrt(K). The
noise hides either from every adversary; published and repaired form are the same.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...privacy.errors import within
from .algorithm import Algorithm

if TYPE_CHECKING:
    from ..step.handles import Agents
    from ..step.round import Round


class Batches(enum.StrEnum):
    """Whether every local step draws a batch of its own."""

    PER_STEP = "per-step"
    PER_ROUND = "per-round"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters: local steps a round, and what their batches are."""

    local_steps: int = 2
    batches: Batches = Batches.PER_STEP

    def __post_init__(self) -> None:
        """Check the range."""
        within("local_steps", self.local_steps, "[1, inf)", "1 is plain gradient tracking")


class State(NamedTuple):
    """Models, trackers and stored noisy gradients, (A, D)."""

    x: Agents
    y: Agents
    g: Agents


def init(round: Round) -> State:
    """Every agent starts from the same public model and has no gradient yet."""
    x = round.initial()
    return State(x, 0.0 * x, 0.0 * x)


def step(
    state: State,
    round: Round,
    *,
    local_steps: int,
    batches: Batches,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round: K local steps, then one exchange; the numbers are the steps above."""
    x, g = state.x, state.g
    correction = state.y - g
    batch = round.draw()
    for number in range(local_steps):
        if number and batches is Batches.PER_STEP:
            batch = round.draw()
        sums = round.clipped_sums(x, batch=batch, clip_norm=clip_norm)  # 1
        g = (sums + round.noise(sums, std=noise_std)) / batch_size
        x = x - learning_rate * (g + correction)  # 2, 3
    y = g + correction
    return State(round.mix(x, kind="model"), round.mix(y, kind="tracker"), g)  # 4


ALGORITHM = Algorithm(
    name="dp-netfleet", init=init, step=step, settings=Settings, released=("x", "y")
)
