"""Tilted losses on a grid, and their convolution by fast Fourier transform on a window.

Source: the methods named in `privacy_loss`, of which this is the arithmetic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dominating_pairs import DiscretisedPair
from .mixtures import Cell

__all__ = ["FARTHEST", "LOG_OUTSIDE", "Piece", "convolve", "convolve_mixtures", "on_grid"]

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
