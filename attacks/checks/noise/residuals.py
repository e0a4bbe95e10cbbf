"""Residuals: what messages hold beside gradients and known values is the declared noise.

The recorded noise plays no part: a residual is what a message and the independent oracle leave, and
its coordinates must be independent draws of N(0, B B^T) over the rows of a round, and independent
between rounds. Scaled by its declared size every row u is standard normal, and so

    |u|^2                              chi-square, D degrees
    |u +- v|^2 / (2 (1 +- rho))        chi-square, D degrees, rho: the declared correlation

exactly, whatever D: no test here is approximate.

    variance       each row in each round; each row over all rounds; each kind over all its rows
    correlation    every pair of rows of a round, round by round and over all rounds; every pair of
                   rows of two rounds, against 0
    combinations   where rows of a kind are correlated, the same of their independent combinations,
                   the eigenvectors of their declared covariance
    coordinates    of each row, at several lags and in how many are small (`coordinates`)
    exact          rows without declared noise are zero, and rows that share all of their noise are
                   equal, to rounding

Noise halved on one of three releases shows in its row, a seed used twice in the pair of those that
share it, whichever rows and rounds they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtr, chdtrc

from ...watching.result import TOTAL_FALSE_ALARM, Check, Finding
from ...watching.watched_run import Residual, WatchedRun
from .coordinates import note_coordinates

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["residual_check"]

_NAME = "residuals"
_SAME = 1e-10  # 1 - |rho| below which two rows share all of their noise
_DROWNED = 0.1  # share of a row's noise at which rounding hides it
_ROWS_AT_ONCE = 512
_MOST_ROWS = 10_000  # of all rounds, whose pairs are looked at
_MOST_WHITENED = 2000  # rows of one kind; a decomposition of more takes minutes
_MOST_COORDINATES = 4096  # of a row, in a pair


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Rows:
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

    def only(self, at: np.ndarray) -> _Rows:
        """Some of the rows."""
        return _Rows(
            rounds=[self.rounds[i] for i in at],
            names=[self.names[i] for i in at],
            kinds=[self.kinds[i] for i in at],
            values=self.values[at],
            rounding=self.rounding[at],
            resolution=self.resolution[at],
            noise=self.noise[at],
        )


def residual_check(run: WatchedRun) -> Check:
    """Test the residuals of a run against the declared covariance of its noise.

    Args:
        run: a watched run; its recorded noise is not used.

    Returns:
        Passed if no test is beyond a false-alarm rate of 1e-6 for all of them together.
    """
    if run.mismatch:
        return Check(
            name=_NAME, passed=False, p=None, tests=1, words=f"Not what was traced: {run.mismatch}."
        )
    every, silent, exact = list[_Rows](), 0, Finding()
    counts = [len(watched.noise_columns) for watched in run.rounds]
    for number, residuals in enumerate(run.residuals):
        silent += sum(_note_silent(exact, of) for of in residuals)
        for width in sorted({of.value.shape[1] for of in residuals}, reverse=True):
            block = [of for of in residuals if of.value.shape[1] == width]
            every.append(_scaled(block, before=sum(counts[:number]), all_sources=sum(counts)))
    blocks = [of.only(np.flatnonzero(of.resolution < _DROWNED)) for of in every]
    drowned = sum(len(of.names) for of in every) - sum(len(of.names) for of in blocks)
    blocks = [of for of in blocks if of.names]
    white = [one for of in blocks for one in _whitened(of)]
    rows, combined, pairs, within = Finding(), Finding(), Finding(), Finding()
    for block_ in blocks:
        note_coordinates(within, block_.values, block_.names)
    for found, of in ((rows, blocks), (combined, white)):
        _test_rows(found, of)
        _test_kinds(found, of)
        _test_pairs_over_rounds(pairs, of)
    thinned = _test_pairs(pairs, blocks)
    whole = Finding.of([exact, rows, combined, pairs, within])  # the plainest words come first
    words = (
        f"{sum(len(of.names) for of in blocks)} rows with declared noise "
        f"({sum(of.values.size for of in blocks)} values) of {len(run.rounds) - 1} rounds and the "
        f"start were tested for their variance, in pairs{thinned} and within each row against the "
        f"declared covariance, and {silent} rows without noise for being exact: {whole.tests} "
        f"tests at a total false-alarm rate of {TOTAL_FALSE_ALARM:.0e}"
    )
    if drowned:
        words += f"; {drowned} rows have noise so small that rounding hides it, and fail"
    if not whole.passed:
        words += f"; it fails with p = {whole.p:.1g}: {whole.what}"
    elif not drowned:
        words += f"; none fails, the least p is {whole.p:.2g} times their number"
    passed = whole.passed and not drowned
    return Check(name=_NAME, passed=passed, p=whole.p, tests=whole.tests, words=f"{words}.")


def _deviations(of: Residual) -> np.ndarray:
    """(R,) declared deviation of each row's noise."""
    return np.sqrt(np.asarray(of.noise.multiply(of.noise).sum(axis=1)).ravel())


def _note_silent(found: Finding, of: Residual) -> int:
    """Rows without declared noise hold nothing but rounding; how many there are."""
    at = np.flatnonzero(_deviations(of) == 0)
    left, allowed = of.value.norm(dim=1).numpy()[at], of.rounding.numpy()[at]
    wrong = np.flatnonzero(~(left <= allowed))
    what = ""
    if len(wrong):
        i = int(wrong[0])
        what = (
            f"{of.names[at[i]]} in round {of.round} is declared without noise but is off by "
            f"{left[i]:.2g}, where rounding accounts for {allowed[i]:.2g}"
        )
    found.note(0.0 if what else 1.0, tests=len(at), what=what)
    return len(at)


def _scaled(residuals: Sequence[Residual], *, before: int, all_sources: int) -> _Rows:
    """The rows with noise of one round and block; `before` sources of other rounds come first."""
    from scipy.sparse import csr_array, diags_array, vstack

    rounds, names, kinds = list[int](), list[str](), list[str]()
    values, noise = list[np.ndarray](), list[csr_array]()
    rounding, resolution = list[np.ndarray](), list[np.ndarray]()
    for of in residuals:
        size = _deviations(of)
        at = np.flatnonzero(size)
        rounds += [of.round] * len(at)
        names += [of.names[i] for i in at]
        kinds += [of.kind] * len(at)
        values.append(of.value.numpy()[at] / size[at, None])
        whole = size[at] * math.sqrt(of.value.shape[1])
        rounding.append(of.rounding.numpy()[at] / whole)
        resolution.append(of.resolution.numpy()[at] / whole)
        unit = csr_array(diags_array(1.0 / size[at]) @ of.noise[at])
        placed = (unit.data, unit.indices + before, unit.indptr)
        noise.append(csr_array(placed, shape=(len(at), all_sources)))
    return _Rows(
        rounds=rounds,
        names=names,
        kinds=kinds,
        values=np.concatenate(values),
        rounding=np.concatenate(rounding),
        resolution=np.concatenate(resolution),
        noise=csr_array(vstack(noise)),
    )


def _p(squares: np.ndarray | float, degrees: float) -> np.ndarray:
    """P of chi-square sums, in either direction."""
    return np.asarray(2.0 * np.minimum(chdtr(degrees, squares), chdtrc(degrees, squares)))


def _test_rows(found: Finding, blocks: Sequence[_Rows]) -> None:
    """The variance of each row in each round, and over all rounds in which it occurs."""
    over: dict[tuple[str, str], tuple[float, int]] = {}
    for of in blocks:
        squares, D = np.square(of.values).sum(axis=1), of.values.shape[1]
        p = _p(squares, D)
        worst = int(np.argmin(p))
        what = f"the noise of {of.names[worst]} in round {of.rounds[worst]}"
        what += f" has {squares[worst] / D:.3g} times the declared variance (n = {D})"
        found.note(float(p[worst]), tests=len(p), what=what)
        for key, square in zip(zip(of.kinds, of.names, strict=True), squares, strict=True):
            total, degrees = over.get(key, (0.0, 0))
            over[key] = (total + float(square), degrees + D)
    for (_, name), (total, degrees) in over.items():
        _note_sum(found, name, total, degrees)


def _note_sum(found: Finding, of: str, total: float, degrees: int) -> None:
    what = f"the noise of {of} over all rounds has {total / degrees:.3g} times the declared "
    found.note(float(_p(total, degrees)), tests=1, what=f"{what}variance (n = {degrees})")


def _test_kinds(found: Finding, blocks: Sequence[_Rows]) -> None:
    """Each kind over its rows and all rounds, where its rows are independent."""
    sums: dict[str, tuple[float, int]] = {}
    for of in blocks:
        for kind in dict.fromkeys(of.kinds):
            rows = of.only(np.flatnonzero(np.array(of.kinds) == kind))
            if not _is_correlated(rows):
                total, degrees = sums.get(kind, (0.0, 0))
                square = float(np.square(rows.values).sum())
                sums[kind] = (total + square, degrees + rows.values.size)
    for kind, (total, degrees) in sums.items():
        _note_sum(found, f"every {kind}", total, degrees)


def _is_correlated(of: _Rows) -> bool:
    covariance = of.noise @ of.noise.T
    return bool(abs(covariance).sum() - covariance.diagonal().sum() > _SAME)


def _whitened(of: _Rows) -> list[_Rows]:
    """For each kind of correlated rows their independent combinations, scaled to unit variance.

    What hides least in R, and decides what an adversary can tell, is a combination of its own here.
    Those that rounding drowns are left out.
    """
    from scipy.sparse import csr_array, eye_array

    found = []
    for kind in dict.fromkeys(of.kinds):
        rows = of.only(np.flatnonzero(np.array(of.kinds) == kind))
        if len(rows.names) > _MOST_WHITENED or not _is_correlated(rows):
            continue
        covariance = (rows.noise @ rows.noise.T).toarray()
        squares, vectors = np.linalg.eigh(covariance)
        lost = float(np.linalg.norm(rows.resolution))  # of any combination of norm 1
        kept = squares > max(1e-9 * squares.max(), (lost / _DROWNED) ** 2)
        size, count = np.sqrt(squares[kept]), int(kept.sum())
        found.append(
            _Rows(
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


class _Quadratics:
    """|u +- v|^2 of the rows u of one group and v of another, over twice 1 +- rho.

    Where 1 +- rho is next to nothing the two are the same but for rounding, and no test of chance
    applies; `open` says where one does.
    """

    def __init__(self, one: _Rows, other: _Rows) -> None:
        D = min(one.values.shape[1], other.values.shape[1], _MOST_COORDINATES)
        self.degrees = D
        u, v = one.values[:, :D], other.values[:, :D]
        both = np.square(u).sum(axis=1)[:, None] + np.square(v).sum(axis=1)[None]
        product, rho = 2.0 * (u @ v.T), (one.noise @ other.noise.T).toarray()
        least = np.square(one.resolution[:, None] + other.resolution[None]).clip(_SAME)
        most = 200.0 * least + np.square(one.rounding[:, None] + other.rounding[None])
        self.squares, self.open, self.unequal = [], [], np.zeros(rho.shape, dtype=bool)
        for sign in (1.0, -1.0):
            left, share = both + sign * product, 1.0 + sign * rho
            is_open = share > least
            self.open.append(is_open)
            self.squares.append(left / (2.0 * np.where(is_open, share, 1.0)))
            self.unequal |= ~is_open & (left > most * D)


def _test_pairs_over_rounds(found: Finding, blocks: Sequence[_Rows]) -> None:
    """Every pair of rows of a round, over all rounds that hold the same rows."""
    alike: dict[tuple[int, tuple[tuple[str, str], ...]], list[_Rows]] = {}
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


def _test_pairs(found: Finding, blocks: Sequence[_Rows]) -> str:
    """Every pair of rows of all rounds, of which those of two rounds are independent.

    Returns:
        Words for which rows were left out.
    """
    step = math.ceil(sum(len(of.names) for of in blocks) / _MOST_ROWS)
    by_width: dict[int, list[_Rows]] = {}
    for of in blocks:
        thin = of.only(np.arange(0, len(of.names), step))
        by_width.setdefault(of.values.shape[1], []).append(thin)
    groups = [_stacked(of) for of in by_width.values()]
    for i, one in enumerate(groups):
        for other in groups[i:]:
            words = tuple(
                [f"{n} in round {t}" for n, t in zip(of.names, of.rounds, strict=True)]
                for of in (one, other)
            )
            for chunk in _chunks(len(one.names)):
                q = _Quadratics(one.only(chunk), other)
                first = chunk if one is other else np.full(len(chunk), -1)
                once = np.arange(len(other.names))[None] > first[:, None]
                for sign in (0, 1):
                    degrees = np.where(q.open[sign] & once, q.degrees, 0)
                    _note_pairs(found, q.squares[sign], degrees, (words[0], words[1]), chunk)
                _note_unequal(found, q.unequal & once, (words[0], words[1]), chunk)
    return f" of every row of {step}" if step > 1 else ""


def _chunks(count: int) -> list[np.ndarray]:
    starts = range(0, count, _ROWS_AT_ONCE)
    return [np.arange(start, min(start + _ROWS_AT_ONCE, count)) for start in starts]


def _stacked(of: Sequence[_Rows]) -> _Rows:
    from scipy.sparse import csr_array, vstack

    return _Rows(
        rounds=[t for one in of for t in one.rounds],
        names=[name for one in of for name in one.names],
        kinds=[kind for one in of for kind in one.kinds],
        values=np.concatenate([one.values for one in of]),
        rounding=np.concatenate([one.rounding for one in of]),
        resolution=np.concatenate([one.resolution for one in of]),
        noise=csr_array(vstack([one.noise for one in of])),
    )


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
        p = [float(_p(held[i], D)) for i in extremes]
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
        found.note(0.0, tests=1, what=what)
