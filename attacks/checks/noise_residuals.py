"""Residuals: what messages hold beside gradients and known values is the declared noise.

The recorded noise plays no part but in the last of these tests: a residual is what a message and
the independent oracle leave, and its coordinates must be independent draws of N(0, B B^T) over the
rows of a round, and independent between rounds. Scaled by its declared size every row u is standard
normal, and so

    |u|^2                              chi-square, D degrees
    |u +- v|^2 / (2 (1 +- rho))        chi-square, D degrees, rho: the declared correlation

exactly, whatever D: no test here is approximate.

    variance       each row in each round; each row over all rounds; each kind over all its rows
    correlation    every pair of rows of a round, round by round and over all rounds; every pair of
                   rows of two rounds, against 0
    combinations   where rows of a kind are correlated, the same of their independent combinations,
                   the eigenvectors of their declared covariance
    coordinates    of each row, at several lags and in how many are small (`coordinates`)
    subsets        variance and mean of each coordinate, of each tensor of parameters, of windows
                   and of every k-th coordinate, and pairs of coordinates, over all rows (`subsets`)
    repeats        products of coordinates at all lags, forwards and backwards (`repeats`)
    shape          tails and cells of all values together (`shape`)
    regularity     how sums over rows and over coordinates vary (`regularity`)
    numbers        equal numbers among those that the noise is made of (`values`), and of what is
                   left those on the grids of 16 bits
    exact          rows without declared noise are zero, and rows that share all of their noise are
                   equal, to rounding

Noise halved on one of three releases shows in its row, a seed used twice in the pair of those that
share it, whichever rows and rounds they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, ndtr, ndtri

from ...training.noise_tests.laws import at_least, binomial, least, two_sided
from . import noise_rows
from .noise_streams import note_values
from .recording import Part, Recording, Residual
from .result import TOTAL_FALSE_ALARM, Check, Finding

# The noise on every part of a vector has its declared variance, and mean 0.
#
# Of a pool of n independent rows, with s_j the sum of the squares of coordinate j and m_j its sum,
#
#     sum over any chosen coordinates of s_j      chi-square, n degrees a coordinate
#     m_j^2 / n                                   chi-square, one degree
#     how many s_j are beyond a quantile          binomial, D draws
#     (sum of squares of u_j +- u_k) / 2          chi-square, n degrees
#     |Q^T u|^2, Q the span of m other rows       chi-square, m degrees a row
#
# exactly. Chosen are: each coordinate; each tensor of parameters, and its slices along its first
# two dimensions; all beginnings and ends of the vector; windows of every power of two, in steps of
# half their length; every k-th coordinate for k up to 64. The count finds scattered coordinates
# that none of these holds, the pairs coordinates that share their noise, and the last one any other
# uneven covariance: noise that leaves a subspace alone is more alike from row to row than it should
# be.

_STRIDES = 64
_BEYOND = (0.1, 0.01, 0.001)
_MOST_PAIRED = 1024  # coordinates whose pairs are looked at
_MOST_SPANNED = 2e9  # multiplications for the span of rows
_MOST_IN_SPAN = 512


def note_subsets(found: Finding, pool: noise_rows.Pool) -> None:
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

    # Tensors, single coordinates, windows, beginnings, ends and strides.
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


def _window(pool: noise_rows.Pool, first: NDArray[np.int64], length: int, at: int) -> str:
    return _named(pool, int(first[at]), int(first[at]) + length)


def _named(pool: noise_rows.Pool, first: int, stop: int) -> str:
    """Coordinates of a pool in words."""
    held = [part for part in pool.parts if part.start <= first and stop <= part.stop]
    if held and (held[0].start, held[0].stop) == (first, stop):
        return f"coordinates of {held[0].name}"
    of = f" (of {held[0].name})" if held else ""
    return f"coordinate{f' {first}' if stop == first + 1 else f's {first} to {stop - 1}'}{of}"


def note_means(found: Finding, pool: noise_rows.Pool) -> None:
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


def note_pairs_of_coordinates(found: Finding, pool: noise_rows.Pool) -> None:
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
        k, p = _least_of(squares, n)
        what = f"the noise on coordinates {at[i[k]]} and {at[j[k]]} in every {pool.kind} does not "
        what += "go together as declared: their sum or difference has "
        what += f"{squares[k] / n:.3g} times its variance (n = {n})"
        found.note(p, tests=len(i), what=what)


def _least_of(squares: NDArray[np.float64], degrees: int) -> tuple[int, float]:
    """Which of chi-square sums has the least p, and that: the smallest of them or the largest."""
    ends = [int(squares.argmin()), int(squares.argmax())]
    at, p = least(two_sided(squares[ends], degrees))
    return ends[at], p


def note_span(found: Finding, pool: noise_rows.Pool) -> None:
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


# Sums over noise vary as much as sums of independent normal values do.
#
# Of independent values of unit variance in R rows of D coordinates
#
#     squares of a row            chi-square, D degrees      R of them, independent
#     sum of a row over sqrt(D)   normal                     R of them
#     squares of a coordinate     chi-square, R degrees      D of them
#     sum of a coordinate         normal                     D of them
#
# Through their distribution functions each becomes uniform, and the largest distance between what
# was seen and a uniform distribution has a law of its own (A. N. Kolmogorov 1933; exact for every
# number). Noise that is centred or scaled to its own size is too regular: each sum by itself is as
# expected, all of them are the same, and who knows the rest of a message has an equation without
# noise.

_FEW = 8  # sums of which no law is asked


def note_regularity(found: Finding, pool: noise_rows.Pool) -> None:
    """Note how sums of rows and of coordinates vary, of the whole and of each tensor."""
    parts = [(slice(None), f"every {pool.kind}")]
    if len(pool.parts) > 1:
        parts += [(slice(p.start, p.stop), f"{p.name} in every {pool.kind}") for p in pool.parts]
    for columns, what in parts:
        values = pool.values[:, columns]
        for axis, of in ((1, "rows"), (0, "coordinates")):
            width, sums = values.shape[axis], values.sum(axis=axis)
            squares = np.square(values).sum(axis=axis)
            _note(found, chdtr(width, squares), f"the squares of {of} of {what}")
            if width > 1:
                _note(found, ndtr(sums / np.sqrt(width)), f"the sums of {of} of {what}")


def _note(found: Finding, uniform: NDArray[np.float64], what: str) -> None:
    from scipy.stats import kstwo

    n = len(uniform)
    if n < _FEW:
        return
    ordered, steps = np.sort(uniform), np.arange(n + 1) / n
    distance = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    spread = float(ordered[-1] - ordered[0])
    found.note(
        float(kstwo.sf(distance, n)),
        what=f"{what} are {distance:.2g} off their law, within {spread:.2g} of it (n = {n:,})",
    )


_GRIDS = {"bfloat16": 8, "float16": 11}  # bits of a number
_NEAR, _MOST_NEAR = 2.0, 0.05  # to a grid: in usual roundings, and in cells
_NAME = "residuals"


def residual_check(run: Recording) -> Check:
    """Test the residuals of a run against the declared covariance of its noise.

    Args:
        run: a watched run, or what was kept of another.

    Returns:
        Passed if no test is beyond a false-alarm rate of 1e-6 for all of them together.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME, run.mismatch)
    # Rows by width, in units of the declared deviation; those without noise must be exact.
    every, silent, exact = list[noise_rows.Rows](), 0, Finding()
    starts, sources = run.source_starts
    for start, residuals in zip(starts, run.residuals, strict=True):
        silent += sum(_note_silent(exact, of) for of in residuals)
        for width in sorted({of.value.shape[1] for of in residuals}, reverse=True):
            block = [of for of in residuals if of.value.shape[1] == width]
            every.append(noise_rows.scaled(block, before=start, all_sources=sources))
    # Rows whose noise is lost in rounding cannot be tested, and fail.
    blocks = [of.only(np.flatnonzero(of.resolution < noise_rows.DROWNED)) for of in every]
    drowned = sum(len(of.names) for of in every) - sum(len(of.names) for of in blocks)
    blocks = [of for of in blocks if of.names]
    white = [one for of in blocks for one in noise_rows.whitened(of)]
    # As they are and whitened: rows, kinds and pairs over rounds.
    rows, combined, pairs, within = Finding(), Finding(), Finding(), Finding()
    for block_ in blocks:
        noise_rows.note_coordinates(within, block_.values, block_.names)
    fewest = list[int]()
    for found, of in ((rows, blocks), (combined, white)):
        _test_rows(found, of)
        fewest.append(_test_kinds(found, of))
        note_pairs_over_rounds(pairs, of)
    thinned = note_pairs_of_rounds(pairs, blocks)
    pools = noise_rows.pooled(blocks, white, run.parts)
    # The plainest words come first.
    of_pools = [_of_pools(note, pools) for note in _NOTES]
    first = [exact, rows, combined, *of_pools[:2], pairs, _numbers(run), within]
    whole = Finding.of([*first, *of_pools[2:]])
    words = (
        f"{sum(len(of.names) for of in blocks)} rows with declared noise "
        f"({sum(of.values.size for of in blocks)} values) of {run.told} "
        f"were tested for their variance, in pairs{thinned}, within each row and "
        f"by coordinate against the declared covariance, {sum(p.values.size for p in pools)} "
        f"values of independent rows for their shape, and {silent} rows without noise for being "
        "exact"
    )
    fault = f"{drowned} rows have noise so small that rounding hides it, and fail"
    power = _power(max(fewest), tests=8 * max(rows.tests + combined.tests, 1))
    return whole.check(_NAME, words, fault=fault if drowned else "", power=power)


def _power(n: int, *, tests: int) -> str:
    """The noise of one round whose variance n values of so many tests tell in 95 of 100 runs."""
    unit = math.sqrt(2.0 / max(n, 1))
    seen = (1.0 + ndtri(TOTAL_FALSE_ALARM / (2 * tests)) * unit) / (1.0 - ndtri(0.05) * unit)
    if not 0 < seen < 1:
        return ""
    told = (
        f"In one of the rounds looked at it sees noise of {math.sqrt(seen):.3f} times its deviation"
    )
    return f"{told} or less in 95 of 100 runs, and more may be missed."


def _note_shapes(found: Finding, pool: noise_rows.Pool) -> None:
    noise_rows.note_shape(found, pool.values, f"the noise of every {pool.kind}")
    for part in pool.parts if len(pool.parts) > 1 else ():
        words = f"the noise on {part.name} in every {pool.kind}"
        noise_rows.note_shape(found, pool.values[:, part.start : part.stop], words)


_NOTES = (
    note_subsets,
    note_means,
    noise_rows.note_repeats,
    _note_shapes,
    note_pairs_of_coordinates,
    note_span,
    note_regularity,
)


def _of_pools(
    note: Callable[[Finding, noise_rows.Pool], None], pools: Sequence[noise_rows.Pool]
) -> Finding:
    found = Finding()
    for pool in pools:
        note(found, pool)
    return found


def _numbers(run: Recording) -> Finding:
    """The numbers that the noise of all watched rounds is made of, by the width of a row."""
    found, parts = Finding(), run.parts
    for residual in (residual for of in run.residuals for residual in of):
        _note_grids(found, residual)
    held: dict[int, list[tuple[str, np.ndarray]]] = {}
    for where, z in run.made_noise:
        held.setdefault(z.shape[1], []).append((where, z.numpy()))
    for width, of in held.items():
        names = [f"source {row} of {where}" for where, z in of for row in range(len(z))]
        if names:
            note_values(
                found,
                np.concatenate([z for _, z in of]),
                names,
                parts.get(width, ()),
                "the sources of noise",
            )
    return found


def _note_grids(found: Finding, of: Residual) -> None:
    """Noise that was made elsewhere, as far as rounding leaves it, is on no coarse grid.

    In a cell of a grid noise lies nearly evenly: within a share r of the cell of its ends with a
    probability of 2 r, and 4 r is allowed.
    """
    std, D = noise_rows.deviations(of), of.value.shape[1]
    at = np.flatnonzero(std > 0)
    values, std = np.abs(of.value.numpy()[at]), std[at, None]
    near = _NEAR * of.resolution.numpy()[at, None] / math.sqrt(D)
    for unit, what in ((np.ones_like(std), ""), (std, ", in deviations,")):
        share, power = np.frexp(values / unit)  # in [.5, 1), times 2 to the power
        for name, bits in _GRIDS.items():
            cells, reach = share * 2.0**bits, near / unit * 2.0 ** (bits - power)
            told = (values >= std / 4.0) & (reach < _MOST_NEAR)
            hits = int((np.abs(cells - np.rint(cells)) <= reach)[told].sum())
            n, chance = int(told.sum()), 4.0 * float(reach[told].mean()) if told.any() else 1.0
            words = (
                f"{hits} of {n} numbers of the noise of every {of.kind}{what} are those of {name}"
            )
            p = at_least(hits, n, min(chance, 1.0))
            found.note(float(p), what=f"{words}, where {n * chance:.3g} are expected at most")


def _note_silent(found: Finding, of: Residual) -> int:
    """Rows without declared noise hold nothing but rounding; how many there are."""
    at = np.flatnonzero(noise_rows.deviations(of) == 0)
    left, allowed = of.value.norm(dim=1).numpy()[at], of.rounding.numpy()[at]
    wrong = np.flatnonzero(~(left <= allowed))
    what = ""
    if len(wrong):
        i = int(wrong[0])
        what = (
            f"{of.names[at[i]]} in round {of.round} is declared without noise but is off by "
            f"{left[i]:.2g}, where rounding accounts for {allowed[i]:.2g}"
        )
    found.exact(not what, what, tests=len(at))
    return len(at)


def _test_rows(found: Finding, blocks: Sequence[noise_rows.Rows]) -> None:
    """The variance of each row in each round, and over all rounds in which it occurs."""
    over: dict[tuple[str, str], tuple[float, int]] = {}
    for of in blocks:
        squares, D = np.square(of.values).sum(axis=1), of.values.shape[1]

        def told(
            at: int, of: noise_rows.Rows = of, squares: np.ndarray = squares, D: int = D
        ) -> str:
            what = f"the noise of {of.names[at]} in round {of.rounds[at]}"
            return f"{what} has {squares[at] / D:.3g} times the declared variance (n = {D})"

        found.worst(two_sided(squares, D), told)
        for key, square in zip(zip(of.kinds, of.names, strict=True), squares, strict=True):
            total, degrees = over.get(key, (0.0, 0))
            over[key] = (total + float(square), degrees + D)
    for (_, name), (total, degrees) in over.items():
        _note_sum(found, name, total, degrees)


def _note_sum(found: Finding, of: str, total: float, degrees: int) -> None:
    what = f"the noise of {of} over all rounds has {total / degrees:.3g} times the declared "
    found.note(two_sided(total, degrees), what=f"{what}variance (n = {degrees})")


def _test_kinds(found: Finding, blocks: Sequence[noise_rows.Rows]) -> int:
    """Each kind over its rows, in each round and in all, where its rows are independent.

    Returns:
        How many values the fewest of a kind in a round are; 0 where there are none.
    """
    sums: dict[str, tuple[float, int]] = {}
    fewest = list[int]()
    for of in blocks:
        for kind, rows in of.by_kind.items():
            if not noise_rows.is_correlated(rows):
                total, degrees = sums.get(kind, (0.0, 0))
                square = float(np.square(rows.values).sum())
                sums[kind] = (total + square, degrees + rows.values.size)
                fewest.append(rows.values.size)
                share = f"{square / rows.values.size:.3g} times the declared variance"
                where = f"the noise of every {kind} in round {rows.rounds[0]} has {share}"
                p = two_sided(square, rows.values.size)
                found.note(float(p), what=f"{where} (n = {rows.values.size})")
    for kind, (total, degrees) in sums.items():
        _note_sum(found, f"every {kind}", total, degrees)
    return min(fewest, default=0)


_MOST_ROWS_AT_ONCE = 512
_MOST_ROWS = 10_000  # of all rounds, whose pairs are looked at
_MOST_COORDINATES = 4096  # of a row, in a pair


class _Quadratics:
    """|u +- v|^2 of the rows u of one group and v of another, over twice 1 +- rho.

    Where 1 +- rho is next to nothing the two are the same but for rounding, and no test of chance
    applies; `open` says where one does.
    """

    def __init__(self, one: noise_rows.Rows, other: noise_rows.Rows) -> None:
        D = min(one.values.shape[1], other.values.shape[1], _MOST_COORDINATES)
        self.degrees = D
        u, v = one.values[:, :D], other.values[:, :D]
        both = np.square(u).sum(axis=1)[:, None] + np.square(v).sum(axis=1)[None]
        product, rho = 2.0 * (u @ v.T), (one.noise @ other.noise.T).toarray()
        least = np.square(one.resolution[:, None] + other.resolution[None]).clip(noise_rows.SAME)
        most = 200.0 * least + np.square(one.rounding[:, None] + other.rounding[None])
        self.squares, self.open, self.unequal = [], [], np.zeros(rho.shape, dtype=bool)
        for sign in (1.0, -1.0):
            left, share = both + sign * product, 1.0 + sign * rho
            is_open = share > least
            self.open.append(is_open)
            self.squares.append(left / (2.0 * np.where(is_open, share, 1.0)))
            self.unequal |= ~is_open & (left > most * D)


def note_pairs_over_rounds(found: Finding, blocks: Sequence[noise_rows.Rows]) -> None:
    """Every pair of rows of a round, over all rounds that hold the same rows."""
    alike: dict[tuple[int, tuple[tuple[str, str], ...]], list[noise_rows.Rows]] = {}
    for of in blocks:
        rows = tuple(zip(of.kinds, of.names, strict=True))
        alike.setdefault((of.values.shape[1], rows), []).append(of)
    for same in alike.values():
        names = same[0].names
        for chunk in _chunks(len(names)) if len(same) > 1 and len(names) <= _MOST_ROWS else ():
            once = np.arange(len(names))[None] > chunk[:, None]
            squares, degrees = np.zeros((2, *once.shape)), np.zeros((2, *once.shape))
            for of in same:
                found_here = _Quadratics(of.only(chunk), of)
                for sign in (0, 1):
                    use = found_here.open[sign] & once
                    squares[sign] += np.where(use, found_here.squares[sign], 0.0)
                    degrees[sign] += use * found_here.degrees
            words = [f"{name} over all rounds" for name in names]
            for sign in (0, 1):
                _note_pairs(found, squares[sign], degrees[sign], (words, words), chunk)


def note_pairs_of_rounds(found: Finding, blocks: Sequence[noise_rows.Rows]) -> str:
    """Every pair of rows of all rounds, of which those of two rounds are independent.

    Returns:
        Words for which rows were left out.
    """
    step = math.ceil(sum(len(of.names) for of in blocks) / _MOST_ROWS)
    by_width: dict[int, list[noise_rows.Rows]] = {}
    for of in blocks:
        thin = of.only(np.arange(0, len(of.names), step))
        by_width.setdefault(of.values.shape[1], []).append(thin)
    groups = [noise_rows.stacked(of) for of in by_width.values()]
    for i, group in enumerate(groups):
        for other in groups[i:]:
            words = tuple(
                [f"{n} in round {t}" for n, t in zip(of.names, of.rounds, strict=True)]
                for of in (group, other)
            )
            for chunk in _chunks(len(group.names)):
                q = _Quadratics(group.only(chunk), other)
                first = chunk if group is other else np.full(len(chunk), -1)
                once = np.arange(len(other.names))[None] > first[:, None]
                for sign in (0, 1):
                    degrees = np.where(q.open[sign] & once, q.degrees, 0)
                    _note_pairs(found, q.squares[sign], degrees, (words[0], words[1]), chunk)
                _note_unequal(found, q.unequal & once, (words[0], words[1]), chunk)
    return f" of every row of {step}" if step > 1 else ""


def _chunks(count: int) -> list[np.ndarray]:
    starts = range(0, count, _MOST_ROWS_AT_ONCE)
    return [np.arange(start, min(start + _MOST_ROWS_AT_ONCE, count)) for start in starts]


def _note_pairs(
    found: Finding,
    squares: np.ndarray,
    degrees: np.ndarray,
    words: tuple[list[str], list[str]],
    chunk: np.ndarray,
) -> None:
    """Chi-square sums of pairs, where their degrees are not 0; the extremes decide."""
    for D in np.unique(degrees[degrees > 0]).tolist():
        at = np.flatnonzero(degrees == D)
        held = squares.ravel()[at]
        i, p = _least_of(held, D)
        row, column = divmod(int(at[i]), squares.shape[1])
        what = f"{words[0][chunk[row]]} and {words[1][column]} do not go together as declared: "
        what += f"their sum or difference has {held[i] / D:.3g} times its variance (n = {D:.0f})"
        found.note(p, tests=len(at), what=what)


def _note_unequal(
    found: Finding, unequal: np.ndarray, words: tuple[list[str], list[str]], chunk: np.ndarray
) -> None:
    """Rows that share all of their noise and yet differ."""
    if unequal.any():
        row, column = divmod(int(unequal.argmax()), unequal.shape[1])
        what = f"{words[0][chunk[row]]} and {words[1][column]} share all of their noise, but differ"
        found.note(0.0, what=what)
