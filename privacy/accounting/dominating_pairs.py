"""One Poisson-sampled Gaussian round as a finite privacy loss distribution, rounded upwards.

    Zhu, Dong, Wang. Optimal accounting of differential privacy via characteristic function.
        AISTATS 2022, arXiv:2106.08567: the dominating pairs below, and that they compose.
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the Dots. PETS 2022, arXiv:2207.04380.
    Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018, arXiv:1807.01647,
        Theorem 2: advanced joint convexity, from which the pair "profile" follows.

    pair     P                        Q                         (distance in noise stds: d)
    remove   (1-q) N(0,1) + q N(d,1)  N(0,1)
    add      N(0,1)                   (1-q) N(0,1) + q N(d,1)
    replace  (1-q) N(0,1) + q N(d,1)  (1-q) N(0,1) + q N(-d,1)
    profile  losses > 0 of "remove" and losses < 0 of "add", both at distance 2d, the rest at 0
    for every cell [z_k, z_k+1], with loss l = log P/Q rising from l_k to l_k+1:
        move P(cell) to the two end losses so that both P(cell) and Q(cell) are kept

| symbol | name here | unit |
|---|---|---|
| q | sampling_rate | probability per round |
| 1/d | noise_multiplier | noise std on the sum / clip norm |
| l | losses | nats |

"profile" holds for any P_0, P_1, P_1' of which P_1 and P_1' are told apart no better than N(0,1)
and N(2d,1), such as several adaptive contributions of one record that is replaced: with
P = (1-q) P_0 + q P_1 and Q = (1-q) P_0 + q P_1', Theorem 2 gives
delta(e) <= q delta_2d(log(1 + (e^e - 1) / q)) for e >= 0, in both directions. For e >= 0 that is
the hockey-stick of "remove" at distance 2d; its mirror image for e < 0 is that of "add".

Where we differ from the paper: cells are equal steps of the noise, not of the loss, and each is
integrated by Gauss-Legendre quadrature. Differences of tail functions lose the digits that
T = 10^6 rounds with a rate of 10^-4 need; sums of positive terms keep them.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["DiscretisedPair", "Pair", "Round", "discretised_pair"]

Array = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


class Pair(StrEnum):
    """The two hypotheses that are told apart: with or without the record, or another in place."""

    REMOVE = "remove"
    ADD = "add"
    REPLACE = "replace"
    PROFILE = "profile"


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """`count` equal rounds: noise std on the sum / clip norm, and Poisson rate in (0, 1]."""

    noise_multiplier: float
    sampling_rate: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscretisedPair:
    """A discrete loss distribution of one round, dominated by none of the true ones.

    Attributes:
        losses: (K,) non-decreasing, in nats.
        log_masses: (K,) log of the probability of each loss under P.
        missing: bound on the probability left out, to be counted as an infinite loss.
        count: how many independent rounds have this distribution.
        displaced: probability, once tilted as it will be, that may lie at a larger loss.
    """

    losses: Array
    log_masses: Array
    missing: float
    count: int
    displaced: float = 0.0

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Log E[exp(tilt * loss)] of one round and the tilted mean and variance."""
        exponents = self.log_masses + tilt * self.losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        mean = float(weights @ self.losses) / total
        variance = float(weights @ (self.losses - mean) ** 2) / total
        return top + math.log(total), mean, variance


def discretised_pair(
    round_: Round, pair: Pair, *, missing: float, step: float = 0.005
) -> DiscretisedPair:
    """Discretise the loss of one round on cells of `step` noise standard deviations.

    Args:
        round_: the round; sampling_rate in (0, 1].
        pair: which two hypotheses.
        missing: probability that may be left out in the tails.
        step: cell width in noise standard deviations; the variance of the loss grows by about
            step^2 / 6 of itself.

    Returns:
        DiscretisedPair whose hockey-stick divergence is at least the true one at every epsilon.

    >>> pair = discretised_pair(
    ...     Round(noise_multiplier=2.0, sampling_rate=1.0, count=1), Pair.REMOVE, missing=1e-20
    ... )
    >>> round(pair.cumulants(1.0)[0], 4)  # lambda (lambda + 1) / (2 multiplier^2)
    0.25
    """
    distance, rate = 1.0 / round_.noise_multiplier, round_.sampling_rate
    # Each tail of a bump has at most exp(-reach^2/2)/2 <= missing/4.
    reach = math.sqrt(2.0 * math.log(2.0 / missing))
    if pair is Pair.PROFILE:
        parts = _profile_cells(rate, 2.0 * distance, reach, step)
    else:
        bumps = [0.0] if pair is Pair.ADD else [0.0, distance] if rate < 1.0 else [distance]
        parts = [
            _cells(bump, rate, distance, pair, bounds=bounds, step=step)
            for bump, bounds in _spans(bumps, reach)
        ]
    masses = np.concatenate([mass for _, mass in parts])
    kept = masses > 0.0
    return DiscretisedPair(
        losses=np.concatenate([loss for loss, _ in parts])[kept],
        log_masses=np.log(masses[kept]),
        missing=missing,
        count=round_.count,
    )


def _spans(bumps: list[float], reach: float) -> list[tuple[float, tuple[float, float]]]:
    """Intervals (offset, (low, high) relative to it) that hold the bumps without overlap."""
    if len(bumps) == 2 and bumps[1] <= 2.0 * reach:
        return [(0.0, (-reach, bumps[1] + reach))]
    return [(bump, (-reach, reach)) for bump in bumps]


def _profile_cells(
    rate: float, distance: float, reach: float, step: float
) -> list[tuple[Array, Array]]:
    """The lower half of "add", an atom at loss 0 and the upper half of "remove"."""
    half = 0.5 * distance  # where the loss of either is 0
    upper = (max(-reach, -half), reach)
    parts = [_cells(distance, rate, distance, Pair.REMOVE, bounds=upper, step=step)]
    between = (1.0 - rate) * math.erf(half / math.sqrt(2.0))
    parts.insert(0, (np.zeros(1), np.array([between])))
    if half < reach:
        parts.insert(0, _cells(0.0, rate, distance, Pair.ADD, bounds=(-reach, -half), step=step))
    return parts


def _cells(
    offset: float,
    rate: float,
    distance: float,
    pair: Pair,
    *,
    bounds: tuple[float, float],
    step: float,
) -> tuple[Array, Array]:
    """Losses and masses (K,) of one interval; positions are relative to `offset`."""
    count = max(1, math.ceil((bounds[1] - bounds[0]) / step))
    ends = np.linspace(bounds[0], bounds[1], count + 1)  # (cells + 1,)
    half = 0.5 * (bounds[1] - bounds[0]) / count
    inner = ends[:-1, None] + half * (1.0 + _NODES)  # (cells, nodes)
    losses = np.maximum.accumulate(_loss(ends, offset, rate, distance, pair))
    density = np.exp(-0.5 * (inner + offset) ** 2)
    if pair is not Pair.ADD:
        other = np.exp(-0.5 * (inner + (offset - distance)) ** 2)
        density = (1.0 - rate) * density + rate * other
    density *= half * _WEIGHTS / math.sqrt(2.0 * math.pi)
    cell = density.sum(axis=1)
    # Upper share u keeps Q: cell (1-u) e^-l_k + cell u e^-l_k+1 = integral of e^-l dP.
    rise = -np.expm1(losses[:-1, None] - _loss(inner, offset, rate, distance, pair))
    full = -np.expm1(losses[:-1] - losses[1:])
    flat = full < 1e-300
    upper = (density * rise).sum(axis=1) / np.where(flat, 1.0, full)
    upper = np.where(flat, cell, np.clip(upper, 0.0, cell))
    masses = np.zeros(count + 1)
    masses[1:] += upper
    masses[:-1] += cell - upper
    return losses, masses


def _loss(z: Array, offset: float, rate: float, distance: float, pair: Pair) -> Array:
    """Log P/Q at offset + z, rising in z for each pair."""
    if pair is Pair.REMOVE:
        return _log_ratio(z, offset, rate, distance)
    if pair is Pair.ADD:
        return -_log_ratio(-z, -offset, rate, distance)
    return _log_ratio(z, offset, rate, distance) - _log_ratio(-z, -offset, rate, distance)


def _log_ratio(z: Array, offset: float, rate: float, distance: float) -> Array:
    """log((1-q) + q exp(d (z + offset) - d^2/2)), accurate where it is close to 0."""
    exponent = distance * (z + (offset - 0.5 * distance))
    if rate == 1.0:
        return exponent
    near = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
    far = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
    return np.where(exponent < 1.0, near, far)
