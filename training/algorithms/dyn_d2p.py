"""Dyn-D2P: push-sum on directed graphs, with a clip bound and a privacy budget that change.

Z. Zhu, Y. Huang, X. Wang, S. Ji, J. Xu, "Dyn-D2P: Dynamic Differentially Private Decentralized
Learning with Provable Utility Guarantee", IJCAI 2025, arXiv 2505.06651.

    x_i = z_i = public model,  w_i = 1;  for k = 0, ..., K - 1:
        1  C_k = C_0 rho_c^(-k/K),  mu_k = mu_0 rho_mu^(k/K)
        2  g_i = (1/B) (sum_b clip(grad_b F(z_i), C_k) + n_i),   n_i ~ N(0, (C_k / mu_k)^2 I)
        3  send x_i - eta g_i and w_i along the links of P^k
        4  x_i <- sum_j P^k_ij (x_j - eta g_j),   w_i <- sum_j P^k_ij w_j,   z_i <- x_i / w_i

| symbol                | name here     | shape     | meaning                                      |
|-----------------------|---------------|-----------|----------------------------------------------|
| z                     | x             | (A, D)    | models; the state's field `x` holds x / w    |
| w                     | push_weights  | (T+1,A,1) | push-sum weights before and after each round |
| P^k                   | round.weights | (E, 1)    | of the round's graph; its columns sum to 1   |
| C_0                   | clip_norm     | scalar    | bound on an example's gradient at the start  |
| C_0 / mu_0            | noise_std     | scalar    | noise on the first round's clipped sum       |
| C_k / C_0             | clip_scales   | (T,)      | clip bounds over the first                   |
| C_k mu_0 / (C_0 mu_k) | noise_scales  | (T,)      | noise likewise                               |
| rho_c                 | clip_decay    | scalar    | 1 keeps the clip bound                       |
| rho_mu                | budget_growth | scalar    | 1 keeps the noise multiplier                 |
| B                     | batch_size    | scalar    | public normaliser: the expected batch size   |
| eta                   | learning_rate | scalar    | step size                                    |

The noise multiplier of a run is 1 / mu_0, that of the first round. The paper's variants: Dyn is the
default; Dyn[C] has budget_growth 1, Dyn[mu] clip_decay 1, Const both; without noise and clipping it
is the non-private reference.

Where we differ from the paper: mu_0 comes from the exact composition of the rounds, not from a
central limit (`overhear.privacy.published.dyn_d2p`). Batches are Poisson samples, which may be
empty, of any rate; the paper draws one example. w depends on the graphs alone, so every agent
computes it beforehand instead of sending it, and `x` keeps the models x / w, from which x is made
again.
Either form is the same: each round is one Gaussian release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.noise.schedule import Schedule
from ...privacy.published.claim import PublishedClaim
from ...privacy.published.dyn_d2p import dyn_d2p_clt
from ..graphs.graph import Topology
from ..graphs.mixing import Sums
from ..step.handles import Agents
from ..step.round import Round
from .algorithm import Algorithm, PlannedRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters: how far the clip bound falls and the budget of a round grows in a run."""

    clip_decay: float = 4.0
    budget_growth: float = 4.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("clip_decay", "budget_growth"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InputError(f"{name}={value} must lie in (0, inf); 1 keeps every round alike")


class State(NamedTuple):
    """The models z = x / w, (A, D)."""

    x: Agents


def prepare(
    *, graph: Topology, rounds: int, clip_decay: float, budget_growth: float
) -> dict[str, object]:
    """The public numbers of every round: push-sum weights, clip bounds, noise.

    >>> from overhear.training.graphs.topologies import directed_ring
    >>> found = prepare(graph=directed_ring(3), rounds=2, clip_decay=4.0, budget_growth=4.0)
    >>> found["clip_scales"], found["noise_scales"]
    ((1.0, 0.5), (1.0, 0.25))
    """
    schedule = Schedule(
        rounds=rounds,
        sampling_rate=1.0,  # enters neither of the two
        clip_decay=clip_decay,
        budget_growth=budget_growth,
    )
    clip, relative = schedule.clip_norms, schedule.relative_multipliers  # (T,), step 1
    return {
        "push_weights": _push_weights(graph, rounds),
        "clip_scales": tuple(clip.tolist()),
        "noise_scales": tuple((clip * relative).tolist()),
    }


def _push_weights(graph: Topology, rounds: int) -> Tensor:
    """Give w before each round and after the last: (T + 1, A, 1)."""
    w = [np.ones((graph.agents, 1))]
    for index in range(1, rounds + 1):
        w.append(graph.at(index).weights @ w[-1])
    return torch.from_numpy(np.stack(w))


def init(round: Round) -> State:
    """Every agent starts from the same public model."""
    return State(round.initial())


def step(
    state: State,
    round: Round,
    *,
    push_weights: Tensor,
    clip_scales: tuple[float, ...],
    noise_scales: tuple[float, ...],
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    k = round.index - 1
    if k >= len(clip_scales):
        raise InputError(
            f"round {k + 1} is beyond the planned rounds={len(clip_scales)}, for which alone clip "
            "bounds and noise are set; plan more rounds"
        )
    before, after = round.of_agents(push_weights[k]), round.of_agents(push_weights[k + 1])  # (A, 1)
    bound = None if clip_norm is None else clip_norm * clip_scales[k]  # 1
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=bound)  # 2
    noisy = (sums + round.noise(sums, std=noise_std * noise_scales[k])) / batch_size
    x = round.mix(before * state.x - learning_rate * noisy, kind="model")  # 3, 4
    return State(x / after)


def published_bound(run: PlannedRun) -> PublishedClaim | None:
    """The central limit of the run's schedule."""
    if run.noise_multiplier == 0.0:
        return None
    schedule = Schedule(
        rounds=run.rounds,
        sampling_rate=run.sampling_rate,
        clip_decay=run.settings.clip_decay,
        budget_growth=run.settings.budget_growth,
    )
    return dyn_d2p_clt(
        schedule,
        noise_multiplier=run.noise_multiplier,
        statement=run.statement,
    )


ALGORITHM = Algorithm(
    name="dyn-d2p",
    init=init,
    step=step,
    settings=Settings,
    prepare=prepare,
    weights=Sums.COLUMNS,
    published_bound=published_bound,
)
