"""Descent in the parameters x, ascent in the dual variables y: what the min-max algorithms share.

A point z = (x, y) is a pair of values, block 0 and block 1 of the task. Both blocks of one
example's gradient are clipped as one vector; after that nothing mixes them. Recursive estimates
start from one large batch, whose rate and public normaliser are a `FirstBatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...privacy.errors import InputError, within

if TYPE_CHECKING:
    from ..step.handles import Agents
    from ..step.round import Round

    Pair = tuple[Agents, Agents]  # (x, y), (A, D_x) and (A, D_y)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recursion:
    """Hyper-parameters of a recursion: dual step size, its weights, size of the start, clip."""

    learning_rate_y: float = 0.1
    beta_x: float = 0.01
    beta_y: float = 0.1
    initial_batch: float = 2000.0
    clip_quantile: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        within("learning_rate_y", self.learning_rate_y, "(0, inf)")
        within("beta_x", self.beta_x, "(0, 1]", "1 is the plain gradient")
        within("beta_y", self.beta_y, "(0, 1]", "1 is the plain gradient")
        within("initial_batch", self.initial_batch, "(0, inf)")
        if self.clip_quantile is not None:
            within("clip_quantile", self.clip_quantile, "(0, 1]", "1 clips nothing")


def stepped(round: Round, z: Pair, *, along: Pair, rates: tuple[float, float]) -> Pair:
    """Step along estimates of the gradient, down in x and up in y, then mix; y stays feasible.

    Args:
        z: the points to step from.
        along: estimates gx and gy of the gradient there.
        rates: eta_x and eta_y.

    Returns:
        sum_j W_ij (x_j - eta_x gx_j) and Proj(sum_j W_ij (y_j + eta_y gy_j)).
    """
    x = round.mix(z[0] - rates[0] * along[0], kind="model")
    y = round.mix(z[1] + rates[1] * along[1], kind="dual")
    return x, round.project(y)


def mixed(round: Round, u: Pair) -> Pair:
    """Mix the trackers, block by block."""
    return round.mix(u[0], kind="tracker"), round.mix(u[1], kind="dual-tracker")


def quantile_of(
    clip_quantile: float | None, *, clip_norm: float | None = None, bounds: bool = False
) -> float | None:
    """The quantile of a batch to whose norm `round.clipped_sums` clips; None where it does not.

    Args:
        clip_quantile: share of a batch's gradients that keep their length; None or 1: all.
        clip_norm: public bound; None does not clip.
        bounds: whether the form promises a bound.

    Raises:
        ValueError: a quantile where a bound is promised, or a clip norm beside it.

    >>> quantile_of(0.8), quantile_of(None, clip_norm=2.0)
    (0.8, None)
    """
    if clip_quantile is None or clip_quantile == 1.0:
        return None
    if bounds or clip_norm is not None:
        raise InputError(
            f"clip_quantile={clip_quantile:g} clips to a norm that the records of a batch decide, "
            "so no noise bounds what a record gives away; leave it out, or set "
            'form = "published" and [privacy] clip_norm = inf for a run without a finite epsilon'
        )
    return clip_quantile


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstBatch:
    """A Poisson batch that is drawn once, before the first round.

    Attributes:
        size: public normaliser: its expected size on an average agent.
        sampling_rate: probability that a record is in it.
    """

    size: float
    sampling_rate: float

    @classmethod
    def of(cls, initial_batch: float, *, records: float) -> FirstBatch:
        """The batch of an expected size, or of all records where an agent has fewer.

        Args:
            initial_batch: expected size.
            records: public number of records of an average agent.

        Raises:
            ValueError: a number that is not positive.

        >>> FirstBatch.of(2000, records=20_000)
        FirstBatch(size=2000.0, sampling_rate=0.1)
        >>> FirstBatch.of(2000, records=140)
        FirstBatch(size=140.0, sampling_rate=1.0)
        """
        within("initial_batch", initial_batch, "(0, inf)")
        within("records", records, "(0, inf)")
        size = float(min(initial_batch, records))
        return cls(size=size, sampling_rate=size / records)
