"""One Gaussian round with random participation as a privacy loss distribution, rounded upwards.

    Zhu, Dong, Wang. Optimal accounting of differential privacy via characteristic function.
        AISTATS 2022, arXiv:2106.08567: dominating pairs, and that they compose.
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the Dots. PETS 2022, arXiv:2207.04380.
    Kahane. Une inegalite du type de Slepian et Gordon sur les processus gaussiens. 1985: the
        comparison behind the pairs below, whose proof stands in docs/mathematics.md.

    pair     P                        Q                         (distance in noise stds: d)
    remove   sum_j p_j N(j d,1)       N(0,1)
    add      N(0,1)                   sum_j p_j N(j d,1)
    replace  sum_j p_j N(j d,1)       sum_j p_j N(-j d,1)
    profile  losses > 0 of "remove" and losses < 0 of "add", both at distance 2d, the rest at 0
    blank    losses > 0 of (1-q) N(0) + q N(2d) against (1-q) N(0) + q N(d), losses < 0 of "add",
             the rest at 0
    unblank  losses > 0 of "remove" and losses < 0 of the other one reversed, the rest at 0
    for every cell [z_k, z_k+1], with loss l = log P/Q rising from l_k to l_k+1:
        move P(cell) to the two end losses so that both P(cell) and Q(cell) are kept

| symbol | name here | unit |
|---|---|---|
| p_j | moves.probabilities | probability that the mean moves by j d |
| 1/d | noise_multiplier | noise std / joint sensitivity |
| c | coin | probability that the round takes place; else the loss is 0 |
| l | losses | nats |

"replace" holds for any number of contributions that are added to sums (reach "sum"). "profile"
holds for what stays in a ball of radius 1 whatever the unit does (reach "ball"), when it is
replaced: at losses above 0 the others stand at -1 with the replacement and the unit at +1; at
losses below 0 they stand at +1 with the unit. "blank" and "unblank" hold where a unit takes the
place of another one (reach "place") and its values become nothing: at losses above 0 of "blank" the
other one stands at -1 and the unit at +1, below 0 both stand at +1; what is blank stands at 0.

Where we differ from the paper: cells are equal steps of the noise, not of the loss, and each is
integrated by Gauss-Legendre quadrature. Differences of tail functions lose the digits that
T = 10^6 rounds with a rate of 10^-4 need; sums of positive terms keep them.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..participation import ParticipationPattern, poisson

Array = NDArray[np.float64]
_NEAR = 30.0  # exponent up to which a ratio is 1 and a difference
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


class Pair(StrEnum):
    """The two hypotheses that are told apart: with or without the record, or another in place."""

    REMOVE = "remove"
    ADD = "add"
    REPLACE = "replace"
    PROFILE = "profile"
    BLANK = "blank"
    UNBLANK = "unblank"

    @property
    def is_profile(self) -> bool:
        """Whether it dominates at every epsilon, at some by one pair and at others by another."""
        return self in (Pair.PROFILE, Pair.BLANK, Pair.UNBLANK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """`count` equal rounds.

    Attributes:
        noise_multiplier: noise std / joint sensitivity; of "profile" over the radius of the ball.
        moves: of the mean, in joint sensitivities.
        pair: which two hypotheses.
        coin: probability of each to take place, in (0, 1], seen by everybody.
        otherwise: what takes place where it does not; its count plays no part.
    """

    noise_multiplier: float
    moves: ParticipationPattern
    pair: Pair
    count: int
    coin: float = 1.0
    otherwise: "Round | None" = None

    @property
    def mu(self) -> float:
        """Of one round in which the unit takes part as much as it ever does."""
        other = 0.0 if self.otherwise is None else self.otherwise.mu
        if self.pair is Pair.PROFILE:
            return max(2.0 / self.noise_multiplier, other)
        twice = 2.0 if self.pair is Pair.REPLACE else 1.0
        return max(twice * self.moves.largest / self.noise_multiplier, other)

    @property
    def rate(self) -> float:
        """The probability that the unit is in one round."""
        other = 0.0 if self.otherwise is None else self.otherwise.rate
        return self.coin * self.moves.rate + (1.0 - self.coin) * other

    def scaled(self, factor: float) -> "Round":
        """The same with all of its noise multiplied."""
        other = None if self.otherwise is None else self.otherwise.scaled(factor)
        return replace(self, noise_multiplier=factor * self.noise_multiplier, otherwise=other)


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

    def log_moments(self, tilts: Array) -> list[float]:
        """Log E[exp(tilt * loss)] of one round at every tilt, as `cumulants` has it of one."""
        exponents = self.log_masses + tilts[:, None] * self.losses
        tops = exponents.max(axis=1)
        totals = np.exp(exponents - tops[:, None]).sum(axis=1)
        return [top + math.log(of) for top, of in zip(tops.tolist(), totals.tolist(), strict=True)]


def discretised_pair(round_: Round, *, missing: float, step: float = 0.005) -> DiscretisedPair:
    """Discretise the loss of one round on cells of `step` noise standard deviations.

    Args:
        missing: probability that may be left out in the tails.
        step: cell width in noise standard deviations; the variance of the loss grows by about
            step^2 / 6 of itself.

    Returns:
        DiscretisedPair whose hockey-stick divergence is at least the true one at every epsilon.
    """
    # Each tail of a bump has at most exp(-reach^2/2)/2 <= missing/4.
    reach = math.sqrt(2.0 * math.log(2.0 / missing))
    losses, masses = _losses(round_, reach, step)
    if round_.coin < 1.0:
        # A public lottery of two distributions; losses stay in order.
        other = round_.otherwise
        there, held = (np.zeros(1), np.ones(1)) if other is None else _losses(other, reach, step)
        at = np.searchsorted(losses, there)
        losses = np.insert(losses, at, there)
        masses = np.insert(round_.coin * masses, at, (1.0 - round_.coin) * held)
    kept = masses > 0.0
    return DiscretisedPair(
        losses=losses[kept], log_masses=np.log(masses[kept]), missing=missing, count=round_.count
    )


def _losses(round_: Round, reach: float, step: float) -> tuple[Array, Array]:
    """Losses, in order, and masses (K,) of a round that takes place."""
    if round_.pair is Pair.PROFILE:
        moves, distance = round_.moves.as_ball, 2.0 / round_.noise_multiplier
        parts = _profile_cells(_Mixture.of(moves, distance), reach, step)
    elif round_.pair.is_profile:
        moves, distance = round_.moves.as_ball, 1.0 / round_.noise_multiplier
        parts = _blank_cells(moves, distance, round_.pair, reach, step)
    else:
        mixture = _Mixture.of(round_.moves, 1.0 / round_.noise_multiplier)
        bumps = [0.0] if round_.pair is Pair.ADD else mixture.shifts.tolist()
        parts = [
            _cells(bump, mixture, round_.pair, bounds=bounds, step=step)
            for bump, bounds in _spans(bumps, reach)
        ]
    losses = np.concatenate([loss for loss, _ in parts])
    return losses, np.concatenate([mass for _, mass in parts])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mixture:
    """sum_j p_j N(shift_j, 1): shifts (J,) rising, in noise standard deviations."""

    shifts: Array
    weights: Array

    @staticmethod
    def of(moves: ParticipationPattern, distance: float) -> "_Mixture":
        kept = [(m, p) for m, p in zip(*moves, strict=True) if p > 0.0]
        return _Mixture(
            shifts=distance * np.array([m for m, _ in kept]), weights=np.array([p for _, p in kept])
        )

    def density(self, z: Array, offset: float) -> Array:
        """At offset + z, times the square root of 2 pi."""
        total = np.zeros_like(z)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            total += weight * np.exp(-0.5 * (z + (offset - shift)) ** 2)
        return total

    def log_ratio(self, z: Array, offset: float) -> Array:
        """Log sum_j p_j exp(d_j (z + offset) - d_j^2/2), accurate where it is close to 0."""
        if len(self.shifts) == 1:
            (shift,) = self.shifts
            return np.asarray(shift * (z + (offset - 0.5 * shift)), dtype=np.float64)
        near, largest = np.zeros_like(z), np.full_like(z, -math.inf)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            exponent = shift * (z + (offset - 0.5 * shift))
            largest = np.maximum(largest, exponent)
            if shift > 0.0:
                near += weight * np.expm1(np.minimum(exponent, _NEAR))
        # Where nearly all of the mass has moved away, 1 + near is rounding error.
        close = (largest < _NEAR) & (near > -0.5)
        found = np.log1p(np.where(close, near, 0.0))
        if not close.all():
            found[~close] = self._log_sum(z[~close], offset)
        return found

    def _log_sum(self, z: Array, offset: float) -> Array:
        """The same where the ratio is far from 1, term by term."""
        total = np.full_like(z, -math.inf)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            total = np.logaddexp(total, math.log(weight) + shift * (z + (offset - 0.5 * shift)))
        return total


def _spans(bumps: list[float], reach: float) -> list[tuple[float, tuple[float, float]]]:
    """Intervals (offset, (low, high) relative to it) that hold the bumps without overlap."""
    groups: list[list[float]] = []
    for bump in bumps:
        if groups and bump - groups[-1][-1] <= 2.0 * reach:
            groups[-1].append(bump)
        else:
            groups.append([bump])
    return [(group[0], (-reach, group[-1] - group[0] + reach)) for group in groups]


def _profile_cells(mixture: _Mixture, reach: float, step: float) -> list[tuple[Array, Array]]:
    """The lower half of "add", an atom at loss 0 and the upper half of "remove"."""
    distance = float(mixture.shifts[-1])
    half = 0.5 * distance  # where the loss of either is 0
    upper = (max(-reach, -half), reach)
    parts = [_cells(distance, mixture, Pair.REMOVE, bounds=upper, step=step)]
    rate = float(mixture.weights[-1])
    between = (1.0 - rate) * math.erf(half / math.sqrt(2.0))
    parts.insert(0, (np.zeros(1), np.array([between])))
    if half < reach:
        parts.insert(0, _cells(0.0, mixture, Pair.ADD, bounds=(-reach, -half), step=step))
    return parts


def _blank_cells(
    moves: ParticipationPattern, distance: float, pair: Pair, reach: float, step: float
) -> list[tuple[Array, Array]]:
    """The upper half of one pair, an atom at loss 0 and the lower half of another."""
    one, two = _Mixture.of(moves, distance), _Mixture.of(moves, 2.0 * distance)
    half, rate = 0.5 * distance, float(one.weights[-1])

    def further(z: Array, offset: float) -> Array:
        """Log of the mixture at twice the distance over the other one."""
        return two.log_ratio(z, offset) - one.log_ratio(z, offset)

    middle = 0.5 * (math.erf(half / math.sqrt(2.0)) + math.erf(3.0 * half / math.sqrt(2.0)))
    # The atom at loss 0: the mass of the middle interval where the record is not drawn.
    parts = [(np.zeros(1), np.array([(1.0 - rate) * middle]))]
    # This direction: the blank mixture above the middle, the pair ADD below it.
    if pair is Pair.BLANK:
        parts.append(
            _split(
                lambda z: further(z, 2.0 * distance),
                lambda z: two.density(z, 2.0 * distance),
                bounds=(max(-reach, -half), reach),
                step=step,
            )
        )
        if half < reach:
            parts.insert(0, _cells(0.0, one, Pair.ADD, bounds=(-reach, -half), step=step))
        return parts
    # The other direction: the pair REMOVE above the middle, the blank mixture below it.
    upper = (max(-reach, -half), reach)
    parts.append(_cells(distance, one, Pair.REMOVE, bounds=upper, step=step))
    if half < reach:  # mirrored, so that losses rise
        parts.insert(
            0,
            _split(
                lambda z: -further(-z, distance),
                lambda z: one.density(-z, distance),
                bounds=(-reach, -half),
                step=step,
            ),
        )
    return parts


def _cells(
    offset: float, mixture: _Mixture, pair: Pair, *, bounds: tuple[float, float], step: float
) -> tuple[Array, Array]:
    """Losses and masses (K,) of one interval; positions are relative to `offset`."""

    def density(z: Array) -> Array:
        if pair is Pair.ADD:
            return np.asarray(np.exp(-0.5 * (z + offset) ** 2), dtype=np.float64)
        return mixture.density(z, offset)

    return _split(lambda z: _loss(z, offset, mixture, pair), density, bounds=bounds, step=step)


def _split(
    loss: Callable[[Array], Array],
    of_p: Callable[[Array], Array],
    *,
    bounds: tuple[float, float],
    step: float,
) -> tuple[Array, Array]:
    """Losses and masses (K,) of an interval by a rising loss and by P times sqrt(2 pi)."""
    count = max(1, math.ceil((bounds[1] - bounds[0]) / step))
    ends = np.linspace(bounds[0], bounds[1], count + 1)  # (cells + 1,)
    half = 0.5 * (bounds[1] - bounds[0]) / count
    inner = ends[:-1, None] + half * (1.0 + _NODES)  # (cells, nodes)
    losses = np.maximum.accumulate(loss(ends))
    density = of_p(inner)
    density *= half * _WEIGHTS / math.sqrt(2.0 * math.pi)
    cell = density.sum(axis=1)
    # Upper share u keeps Q: cell (1-u) e^-l_k + cell u e^-l_k+1 = integral of e^-l dP.
    rise = -np.expm1(losses[:-1, None] - loss(inner))
    full = -np.expm1(losses[:-1] - losses[1:])
    flat = full < 1e-300
    upper = (density * rise).sum(axis=1) / np.where(flat, 1.0, full)
    upper = np.where(flat, cell, np.clip(upper, 0.0, cell))
    masses = np.zeros(count + 1)
    masses[1:] += upper
    masses[:-1] += cell - upper
    return losses, masses


def _loss(z: Array, offset: float, mixture: _Mixture, pair: Pair) -> Array:
    """Log P/Q at offset + z, rising in z for each pair."""
    if pair is Pair.REMOVE:
        return mixture.log_ratio(z, offset)
    if pair is Pair.ADD:
        return -mixture.log_ratio(-z, -offset)
    return mixture.log_ratio(z, offset) - mixture.log_ratio(-z, -offset)


# Thousands of different rounds as mixtures of a few, rounded upwards.
#
# A round whose (noise multiplier, sampling rate) lies between corners is dominated by the public
# lottery that draws one of the corners: the hockey-stick divergence of every pair of
# `dominating_pairs` is, at every epsilon,
#
# convex in Phi(c / noise_multiplier),  c = 1/2 for "remove" and "add", 1 for the others
# convex in sampling_rate
#
# so a chord in either coordinate lies above it, and dominating pairs compose (arXiv:2106.08567).
#
# Why the first: with d = 1/noise_multiplier, delta of N(0,1) against N(d,1) has d delta/d d =
# phi(epsilon/d - d/2), whose ratio to phi(d/2) never falls in d for epsilon >= 0; for epsilon < 0
# delta is linear in its mirror image, and the sampled pairs are linear in delta at a fixed rate.
# "replace": the ratio is exp(-z^2/2) (e^(zd) + e^(epsilon - zd)) at the threshold z, and its
# derivative is a sum of squares and of z >= 0 times an excess that is >= 0. Why the second: P and Q
# are linear in the rate, and the divergence is jointly convex.
#
# | symbol | name here | shape |
# |---|---|---|
# | corners | Cell.corners | (C,) indices of rounds |
# | lottery | Cell.weights | (R, C) |
#
# That is proven for a record's own coin. Rounds of other moves differ in their noise alone here,
# and each is taken as the one with the least noise near it.
#
# The error is of second order: corners that are a factor 1 + w apart add about w^2/6 to the
# variance of the loss, 2e-5 of it at w = .01.

_WIDTHS = (0.01, 0.02, 0.04, 0.08)  # ratio of neighbouring corners, less 1
_MOST_CORNERS = 192
_UP = 1e-10  # share that goes to the louder corner, for rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Rounds between the same corners.

    Attributes:
        corners: (C,) indices of the corners.
        weights: (R, C) probability of each corner, for every kind of round.
        counts: (R,) how many rounds are of this kind.
    """

    corners: tuple[int, ...]
    weights: Array
    counts: Array


def mixtures(rounds: Sequence[Round]) -> tuple[list[Round], list[Cell]] | None:
    """Corners and cells that dominate `rounds`; None where corners would not be few.

    Args:
        rounds: all different.

    Returns:
        Corners, whose counts are about how many rounds lie near, and the cells.
    """
    # Rounds of a plain record meet at corners in both coordinates; those of other moves differ in
    # the noise alone.
    alike: dict[tuple[object, ...], list[Round]] = {}
    for r in rounds:
        apart = () if _is_plain(r) else (r.moves, r.coin, _per_noise(r))
        alike.setdefault((r.pair, *apart), []).append(r)
    found: list[Round] = []
    cells: list[Cell] = []
    for those in alike.values():
        mixed = _lotteries(those) if _is_plain(those[0]) else _dearest(those)
        if mixed is None:
            return None
        corners, of_those = mixed
        cells += [replace(c, corners=tuple(k + len(found) for k in c.corners)) for c in of_those]
        found += corners
    return (found, cells) if len(found) <= max(_MOST_CORNERS, len(rounds) // 2) else None


def _is_plain(round_: Round) -> bool:
    """Whether the two coordinates are all of it."""
    plain = round_.pair not in (Pair.BLANK, Pair.UNBLANK) and round_.otherwise is None
    return plain and round_.moves.is_poisson and round_.coin == 1.0


def _per_noise(round_: Round) -> tuple[object, ...]:
    """The other side of a lottery, its noise in that of the first, to nine digits."""
    other = round_.otherwise
    if other is None:
        return ()
    times = float(f"{other.noise_multiplier / round_.noise_multiplier:.9g}")
    return (other.pair, other.moves, times)


def _dearest(rounds: Sequence[Round]) -> tuple[list[Round], list[Cell]]:
    """Rounds that differ in their noise, each as the one with least noise near it."""
    louder = _nodes([1.0 / r.noise_multiplier for r in rounds], _WIDTHS[0])
    counts = [0] * len(louder)
    for r in rounds:
        counts[bisect_left(louder, 1.0 / r.noise_multiplier)] += r.count
    kept = [(node, n) for node, n in zip(louder, counts, strict=True) if n]
    first = rounds[0]
    corners = [
        replace(first.scaled(1.0 / (node * first.noise_multiplier)), count=n) for node, n in kept
    ]
    one = np.ones((1, 1))
    return corners, [
        Cell(corners=(k,), weights=one, counts=np.array([float(n)]))
        for k, (_, n) in enumerate(kept)
    ]


def _lotteries(rounds: Sequence[Round]) -> tuple[list[Round], list[Cell]] | None:
    """Rounds of one pair, each as a lottery over the corners around it."""
    # The finest grid of corners whose number is small beside that of the rounds.
    pair = rounds[0].pair
    for width in _WIDTHS:
        louder = _nodes([1.0 / r.noise_multiplier for r in rounds], width)
        rates = _nodes([r.moves.rate for r in rounds], width)
        placed = [_placed(r, louder, rates) for r in rounds]
        corners = sorted({corner for lottery in placed for corner in lottery})
        if len(corners) <= min(_MOST_CORNERS, max(len(rounds) // 2, 1)):
            break
    else:
        return None
    # Rounds with the same corners share a cell, those with fewer corners a cell that has them; the
    # ones with most are placed first, so that it is there.
    index = {corner: k for k, corner in enumerate(corners)}
    near = np.zeros(len(corners), dtype=int)
    members: dict[tuple[int, ...], list[tuple[dict[int, float], int]]] = {}
    for r, lottery in sorted(zip(rounds, placed, strict=True), key=lambda of: -len(of[1])):
        drawn = {index[corner]: weight for corner, weight in lottery.items()}
        within = next((w for w in members if set(drawn) <= set(w)), tuple(drawn))
        members.setdefault(within, []).append((drawn, r.count))
        near[max(drawn, key=lambda k: drawn[k])] += r.count
    # Corners are rounds themselves; their counts serve where a tilt is looked for.
    found = [
        Round(noise_multiplier=1.0 / louder[i], moves=poisson(rates[j]), pair=pair, count=int(n))
        for (i, j), n in zip(corners, near, strict=True)
    ]
    cells = [
        Cell(
            corners=within,
            weights=np.array([[drawn.get(k, 0.0) for k in within] for drawn, _ in those]),
            counts=np.array([count for _, count in those], dtype=np.float64),
        )
        for within, those in members.items()
    ]
    return found, cells


def mixed_moments(cells: Sequence[Cell], moments: Array) -> tuple[Array, Array]:
    """Counts (R,) of all rounds, and their log moment, mean and variance (R, 3).

    Args:
        cells: of all rounds.
        moments: (corners, 3), the same of the corners.
    """
    mixed = []
    for cell in cells:
        corner = list(cell.corners)
        total = _log_moments(cell, moments[:, :1])  # (R, 1)
        shares = cell.weights * np.exp(moments[corner, 0] - total)  # (R, C)
        mean = shares @ moments[corner, 1]
        spread = moments[corner, 2] + (moments[corner, 1] - mean[:, None]) ** 2
        mixed.append(np.column_stack([total, mean, (shares * spread).sum(axis=1)]))
    return np.concatenate([cell.counts for cell in cells]), np.concatenate(mixed)


def mixed_log_moments(cells: Sequence[Cell], log_moments: Array) -> Array:
    """Log moments (R, tilts) of all rounds from those of the corners (corners, tilts)."""
    return np.concatenate([_log_moments(cell, log_moments) for cell in cells])


def _log_moments(cell: Cell, log_moments: Array) -> Array:
    of_corners = log_moments[list(cell.corners)]  # (C, tilts)
    top = of_corners.max(axis=0)
    total = cell.weights @ np.exp(of_corners - top)
    if total.min(initial=1.0) > 1e-200:
        return np.asarray(top + np.log(total), dtype=np.float64)
    # A corner so far below the highest is lost in the sum, and may be the only one with weight.
    with np.errstate(divide="ignore"):
        parts = np.log(cell.weights)[:, :, None] + of_corners  # (R, C, tilts)
    return np.asarray(np.logaddexp.reduce(parts, axis=1), dtype=np.float64)


def _nodes(values: Sequence[float], width: float) -> list[float]:
    """Rising values, the ends of runs that span a factor of at most 1 + width."""
    nodes: list[float] = []
    last = 0.0
    for value in sorted(set(values)):
        if not nodes:
            nodes.append(value)
        elif value > nodes[-1] * (1.0 + width):
            if last > nodes[-1]:
                nodes.append(last)
            if value > nodes[-1] * (1.0 + width):
                nodes.append(value)
        last = value
    if last > nodes[-1]:
        nodes.append(last)
    return nodes


def _placed(
    round_: Round, louder: Sequence[float], rates: Sequence[float]
) -> dict[tuple[int, int], float]:
    """The lottery over corners (index of 1/multiplier, index of rate)."""
    scale = 0.5 if round_.pair in (Pair.REMOVE, Pair.ADD) else 1.0
    distance, rate = 1.0 / round_.noise_multiplier, round_.moves.rate
    # Between two corners in each coordinate: the chord in Phi of the distance, and in the rate.
    i, j = bisect_right(louder, distance) - 1, bisect_right(rates, rate) - 1
    up = 0.0
    if distance > louder[i]:
        up = min(1.0, _UP + _share(scale * distance, scale * louder[i], scale * louder[i + 1]))
    more = 0.0
    if rate > rates[j]:
        more = min(1.0, _UP + (rate - rates[j]) / (rates[j + 1] - rates[j]))
    lottery = {
        (i, j): (1.0 - up) * (1.0 - more),
        (i + 1, j): up * (1.0 - more),
        (i, j + 1): (1.0 - up) * more,
        (i + 1, j + 1): up * more,
    }
    return {corner: weight for corner, weight in lottery.items() if weight > 0.0}


def _share(x: float, low: float, high: float) -> float:
    """Where Phi(x) lies between Phi(low) and Phi(high), as a share; digits in both tails."""
    from scipy.special import erf, log_ndtr

    if low < 1.0:
        ends = [float(erf(v / 2.0**0.5)) for v in (low, x, high)]
        return (ends[1] - ends[0]) / (ends[2] - ends[0])
    tails = [float(log_ndtr(-v)) for v in (low, x, high)]
    return float(np.expm1(tails[1] - tails[0]) / np.expm1(tails[2] - tails[0]))
