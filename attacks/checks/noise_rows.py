"""Rows with noise, scaled by what is declared, and independent combinations of them.

Pooled values have the shape of a normal distribution, far into its tails.

Of N independent values

    how many are below t                binomial, N draws, Phi(t)
    how many are beyond t either way    binomial, N draws, 2 Phi(-t)
    the largest of all is x             at least with probability <= 2 N Phi(-x), at most with
                                        (1 - 2 Phi(-x))^N

for 63 quantiles and every half deviation up to 6. Values that are cut off beyond t are missed where
fewer than about 25 of N are expected there: a cut at 4 deviations is found in 400,000 values, one
at 4.5 in 4 million, one at 5 not below 45 million.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc, log1p, ndtr, ndtri

from ...training.noise_tests.laws import binomial, quadratic, two_sided
from .recording import Part, Residual
from .result import Finding

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SAME = 1e-10  # 1 - |rho| below which two rows share all of their noise
DROWNED = 0.1  # share of a row's noise at which rounding hides it
_MOST_WHITENED = 2000  # rows of one kind; a decomposition of more takes minutes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Rows with noise, of one block of coordinates, scaled to unit variance.

    `resolution` is the share of a coordinate's deviation that rounding usually is, `rounding` that
    it may be; `noise` the rows of B, scaled to norm 1, over the sources of all rounds.
    """

    rounds: list[int]
    names: list[str]
    kinds: list[str]
    values: np.ndarray  # (n, D)
    rounding: np.ndarray  # (n,)
    resolution: np.ndarray  # (n,)
    noise: csr_array  # (n, N)

    def only(self, at: np.ndarray) -> Rows:
        """Some of the rows, at ascending positions; those that follow one another as a view."""
        joined = len(at) and at[-1] - at[0] == len(at) - 1
        values = self.values[at[0] : at[-1] + 1] if joined else self.values[at]
        return Rows(
            rounds=[self.rounds[i] for i in at],
            names=[self.names[i] for i in at],
            kinds=[self.kinds[i] for i in at],
            values=values,
            rounding=self.rounding[at],
            resolution=self.resolution[at],
            noise=self.noise[at],
        )

    @property
    def by_kind(self) -> dict[str, Rows]:
        """The rows of each kind."""
        kinds = np.array(self.kinds)
        return {
            kind: self.only(np.flatnonzero(kinds == kind)) for kind in dict.fromkeys(self.kinds)
        }


def deviations(of: Residual) -> np.ndarray:
    """(R,) declared deviation of each row's noise."""
    return np.sqrt(np.asarray(of.noise.multiply(of.noise).sum(axis=1)).ravel())


def scaled(residuals: Sequence[Residual], *, before: int, all_sources: int) -> Rows:
    """The rows with noise of one round and block; `before` sources of other rounds come first."""
    from scipy.sparse import csr_array, diags_array

    found = list[Rows]()
    for of in residuals:
        # Rows with noise, in units of its deviation.
        size = deviations(of)
        at = np.flatnonzero(size)
        whole = size[at] * math.sqrt(of.value.shape[1])
        unit = csr_array(diags_array(1.0 / size[at]) @ of.noise[at])
        placed = (unit.data, unit.indices + before, unit.indptr)
        found.append(
            Rows(
                rounds=[of.round] * len(at),
                names=[of.names[i] for i in at],
                kinds=[of.kind] * len(at),
                values=of.value.numpy()[at] / size[at, None],
                rounding=of.rounding.numpy()[at] / whole,
                resolution=of.resolution.numpy()[at] / whole,
                noise=csr_array(placed, shape=(len(at), all_sources)),
            )
        )
    return stacked(found)


def is_correlated(of: Rows) -> bool:
    """Whether any two of the rows are declared to share noise."""
    covariance = of.noise @ of.noise.T
    return bool(abs(covariance).sum() - covariance.diagonal().sum() > SAME)


def whitened(of: Rows) -> list[Rows]:
    """For each kind of correlated rows their independent combinations, scaled to unit variance.

    What hides least in R, and decides what an adversary can tell, is a combination of its own here.
    Those that rounding drowns are left out.
    """
    from scipy.sparse import csr_array, eye_array

    found = []
    for kind, rows in of.by_kind.items():
        if len(rows.names) > _MOST_WHITENED or not is_correlated(rows):
            continue
        # Eigenvectors of the declared covariance, as far as rounding does not hide them.
        covariance = (rows.noise @ rows.noise.T).toarray()
        squares, vectors = np.linalg.eigh(covariance)
        lost = float(np.linalg.norm(rows.resolution))  # of any combination of norm 1
        kept = squares > max(1e-9 * squares.max(), (lost / DROWNED) ** 2)
        size, count = np.sqrt(squares[kept]), int(kept.sum())
        found.append(
            Rows(
                rounds=rows.rounds[:1] * count,
                names=[f"combination {i + 1} of {kind}" for i in np.flatnonzero(kept)],
                kinds=[f"combination of {kind}"] * count,
                values=np.asarray((vectors[:, kept].T @ rows.values) / size[:, None]),
                rounding=float(np.linalg.norm(rows.rounding)) / size,
                resolution=lost / size,
                noise=csr_array(eye_array(count)),
            )
        )
    return found


def stacked(of: Sequence[Rows]) -> Rows:
    """The rows of several rounds, of one width, as one."""
    from scipy.sparse import csr_array, vstack

    return Rows(
        rounds=[t for one in of for t in one.rounds],
        names=[name for one in of for name in one.names],
        kinds=[kind for one in of for kind in one.kinds],
        values=np.concatenate([one.values for one in of]),
        rounding=np.concatenate([one.rounding for one in of]),
        resolution=np.concatenate([one.resolution for one in of]),
        noise=csr_array(vstack([one.noise for one in of])),
    )


# Rows that are independent of one another, pooled over rows and rounds.
#
# Rows of one kind that are declared independent are pooled as they are, and of correlated ones
# their independent combinations. A pool is a matrix of independent standard normals, n rows by D
# coordinates, so that faults that act on few coordinates of every row, or a little on all of them,
# add up.

_SHARE = 0.2  # of a coordinate's deviation: most that rounding may put on it


class Pool(NamedTuple):
    """Independent rows of unit variance."""

    kind: str  # of the rows, such as "message model"
    values: NDArray[np.float64]  # (n, D)
    names: list[str]  # (n,) of the rows, with their rounds
    parts: Sequence[Part]  # the tensors that the coordinates belong to


def pooled(
    blocks: Sequence[Rows], white: Sequence[Rows], parts: Mapping[int, Sequence[Part]]
) -> list[Pool]:
    """The pools of a run.

    Args:
        blocks: the rows of each round and width.
        white: independent combinations of those that are correlated.
        parts: the tensors of a row, by its width.

    Returns:
        One for each kind and width. Rows are left out where rounding would show in so many values:
        its share s of a deviation adds s^2 to the variance, which n D values know to
        sqrt(2 / (n D)).
    """
    groups: dict[tuple[str, int], list[Rows]] = {}
    for of in blocks:
        for kind, rows in of.by_kind.items():
            if not is_correlated(rows):
                groups.setdefault((kind, rows.values.shape[1]), []).append(rows)
    for of in white:
        groups.setdefault((of.kinds[0], of.values.shape[1]), []).append(of)
    found = []
    for (kind, width), alike in groups.items():
        size = sum(len(of.names) for of in alike) * width
        most = min(_SHARE / math.sqrt(width), math.sqrt(0.25 / math.sqrt(size)))
        kept = [of.only(np.flatnonzero(of.resolution < most)) for of in alike]
        names = [
            f"{n} in round {t}" for of in kept for n, t in zip(of.names, of.rounds, strict=True)
        ]
        if names:
            values = np.concatenate([of.values for of in kept])
            tensors = parts.get(width) or [Part(f"a block of {width}", 0, (width,))]
            found.append(Pool(kind, values, names, tensors))
    return found


_QUANTILES = np.arange(1, 64) / 64.0
_BEYOND = np.arange(0.5, 6.01, 0.5)
_FEW = 64  # values of which no shape is asked


def note_shape(found: Finding, values: NDArray[np.float64], what: str) -> None:
    """Note the counts of all values, independent and of unit variance, and the largest.

    The words of `what` are as in "the noise of every message model".
    """
    N = values.size
    if N < _FEW:
        return
    flat = values.ravel()
    size = np.abs(flat)
    # How many values lie below each quantile, and how many beyond each limit.
    limits = ndtri(_QUANTILES)
    below = np.searchsorted(limits, flat, side="right")
    counts = np.cumsum(np.bincount(below, minlength=len(limits) + 1))[:-1]
    found.worst(
        binomial(counts, N, ndtr(limits)),
        lambda at: (
            f"{counts[at]:,} of {N:,} values of {what} are below {limits[at]:.3g} "
            f"deviations, where {N * float(ndtr(limits[at])):,.4g} are expected"
        ),
    )
    chance = erfc(_BEYOND / math.sqrt(2.0))
    beyond = np.array([int((size > t).sum()) for t in _BEYOND])
    found.worst(
        binomial(beyond, N, chance),
        lambda at: (
            f"{beyond[at]:,} of {N:,} values of {what} are beyond {_BEYOND[at]:g} "
            f"deviations, where {N * chance[at]:,.4g} are expected"
        ),
    )
    # The largest value may be too large, or too small for so many.
    largest = float(size.max())
    tail = float(erfc(largest / math.sqrt(2.0)))
    p_of = 2.0 * min(1.0, N * tail, math.exp(N * float(log1p(-min(tail, 1.0 - 1e-16)))))
    words = f"the largest of {N:,} values of {what} is {largest:.4g} deviations"
    found.note(min(1.0, p_of), what=words)


# Whether the coordinates of one vector are independent standard normals.
#
# Of u with D coordinates
#
#     |{i : |u_i| < t}|                              binomial, D draws, P(|z| < t)
#     sum over disjoint pairs (u_i +- u_(i+l))^2 / 2   chi-square, one degree a pair
#
# exactly, for every t and every lag l. Noise that repeats itself within a message, whose
# differences hold no noise at all, shows at its lag; noise of another shape (two values, a
# truncated tail) in the counts.

_WITHIN = (0.05, 0.5, 1.0, 1.5, 2.0, 3.0)
_ROWS_AT_ONCE = 64
_FEW_COORDINATES = 8  # coordinates of which no lag and no count says anything


def note_coordinates(found: Finding, values: NDArray[np.float64], names: list[str]) -> None:
    """Note the tests of every row of (n, D) values of unit variance."""
    if values.shape[1] < _FEW_COORDINATES:
        return
    for start in range(0, len(values), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        _note_rows(found, values[rows], names[rows])


def _note_rows(found: Finding, values: NDArray[np.float64], names: list[str]) -> None:
    width = values.shape[1]

    def note(p: NDArray[np.float64], what: str) -> None:
        found.worst(p, lambda at: f"{what} {names[at]}")

    for lag in _lags(width):
        first = np.flatnonzero(np.arange(width - lag) // lag % 2 == 0)
        a, b = values[:, first], values[:, first + lag]
        for sign in (1.0, -1.0):
            squares = np.square(a + sign * b).sum(axis=1) / 2.0
            note(two_sided(squares, len(first)), f"coordinates {lag} apart in")
    for limit in _WITHIN:
        counts = (np.abs(values) < limit).sum(axis=1)
        chance = float(erf(limit / np.sqrt(2.0)))
        note(binomial(counts, width, chance), f"how many are within {limit:g} in")


def _lags(width: int) -> list[int]:
    """Powers of two, and a half, a third and a quarter of the row."""
    found = {2**k for k in range(width.bit_length()) if 2**k <= width // 2}
    return sorted(found | {width // part for part in (2, 3, 4)})


# Noise does not repeat itself within a row, forwards or backwards, at any offset.
#
# For a row u of D independent standard normals
#
#     sum of u_i u_(i+l)        a quadratic form of operator norm at most 1, F^2 = (D - l) / 2
#     sum of u_i u_(s-i)        one of operator norm at most 1, F^2 = its number of terms; its mean
#                               is 1 where s is even
#
# so that `laws.quadratic` bounds both, for every lag l and every reflection s, of one row and of
# many rows together. All lags come from one Fourier transform of a row. A copy of c of D
# coordinates adds c: pooled over n rows it shows from c of about 7 sqrt(D / n) on.

_MOST_VALUES = 4_000_000  # of a pool, of whose rows more are left out
_PRODUCTS_AT_ONCE = 256


def note_repeats(found: Finding, pool: Pool) -> None:
    """Note all lags and all reflections, of every row and of all together."""
    D = pool.values.shape[1]
    if D < 2:
        return
    step = -(-pool.values.size // _MOST_VALUES)
    values, names = pool.values[::step], pool.names[::step]
    lags, turns = np.arange(1, D), np.arange(2 * D - 1)
    terms = np.minimum(turns, 2 * D - 2 - turns) + 1.0
    kinds = (
        (lags, (D - lags) / 2.0, "coordinates {} apart in {}"),
        (turns, terms, "coordinates that add up to {} in {}"),
    )
    totals = np.zeros(D - 1), np.zeros(2 * D - 1)
    for first in range(0, len(values), _PRODUCTS_AT_ONCE):
        some = slice(first, first + _PRODUCTS_AT_ONCE)
        for total, sums, kind in zip(totals, _products(values[some]), kinds, strict=True):
            total += sums.sum(axis=0)
            _note_products(found, sums, names[some], *kind)
    # The same over all rows, which shows what is weak in each.
    for total, (places, norm, words) in zip(totals, kinds, strict=True):
        every = [f"every {pool.kind}"]
        _note_products(found, total[None], every, places, len(values) * norm, words)


def _note_products(
    found: Finding,
    sums: NDArray[np.float64],
    names: Sequence[str],
    places: NDArray[np.int64],
    norm: NDArray[np.float64],
    words: str,
) -> None:
    """Sums (n, places) of products, and the squared norms (places,) of their forms."""
    p = quadratic(np.abs(sums), norm)
    row, at = divmod(int(p.argmin()), p.shape[1])
    deviations_off = sums[row, at] / np.sqrt(2.0 * norm[at])
    what = f"{words.format(places[at], names[row])} are alike: the sum of their products is "
    what += f"{deviations_off:.3g} deviations from what it should be"
    found.note(p[row, at], tests=p.size, what=what)


def _products(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n, D - 1) sums of u_i u_(i+l), and (n, 2D - 1) of u_i u_(s-i), less their means."""
    from scipy.fft import irfft, next_fast_len, rfft

    D = rows.shape[1]
    size = next_fast_len(2 * D - 1, real=True)
    spectrum = rfft(rows, size, axis=1)
    moved = irfft(spectrum.real**2 + spectrum.imag**2, size, axis=1)[:, 1:D]
    turned = irfft(spectrum**2, size, axis=1)[:, : 2 * D - 1]
    turned[:, ::2] -= 1.0  # which have a square among them
    return np.ascontiguousarray(moved), np.ascontiguousarray(turned)
