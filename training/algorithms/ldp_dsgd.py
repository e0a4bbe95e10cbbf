"""LDP: independent noise of every agent, the reference that correlated noise is measured against.

Named so by A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD: Correlated Noise Across Agents for
Differentially Private Decentralized Learning", 2025, arXiv 2501.14644.

    1  v ~ N(0, s^2 C^2 R),  R = I
    2  x_i <- sum_j W_ij (x_j - eta (sum_b clip(grad_b F(x_j), C) + v_j) / B)

| symbol | name here | shape  | meaning                                          |
|--------|-----------|--------|--------------------------------------------------|
| R      | -         | (A, A) | covariance of the agents' noise, over (s C)^2    |
| I      | factor    | (A, A) | of the sources; `shared_step` has the other      |
|        |           |        | symbols, and the step                            |

What it costs: of the noise energy per coordinate, all agents together and over (eta s C / B)^2,
a round leaves tr(W W^T) in the models and in the long run 1, where one trusted server adds 1 / A
(`cdp_dsgd`). Each agent knows the noise that it makes and no other, so a neighbour learns of a
record what an eavesdropper does: one Gaussian release a round.

Where we differ from the paper: nowhere in the step. The noise is calibrated by the accountant, with
Poisson batches amplified. Published and repaired form are the same, and equal to DP-DPSGD with
order "step-then-mix", whose noise has the same distribution.
"""

from __future__ import annotations

import numpy as np

from ..graphs.graph import Topology
from .algorithm import Algorithm
from .correlated_step import shared_noise, step
from .dsgd import init


def prepare(*, graph: Topology) -> dict[str, object]:
    """Step 1: a source for every agent, known to it alone."""
    own = [frozenset({agent}) for agent in range(graph.agents)]
    return {"shared": shared_noise(np.eye(graph.agents), own)}


def steered(_settings: object) -> str | None:
    """None: every agent steps from its mixed model, with noise that it makes alone."""


ALGORITHM = Algorithm(name="ldp-dsgd", init=init, step=step, prepare=prepare, unsteered=steered)
