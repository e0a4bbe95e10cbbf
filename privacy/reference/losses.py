"""The privacy loss of one round, as far as a grid for it must be planned: range and moments.

dp-accounting puts the loss of a round on equal steps of `interval` nats. What that takes is known
beforehand from the range of the loss and from its log moments, which a few thousand nodes give.

| symbol | name here | unit |
|---|---|---|
| q | Kind.rate | probability per round |
| 1/d | Kind.multiplier | noise std / clip norm |
| Lambda(t) | log_moments | log E[exp(t loss)] under P |

Source: the pairs of arXiv:2106.08567, as in `accounting.dominating_pairs`; nothing here enters a
figure, only the choice of the interval and of what is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kind", "Losses", "losses_of"]

Array = NDArray[np.float64]
_NODES = 401  # over each bump
_ORDERS = 20  # of the Chernoff bounds by which dp-accounting cuts a composition
_TRUNCATED = math.log(2e15)  # minus the log of what it may cut on either side


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """`count` equal rounds: noise std on the sum / clip norm, and Poisson rate in (0, 1]."""

    multiplier: float
    rate: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """The loss of one round of a kind, for one direction of the adjacency.

    Attributes:
        range: smallest and largest loss on the grid, in nats.
        losses, log_masses: (K,) nodes under P.
        count: how many rounds are alike.
    """

    range: tuple[float, float]
    losses: Array
    log_masses: Array
    count: int

    @property
    def width(self) -> float:
        """Of the grid of one round, in nats."""
        return self.range[1] - self.range[0]

    def log_moments(self, tilts: Array) -> Array:
        """Lambda(t) of one round at each tilt."""
        exponents = self.log_masses + np.multiply.outer(tilts, self.losses)
        top = exponents.max(axis=1)
        found = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        return np.asarray(found, dtype=np.float64)

    def composed_width(self) -> float:
        """Of the grid of all `count` rounds, as dp-accounting cuts it, in nats."""
        orders = np.arange(1, _ORDERS + 1) / max(self.width, 1e-300)
        high = (self.count * self.log_moments(orders) + _TRUNCATED) / orders
        low = (self.count * self.log_moments(-orders) + _TRUNCATED) / -orders
        ends = max(float(low.max()), self.count * self.range[0]), float(high.min())
        return max(min(ends[1], self.count * self.range[1]) - ends[0], self.width)


def losses_of(kind: Kind, *, replace: bool, reach: float) -> list[Losses]:
    """The losses of both directions of a kind; one where they are alike.

    Args:
        kind: the round.
        replace: whether the record is replaced, not added or removed.
        reach: noise standard deviations on either side of a mean that the grid covers.

    >>> [found] = losses_of(Kind(multiplier=2.0, rate=1.0, count=1), replace=False, reach=8.0)
    >>> found.range, round(float(found.log_moments(np.ones(1))[0]), 4)  # t (t + 1) / (2 s^2)
    ((-4.125, 4.125), 0.25)
    """
    d, q = 1.0 / kind.multiplier, kind.rate
    z = np.linspace(-reach, reach, _NODES)
    log_density = -0.5 * z**2
    log_density -= np.logaddexp.reduce(log_density)
    with np.errstate(divide="ignore"):
        logs = [np.log1p(-np.float64(q)), np.log(np.float64(q))]
    positions = np.concatenate([z, z + d])
    log_masses = np.concatenate([logs[0] + log_density, logs[1] + log_density])
    top = d * reach + 0.5 * d**2  # the largest loss of a record that takes part
    up, down = _log_mean(q, top), _log_mean(q, -top)
    if replace:
        losses = _log_mean(q, d * positions - 0.5 * d**2)
        losses = losses - _log_mean(q, -d * positions - 0.5 * d**2)
        most = float(up - _log_mean(q, -top - d**2))
        return [_losses((-most, most), losses, log_masses, kind.count)]
    remove = _losses(
        (float(down), float(up)),
        _log_mean(q, d * positions - 0.5 * d**2),
        log_masses,
        kind.count,
    )
    if q == 1.0:
        return [remove]
    add = -_log_mean(q, d * z - 0.5 * d**2)
    return [remove, _losses((-float(up), -float(down)), add, log_density, kind.count)]


def _losses(ends: tuple[float, float], losses: Array, log_masses: Array, count: int) -> Losses:
    kept = np.isfinite(log_masses)
    return Losses(
        range=ends,
        losses=np.clip(losses[kept], *ends),
        log_masses=np.asarray(log_masses[kept], dtype=np.float64),
        count=count,
    )


def _log_mean(rate: float, exponents: Array | float) -> Array:
    """log(1 - q + q e^x), with digits where it is close to 0."""
    x = np.asarray(exponents, dtype=np.float64)
    if rate == 1.0:
        return x
    near = np.log1p(rate * np.expm1(np.minimum(x, 1.0)))
    far = np.logaddexp(math.log1p(-rate), math.log(rate) + x)
    return np.asarray(np.where(x < 1.0, near, far), dtype=np.float64)
