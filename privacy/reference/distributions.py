"""dp-accounting's own privacy loss distributions of one round of each kind.

    ADDED       `from_gaussian_mechanism`
    of several  from above `from_mixture_gaussian_mechanism`, which is slow from below; there each
                move counts as the least one, which tells no more
    REPLACED    `from_gaussian_mechanism` of REPLACE_ONE
    WITHIN      from above the larger of its divergences at every loss, its dots connected;
                from below ADDED at twice the distance, a real pair of data sets
    BLANK       the same with the divergence below; from below ADDED
    lottery     `compute_mixture` of two of these

    BLANK, epsilon >= 0:   sup of  q N(2d) - (a - 1)(1 - q) N(0) - a q N(d)      a = e^epsilon
    above its root         x = (epsilon + log w) / d + 3 d / 2,   w^2 = w + c
                           c = (1 - 1/a)(1 - q) / (a q e^(d^2))

Of batches that are cut, `from_truncated_subsampled_gaussian_mechanism` takes a full one for
REPLACE_ONE at twice the clip norm: the unit 2 C from who is pushed out, and what replaces it 2 C
the other way. No two vectors of length C are 4 C apart, so that is no smaller than WITHIN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .kinds import Kind, Law

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

__all__ = ["distribution_of"]

Array = NDArray[np.float64]


def distribution_of(
    kind: Kind, interval: float, *, tails: float, pessimistic: bool
) -> PrivacyLossDistribution:
    """The loss of one round on a grid.

    Args:
        kind: the round; its count plays no part.
        interval: of the grid, in nats.
        tails: log of the probability that may be cut off.
        pessimistic: losses rounded up, or else down.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = _of_side(kind, interval, tails=tails, pessimistic=pessimistic)
    if kind.coin == 1.0:
        return one
    if kind.otherwise is None:
        other = pld.identity(interval, pessimistic)
    else:
        other = _of_side(kind.otherwise, interval, tails=tails, pessimistic=pessimistic)
    return one.compute_mixture(other, kind.coin)


def _of_side(
    kind: Kind, interval: float, *, tails: float, pessimistic: bool
) -> PrivacyLossDistribution:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    if kind.law.is_within and pessimistic:
        return _within(kind, interval, tails=tails)
    multiplier, moves = kind.multiplier, kind.moves
    if kind.law is Law.WITHIN:
        multiplier /= 2.0
    how = {
        "pessimistic_estimate": pessimistic,
        "value_discretization_interval": interval,
        "log_mass_truncation_bound": tails,
        "use_connect_dots": pessimistic,
    }
    if kind.of_several and pessimistic:
        return pld.from_mixture_gaussian_mechanism(multiplier, *moves, **how)
    replaced = kind.law is Law.REPLACED
    relation = NeighboringRelation
    return pld.from_gaussian_mechanism(
        multiplier / min(m for m in moves.multiples if m > 0.0),
        sampling_prob=moves.rate,
        neighboring_relation=relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE,
        **how,
    )


def _within(kind: Kind, interval: float, *, tails: float) -> PrivacyLossDistribution:
    """From above: the larger divergence at every loss, which no one pair of data sets may have."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    blank, rate = kind.law is Law.BLANK, kind.moves.rate
    distance = (1.0 if blank else 2.0) / kind.multiplier
    remove, add = (
        GaussianPrivacyLoss(
            1.0,
            sensitivity=distance,
            log_mass_truncation_bound=tails,
            sampling_prob=rate,
            adjacency_type=way,
        )
        for way in (AdjacencyType.REMOVE, AdjacencyType.ADD)
    )
    if not blank:
        ends = remove.connect_dots_bounds().epsilon_upper, add.connect_dots_bounds().epsilon_lower
        grid = _grid(ends[1], ends[0], interval)
        low, high = grid[grid < 0], grid[grid >= 0]
        deltas = [add.get_delta_for_epsilon(low), remove.get_delta_for_epsilon(high)]
        return pld.PrivacyLossDistribution(_dots(grid, np.concatenate(deltas), interval))
    further = GaussianPrivacyLoss(
        1.0,
        sensitivity=2.0 * distance,
        log_mass_truncation_bound=tails,
        sampling_prob=rate,
        adjacency_type=AdjacencyType.REMOVE,
    )
    top = further.connect_dots_bounds().epsilon_upper  # the loss is less than without the blank one
    grid = _grid(add.connect_dots_bounds().epsilon_lower, top, interval)
    low, high = grid[grid < 0], grid[grid >= 0]
    ahead = [add.get_delta_for_epsilon(low), _blank(high, rate, distance)]
    grids = grid, _grid(-top, remove.connect_dots_bounds().epsilon_upper, interval)
    low, high = grids[1][grids[1] < 0], grids[1][grids[1] >= 0]
    back = -np.expm1(low) + np.exp(low) * _blank(-low, rate, distance)
    behind = [back, remove.get_delta_for_epsilon(high)]
    found = (
        _dots(of, np.concatenate(deltas), interval)
        for of, deltas in zip(grids, (ahead, behind), strict=True)
    )
    return pld.PrivacyLossDistribution(*found)


def _grid(low: float, high: float, interval: float) -> Array:
    """Multiples of the interval around both ends, in nats."""
    steps = np.arange(math.floor(low / interval), math.ceil(high / interval) + 1)
    return np.asarray(interval * steps, dtype=np.float64)


def _dots(grid: Array, deltas: Array, interval: float) -> PLDPmf:
    from dp_accounting.pld import pld_pmf

    first = round(float(grid[0]) / interval)
    falling = np.maximum.accumulate(np.clip(deltas, 0.0, 1.0)[::-1])[::-1]  # but for rounding
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first, first + grid.size - 1, falling
    )


def _blank(epsilons: Array, rate: float, distance: float) -> Array:
    """Divergence of the mixture at twice the distance from that at the distance, from 0 nats on."""
    from scipy.special import log_ndtr, ndtr

    d, q = distance, rate
    inverse = np.exp(-epsilons)
    c = (1.0 - inverse) * (1.0 - q) / q * inverse * math.exp(-d * d)
    x = (epsilons + np.log(0.5 + np.sqrt(0.25 + c))) / d + 1.5 * d
    lost = (1.0 - q) * (1.0 - inverse) * np.exp(epsilons + log_ndtr(-x))
    lost += q * np.exp(epsilons + log_ndtr(d - x))
    return np.asarray(np.maximum(q * ndtr(2.0 * d - x) - lost, 0.0), dtype=np.float64)
