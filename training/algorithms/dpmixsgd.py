"""DPMixSGD: decentralised min-max training with recursive estimates, gradient tracking and noise.

Y. Quan, C. Wang, S. Zhai, M. Fang, Z. Liu, "Enhancing Privacy in Decentralized Min-Max
Optimization: A Differentially Private Approach", MobiHoc 2025, arXiv 2508.07505, on the scheme of
DM-HSGD (`dm_hsgd`). z = (x, y); g_b(z) is the gradient of record b.

    1  s_0 = d_0 + noise, d_0 = mean of g_b(z_0) over a large batch;  u_0 = W s_0
    2  (x, y)_t+1 = W (x_t - eta_x ux_t), Proj(W (y_t + eta_y uy_t))
    3  published    d_t = (1/b) sum_b (g_b(z_t) - (1-beta) g_b(z_t-1)) + (1-beta) d_t-1
                    s_t = d_t + n_t / b,                                n_t ~ N(0, s^2 C^2 I)
       repaired     s_t = (1/b) (sum_b clip(g_b(z_t) - (1-beta) g_b(z_t-1), C) + n_t)
                          + (1-beta) s_t-1
    4  u_t = W (u_t-1 + s_t - s_t-1)                           s_t is what enters the trackers

| symbol       | name here          | shape  | meaning                                           |
|--------------|--------------------|--------|---------------------------------------------------|
| x, y         | x, y               | (A, .) | models and dual variables                         |
| z_t-1        | x_before, y_before | (A, .) | the point before                                  |
| d            | dx, dy             | (A, .) | estimates as an agent keeps them                  |
| s            | sx, sy             | (A, .) | estimates with noise; d itself where repaired     |
| u            | ux, uy             | (A, .) | trackers: estimates of the mean gradient          |
| W            | round.weights      | (E, 1) | mixing weights                                    |
| beta         | beta_x, beta_y     | scalar | weight of the plain gradient, one a block         |
| eta_x, eta_y | learning_rate(_y)  | scalar | step sizes                                        |
| C            | clip_norm          | scalar | bound on one example's vector, x and y as one     |
| s C          | noise_std          | scalar | noise on the sum of a round's vectors             |
|              | initial_noise      | scalar | noise on the first sum over noise_std             |
| b, b_0       | batch_size,        | scalar | public normalisers: expected size of a batch, and |
|              | initial_batch      |        | of the first                                      |

Where we differ from the paper: it clips nothing, so no noise bounds what a record gives away. The
published form clips the two gradients of a record one by one, where a clip norm is given. Its
recursion is kept without noise: a record stays in all later estimates with weight (1-beta)^k, and
each of them is released again. Accounted round by round that is infinite; over the whole run it is
finite and large: a record of the first round moves the releases by (2-beta) C sqrt(sum_k
(1-beta)^2k), up to 7.1 (2-beta) C at beta .01, and sampling does not amplify, because a record acts
through all of its batches together. The repaired form puts the noise inside the recursion, clips
the difference of a record's two gradients as one vector, and releases it once: one sampled Gaussian
a round. Its first batch is drawn at a far higher rate than the others and would dominate at equal
noise: it has a multiplier of its own, `initial_noise` times the run's. The published noise is the
same at every step, as printed. An agent with fewer records than initial_batch takes all of them.
Its Table 3 clips the largest 20 % of gradients: clip_quantile .8 scales those that are longer to
the norm at that quantile of their batch. That norm follows the records, so no figure is finite, and
the repaired form refuses it. Its dual variables have one coordinate a record, a task's a public
number. The MLP of its appendix C.2 has three dual variables with auxiliary functions that it does
not give; `AreaUnderCurve` has one, and minimises in two more variables. We weigh classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...privacy.errors import within
from ...privacy.published.claim import PublishedClaim, dpmixsgd_theorem_3
from .algorithm import Algorithm, Form, PlannedRun
from .min_max_step import FirstBatch, Recursion, mixed, quantile_of, stepped

if TYPE_CHECKING:
    from ..step.handles import Agents
    from ..step.round import Round
    from .min_max_step import Pair


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(Recursion):
    """Hyper-parameters: those of the recursion, and the noise of its first batch."""

    initial_noise: float = 5.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        Recursion.__post_init__(self)
        remedy = "1 is the noise multiplier of the rounds"
        within("initial_noise", self.initial_noise, "(0, inf)", remedy)


class State(NamedTuple):
    """Points now and before, estimates, what is sent of them, trackers; a block each of x and y."""

    x: Agents
    y: Agents
    x_before: Agents
    y_before: Agents
    dx: Agents
    dy: Agents
    sx: Agents
    sy: Agents
    ux: Agents
    uy: Agents


def init(
    round: Round,
    *,
    form: Form,
    settings: Settings,
    records: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """Step 1: the public point, and the noisy gradient of a large batch there."""
    first = FirstBatch.of(settings.initial_batch, records=records)
    z = round.initial(), round.initial(block=1)
    at = quantile_of(settings.clip_quantile, clip_norm=clip_norm, bounds=form is Form.REPAIRED)
    batch = round.draw(first.sampling_rate)
    sx, sy = round.clipped_sums(z, batch=batch, clip_norm=clip_norm, quantile=at)
    if form is Form.PUBLISHED:
        d = sx / first.size, sy / first.size
        s = _noisy(round, d, std=noise_std / batch_size)
    else:
        noisy = _noisy(round, (sx, sy), std=settings.initial_noise * noise_std)
        d = s = noisy[0] / first.size, noisy[1] / first.size
    return State(*z, *z, *d, *s, *mixed(round, s))


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
    """One round; the numbers are the steps above."""
    before, kept = (state.x, state.y), (1.0 - settings.beta_x, 1.0 - settings.beta_y)
    rates = learning_rate, settings.learning_rate_y
    z = stepped(round, before, along=(state.ux, state.uy), rates=rates)  # 2
    batch = round.draw()  # 3
    if form is Form.PUBLISHED:
        at = quantile_of(settings.clip_quantile, clip_norm=clip_norm)
        now = round.clipped_sums(z, batch=batch, clip_norm=clip_norm, quantile=at)
        past = round.clipped_sums(before, batch=batch, clip_norm=clip_norm, quantile=at)
        fresh = now[0] - kept[0] * past[0], now[1] - kept[1] * past[1]
        d = _recursive(fresh, (state.dx, state.dy), kept=kept, batch_size=batch_size)
        s = _noisy(round, d, std=noise_std / batch_size)
    else:
        coefs = (1.0, (-kept[0], -kept[1]))
        fx, fy = round.clipped_sums(z, before, batch=batch, coefs=coefs, clip_norm=clip_norm)
        noisy = _noisy(round, (fx, fy), std=noise_std)
        d = s = _recursive(noisy, (state.sx, state.sy), kept=kept, batch_size=batch_size)
    u = state.ux + s[0] - state.sx, state.uy + s[1] - state.sy  # 4
    return State(*z, *before, *d, *s, *mixed(round, u))


def _noisy(round: Round, value: Pair, *, std: float) -> Pair:
    return (value[0] + round.noise(value[0], std=std), value[1] + round.noise(value[1], std=std))


def _recursive(fresh: Pair, last: Pair, *, kept: Sequence[float], batch_size: float) -> Pair:
    """A batch's share and what is kept of the estimate before."""
    return (fresh[0] / batch_size + kept[0] * last[0], fresh[1] / batch_size + kept[1] * last[1])


def published_bound(run: PlannedRun) -> PublishedClaim | None:
    """Theorem 3 of an average agent's records, with the clip norm as its G."""
    if run.records is None or run.clip_norm is None or run.sampling_rate == 0.0:
        return None
    first = FirstBatch.of(run.settings.initial_batch, records=run.records)
    on_a_sum = run.noise_multiplier * run.clip_norm
    size = run.sampling_rate * run.records
    repaired = run.form is Form.REPAIRED
    return dpmixsgd_theorem_3(
        noise_std=on_a_sum / size,
        delta=run.statement.delta,
        rounds=run.rounds,
        examples=run.records,
        batch_size=size,
        start_batch_size=first.size,
        start_noise_std=run.settings.initial_noise * on_a_sum / first.size if repaired else None,
        gradient_bound=run.clip_norm,
        repaired=repaired,
    )


ALGORITHM = Algorithm(
    name="dpmixsgd",
    init=init,
    step=step,
    settings=Settings,
    blocks=2,
    published_bound=published_bound,
    released=("x", "y"),
)
