"""CDP: noise of a server that everybody trusts, the floor that correlated noise cannot beat.

Named so by A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD: Correlated Noise Across Agents for
Differentially Private Decentralized Learning", 2025, arXiv 2501.14644.

    1  g = (1/A) sum_i sum_b clip(grad_b F(x_i), C)         a trusted sum; nobody sees its terms
    2  x_i <- x_i - eta (g + z / A) / B,   z ~ N(0, s^2 C^2 I), known to nobody

| symbol | name here     | shape  | meaning                                       |
|--------|---------------|--------|-----------------------------------------------|
| x      | x             | (A, D) | models, equal on all agents                   |
| g      | mean          | (1, D) | mean of the agents' sums of clipped gradients |
| 1 / A  | shared.factor | (1, 1) | of the one source                             |
| C      | clip_norm     | scalar | bound on one example's gradient               |
| s C    | noise_std     | scalar | noise on the sum of all agents' gradients     |
| B      | batch_size    | scalar | public normaliser: an agent's expected batch  |
| eta    | learning_rate | scalar | step size                                     |

With clip "batch" step 1 sums the clipped means of the agents' batches, and B is 1 in step 2.

One record moves g by at most C / A and the noise on it is s C / A: one Gaussian release a round,
for one who reads what the server sends and for every agent. A round leaves noise of variance
(eta s C / (A B))^2 in each model, all together 1 / A times (eta s C / B)^2. No covariance of the
agents' own noise leaves less at the same figure of the eavesdropper: mixing keeps the sum of v,
whose variance is 1'R1 >= A^2 / 1'R^-1 1 >= 1, since [R^-1]_ii <= 1 bounds every entry of R^-1 by 1.

Where we differ from the paper: nowhere in the step. It is no decentralised algorithm: the graph's
links carry nothing, and the trust is in the sum. Published and repaired form are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graphs.graph import Topology
from .algorithm import Algorithm, Clip
from .correlated_step import SharedNoise, released, unsteered
from .dsgd import State, init

if TYPE_CHECKING:
    from ..step.round import Round


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters.

    Attributes:
        clip: "per-example" clips each example's gradient, "batch" the mean of an agent's batch,
            which bounds all that an agent gives to the sum.
    """

    clip: Clip = Clip.PER_EXAMPLE


def prepare(*, graph: Topology) -> dict[str, object]:
    """One source at the server, known to no agent."""
    import torch

    share = torch.full((1, 1), 1.0 / graph.agents, dtype=torch.float64)
    return {"shared": SharedNoise(factor=share, known_to=(frozenset(),))}


def step(
    state: State,
    round: Round,
    *,
    shared: SharedNoise,
    clip: Clip,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    clipped, divisor = released(
        round, state.x, clip=clip, clip_norm=clip_norm, batch_size=batch_size
    )
    mean = round.average(clipped)  # over those that take part, whose number is public
    share = shared.factor * (round.agents / max(1.0, float(round.active.public().sum())))
    noisy = mean + round.noise(mean, std=noise_std, factor=share, known_to=shared.known_to)  # 2
    gradient = round.download(noisy / divisor, kind="gradient")
    return State(state.x - learning_rate * gradient)


ALGORITHM = Algorithm(
    name="cdp-dsgd", init=init, step=step, settings=Settings, prepare=prepare, unsteered=unsteered
)
