"""Noise does not repeat itself within a row, forwards or backwards, at any offset.

For a row u of D independent standard normals

    sum of u_i u_(i+l)        a quadratic form of operator norm at most 1, F^2 = (D - l) / 2
    sum of u_i u_(s-i)        one of operator norm at most 1, F^2 = its number of terms; its mean
                              is 1 where s is even

so that `laws.quadratic` bounds both, for every lag l and every reflection s, of one row and of
many rows together. All lags come from one Fourier transform of a row. A copy of c of D coordinates
adds c: pooled over n rows it shows from c of about 7 sqrt(D / n) on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....training.noise_tests.laws import quadratic
from ...watching.result import Finding
from .pools import Pool

_MOST_VALUES = 4_000_000  # of a pool, of whose rows more are left out
_ROWS_AT_ONCE = 256


def note_repeats(found: Finding, pool: Pool) -> None:
    """Note all lags and all reflections, of every row and of all together."""
    D = pool.values.shape[1]
    if D < 2:
        return
    step = -(-pool.values.size // _MOST_VALUES)
    values, names = pool.values[::step], pool.names[::step]
    lags, turns = np.arange(1, D), np.arange(2 * D - 1)
    terms = np.minimum(turns, 2 * D - 2 - turns) + 1
    means = (turns % 2 == 0).astype(float)
    totals = np.zeros(D - 1), np.zeros(2 * D - 1)
    for first in range(0, len(values), _ROWS_AT_ONCE):
        rows = values[first : first + _ROWS_AT_ONCE]
        moved, turned = _products(rows)
        turned -= means
        for total, part, norm, what in (
            (totals[0], moved, (D - lags) / 2.0, "coordinates {} apart in {}"),
            (totals[1], turned, terms.astype(float), "coordinates that add up to {} in {}"),
        ):
            total += part.sum(axis=0)
            p = quadratic(np.abs(part), norm)
            row, at = divmod(int(p.argmin()), p.shape[1])
            where = int((lags if part is moved else turns)[at])
            words = f"{what.format(where, names[first + row])} are alike"
            found.note(
                float(p[row, at]), tests=p.size, what=_with_sum(words, part[row, at], norm, at)
            )
    n = len(values)
    for total, norm, places, what in (
        (totals[0], n * (D - lags) / 2.0, lags, "coordinates {} apart in every {}"),
        (totals[1], n * terms.astype(float), turns, "coordinates that add up to {} in every {}"),
    ):
        p = quadratic(np.abs(total), norm)
        at = int(p.argmin())
        words = f"{what.format(int(places[at]), pool.kind)} are alike"
        found.note(float(p[at]), tests=len(p), what=_with_sum(words, total[at], norm, at))


def _with_sum(words: str, total: float, norm: NDArray[np.float64], at: int) -> str:
    deviations = total / np.sqrt(2.0 * norm[at])
    return (
        f"{words}: the sum of their products is {deviations:.3g} deviations from what it should be"
    )


def _products(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n, D - 1) sums of u_i u_(i+l), and (n, 2D - 1) of u_i u_(s-i)."""
    from scipy.fft import irfft, next_fast_len, rfft

    D = rows.shape[1]
    size = next_fast_len(2 * D - 1, real=True)
    spectrum = rfft(rows, size, axis=1)
    moved = irfft(spectrum.real**2 + spectrum.imag**2, size, axis=1)[:, 1:D]
    turned = irfft(spectrum**2, size, axis=1)[:, : 2 * D - 1]
    return np.ascontiguousarray(moved), np.ascontiguousarray(turned)
