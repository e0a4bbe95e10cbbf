"""DPDL: cross-gradients, clipping per example, Gaussian noise, calibration, momentum, mixing.

Yunsheng Yuan, Xue Xiao, Lina Wang, Feng Li, "DPDL: Towards Differential Privacy Preservation in
Decentralized Stochastic Learning on Non-IID Data", 2026, arXiv 2606.04399.

    1  send x_i to the neighbours; draw one batch of D_i for all of their models
    2  g[m, i] = (1/B) (sum_b clip(grad_b F(x_m), C) + z),  z ~ N(0, s^2 C^2 I);  send it to m
    3  g[i, i] likewise;  ghat_i = (1/B) sum_b clip(grad_b F(x_i), C), without noise
    4  c_d = 1 / (1 + exp(cos(g[i, d], ghat_i)))
       g_i = sum_d g[i, d] / (sqrt(W_id) A) + alpha W_id c_d ghat_i
    5  v_i <- momentum v_i + g_i;  x_i <- x_i - eta v_i;  send both
    6  v_i <- sum_j W_ij v_j;      x_i <- sum_j W_ij x_j

| symbol  | name here     | shape  | meaning                                             |
|---------|---------------|--------|-----------------------------------------------------|
| x, v    | x, v          | (A, D) | models, momenta                                     |
| g[m, d] | received      | (E, D) | noisy cross-gradient: model owner m, data owner d   |
| ghat    | reference     | (A, D) | the own gradient that the calibration compares with |
| W       | round.weights | (E, 1) | mixing weights                                      |
| A       | round.agents  | scalar | number of agents                                    |
| C       | clip_norm     | scalar | bound on one example's gradient                     |
| s C     | noise_std     | scalar | noise on the sum of clipped gradients               |
| B       | batch_size    | scalar | public normaliser: the expected batch size          |
| alpha   | alpha         | scalar | weight of the calibration                           |
| eta     | learning_rate | scalar | step size                                           |

Where we differ from the paper: the published form puts the noise-free ghat into the broadcast of
step 5, scaled by a weight that depends on the agent's own unreleased gradient. No upper bound on
its epsilon is known; the figure given for it is heuristic, "at least this bad". The repaired form
takes g[i, i] for ghat, so that everything after step 3 is post-processing of n_i noisy releases.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...privacy.errors import within
from ...privacy.published.claim import PublishedClaim, dpdl_theorem_1
from .algorithm import Algorithm, Form, OwnGradient, PlannedRun

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.handles import Agents, Edges
    from ..step.round import Round

_SEARCH = 20_001


@functools.cache
def calibration_gain() -> float:
    """Lipschitz constant of g -> c(cos(z, g)) g at fixed z, by search over the angle.

    At cosine s the Jacobian is c I + c'(s) ghat (u - s ghat)^T with u = z / |z|: outside the plane
    of u and g it is c, inside the plane it is [[c, c' r], [0, c]] with r = sqrt(1 - s^2).

    >>> round(calibration_gain(), 3)
    0.758
    """
    import torch

    s = torch.linspace(-1.0, 1.0, _SEARCH, dtype=torch.float64)
    c = torch.sigmoid(-s)
    shear = (c * (1.0 - c) * (1.0 - s * s).sqrt()).abs()
    # Largest singular value of [[c, b], [0, c]] is b/2 + sqrt(c^2 + b^2/4).
    gain = shear / 2 + (c * c + shear * shear / 4).sqrt()
    spacing = 2.0 / (_SEARCH - 1)
    return float(gain.max()) + spacing**2  # |gain''| < 8, so the grid misses less than this


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters: weight of the calibration, and momentum."""

    alpha: float = 0.1
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the ranges."""
        within("alpha", self.alpha, "[0, inf)")
        within("momentum", self.momentum, "[0, 1)")


class State(NamedTuple):
    """Models and momenta, (A, D)."""

    x: Agents
    v: Agents


def init(round: Round) -> State:
    """Every agent starts from the same public model, at rest."""
    x = round.initial()
    return State(x, 0.0 * x)


def step(
    state: State,
    round: Round,
    *,
    form: Form,
    settings: Settings,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the paper's steps."""
    x, v = state
    models = round.broadcast(x, kind="model")  # 1
    sums = round.clipped_sums(models, batch=round.draw(), clip_norm=clip_norm)  # 2, 3
    noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    received = round.reply(noisy, kind="cross-gradient")
    g = round.sum_in(received, weights=_root_inverse(round))  # 4
    if alpha := settings.alpha:
        g = g + _calibration(round, received, sums / batch_size, form=form, alpha=alpha)
    v = settings.momentum * v + g  # 5
    x = x - learning_rate * v
    return State(round.mix(x, kind="half"), round.mix(v, kind="momentum"))  # 6


def _root_inverse(round: Round) -> Edges:
    """1 / (sqrt(W_id) A) for every edge d -> i."""
    return round.of_edges(1.0 / (round.weights.public().sqrt() * round.agents))


def _calibration(
    round: Round, received: Edges, clean: Edges, *, form: Form, alpha: float
) -> Agents:
    """The second term of step 4, summed over the neighbours."""
    if form is Form.REPAIRED:
        pull = round.postprocess(_pull_released, received, round.weights, round.own(received))
        return alpha * pull
    pull = round.bounded(
        _pull,
        round.own(clean),
        released=(received, round.weights),
        private=(round.own(received), round.own(round.weights)),
        lipschitz=calibration_gain(),
        blame=(
            "the calibration puts a noise-free gradient into the momentum, with a weight that "
            "depends on an unreleased gradient: no upper bound is known, it is at least this bad"
        ),
    )
    return alpha * pull


def _pull(
    reference: Tensor, others: Tensor, weights: Tensor, own: Tensor, own_weight: Tensor
) -> Tensor:
    """sum_d W_id c_d reference: (D,), (n_i - 1, D), (n_i - 1, 1), (D,), (1,) -> (D,)."""
    import torch

    cosines = torch.cat([_cosines(others, reference), _cosines(own[None], reference)])
    share = torch.cat([weights[:, 0], own_weight])
    return (share * torch.sigmoid(-cosines)).sum() * reference


def _pull_released(received: Tensor, weights: Tensor, reference: Tensor) -> Tensor:
    """sum_d W_id c_d reference: (n_i, D), (n_i, 1), (D,) -> (D,)."""
    import torch

    return (weights[:, 0] * torch.sigmoid(-_cosines(received, reference))).sum() * reference


def _cosines(rows: Tensor, reference: Tensor) -> Tensor:
    """Cosine of each row with the reference; 0 with a zero vector."""
    import torch

    size = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(reference)
    return torch.where(size > 0, rows @ reference / size.clamp_min(math.ulp(0.0)), 0.0)


def own_gradient(
    sent: Tensor,
    *,
    before: Sequence[tuple[float, Tensor]],
    heard: Sequence[tuple[float, Tensor]],
    own_weight: float,
    agents: int,
    settings: Settings,
    form: Form,
) -> OwnGradient:
    """Undo steps 4 to 6 for an agent i, from the momenta and cross-gradients of two rounds.

        u = v~_t - momentum sum_j W_ij v~_{t-1}^j - sum_{d != i} g[i, d] / (sqrt(W_id) A)
          = g[i, i] / (sqrt(W_ii) A) + alpha sum_d W_id c_d ghat_i

    In the repaired form ghat_i is g[i, i], so u is a multiple of it, and since c_d depends on
    directions alone the factor is known. In the published form ghat_i is free of noise, so dividing
    by the same factor leaves *less* noise than any message carries.

    Args:
        sent: (D,) momentum v~_t that i sends.
        before: W_ij and the momentum that j sent, of all j that i mixed with the round before.
        heard: W_id and the cross-gradient g[i, d] of this round, of every neighbour d.
        own_weight: W_ii.
        agents: A.
        settings: alpha and momentum.
        form: published or repaired.

    Returns:
        u, the factor, and what share of the noise of g[i, i] is left.
    """
    import torch

    u = sent.to(torch.float64, copy=True)  # a difference of large, nearly equal numbers
    for weight, earlier in before:
        u -= settings.momentum * weight * earlier.double()
    for weight, g in heard:
        u -= g.double() / (math.sqrt(weight) * agents)
    direct = 1.0 / (math.sqrt(own_weight) * agents)
    pull = own_weight * _calibrated(1.0) + sum(
        weight * _calibrated(_cosine(g.double(), u)) for weight, g in heard
    )
    factor = direct + settings.alpha * pull
    return OwnGradient(u, factor, direct / factor if form is Form.PUBLISHED else 1.0)


def _cosine(a: Tensor, b: Tensor) -> float:
    import torch

    size = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def _calibrated(cosine: float) -> float:
    """C of step 4."""
    return 1.0 / (1.0 + math.exp(cosine))


def published_bound(run: PlannedRun) -> PublishedClaim | None:
    """Theorem 1, with the largest joint sensitivity of the adversaries as its K."""
    if run.joint_sensitivity == 0.0:  # nothing is released that a bound could be about
        return None
    return dpdl_theorem_1(
        noise_multiplier=run.noise_multiplier,
        delta=run.statement.delta,
        rounds=run.rounds,
        sampling_rate=run.sampling_rate,
        sensitivity_factor=run.joint_sensitivity,
        sensitivity_status=run.status,
    )


ALGORITHM = Algorithm(
    name="dpdl",
    init=init,
    step=step,
    settings=Settings,
    published_bound=published_bound,
    single_gradients=("cross-gradient", "momentum"),
    own_gradient=own_gradient,
    released=("x",),
)
