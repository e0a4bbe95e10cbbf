"""Every pair of rows: noise that is declared independent is, whichever rows and rounds it is in.

Of two standard normal rows u and v with the declared correlation rho

    |u +- v|^2 / (2 (1 +- rho))        chi-square, D degrees

exactly. A seed used twice shows in the pair of those that share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...training.noise_tests.laws import two_sided
from .noise_rows import SAME, Rows, stacked
from .result import Finding

_ROWS_AT_ONCE = 512
_MOST_ROWS = 10_000  # of all rounds, whose pairs are looked at
_MOST_COORDINATES = 4096  # of a row, in a pair


class _Quadratics:
    """|u +- v|^2 of the rows u of one group and v of another, over twice 1 +- rho.

    Where 1 +- rho is next to nothing the two are the same but for rounding, and no test of chance
    applies; `open` says where one does.
    """

    def __init__(self, one: Rows, other: Rows) -> None:
        D = min(one.values.shape[1], other.values.shape[1], _MOST_COORDINATES)
        self.degrees = D
        u, v = one.values[:, :D], other.values[:, :D]
        both = np.square(u).sum(axis=1)[:, None] + np.square(v).sum(axis=1)[None]
        product, rho = 2.0 * (u @ v.T), (one.noise @ other.noise.T).toarray()
        least = np.square(one.resolution[:, None] + other.resolution[None]).clip(SAME)
        most = 200.0 * least + np.square(one.rounding[:, None] + other.rounding[None])
        self.squares, self.open, self.unequal = [], [], np.zeros(rho.shape, dtype=bool)
        for sign in (1.0, -1.0):
            left, share = both + sign * product, 1.0 + sign * rho
            is_open = share > least
            self.open.append(is_open)
            self.squares.append(left / (2.0 * np.where(is_open, share, 1.0)))
            self.unequal |= ~is_open & (left > most * D)


def note_pairs_over_rounds(found: Finding, blocks: Sequence[Rows]) -> None:
    """Every pair of rows of a round, over all rounds that hold the same rows."""
    alike: dict[tuple[int, tuple[tuple[str, str], ...]], list[Rows]] = {}
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


def note_pairs_of_rounds(found: Finding, blocks: Sequence[Rows]) -> str:
    """Every pair of rows of all rounds, of which those of two rounds are independent.

    Returns:
        Words for which rows were left out.
    """
    step = math.ceil(sum(len(of.names) for of in blocks) / _MOST_ROWS)
    by_width: dict[int, list[Rows]] = {}
    for of in blocks:
        thin = of.only(np.arange(0, len(of.names), step))
        by_width.setdefault(of.values.shape[1], []).append(thin)
    groups = [stacked(of) for of in by_width.values()]
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
    starts = range(0, count, _ROWS_AT_ONCE)
    return [np.arange(start, min(start + _ROWS_AT_ONCE, count)) for start in starts]


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
        extremes = [int(held.argmin()), int(held.argmax())]
        p = [float(two_sided(held[i], D)) for i in extremes]
        i = extremes[int(np.argmin(p))]
        row, column = divmod(int(at[i]), squares.shape[1])
        what = f"{words[0][chunk[row]]} and {words[1][column]} do not go together as declared: "
        what += f"their sum or difference has {held[i] / D:.3g} times its variance (n = {D:.0f})"
        found.note(min(p), tests=len(at), what=what)


def _note_unequal(
    found: Finding, unequal: np.ndarray, words: tuple[list[str], list[str]], chunk: np.ndarray
) -> None:
    """Rows that share all of their noise and yet differ."""
    if unequal.any():
        row, column = divmod(int(unequal.argmax()), unequal.shape[1])
        what = f"{words[0][chunk[row]]} and {words[1][column]} share all of their noise, but differ"
        found.note(0.0, what=what)
