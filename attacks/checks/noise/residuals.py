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
    numbers        equal numbers among those that the noise is made of (`values`)
    exact          rows without declared noise are zero, and rows that share all of their noise are
                   equal, to rounding

Noise halved on one of three releases shows in its row, a seed used twice in the pair of those that
share it, whichever rows and rounds they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....training.noise_tests.laws import two_sided
from ...watching.recording import Recording
from ...watching.residual_values import Residual
from ...watching.result import Check, Finding
from .coordinates import note_coordinates
from .pairs import note_pairs_of_rounds, note_pairs_over_rounds
from .pools import Pool, pooled
from .regularity import note_regularity
from .repeats import note_repeats
from .rows import DROWNED, Rows, deviations, is_correlated, scaled, whitened
from .shape import note_shape
from .subsets import note_means, note_pairs_of_coordinates, note_span, note_subsets
from .values import note_values

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
    every, silent, exact = list[Rows](), 0, Finding()
    starts, sources = run.source_starts
    for start, residuals in zip(starts, run.residuals, strict=True):
        silent += sum(_note_silent(exact, of) for of in residuals)
        for width in sorted({of.value.shape[1] for of in residuals}, reverse=True):
            block = [of for of in residuals if of.value.shape[1] == width]
            every.append(scaled(block, before=start, all_sources=sources))
    blocks = [of.only(np.flatnonzero(of.resolution < DROWNED)) for of in every]
    drowned = sum(len(of.names) for of in every) - sum(len(of.names) for of in blocks)
    blocks = [of for of in blocks if of.names]
    white = [one for of in blocks for one in whitened(of)]
    rows, combined, pairs, within = Finding(), Finding(), Finding(), Finding()
    for block_ in blocks:
        note_coordinates(within, block_.values, block_.names)
    for found, of in ((rows, blocks), (combined, white)):
        _test_rows(found, of)
        _test_kinds(found, of)
        note_pairs_over_rounds(pairs, of)
    thinned = note_pairs_of_rounds(pairs, blocks)
    pools = pooled(blocks, white, run.parts)
    # The plainest words come first.
    parts, others = _of_pools(pools)
    whole = Finding.of([exact, rows, combined, *parts, pairs, _numbers(run), within, *others])
    words = (
        f"{sum(len(of.names) for of in blocks)} rows with declared noise "
        f"({sum(of.values.size for of in blocks)} values) of {run.told} "
        f"were tested for their variance, in pairs{thinned}, within each row and "
        f"by coordinate against the declared covariance, {sum(p.values.size for p in pools)} "
        f"values of independent rows for their shape, and {silent} rows without noise for being "
        "exact"
    )
    fault = f"{drowned} rows have noise so small that rounding hides it, and fail"
    return whole.check(_NAME, words, fault=fault if drowned else "")


def _of_pools(pools: Sequence[Pool]) -> tuple[list[Finding], list[Finding]]:
    """Tests of values over all rows and rounds: of single coordinates, and of several together."""
    subsets, means, repeats, spans, together, shapes = (Finding() for _ in range(6))
    regular = Finding()
    for pool in pools:
        note_subsets(subsets, pool)
        note_means(means, pool)
        note_repeats(repeats, pool)
        note_span(spans, pool)
        note_pairs_of_coordinates(together, pool)
        note_regularity(regular, pool)
        note_shape(shapes, pool.values, f"the noise of every {pool.kind}")
        for part in pool.parts if len(pool.parts) > 1 else ():
            words = f"the noise on {part.name} in every {pool.kind}"
            note_shape(shapes, pool.values[:, part.start : part.stop], words)
    return [subsets, means], [repeats, shapes, together, spans, regular]


def _numbers(run: Recording) -> Finding:
    """The numbers that the noise of all watched rounds is made of, by the width of a row."""
    found, parts = Finding(), run.parts
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


def _note_silent(found: Finding, of: Residual) -> int:
    """Rows without declared noise hold nothing but rounding; how many there are."""
    at = np.flatnonzero(deviations(of) == 0)
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


def _test_rows(found: Finding, blocks: Sequence[Rows]) -> None:
    """The variance of each row in each round, and over all rounds in which it occurs."""
    over: dict[tuple[str, str], tuple[float, int]] = {}
    for of in blocks:
        squares, D = np.square(of.values).sum(axis=1), of.values.shape[1]

        def told(at: int, of: Rows = of, squares: np.ndarray = squares, D: int = D) -> str:
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


def _test_kinds(found: Finding, blocks: Sequence[Rows]) -> None:
    """Each kind over its rows and all rounds, where its rows are independent."""
    sums: dict[str, tuple[float, int]] = {}
    for of in blocks:
        for kind in dict.fromkeys(of.kinds):
            rows = of.only(np.flatnonzero(np.array(of.kinds) == kind))
            if not is_correlated(rows):
                total, degrees = sums.get(kind, (0.0, 0))
                square = float(np.square(rows.values).sum())
                sums[kind] = (total + square, degrees + rows.values.size)
    for kind, (total, degrees) in sums.items():
        _note_sum(found, f"every {kind}", total, degrees)
