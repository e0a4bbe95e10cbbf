"""DP-CGA: noisy cross-gradients, projected onto the directions that hurt no neighbour.

Y. Esfandiari, S. Y. Tan, Z. Jiang, A. Balu, E. Herron, C. Hegde, S. Sarkar, "Cross-Gradient
Aggregation for Decentralized Learning from Non-IID Data", ICML 2021, arXiv 2103.02051; with
clipping and noise.

    1  send x_i to the neighbours; draw one batch of D_i for all of their models
    2  g[m, i] = (1/B) (sum_b clip(grad_b F(x_m), C) + z),  z ~ N(0, s^2 C^2 I);  send it to m
    3  g = g[i, i],  M = the n_i rows g[i, d]
       v* = argmin_{v >= 0} 1/2 |M^T v + g|^2;  g~_i = M^T v* + g
    4  u_i <- beta u_i + g~_i;  x_i <- sum_j W_ij x_j - eta u_i

    clip = "batch":  g[m, i] = clip((1/B) sum_b grad_b F(x_m), C) + z

| symbol    | name here     | shape    | meaning                                               |
|-----------|---------------|----------|-------------------------------------------------------|
| x, u      | x, u          | (A, D)   | models, momenta                                       |
| g[m, d]   | received      | (E, D)   | noisy cross-gradient: model owner m, data owner d     |
| M         | rows          | (n_i, D) | what agent i received, its own gradient among it      |
| g~        | projected     | (A, D)   | nearest vector to g with no negative product with M   |
| W         | round.weights | (E, 1)   | mixing weights                                        |
| C         | clip_norm     | scalar   | bound on one example's gradient, or on a batch's mean |
| s C       | noise_std     | scalar   | noise on the sum of clipped gradients, or on the mean |
| B         | batch_size    | scalar   | public normaliser: the expected batch size            |
| beta, eta | momentum, ... | scalar   | momentum, learning_rate                               |

g~ is the projection of g onto {p: M p >= 0}, so a small step along -g~ raises no neighbour's loss
to first order. The own row of M changes nothing: the product of a projection with what it projects
is its squared length.

Where we differ from the paper: it clips nothing and adds no noise, and its batches have a fixed
size. Private versions of it clip the mean of a batch; one record can turn the clipped mean round,
so it moves it by 2C, and noise of standard deviation s C goes on the mean, where per-example
clipping puts s C / B. Both are here, "per-example" by default. The projection acts on n_i noisy
releases of one batch: joint sensitivity sqrt(n_i) for any closed adversary, twice that for "batch".
The authors' code scales the rows by W_id and keeps v above a margin; here v >= 0 as in the paper.
Published and repaired form are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...privacy.errors import within
from .algorithm import Algorithm, Clip

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.handles import Agents
    from ..step.round import Round

_MOST_STEPS = 100  # of scipy's solver, for each row; it needs about one


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters: what is clipped, and momentum."""

    clip: Clip = Clip.PER_EXAMPLE
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the range."""
        within("momentum", self.momentum, "[0, 1)")


class State(NamedTuple):
    """Models and momenta, (A, D)."""

    x: Agents
    u: Agents


def init(round: Round) -> State:
    """Every agent starts from the same public model, at rest."""
    x = round.initial()
    return State(x, 0.0 * x)


def step(
    state: State,
    round: Round,
    *,
    clip: Clip,
    momentum: float,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are steps above."""
    models = round.broadcast(state.x, kind="model")  # 1
    batch = round.draw()
    if clip is Clip.BATCH:  # 2
        means = round.clipped_mean(models, batch=batch, batch_size=batch_size, clip_norm=clip_norm)
        noisy = means + round.noise(means, std=noise_std)
    else:
        sums = round.clipped_sums(models, batch=batch, clip_norm=clip_norm)
        noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    received = round.reply(noisy, kind="cross-gradient")
    projected = round.postprocess(project, round.own(received), received)  # 3
    u = momentum * state.u + projected  # 4
    mixed = round.sum_in(models, weights=round.weights)
    return State(mixed - learning_rate * u, u)


def project(gradient: Tensor, rows: Tensor) -> Tensor:
    """Return the vector nearest to a gradient whose products with all rows are at least 0.

    Solved by its dual, non-negative least squares min_{v >= 0} |M^T v + g|, on the triangular
    factor of [M^T g], which keeps every product. On the host scipy solves it; a device does, by
    `non_negative`, without the host waiting for it.

    Args:
        gradient: g, (D,).
        rows: M, (n, D).

    Returns:
        (D,) M^T v* + g, in the gradient's precision. On a device not a number where the solver
        does not settle, which is an error when the round ends.

    Raises:
        RuntimeError: on the host, the solver does not settle.
    """
    import torch

    n = len(rows)
    stacked = torch.cat([rows, gradient[None]]).double()  # (n + 1, D)
    triangle = torch.linalg.qr(stacked.T, mode="r").R  # (min(D, n + 1), n + 1)
    v = non_negative(triangle) if rows.is_cuda else _non_negative_on_host(triangle)
    return (stacked[n] + v @ stacked[:n]).to(gradient.dtype)


def _non_negative_on_host(triangle: Tensor) -> Tensor:
    """As `non_negative`, by scipy."""
    import torch
    from scipy.optimize import nnls

    held, n = triangle.numpy(), triangle.shape[1] - 1
    # A common scale, so that the solver's absolute tolerance is a relative one.
    scale = float(abs(held).max()) or 1.0
    v, _ = nnls(held[:, :n] / scale, -held[:, n] / scale, maxiter=_MOST_STEPS * n)
    return torch.from_numpy(v)


def non_negative(triangle: Tensor) -> Tensor:
    """Solve min_{v >= 0} |R v + r| by active sets, in a number of steps that no value decides.

    C. L. Lawson, R. J. Hanson, "Solving Least Squares Problems", 1974, chapter 23. Each step solves
    for the coefficients that are held (a QR of their columns), and then takes one in or lets one
    go; so nothing is read back, and `torch.vmap` does all agents at once. About one step for each
    coefficient is needed; those that are left over change nothing.

    Args:
        triangle: [R r], (k, n + 1) float64.

    Returns:
        (n,) v; not a number where it has not settled.
    """
    import torch

    n = triangle.shape[1] - 1
    lengths = torch.linalg.vector_norm(triangle, dim=0)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    unit = triangle / lengths
    columns, target = unit[:, :n], unit[:, n]
    rounding = 10 * (n + 1) * torch.finfo(torch.float64).eps
    v = torch.zeros_like(lengths[:n])
    number = torch.arange(n, device=triangle.device)
    held = entered = barred = settled = v > 0  # nothing is
    for _ in range(3 * n + 3):
        # The free optimum z on the columns that are held; a 1 keeps the others' places.
        kept = torch.cat([torch.where(held, columns, 0.0), torch.diag(torch.where(held, 0.0, 1.0))])
        right = torch.cat([-target, torch.zeros_like(v)])
        R = torch.linalg.qr(torch.cat([kept, right[:, None]], dim=1), mode="r").R
        z = torch.linalg.solve_triangular(R[:n, :n], R[:n, n:], upper=True)[:, 0]
        z = torch.where(torch.isfinite(z), z, -1e300)
        # Towards z until the first coefficient is 0, which is let go; one that was taken in just
        # now depends on the others up to rounding, and stays out.
        stops = held & ~(z > 0)
        new = stops & entered & (v == 0)
        part = torch.where(stops, torch.where(v > 0, v / (v - z), 0.0), 2.0)
        part = torch.where(new, -1.0, part)
        stopped = stops.any()
        leaves = (number == part.argmin()) & stopped
        held, barred = held & ~leaves, barred | (leaves & new)
        moved = torch.where(stopped, part.amin().clamp(min=0.0), 1.0) * (z - v) + v
        v = torch.where(held, moved.clamp(min=0.0), 0.0)
        # At z the one whose product is most negative is taken in.
        products = columns.mT @ (target + columns @ v)
        products = torch.where(held | barred, 0.0, products)
        enough = products.amin() >= -rounding * (1 + v.sum())  # not where one is no number
        entered = (number == products.argmin()) & ~enough & ~stopped
        held, settled = held | entered, ~stopped & enough
    v = v * lengths[n] / lengths[:n]
    return torch.where(settled & triangle.isfinite().all(), v, torch.nan)


ALGORITHM = Algorithm(
    name="dp-cga",
    init=init,
    step=step,
    settings=Settings,
    single_gradients=("cross-gradient",),
    released=("x",),
)
