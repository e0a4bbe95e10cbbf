"""DP-FedAvg: agents train by themselves, and a trusted sum of what they changed gets noise.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language
Models", ICLR 2018, arXiv 1710.06963 (Algorithm 1, DP-FedAvg with the estimator f_f).

    1  M: each agent takes part with probability p, by a secret coin of its own; or p A of them do,
          drawn anew each round (fixed), or the next of an order (shuffled each epoch, or cyclic)
    2  x_i <- K gradient steps of size eta from x, on the data of agent i
    3  d_i = clip(x_i - x, C)
    4  x <- x + g (sum_{i in M} d_i + z) / (p A),   z ~ N(0, s^2 C^2 I), known to nobody

| symbol | name here     | shape  | meaning                                                |
|--------|---------------|--------|--------------------------------------------------------|
| x      | x             | (A, D) | models, equal on all agents                            |
| p      | cohort_rate   | scalar | probability of an agent to take part in a round        |
| M      | cohort        | set    | how who takes part is drawn                            |
| K      | local_steps   | scalar | gradient steps of an agent in a round                  |
| eta    | learning_rate | scalar | their size                                             |
| C      | clip_norm     | scalar | bound on what an agent changes                         |
| s C    | noise_std     | scalar | noise on the sum of what the agents change             |
| g      | server_rate   | scalar | share of the mean change that the server applies       |

Nobody sees who takes part, nor what a single agent sends: trust is in the sum. p A is public where
the number of members is not. All data of an agent move the sum by at most C, so at unit "agent" a
round is one Gaussian release of multiplier s, sampled at rate p. Cohorts that are not Poisson cost
more: an agent then takes the place of another one, or its turn in every epoch. A record of an agent
can turn d_i round, which is 2 C: clipping what an agent changes never pays for the privacy of a
record.

Where we differ from the paper: a step takes Poisson batches, or all data of the agent, in place of
epochs in an order; every agent has the same weight; and cohorts need not be Poisson.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...privacy.batches.sampling import MOST_STEPS
from ...privacy.errors import within
from .algorithm import Algorithm
from .dsgd import State, init

if TYPE_CHECKING:
    from ..step.round import Round
    from ..step.values import Batch


class LocalData(enum.StrEnum):
    """What an agent's steps take: all its data, or Poisson batches, one of each step or of all."""

    ALL = "all"
    ONE = "one-batch"
    EACH = "batches"


class Cohorts(enum.StrEnum):
    """How a cohort is drawn: by coins, as many anew each round, or the next of an order."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters.

    Attributes:
        cohort_rate: p, above 0 and at most 1.
        cohort: how M is drawn; one that is not Poisson has p A members exactly.
        local_steps: K.
        local_data: what each of them takes.
        server_rate: g, above 0.
    """

    cohort_rate: float = 0.1
    cohort: Cohorts = Cohorts.POISSON
    local_steps: int = 5
    local_data: LocalData = LocalData.ALL
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        within("cohort_rate", self.cohort_rate, "(0, 1]")
        within("local_steps", self.local_steps, f"[1, {MOST_STEPS}]")
        within("server_rate", self.server_rate, "(0, inf)")


def step(
    state: State,
    round: Round,
    *,
    settings: Settings,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
) -> State:
    """One round; the numbers are the steps above."""
    from ..step.values import ALL

    of, rate = settings, settings.cohort_rate
    members = round.cohort(rate, scheme=of.cohort.value)  # 1
    batch: Batch | tuple[Batch, ...] = ALL
    if of.local_data is LocalData.EACH:
        batch = tuple(round.draw() for _ in range(of.local_steps))
    elif of.local_data is LocalData.ONE:
        batch = round.draw()
    changed = round.local_update(  # 2, 3
        state.x, steps=of.local_steps, learning_rate=learning_rate, batch=batch, clip_norm=clip_norm
    )
    mean = round.average(changed, cohort=members)
    noisy = mean + round.noise(mean, std=noise_std / (rate * round.agents))  # 4
    return State(state.x + round.download(of.server_rate * noisy, kind="model change"))


ALGORITHM = Algorithm(name="dp-fedavg", init=init, step=step, settings=Settings)
