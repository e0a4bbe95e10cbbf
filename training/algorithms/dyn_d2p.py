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
| C_k / C_0             | scales[k][0]  | scalar    | clip bounds over the first                   |
| C_k mu_0 / (C_0 mu_k) | scales[k][1]  | scalar    | noise likewise                               |
| rho_c                 | clip_decay    | scalar    | 1 keeps the clip bound                       |
| rho_mu                | budget_growth | scalar    | 1 keeps the noise multiplier                 |
|                       | clip_norms    | (L,)      | in place of rho_c: C_k over clip_norm        |
|                       | noise_multipliers | (L,)  | of rho_mu: 1 / mu_k over noise_std/clip_norm |
| B                     | batch_size    | scalar    | public normaliser: the expected batch size   |
| eta                   | learning_rate | scalar    | step size                                    |

The noise multiplier of a run is 1 / mu_0, that of the first round. The paper's variants: Dyn is the
default; Dyn[C] has budget_growth 1, Dyn[mu] clip_decay 1, Const both; without noise and clipping it
is the non-private reference.

The paper's Algorithm 2 takes any sequence of clip bounds and noise: a list of L entries has one for
each of L equal stretches of rounds, and L = T one for each round. Entries are multiples of the
run's clip norm and noise multiplier; where these are 1, the numbers themselves.

Where we differ from the paper: mu_0 comes from the exact composition of the rounds, not from a
central limit (`overhear.privacy.published.claim`). Batches are Poisson samples, which may be
empty, of any rate; the paper draws one example. w depends on the graphs alone, so every agent
computes it beforehand instead of sending it, and `x` keeps the models x / w, from which x is made
again.
Either form is the same: each round is one Gaussian release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...privacy.errors import InputError, InputTypeError
from ...privacy.noise.schedule import Schedule, check_course, check_length
from ...privacy.published.claim import PublishedClaim, dyn_d2p_clt
from ..graphs.graph import Topology
from ..graphs.mixing import Sums
from .algorithm import Algorithm, PlannedRun
from .dsgd import State, init

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.round import Round


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters: how the clip bound and the budget of a round change in a run.

    Attributes:
        clip_decay: how far the clip bound falls; by default 4.
        budget_growth: how many times smaller the noise multiplier gets; by default 4.
        clip_norms: in place of clip_decay, multiples of the clip norm.
        noise_multipliers: in place of budget_growth, multiples of the noise multiplier.

    Raises:
        ValueError: a number out of range, or a list and what it replaces.
    """

    clip_decay: float | None = None
    budget_growth: float | None = None
    clip_norms: tuple[float, ...] | None = None
    noise_multipliers: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check the ranges, and fill in what is used."""
        for name, by_list in (("clip_decay", "clip_norms"), ("budget_growth", "noise_multipliers")):
            value, entries = getattr(self, name), getattr(self, by_list)
            if isinstance(entries, str) or not isinstance(entries, Sequence | None):
                raise InputTypeError(f"{by_list}={entries!r} must be a list of numbers")
            object.__setattr__(self, name, check_course(name, value, by_list, entries))
            if entries is not None:
                object.__setattr__(self, by_list, tuple(map(float, entries)))


def prepare(*, graph: Topology, rounds: int, settings: Settings) -> dict[str, object]:
    """The public numbers of every round: push-sum weights, clip bounds, noise.

    Raises:
        ValueError: a list that does not fit the rounds.
    """
    schedule = _schedule(settings, rounds=rounds, sampling_rate=1.0)  # the rate enters neither
    clip = schedule.clip_norms  # (T,), step 1
    noise = schedule.noise_stds(_first(settings))
    return {
        "push_weights": _push_weights(graph, rounds),
        "scales": tuple(zip(clip.tolist(), noise.tolist(), strict=True)),
    }


def _schedule(settings: Settings, *, rounds: int, sampling_rate: float) -> Schedule:
    for name in ("clip_norms", "noise_multipliers"):
        if (entries := getattr(settings, name)) is not None:
            check_length(name, len(entries), rounds)
    return Schedule(
        rounds=rounds,
        sampling_rate=sampling_rate,
        clip_decay=settings.clip_decay,
        budget_growth=settings.budget_growth,
        clip_multiples=settings.clip_norms,
        noise_multiples=settings.noise_multipliers,
    )


def _first(settings: Settings) -> float:
    """The first round's noise multiplier, of that of the run."""
    return settings.noise_multipliers[0] if settings.noise_multipliers else 1.0


def _push_weights(graph: Topology, rounds: int) -> Tensor:
    """Give w before each round and after the last: (T + 1, A, 1)."""
    import torch

    w = [np.ones((graph.agents, 1))]
    for index in range(1, rounds + 1):
        w.append(graph.at(index).weights @ w[-1])
    return torch.from_numpy(np.stack(w))


def step(
    state: State,
    round: Round,
    *,
    push_weights: Tensor,
    scales: tuple[tuple[float, float], ...],
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    k = round.index - 1
    if k >= len(scales):
        raise InputError(
            f"round {k + 1} is beyond the planned rounds={len(scales)}, for which alone clip "
            "bounds and noise are set; plan more rounds"
        )
    before, after = round.of_agents(push_weights[k]), round.of_agents(push_weights[k + 1])  # (A, 1)
    of_clip, of_noise = scales[k]
    bound = None if clip_norm is None else clip_norm * of_clip  # 1
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=bound)  # 2
    noisy = (sums + round.noise(sums, std=noise_std * of_noise)) / batch_size
    x = round.mix(before * state.x - learning_rate * noisy, kind="model")  # 3, 4
    return State(x / after)


def published_bound(run: PlannedRun) -> PublishedClaim | None:
    """The central limit of the run's schedule."""
    if run.noise_multiplier == 0.0:
        return None
    settings: Settings = run.settings
    return dyn_d2p_clt(
        _schedule(settings, rounds=run.rounds, sampling_rate=run.sampling_rate),
        noise_multiplier=run.noise_multiplier * _first(settings),
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
