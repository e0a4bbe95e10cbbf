"""Thousands of different rounds as mixtures of a few, rounded upwards.

A round whose (noise multiplier, sampling rate) lies between corners is dominated by the public
lottery that draws one of the corners: the hockey-stick divergence of every pair of
`dominating_pairs` is, at every epsilon,

    convex in Phi(c / noise_multiplier),  c = 1/2 for "remove" and "add", 1 for the others
    convex in sampling_rate

so a chord in either coordinate lies above it, and dominating pairs compose (arXiv:2106.08567).

Why the first: with d = 1/noise_multiplier, delta of N(0,1) against N(d,1) has d delta/d d =
phi(epsilon/d - d/2), whose ratio to phi(d/2) never falls in d for epsilon >= 0; for epsilon < 0
delta is linear in its mirror image, and the sampled pairs are linear in delta at a fixed rate.
"replace": the ratio is exp(-z^2/2) (e^(zd) + e^(epsilon - zd)) at the threshold z, and its
derivative is a sum of squares and of z >= 0 times an excess that is >= 0. Why the second: P and Q
are linear in the rate, and the divergence is jointly convex.

| symbol | name here | shape |
|---|---|---|
| corners | Cell.corners | (C,) indices of rounds |
| lottery | Cell.weights | (R, C) |

That is proven for a record's own coin. Rounds of other moves differ in their noise alone here, and
each is taken as the one with the least noise near it.

The error is of second order: corners that are a factor 1 + w apart add about w^2/6 to the variance
of the loss, 2e-5 of it at w = .01.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..participation import poisson
from .dominating_pairs import Pair, Round

Array = NDArray[np.float64]
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
