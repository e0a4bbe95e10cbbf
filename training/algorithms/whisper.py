"""Whisper D-SGD: noise that hides every message and, mixed, cancels as far as privacy allows.

A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD: Correlated Noise Across Agents for Differentially
Private Decentralized Learning", 2025, arXiv 2501.14644; CorN-DSGD in its second version.

    1  R minimises tr(W R W^T) subject to [R^-1]_ii <= 1 for every agent i
    2  v ~ N(0, s^2 C^2 R), made by every agent from one common seed
    3  x_i <- sum_j W_ij (x_j - eta (sum_b clip(grad_b F(x_j), C) + v_j) / B)

    horizon h      1 minimises sum_{k=1..h} tr(W^k R W^k) / h instead
    correlation c  2 takes R' ~ c R + (1 - c) I, the second part each agent's own, scaled as R is

| symbol | name here     | shape        | meaning                                              |
|--------|---------------|--------------|------------------------------------------------------|
| W      | graph.weights | (A, A)       | mixing weights                                       |
| R      | -             | (A, A)       | covariance across agents, over (s C)^2               |
| F      | factor        | (A, sources) | R' = F F^T: A sources of the seed, then A own ones   |
| h      | horizon       | scalar       | rounds whose noise the objective counts              |
| c      | correlation   | scalar       | share of the seed's noise                            |

The other symbols are those of `shared_step`, where the step is.

What R protects from, and whom not: an eavesdropper reads every link and knows no seed, and sees
each round as one Gaussian release. An agent knows the seed (the paper's Remark 1), subtracts
everybody's noise, and sees every gradient: with correlation 1 its epsilon is infinite. With
correlation c < 1 the agents' own noise is left, a finite epsilon, and less of the noise cancels.

The paper's objective is greedy: it counts noise in the models after one mixing, although the models
are mixed again. With a constant learning rate the models after T rounds hold the noise of the round
T - k + 1 mixed k times, so horizon h = T counts what reaches the final models, and the noise there
comes close to a trusted server's. The messages carry more of it meanwhile.

Where we differ from the paper: the printed constraint has its inequality reversed. The optimum is
that of `overhear.privacy.noise.correlated`, scaled until the worst agent's [R^-1]_ii is 1, so the
accountant calibrates s and Poisson batches count. Where W is singular no optimum is attained; a
ridge keeps R finite, and noise is mixed from its sources in double precision. Every agent takes
part in every round: the noise of one that stayed away would no longer cancel, and here no run
leaves one out. Published and repaired form are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...privacy.errors import InputError, within
from ...privacy.noise.correlated import factor as covariance_factor
from ...privacy.noise.correlated import whisper_covariance
from ...privacy.published.claim import PublishedClaim
from ...privacy.published.whisper import whisper_theorem_2
from ..graphs.graph import Topology
from .algorithm import Algorithm, Clip, PlannedRun
from .correlated_step import objective_rounds, only_graph, shared_noise, step, unsteered
from .dsgd import init


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters.

    Attributes:
        correlation: share of the optimised covariance in [0, 1]; the rest is independent noise
            that each agent makes and knows alone. 1 is the paper's, 0 is LDP.
        horizon: rounds that the objective counts; 1 is the paper's, 0 means all rounds of the run.
        clip: "per-example" clips each example's gradient, "batch" the mean of a batch, which is
            the paper's, and bounds all that an agent sends.
    """

    correlation: float = 1.0
    horizon: int = 1
    clip: Clip = Clip.PER_EXAMPLE

    def __post_init__(self) -> None:
        """Check the ranges."""
        within("correlation", self.correlation, "[0, 1]", "1 is the optimum, 0 is LDP")
        if self.horizon < 0:
            raise InputError(
                f"horizon={self.horizon} must be at least 1, or 0 for all rounds of the run"
            )


def prepare(*, graph: Topology, rounds: int, correlation: float, horizon: int) -> dict[str, object]:
    """The factor of the covariance, and who knows its sources: all agents, and for own noise one.

    Args:
        graph: static; with symmetric weights if the objective counts several rounds.
        rounds: of the run.
        correlation: of `Settings`.
        horizon: of `Settings`.

    Returns:
        "shared" of `correlated_step.step`.

    Raises:
        ValueError: a graph that changes, or weights that are not symmetric for several rounds.
    """
    static = only_graph(graph, algorithm="whisper")
    everybody = frozenset(range(static.agents))
    parts, known_to = list[np.ndarray](), list[frozenset[int]]()
    if correlation > 0:
        counted = objective_rounds(horizon, rounds=rounds, graph=static)
        optimum = whisper_covariance(static.weights, bound=1.0, rounds=counted)  # 1
        parts.append(math.sqrt(correlation) * covariance_factor(optimum))
        known_to += [everybody] * static.agents
    if correlation < 1:
        parts.append(math.sqrt(1.0 - correlation) * np.eye(static.agents))
        known_to += [frozenset({agent}) for agent in range(static.agents)]
    return {"shared": shared_noise(np.hstack(parts), known_to)}  # 2


def published_bound(run: PlannedRun) -> PublishedClaim | None:
    """Theorem 2 of the largest [R^-1]_ii, which the factor's scale makes 1 / (s C)^2."""
    if run.noise_multiplier == 0.0:
        return None
    return whisper_theorem_2(
        noise_multiplier=run.noise_multiplier, delta=run.statement.delta, rounds=run.rounds
    )


ALGORITHM = Algorithm(
    name="whisper",
    init=init,
    step=step,
    settings=Settings,
    prepare=prepare,
    published_bound=published_bound,
    unsteered=unsteered,
)
