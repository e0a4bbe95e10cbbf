"""The privacy loss of one round, as far as a grid for it must be planned: range and moments.

dp-accounting puts the loss of a round on equal steps of `interval` nats. What that takes is known
beforehand from the range of the loss and from its log moments, which a few thousand nodes give.

| symbol | name here | unit |
|---|---|---|
| p_j, j | Kind.moves | probability, and multiple of the clip norm |
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

from .kinds import Kind, Law

__all__ = ["Losses", "losses_of"]

Array = NDArray[np.float64]
_Nodes = tuple[Array, Array]  # losses and log masses (K,), in any order
_NODES = 401  # over each bump
_ORDERS = 20  # of the Chernoff bounds by which dp-accounting cuts a composition
_TRUNCATED = math.log(2e15)  # minus the log of what it may cut on either side


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


def losses_of(kind: Kind, *, reach: float) -> list[Losses]:
    """The losses of both directions of a kind; one where they are alike.

    Args:
        reach: noise standard deviations on either side of a mean that the grid covers.

    >>> from overhear.privacy.participation import always
    >>> [found] = losses_of(Kind(multiplier=2.0, moves=always(), law=Law.ADDED), reach=8.0)
    >>> found.range, round(float(found.log_moments(np.ones(1))[0]), 4)  # t (t + 1) / (2 s^2)
    ((-4.125, 4.125), 0.25)
    """
    found = _nodes_of(kind, reach)
    if kind.coin < 1.0:
        # What takes place otherwise may have two directions where this has one, or one for two.
        nothing = [(np.zeros(1), np.zeros(1))]
        others = nothing if kind.otherwise is None else _nodes_of(kind.otherwise, reach)
        coins = math.log(kind.coin), math.log1p(-kind.coin)
        found = [
            (
                np.concatenate([found[way][0], others[way][0]]),
                np.concatenate([coins[0] + found[way][1], coins[1] + others[way][1]]),
            )
            for way in ([0, -1] if max(len(found), len(others)) == 2 else [0])
        ]
    return [_losses(nodes, kind.count) for nodes in found]


def _nodes_of(kind: Kind, reach: float) -> list[_Nodes]:
    """Losses and masses of one side of a lottery, for each direction that differs."""
    d = 1.0 / kind.multiplier
    z = np.linspace(-reach, reach, _NODES)
    log_density = -0.5 * z**2
    log_density -= np.logaddexp.reduce(log_density)
    if kind.law.is_within:  # of BLANK it is wider than it need be
        return [_within(kind.moves.rate, 2.0 * d, z, log_density)]
    multiples, probabilities = (np.array(values) for values in kind.moves)
    if multiples[0] > 0.0:  # the range of a grid has room for nobody, too
        multiples, probabilities = np.append(0.0, multiples), np.append(0.0, probabilities)
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    positions = (z + d * multiples[:, None]).ravel()
    log_masses = (log_density + logs[:, None]).ravel()
    ratio = _log_ratio(positions, d * multiples, probabilities)
    if kind.law is Law.REPLACED:
        return [(ratio - _log_ratio(-positions, d * multiples, probabilities), log_masses)]
    if kind.moves.rate == 1.0 and len(kind.moves.multiples) == 1:
        return [(ratio, log_masses)]
    nobody = np.full(positions.size - z.size, -math.inf)
    return [(ratio, log_masses), (-ratio, np.concatenate([log_density, nobody]))]


def _within(rate: float, distance: float, z: Array, log_density: Array) -> _Nodes:
    """Losses above 0 of a mean that is moved, below 0 of one that is not, and 0 for the rest."""
    shifts, weights = np.array([0.0, distance]), np.array([1.0 - rate, rate])
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    positions = (z + shifts[:, None]).ravel()
    up = _log_ratio(positions, shifts, weights)
    down = -_log_ratio(z, shifts, weights)
    masses = (log_density + logs[:, None]).ravel()
    above, below = up > 0.0, down < 0.0
    rest = 1.0 - np.exp(masses[above]).sum() - np.exp(log_density[below]).sum()
    losses = np.concatenate([up[above], down[below], [0.0]])
    log_rest = math.log(max(float(rest), 1e-300))
    return losses, np.concatenate([masses[above], log_density[below], [log_rest]])


def _losses(nodes: _Nodes, count: int) -> Losses:
    losses, log_masses = nodes
    kept = np.isfinite(log_masses)
    return Losses(
        range=(float(losses.min()), float(losses.max())),
        losses=np.asarray(losses[kept], dtype=np.float64),
        log_masses=np.asarray(log_masses[kept], dtype=np.float64),
        count=count,
    )


def _log_ratio(positions: Array, shifts: Array, weights: Array) -> Array:
    """Log of sum_j p_j exp(s_j x - s_j^2/2) at each x, with digits where it is close to 0."""
    near, far = np.zeros_like(positions), np.full_like(positions, -math.inf)
    for shift, weight in zip(shifts, weights, strict=True):
        if weight > 0.0:
            exponent = shift * positions - 0.5 * shift**2
            near += weight * np.expm1(np.minimum(exponent, 1.0))
            far = np.logaddexp(far, math.log(weight) + exponent)
    # Where no exponent is above 1, `near` is all of it.
    small = (shifts.max() * positions - 0.5 * shifts.max() ** 2 < 1.0) & (near > -0.5)
    return np.where(small, np.log1p(np.where(small, near, 0.0)), far)
