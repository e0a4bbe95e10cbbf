"""Joint D-SGD: the least noise over agents and rounds together, made from one common seed.

It has no paper of its own, and joins the noise of two, as the optimum over both at once:

A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD: Correlated Noise Across Agents for Differentially
Private Decentralized Learning", 2025, arXiv 2501.14644: one common seed.
A. Bellet, E. Cyffers, D. Frey, R. Gaudel, D. Lerévérend, F. Taïani, "Unified Privacy Guarantees for
Decentralized Learning via Matrix Factorization", 2025, arXiv 2510.17480: memory.

    1  W = sum_k lambda_k U_k U_k',  U_k orthonormal: its eigenspaces
    2  C_k, one an eigenspace, minimise the noise in the models, sum over rounds and agents, at
       equal mu of a record that is used in rounds j, j + b, ... and is at any agent
    3  v = sum_k U_k n_k,  C_k n_k = z_k over the rounds,  z_k ~ N(0, s^2 C^2 I) from a common seed
    4  x_i <- sum_j W_ij (x_j - eta (sum_b clip(grad_b F(x_j), C) + v_j,t) / B)

| symbol | name here     | shape         | meaning                                                 |
|--------|---------------|---------------|---------------------------------------------------------|
| x      | x             | (A, D)        | models                                                  |
| W      | round.weights | (E, 1)        | mixing weights, symmetric                               |
| U_k    | bases         | (A, m_k)      | orthonormal basis of an eigenspace                      |
| C_k    | strategies    | (modes, T, p) | strategies; row t from its diagonal backwards           |
| U_k n  | past          | (A, D)        | of each eigenspace, what the last p - 1 rounds added    |
| b      | period        | scalar        | rounds between two uses of a record; 0 is one use       |
| p      | bands         | scalar        | rounds that a round's noise takes part in; 0 is all     |
| C of 3 | clip_norm     | scalar        | bound on one example's gradient                         |
| s C    | noise_std     | scalar        | noise on a sum of gradients that C_k^-1 is relative to  |
| B      | batch_size    | scalar        | public normaliser: the expected batch size              |
| eta    | learning_rate | scalar        | step size                                               |

U_k acts on agents and C_k on rounds, so (U_k n_k)_i = C_k^-1 (U_k z_k)_i: every agent remembers its
own row of each eigenspace and nobody else's, and makes its row of U_k z_k from the seed.

What protects from whom: an eavesdropper reads every link and knows no seed. All rounds are one
release to it, and it learns of agent i what M_i = sum_k (U_k U_k')_ii C_k'C_k says; state [privacy]
participation = { cycle = b } with the same b. Every agent knows the seed, and so all noise, and
sees every gradient: its epsilon is infinite. Where agents may be curious, use decor-over-time.

An agent that stays away leaves noise of others that no longer cancels, as in Whisper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...privacy.noise.over_time import modes_of
from ..graphs.graph import Topology
from .algorithm import Algorithm
from .correlated_step import unsteered
from .dp_ftrl import State
from .strategy import Settings, graph_of, joint_tables, row_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.handles import Agents
    from ..step.round import Round


def prepare(
    *, graph: Topology, rounds: int, period: int, bands: int, step_sizes: tuple[float, ...] = ()
) -> dict[str, object]:
    """Steps 1 and 2, for the mixing weights of the run.

    Raises:
        ValueError: a graph that changes or has no links, weights that are not symmetric, or more
            rounds than a strategy is looked for.
    """
    import torch

    weights = graph_of(graph, algorithm="joint-dsgd").weights
    tables = joint_tables(
        weights,
        rounds=rounds,
        period=period,
        bands=bands,
        algorithm="joint-dsgd",
        step_sizes=step_sizes,
    )
    return {"strategies": tables, "bases": tuple(map(torch.from_numpy, modes_of(weights).bases))}


def init(round: Round, *, strategies: Tensor) -> State:
    """Every agent starts from the same public model, and remembers no noise."""
    x = round.initial()
    modes, _, bands = strategies.shape
    return State(x, (0.0 * x,) * (modes * (bands - 1)))


def step(
    state: State,
    round: Round,
    *,
    strategies: Tensor,
    bases: Sequence[Tensor],
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round: step, then mix; the numbers are the steps above."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    together = 0.0 * sums
    everybody = frozenset(range(round.agents))
    kept = strategies.shape[2] - 1
    past: tuple[Agents, ...] = ()
    for k, basis in enumerate(bases):
        seed = [everybody] * basis.shape[1]
        fresh = round.noise(sums, std=noise_std, factor=basis, known_to=seed)
        before = state.past[k * kept : (k + 1) * kept]
        noise, after = round.remembered(fresh, before, row=row_of(strategies[k], round))  # 3
        together = together + noise  # added to data at once: an agent has little of some modes
        past += after
    x = state.x - learning_rate * (sums + together) / batch_size
    return State(round.mix(x, kind="model"), past)  # 4


ALGORITHM = Algorithm(
    name="joint-dsgd", init=init, step=step, settings=Settings, prepare=prepare, unsteered=unsteered
)
