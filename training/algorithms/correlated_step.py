"""Noise whose sources are shared by agents, and the step that hides gradients in it.

    1  v = F z,  z ~ N(0, s^2 C^2 I),  R = F F^T          for each coordinate alike
    2  x_i <- sum_j W_ij (x_j - eta (sum_b clip(grad_b F(x_j), C) + v_j) / B)

| symbol | name here     | shape        | meaning                                            |
|--------|---------------|--------------|----------------------------------------------------|
| x      | x             | (A, D)       | models                                             |
| W      | round.weights | (E, 1)       | mixing weights                                     |
| z      | source        | (sources, D) | what one agent, one pair or one seed makes         |
| F      | factor        | (A, sources) | how much of each source is in each agent's noise   |
| R      | covariance    | (A, A)       | of the agents' noise, in units of (s C)^2          |
| C      | clip_norm     | scalar       | bound on one example's gradient                    |
| s C    | noise_std     | scalar       | noise on a sum of gradients that F is relative to  |
| B      | batch_size    | scalar       | public normaliser: the expected batch size         |
| eta    | learning_rate | scalar       | step size                                          |

With clip "batch" the mean gradient of the batch is clipped in place of each example's, and B is 1
in step 2: what an agent sends in a round is then one vector of norm C, as unit "agent" needs.

Independent noise, DECOR's pairs, Whisper's seed and a server's noise differ in two facts alone: the
factor, and who knows each source. Both are stated here, so the trace derives every adversary's
figure from what the step really adds.

    adversary        noise that it does not know       mu of a round, per 1 / s
    eavesdropper     all of F                          sqrt([R^-1]_ii)
    agent k          the columns that k does not know  from the columns left

The factor is scaled to max_i [R^-1]_ii = 1. Then the noise multiplier s means the same for all of
them, and for DP-SGD: against an eavesdropper a round is one Gaussian release of multiplier s.

The covariance speaks of full attendance: the noise of an agent that stays away no longer cancels
with that of the others, and hides them no more. Here no operation leaves an agent out of a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError, InputTypeError
from ...privacy.noise.correlated import victim_information
from ..graphs.graph import Graph, Topology
from .algorithm import Clip
from .dsgd import State

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.handles import Agents
    from ..step.round import Round


_MOST_COUNTED = 1_000_000  # rounds of an objective, each a term of a polynomial


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedNoise:
    """A factor, and who knows each of its sources.

    Attributes:
        factor: (A, sources) float64; the noise is `noise_std * factor @ z`. Kept in double
            precision, because rows of a nearly singular covariance are large and cancel.
        known_to: for each source the agents that can compute it; nobody where that is empty.
    """

    factor: Tensor
    known_to: tuple[frozenset[int], ...]

    def __post_init__(self) -> None:
        """Check that every source has its knowers."""
        import torch

        if self.factor.dtype != torch.float64 or self.factor.ndim != 2:
            raise InputTypeError(
                f"factor of {self.factor.dtype} and shape {tuple(self.factor.shape)} must be a "
                "float64 matrix, one row an agent"
            )
        if len(self.known_to) != self.factor.shape[1]:
            raise InputError(
                f"known_to names knowers of {len(self.known_to)} sources, but factor has "
                f"{self.factor.shape[1]} columns; give one set of agents for each"
            )

    @property
    def covariance(self) -> NDArray[np.float64]:
        """R = F F^T, (A, A), in units of noise_std^2."""
        rows = self.factor.numpy()
        return np.asarray(rows @ rows.T)

    def drawn(self, round: Round, like: Agents, *, std: float) -> Agents:
        """Noise of a round, `std * factor @ z`, as that which it hides."""
        return round.noise(like, std=std, factor=self.factor, known_to=self.known_to)


def shared_noise(factor: NDArray[np.float64], known_to: Sequence[frozenset[int]]) -> SharedNoise:
    """A factor scaled so that the largest [R^-1]_ii is 1.

    Args:
        factor: (A, sources), of any scale.
        known_to: for each source the agents that know it.

    Returns:
        Noise behind which an eavesdropper sees the worst agent as behind its own unit noise.

    Raises:
        ValueError: some combination of messages is free of noise, which no scale repairs.
    """
    import torch

    factor = np.asarray(factor, dtype=np.float64)
    worst = float(victim_information(factor @ factor.T).max())
    if not 0 < worst < math.inf:
        raise InputError(
            f"largest [R^-1]_ii = {worst} must be a positive number: the noise cancels between "
            "messages; give every agent more noise of its own"
        )
    return SharedNoise(factor=torch.from_numpy(math.sqrt(worst) * factor), known_to=tuple(known_to))


def only_graph(graph: Topology, *, algorithm: str) -> Graph:
    """The graph of all rounds, with everybody; in some of them agents may be absent.

    Raises:
        ValueError: graphs take turns, for each of which the noise would have to be another.
    """
    if graph.lasting is None:
        raise InputError(
            f"graph {graph.name!r} changes from round to round, but the covariance of "
            f"{algorithm!r} is made for one graph; use a static one, or ldp-dsgd"
        )
    if not graph.lasting.has_links:
        raise InputError(
            f"graph {graph.name!r} has no links between agents, and {algorithm!r} mixes with "
            "neighbours; choose another graph"
        )
    return graph.lasting


def objective_rounds(horizon: int, *, rounds: int, graph: Graph) -> int:
    """How many rounds an objective counts: the horizon, or all rounds of the run where it is 0.

    Raises:
        ValueError: several rounds, whose noise is known in closed form for symmetric weights alone,
            or more than a million of them.
    """
    counted = horizon or rounds
    if counted > _MOST_COUNTED:
        raise InputError(
            f"horizon={horizon} counts {counted} rounds, and at most {_MOST_COUNTED} are counted; "
            f"use horizon={_MOST_COUNTED} or less"
        )
    if counted > 1 and not np.allclose(graph.weights, graph.weights.T, rtol=0, atol=1e-12):
        raise InputError(
            f"horizon={horizon} counts {counted} rounds, which needs symmetric weights, but those "
            f"of graph {graph.name!r} are not; use horizon=1"
        )
    return counted


def step(
    state: State,
    round: Round,
    *,
    shared: SharedNoise,
    clip: Clip = Clip.PER_EXAMPLE,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round: step, then mix; the numbers are the steps above."""
    clipped, divisor = released(
        round, state.x, clip=clip, clip_norm=clip_norm, batch_size=batch_size
    )
    noise = shared.drawn(round, clipped, std=noise_std)  # 1
    x = state.x - learning_rate * (clipped + noise) / divisor
    return State(round.mix(x, kind="model"))  # 2


def released(
    round: Round, x: Agents, *, clip: Clip, clip_norm: float | None, batch_size: float
) -> tuple[Agents, float]:
    """What is hidden of a batch that is drawn here, and what it is divided by in the step.

    Returns:
        (A, D): sums of clipped gradients and `batch_size`, or the clipped mean gradient and 1.
    """
    batch = round.draw()
    if clip is Clip.BATCH:
        mean = round.clipped_mean(x, batch=batch, batch_size=batch_size, clip_norm=clip_norm)
        return mean, 1.0
    return round.clipped_sums(x, batch=batch, clip_norm=clip_norm), batch_size


def unsteered(_settings: object) -> str | None:
    """Why steered figures do not cover the step, whatever its settings."""
    return "noise is shared between agents, and the bound needs fresh noise of each"
