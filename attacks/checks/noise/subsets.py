"""The noise on every part of a vector has its declared variance, and mean 0.

Of a pool of n independent rows, with s_j the sum of the squares of coordinate j and m_j its sum,

    sum over any chosen coordinates of s_j      chi-square, n degrees a coordinate
    m_j^2 / n                                   chi-square, one degree
    how many s_j are beyond a quantile          binomial, D draws
    (sum of squares of u_j +- u_k) / 2          chi-square, n degrees
    |Q^T u|^2, Q the span of m other rows       chi-square, m degrees a row

exactly. Chosen are: each coordinate; each tensor of parameters, and its slices along its first two
dimensions; all beginnings and ends of the vector; windows of every power of two, in steps of half
their length; every k-th coordinate for k up to 64. The count finds scattered coordinates that none
of these holds, the pairs coordinates that share their noise, and the last one any other uneven
covariance: noise that leaves a subspace alone is more alike from row to row than it should be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from ....training.noise_tests.laws import binomial, two_sided
from ...watching.recording import Part
from ...watching.result import Finding
from .pools import Pool

_STRIDES = 64
_BEYOND = (0.1, 0.01, 0.001)
_MOST_PAIRED = 1024  # coordinates whose pairs are looked at
_MOST_SPANNED = 2e9  # multiplications for the span of rows
_MOST_IN_SPAN = 512


def note_subsets(found: Finding, pool: Pool) -> None:
    """Note the variance of every chosen part of the vector."""
    n, D = pool.values.shape
    s = np.einsum("ij,ij->j", pool.values, pool.values)

    def note(
        sums: NDArray[np.float64], counts: NDArray[np.int64], what: Callable[[int], str]
    ) -> None:
        if not len(sums):
            return
        found.worst(
            two_sided(sums, n * counts),
            lambda at: (
                f"the noise on {what(at)} in every {pool.kind} has "
                f"{sums[at] / int(n * counts[at]):.3g} times the declared variance "
                f"(n = {int(n * counts[at]):,})"
            ),
        )

    for part in pool.parts:
        _note_tensor(note, s, part)
    note(s, np.ones(D, dtype=int), lambda at: _named(pool, at, at + 1))
    below = np.concatenate([[0.0], np.cumsum(s)])
    for length in [2**k for k in range(1, max(D - 1, 1).bit_length())]:
        first = np.arange(0, D - length + 1, max(1, length // 2))
        name = partial(_window, pool, first, length)
        note(below[first + length] - below[first], np.full(len(first), length), name)
    ends = np.arange(1, D)
    note(below[ends], ends, lambda at: _named(pool, 0, ends[at]))
    note(below[D] - below[ends], D - ends, lambda at: _named(pool, ends[at], D))
    for stride in range(2, min(_STRIDES, D // 2) + 1):
        of = np.arange(D) % stride
        sums = np.bincount(of, s).astype(np.float64)
        note(sums, np.bincount(of), f"every {stride}th coordinate from {{}} on".format)
    for share in _BEYOND:
        for tail, more in ((chdtr(n, s), "less"), (chdtrc(n, s), "more")):
            count = int((tail < share).sum())
            what = f"{count} of {D} coordinates in every {pool.kind} have {more} noise than all but"
            found.note(
                binomial(count, D, share),
                what=f"{what} {share:g} of sound ones have (n = {n} rows)",
            )


def _note_tensor(note: Callable[..., None], s: NDArray[np.float64], part: Part) -> None:
    held = s[part.start : part.stop]
    note(held.sum(keepdims=True), np.array([len(held)]), lambda _: f"coordinates of {part.name}")
    of = held.reshape(part.shape)
    for axis in range(min(2, of.ndim) if of.ndim > 1 else 0):
        sums = of.sum(axis=tuple(k for k in range(of.ndim) if k != axis))
        counts = np.full(len(sums), of.size // len(sums))
        where = ("[{}]", "[:, {}]")[axis]
        note(sums, counts, lambda at, where=where: f"{part.name}{where.format(at)}")


def _window(pool: Pool, first: NDArray[np.int64], length: int, at: int) -> str:
    return _named(pool, int(first[at]), int(first[at]) + length)


def _named(pool: Pool, first: int, stop: int) -> str:
    """Coordinates of a pool in words."""
    held = [part for part in pool.parts if part.start <= first and stop <= part.stop]
    if held and (held[0].start, held[0].stop) == (first, stop):
        return f"coordinates of {held[0].name}"
    of = f" (of {held[0].name})" if held else ""
    return f"coordinate{f' {first}' if stop == first + 1 else f's {first} to {stop - 1}'}{of}"


def note_means(found: Finding, pool: Pool) -> None:
    """Note the mean of every coordinate, and of each tensor."""
    n, sums = len(pool.values), pool.values.sum(axis=0)
    found.worst(
        two_sided(np.square(sums) / n, 1),
        lambda at: (
            f"the noise on {_named(pool, at, at + 1)} in every {pool.kind} has mean "
            f"{sums[at] / n:.3g} deviations, not 0 (n = {n})"
        ),
    )
    for part in pool.parts:
        held = sums[part.start : part.stop]
        size = n * len(held)
        mean = float(held.sum()) / size
        what = f"the noise on coordinates of {part.name} in every {pool.kind} has mean {mean:.3g}"
        chance = float(two_sided(mean**2 * size, 1))
        found.note(chance, what=f"{what} deviations, not 0 (n = {size:,})")


def note_pairs_of_coordinates(found: Finding, pool: Pool) -> None:
    """Note the correlation of every pair of coordinates, of at most so many of them."""
    n, D = pool.values.shape
    if n < 2 or D < 2:
        return
    at = np.arange(D)
    if D > _MOST_PAIRED:
        spread = np.linspace(0, D - 1, _MOST_PAIRED // 2).astype(int)
        edge = _MOST_PAIRED // 4
        at = np.unique(np.concatenate([spread, at[:edge], at[-edge:]]))
    values = np.ascontiguousarray(pool.values[:, at])
    s, product = np.square(values).sum(axis=0), values.T @ values
    i, j = np.triu_indices(len(at), k=1)
    both, twice = s[i] + s[j], 2.0 * product[i, j]
    for sign in (1.0, -1.0):
        squares = (both + sign * twice) / 2.0
        worst = [int(squares.argmin()), int(squares.argmax())]
        p = two_sided(squares[worst], n)
        k = worst[int(np.argmin(p))]
        what = f"the noise on coordinates {at[i[k]]} and {at[j[k]]} in every {pool.kind} does not "
        what += "go together as declared: their sum or difference has "
        what += f"{squares[k] / n:.3g} times its variance (n = {n})"
        found.note(float(p.min()), tests=len(i), what=what)


def note_span(found: Finding, pool: Pool) -> None:
    """Note how much of the noise of half of the rows lies in the span of others."""
    n, D = pool.values.shape
    size = min(n // 2, D // 2, _MOST_IN_SPAN, int(_MOST_SPANNED / max(n * D, 1)))
    if size < 1:
        return
    # Rows in turn, so that both halves hold all rounds.
    order = np.random.default_rng(0).permutation(n)
    basis, _ = np.linalg.qr(pool.values[order[:size]].T)
    inside = float(np.square(pool.values[order[size:]] @ basis).sum())
    degrees = size * (n - size)
    what = f"the noise in every {pool.kind} is not spread evenly over all directions: "
    what += (
        f"{inside / degrees:.3g} times as much as declared lies in the span of {size} other rows"
    )
    found.note(two_sided(inside, degrees), what=f"{what} (n = {degrees:,})")
