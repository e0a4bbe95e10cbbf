"""The privacy loss of many rounds together, from above, by a tilted Fourier transform.

    Koskela, Jalko, Honkela. Computing tight DP guarantees using FFT. AISTATS 2020,
        arXiv:1906.03049: losses of adaptive rounds add up; delta from their distribution.
    Alghamdi et al. The saddle-point method in differential privacy. ICML 2023,
        arXiv:2208.09595: tilting by exp(t loss) centres the distribution on epsilon.

    for each kind of round g:  p_g <- the losses of its pair on the grid h Z, mass split upwards
                               p~_g(l) = p_g(l) e^(t l) / M_g,   M_g = sum_l p_g(l) e^(t l)
    p~ = inverse FFT of prod_g FFT(p~_g)^count_g, on a window that holds all but e^-28 of p~
    p(s) = p~(s) prod_g M_g^count_g e^(-t s)
    delta(epsilon) = missing + sum_{s > epsilon} (1 - e^(epsilon - s)) p(s)

| symbol | name here | unit |
|---|---|---|
| h | grid | nats |
| t | tilt | 1/nats |
| s | (start + index) * grid | nats |

Where we differ from the paper: rounding errors of an untilted transform are about 1e-16 whatever
delta is, and reach a delta of 1e-10 after 10^6 rounds. Here they are relative to delta itself.
The grid follows the standard deviation of the tilted loss, not an absolute constant, so a rate of
10^-4 gets as many points as one of 1. Every truncation adds to delta and none is subtracted; what a
transform may have moved downwards is counted as `displaced`, wherever it is. The direction of each
rounding stands in docs/mathematics.md.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import within
from .dominating_pairs import Cell, DiscretisedPair, mixed_log_moments, mixed_moments

# Tilted losses on a grid, and their convolution by fast Fourier transform on a window.
#
# Source: the methods named in `privacy_loss`, of which this is the arithmetic.

Array = NDArray[np.float64]
Spectrum = NDArray[np.complex128]
LOG_OUTSIDE = -28.0  # log of the tilted probability allowed on each side of a window
FARTHEST = 2.0**61  # grid points from 0, so that an integer can name every one


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Tilted masses at grid indices (repeats add up), to be convolved `count` times."""

    index: NDArray[np.int64]
    masses: Array
    count: int
    log_moment: float


def on_grid(pair: DiscretisedPair, grid: float, tilt: float) -> Piece:
    """Split every atom on its two grid neighbours, keeping P and Q, then tilt."""
    position = pair.losses / grid
    index = np.floor(position).astype(np.int64)
    upper = np.clip(np.expm1((index - position) * grid) / math.expm1(-grid), 0.0, 1.0)
    # Tilting the shares before they are added keeps losses that would underflow untilted.
    with np.errstate(divide="ignore"):  # a share of 0
        lower = np.log1p(-upper) + tilt * (index * grid)
        lifted = np.log(upper) + tilt * ((index + 1) * grid)
    exponents = np.concatenate([pair.log_masses + lower, pair.log_masses + lifted])
    top = float(exponents.max())
    masses = np.exp(exponents - top)
    total = float(masses.sum())
    return Piece(
        index=np.concatenate([index, index + 1]),
        masses=masses / total,
        count=pair.count,
        log_moment=top + math.log(total),
    )


def convolve(pieces: Sequence[Piece], grid: float, window: tuple[float, float]) -> Piece:
    """Circular convolution on the window; what lies outside wraps into it."""
    first, size = _frame(grid, window)
    spectrum: Spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for piece in pieces:
        factor = _transform(piece, size)
        spectrum *= factor if piece.count == 1 else _power(factor, piece.count)
    return _back(spectrum, first, size)


def convolve_mixtures(
    corners: Sequence[Piece], cell: Cell, *, grid: float, window: tuple[float, float]
) -> Piece:
    """All rounds of a cell on the window, each a mixture of the corners."""
    first, size = _frame(grid, window)
    factors = [_transform(corner, size) for corner in corners]
    top = max(corner.log_moment for corner in corners)
    weights = cell.weights * np.exp([corner.log_moment - top for corner in corners])  # (R, C)
    totals = weights.sum(axis=1)
    spectrum: Spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    factor, term = np.empty_like(spectrum), np.empty_like(spectrum)  # memory is the cost here
    for shares, count in zip((weights / totals[:, None]).tolist(), cell.counts, strict=True):
        np.multiply(factors[0], shares[0], out=factor)
        for share, corner in zip(shares[1:], factors[1:], strict=True):
            np.multiply(corner, share, out=term)
            factor += term
        spectrum *= factor if count == 1 else _power(factor, float(count))
    return _back(spectrum, first, size, log_moment=float(cell.counts @ (top + np.log(totals))))


def _frame(grid: float, window: tuple[float, float]) -> tuple[int, int]:
    from scipy.fft import next_fast_len

    first = math.floor(window[0] / grid) - 1
    return first, next_fast_len(math.ceil(window[1] / grid) + 1 - first, real=True)


def _transform(piece: Piece, size: int) -> Spectrum:
    from scipy.fft import rfft

    return np.asarray(rfft(np.bincount(piece.index % size, piece.masses, size)))


def _back(spectrum: Spectrum, first: int, size: int, *, log_moment: float = 0.0) -> Piece:
    from scipy.fft import irfft

    masses = np.maximum(np.roll(irfft(spectrum, size), -(first % size)), 0.0)
    return Piece(index=first + np.arange(size), masses=masses, count=1, log_moment=log_moment)


def _power(values: Spectrum, count: float) -> Spectrum:
    """values**count, zero where the result is below 1e-26."""
    result = np.zeros_like(values)
    large = np.abs(values) > math.exp(-60.0 / count)
    result[large] = np.exp(count * np.log(values[large]))
    return result


_VARIANCE_ADDED = 2e-5  # share of the loss variance that the grid may add
_LOG_DELTA_ADDED = 1e-4  # what the cells, and what the grid, may each add to log delta
_MIXTURES_ADD = 4.0  # times as much, where thousands of different rounds take time
_GRID_POINTS = (1 << 14, 1 << 20)  # fewest and most points of a composed window
_BLOCK = 1024  # more equal rounds than this are composed in blocks
_CHUNK = 64  # distinct rounds that share one small transform before the large one
_MOST_TILTED = 1e8  # tilt * loss, whose rounding is then below the slack
_SLACK = 1e-6  # relative allowance on delta for floating-point rounding
_NEGLIGIBLE = 1e-7  # share of delta below which the allowance covers what transforms displace
_ROUNDING = 1e-15  # of a transform, for each power; measured against 80-bit ones: below a third
_SPLIT = 2.01  # tails of a window once losses are split on the grid, over those before


@dataclass(frozen=True, kw_only=True, slots=True)
class LossDistribution:
    """Composed loss on a grid: mass of (start + i) * grid is exp(log_scale - tilt s) tilted[i].

    Attributes:
        grid: spacing in nats.
        start: grid index of tilted[0].
        tilted: (N,) probabilities after tilting.
        tilt: the tilt t.
        log_scale: sum of count_g log M_g.
        infinite: probability counted as an infinite loss.
        displaced: tilted probability that may have been moved to a smaller loss.
        complete: no loss lies below the window.
    """

    grid: float
    start: int
    tilted: Array
    tilt: float
    log_scale: float
    infinite: float
    displaced: float
    complete: bool

    def delta(self, epsilon: float) -> float | None:
        """Upper bound on delta at this epsilon; None if it lies below the window."""
        first = math.floor(epsilon / self.grid) + 1 - self.start
        if first < 0 and not self.complete:
            return None
        losses, masses = self._masses(min(max(first, 0), self.tilted.size))
        total = float(-np.expm1(epsilon - losses) @ masses) if losses.size else 0.0
        total = max(total, 0.0) + self.infinite
        more = self._of_displaced(epsilon)
        return min(1.0, (total + (more if more > _NEGLIGIBLE * total else 0.0)) * (1.0 + _SLACK))

    def epsilon(self, delta: float) -> float | None:
        """Smallest epsilon >= 0 whose upper bound is at most delta; None if it lies below."""
        # What is left of delta once infinite losses are paid for.
        goal = delta / (1.0 + _SLACK) - self.infinite
        found = self._epsilon(goal)
        if found is None or found == math.inf:
            return found
        # What was displaced counts most at a small epsilon, so that found without it is safe.
        more = self._of_displaced(found)
        return found if more <= _NEGLIGIBLE * (goal + self.infinite) else self._epsilon(goal - more)

    def _epsilon(self, goal: float) -> float | None:
        if goal <= 0.0:
            return math.inf
        losses, masses = self._masses(max(0, -self.start))
        above = np.cumsum(masses[::-1])[::-1]
        if not losses.size or above[0] <= goal:
            return 0.0 if self.complete or self.start <= 0 else None
        # epsilon is at most the last loss that more than `goal` reaches, and not far below it; the
        # narrow range keeps exp(losses - centre) finite, and all of what lies beyond it counts.
        last = int(np.flatnonzero(above > goal)[-1])
        centre = float(losses[last])
        first = int(np.searchsorted(losses, centre - 300.0))
        end = int(np.searchsorted(losses, centre + 300.0, side="right"))
        beyond = float(above[end]) if end < above.size else 0.0
        losses, masses, above = losses[first:end], masses[first:end], above[first:end]
        below = np.cumsum((masses * np.exp(centre - losses))[::-1])[::-1]
        # Between losses[i-1] and losses[i], delta is above[i] - exp(epsilon - losses[i]) scaled[i],
        # and it falls by (1 - exp(-grid)) scaled[i]. Sums of these keep the digits of a delta that
        # is far smaller than above[i].
        scaled = np.exp(losses - centre) * below
        falls = -math.expm1(-self.grid) * scaled
        deltas = beyond + np.append(np.cumsum(falls[:0:-1])[::-1], 0.0)  # at each loss
        reached = deltas > goal
        index = int(np.flatnonzero(reached)[-1]) + 1 if reached.any() else 0
        if index == 0 and self.start > 0 and not (self.complete and first == 0):
            return None
        less = (float(deltas[index]) - goal) / float(scaled[index])
        if less < -0.5:  # above[index] > goal, and neither is close to what is subtracted
            return max(0.0, float(losses[index]) + math.log((above[index] - goal) / scaled[index]))
        return max(0.0, float(losses[index]) + math.log1p(less))

    def _of_displaced(self, epsilon: float) -> float:
        """The most that displaced probability adds to delta: max over x of e^(-t x) (1 - e^-x)."""
        t = self.tilt
        most = (t * math.log(t) if t > 0.0 else 0.0) - (t + 1.0) * math.log1p(t)
        return self.displaced * math.exp(min(self.log_scale - t * epsilon + most, 700.0))

    def _masses(self, first: int) -> tuple[Array, Array]:
        index = np.arange(self.start + first, self.start + self.tilted.size)
        losses: Array = np.asarray(index * self.grid, dtype=np.float64)
        exponents = np.minimum(self.log_scale - self.tilt * losses, 700.0)
        # Far below, rounding errors of the transform may exceed 1, which no probability does.
        return losses, np.minimum(self.tilted[first:] * np.exp(exponents), 1.0)


def tilt_for_epsilon(pairs: Sequence[DiscretisedPair], epsilon: float) -> float:
    """The tilt whose mean composed loss is epsilon: the minimiser of Chernoff's bound on delta."""
    return _tilt(pairs, lambda _tilt, _log_moment, mean: mean - epsilon)


def tilt_for_delta(pairs: Sequence[DiscretisedPair], delta: float) -> float:
    """The tilt of the smallest epsilon for which Chernoff's bound meets delta."""
    return _tilt(pairs, lambda tilt, log_moment, mean: tilt * mean - log_moment + math.log(delta))


def compose(
    pairs: Sequence[DiscretisedPair],
    *,
    tilt: float,
    cells: Sequence[Cell] = (),
    looseness: float = 1.0,
) -> LossDistribution:
    """Compose independent rounds, each `count` times.

    Args:
        pairs: one entry per distinct round, or per corner of `cells`.
        cells: all rounds as mixtures of `pairs`, whose own counts are then ignored.
        tilt: where to be precise, >= 0; `tilt_for_epsilon` or `tilt_for_delta`. Any is safe.
        looseness: share of what the grid usually adds to log delta, in (0, 1].

    Returns:
        The composed loss: `delta` and `epsilon` of it are upper bounds.
    """
    within("tilt", tilt, "[0, inf]", ": the upper tail is what delta is made of")
    return _compose(pairs, tilt, cells, looseness=looseness)


def _compose(
    pairs: Sequence[DiscretisedPair],
    tilt: float,
    cells: Sequence[Cell] = (),
    *,
    repeats: int = 1,
    looseness: float,
) -> LossDistribution:
    """Compose on one grid; the result is to be composed `repeats` times again."""
    # How wide the tilted loss is: sums over rounds, as rounds are independent.
    counts = np.array([p.count for p in pairs], dtype=np.float64)
    moments = np.array([p.cumulants(tilt) for p in pairs])  # (groups, 3)
    if cells:
        counts, moments = mixed_moments(cells, moments)
    mean, variance = (float(total) for total in counts @ moments[:, 1:])
    smallest = max(1e-13 * abs(mean), 1e-290)  # what a float can tell apart, or a loss of 0
    deviation = max(math.sqrt(variance), smallest)
    # The window: where Chernoff's bound leaves no more than e^-28 outside, for all rounds together
    # and for each chunk. A geometric list of further tilts is enough: a factor of two between them
    # costs 6 % of the width, of four 25 %. Rare large losses need the small ones.
    spacing = 1.0 if cells or len(pairs) <= _CHUNK else 2.0
    powers = np.exp2(np.arange(-12.0, 10.0, spacing)) / np.float64(deviation)
    offsets = np.concatenate([-powers[::-1], powers])
    further = np.array([p.log_moments(tilt + offsets) for p in pairs])
    rises = (mixed_log_moments(cells, further) if cells else further) - moments[:, :1]
    chunks = _chunks(pairs, cells, counts, rises)
    limits = (sum(c.range[0] for c in chunks), sum(c.range[1] for c in chunks))
    # A window that recurs leaves out so much less.
    outside = LOG_OUTSIDE - math.log(repeats)
    low, high = _window(np.sum([c.rises for c in chunks], axis=0), offsets, limits, outside)
    # The grid: as coarse as delta allows, with as many points as memory does. Splitting on h adds
    # about h^2/6 per round to the variance, and t (t + 1) / 2 times that to log delta.
    parts = list(pairs)
    if not cells:
        parts = [b for p in pairs for b in _blocks(p, tilt, repeats, looseness)]
    here = float(counts.sum() if cells else sum(part.count for part in parts))
    splits = here * repeats
    looser = looseness * (_MIXTURES_ADD if cells else 1.0)
    grid = deviation * math.sqrt(6.0 * looser * _VARIANCE_ADDED * repeats / splits)
    if tilt > 0.0:
        added = looser * _LOG_DELTA_ADDED
        grid = min(grid, math.sqrt(12.0 * added / (tilt * (tilt + 1.0) * splits)))
    grid = max(min(grid, (high - low) / _GRID_POINTS[0]), (high - low) / _GRID_POINTS[1], smallest)
    grid = max(grid, max(float(np.abs(part.losses[[0, -1]]).max()) for part in parts) / FARTHEST)
    # Every loss is split on its two neighbours on the grid; many different rounds are convolved in
    # chunks first, on windows of their own, which are short.
    pieces = [on_grid(part, grid, tilt) for part in parts]
    several = outside - math.log(len(chunks))
    # A split moves a loss by less than h, its mean by at most (t + 1) h^2 / 2; by Hoeffding's
    # inequality all of them together move a sum no further.
    spread = min(math.sqrt(-0.5 * several * here) + 0.5 * here * (tilt + 1.0) * grid, here) * grid
    low, high = low - spread, high + spread
    windows = [_window(c.rises, offsets, c.range, several) for c in chunks]
    windows = [(start - spread, end + spread) for start, end in windows]
    if cells:
        pieces = [
            convolve_mixtures([pieces[k] for k in cell.corners], cell, grid=grid, window=window)
            for cell, window in zip(cells, windows, strict=True)
        ]
    log_scale = sum(piece.count * piece.log_moment for piece in pieces)
    displaced = sum(part.count * part.displaced for part in parts)
    displaced += _ROUNDING * (float(counts.sum()) if cells else here)
    in_chunks = bool(cells) or (len(chunks) > 1 and len(parts) == len(pairs))
    displaced += _ROUNDING * len(chunks) + (_SPLIT * math.exp(outside) if in_chunks else 0.0)
    if in_chunks and not cells:
        starts = range(0, len(pairs), _CHUNK)
        pieces = [
            convolve(pieces[i : i + _CHUNK], grid, window)
            for i, window in zip(starts, windows, strict=True)
        ]
    # All together; what may lie above the window counts as an infinite loss.
    total = convolve(pieces, grid, (low, high))
    end = float(total.index[-1] + 1) * grid
    beyond = math.exp(min(log_scale + math.log(_SPLIT) + outside - tilt * end, 0.0))
    missing = np.array([p.missing for p in pairs])
    return LossDistribution(
        grid=grid,
        start=int(total.index[0]),
        tilted=total.masses,
        tilt=tilt,
        log_scale=log_scale,
        infinite=float(counts.sum() * missing.max() if cells else counts @ missing) + beyond,
        displaced=displaced + 10.0 * _ROUNDING,
        complete=low <= limits[0],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """Rounds that share one small transform: log moment at each offset, and range of the loss."""

    rises: Array
    range: tuple[float, float]


def _chunks(
    pairs: Sequence[DiscretisedPair], cells: Sequence[Cell], counts: Array, rises: Array
) -> list[_Chunk]:
    ends = np.cumsum([0, *(cell.counts.size for cell in cells)])
    if not cells:
        ends = np.append(np.arange(0, len(pairs), _CHUNK), len(pairs))
    found = []
    for k, (start, end) in enumerate(itertools.pairwise(ends.tolist())):
        if cells:
            corners = [pairs[corner] for corner in cells[k].corners]
            rounds = float(cells[k].counts.sum())
            low = rounds * min(float(p.losses[0]) for p in corners)
            high = rounds * max(float(p.losses[-1]) for p in corners)
        else:
            low = sum(p.count * float(p.losses[0]) for p in pairs[start:end])
            high = sum(p.count * float(p.losses[-1]) for p in pairs[start:end])
        found.append(_Chunk(rises=counts[start:end] @ rises[start:end], range=(low, high)))
    return found


def _blocks(
    pair: DiscretisedPair, tilt: float, repeats: int, looseness: float
) -> list[DiscretisedPair]:
    """Many equal rounds as blocks of about sqrt(count), which need a grid that much coarser."""
    if pair.count <= _BLOCK:
        return [pair]
    size = math.isqrt(pair.count)
    count, rest = divmod(pair.count, size)
    block = _block(pair, tilt, size=size, count=count, repeats=repeats, looseness=looseness)
    return [block, replace(pair, count=rest)] if rest else [block]


def _block(
    pair: DiscretisedPair, tilt: float, *, size: int, count: int, repeats: int, looseness: float
) -> DiscretisedPair:
    """`size` rounds composed to one pair, of which there are `count`, and that `repeats` times.

    What lies above the window comes back at its lower end: it is displaced, not missing.
    """
    repeats *= count
    composed = _compose([replace(pair, count=size)], tilt, repeats=repeats, looseness=looseness)
    losses = composed.grid * np.arange(composed.start, composed.start + composed.tilted.size)
    kept = composed.tilted > 0.0
    log_masses = np.log(composed.tilted[kept]) + composed.log_scale - tilt * losses[kept]
    return DiscretisedPair(
        losses=np.asarray(losses[kept], dtype=np.float64),
        log_masses=np.asarray(log_masses, dtype=np.float64),
        missing=size * pair.missing,
        count=count,
        displaced=composed.displaced + _SPLIT * math.exp(LOG_OUTSIDE - math.log(repeats)),
    )


def cell_step(
    pairs: Sequence[DiscretisedPair], *, tilt: float, step: float, looseness: float = 1.0
) -> float:
    """Cell width that adds little to log delta, from pairs made with cells of `step`."""
    squares = 0.0  # sum over rounds of the tilted mean square of d loss / d noise
    for p in pairs:
        exponents = p.log_masses[:-1] + tilt * p.losses[:-1]
        weights = np.exp(exponents - exponents.max())
        squares += p.count * float(weights @ np.diff(p.losses) ** 2) / float(weights.sum())
    added = tilt * (tilt + 1.0) * squares / step**2 / 12.0
    return (
        min(max(math.sqrt(looseness * _LOG_DELTA_ADDED / added), 1e-3), 0.01)
        if added > 0.0
        else 0.01
    )


def _tilt(pairs: Sequence[DiscretisedPair], slope: Callable[[float, float, float], float]) -> float:
    """Zero of an increasing slope(tilt, log moment, mean); two digits are plenty."""
    from scipy.optimize import brentq

    # Only the precision depends on the tilt, so a sample of many distinct rounds will do.
    stride = max(1, len(pairs) // _CHUNK)
    sample = pairs[::stride]
    scale = sum(p.count for p in pairs) / sum(p.count for p in sample)

    def totals(tilt: float) -> list[float]:
        cumulants = np.array([p.cumulants(tilt) for p in sample])
        found: list[float] = (scale * (np.array([p.count for p in sample]) @ cumulants)).tolist()
        return found

    def value(log_tilt: float) -> float:
        log_moment, mean, _variance = totals(math.exp(log_tilt))
        return slope(math.exp(log_tilt), log_moment, mean)

    def is_last(log_tilt: float) -> bool:
        # Where the loss is all but constant, more tilt tells nothing and rounds tilt * loss away.
        mean = totals(math.exp(log_tilt))[1]
        return log_tilt >= start + 12.0 or math.exp(log_tilt) * abs(mean) > _MOST_TILTED

    # From the tilt that shifts the mean by one standard deviation, until the zero is between.
    _, mean, variance = totals(0.0)
    start = -0.5 * math.log(max(variance, (mean / _MOST_TILTED) ** 2, 1e-300))
    low, high = start - 1.0, start + 1.0
    while value(low) > 0.0 and low > start - 12.0:
        low, high = low - 2.0, low
    while value(high) < 0.0 and not is_last(high):
        low, high = high, high + 2.0
    if value(low) > 0.0 or value(high) < 0.0:
        return math.exp(low if value(low) > 0.0 else high)
    return math.exp(float(brentq(value, low, high, xtol=0.02, rtol=1e-3)))


def _window(
    rises: Array, offsets: Array, limits: tuple[float, float], outside: float
) -> tuple[float, float]:
    """Losses outside of which the tilted probability is below exp(outside) on each side."""
    bounds = (rises - outside) / offsets
    finite = np.isfinite(bounds)
    low = min(max(float(bounds[finite & (offsets < 0.0)].max()), limits[0]), limits[1])
    high = max(min(float(bounds[finite & (offsets > 0.0)].min()), limits[1]), low)
    margin = 1e-3 * (high - low) + 1e-12 * max(abs(low), abs(high))  # the grid widens a little
    return low - margin, high + margin
