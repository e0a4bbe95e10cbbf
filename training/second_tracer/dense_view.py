"""How far one record moves all that an adversary sees: singular values, and a pair of bounds.

    O = A G + B Z            what is seen, contributions, noise that the adversary does not know
    M = A_v' (B B')^+ A_v    mu^2 = max over |g_k| <= b_k of sum_kl <g_k, g_l> M_kl

The maximum is taken over vectors of any dimension. It is found by turning one vector after the
other to where the sum is largest; what is found is attained, so it is a lower bound. Multipliers
of the same vectors certify it from above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_CUT = 1e-12  # of a row, below which noise counts as none
_SWEEPS, _CLOSE = 20_000, 1e-12


class Bracket(NamedTuple):
    """A squared joint sensitivity from below and from above."""

    low: float
    high: float


class Whitened:
    """A view in one block of the points, in coordinates in which its noise has unit variance.

    Args:
        contributions: (rows, parts of contributions), those of everybody.
        noise: (rows, sources), those that the adversary does not know.
    """

    def __init__(self, contributions: Array, noise: Array) -> None:
        norms = np.linalg.norm(np.hstack([contributions, noise]), axis=1)[:, None]
        held, hidden = contributions / norms, noise / norms
        # A contribution counts in units of its own, so that a small one is no rounding error.
        sizes = np.linalg.norm(held, axis=0)
        held = held / np.where(sizes > 0.0, sizes, 1.0)
        if not noise.size:
            self._rows = np.zeros((0, contributions.shape[1]))
            self._bare = np.abs(held).max(axis=0, initial=0.0) > 0.0
            return
        left, values, _ = np.linalg.svd(hidden, full_matrices=False)
        left, values = left[:, values > _CUT], values[values > _CUT]
        inside = left.T @ held
        self._rows = inside / values[:, None] * sizes
        # The directions themselves are known to rounding over the least noise that counts.
        rounding = 64 * np.finfo(float).eps / values.min(initial=1.0)
        self._bare = np.abs(held - left @ inside).max(axis=0, initial=0.0) > max(1e-11, rounding)

    def information(self, columns: NDArray[np.intp]) -> Array | None:
        """M of some columns; None where a combination of rows holds one of them and no noise."""
        if self._bare[columns].any():
            return None
        of = self._rows[:, columns]
        return np.asarray(of.T @ of)


def largest_move(found: Mapping[int, Array], bounds: Array, *, start: int = 0) -> Bracket:
    """The largest sum_kl <g_k, g_l> M_kl over vectors of bounded length.

    Args:
        found: (n, n) M of every block; vectors of different blocks stand at right angles.
        bounds: (n,) largest norms, over all blocks together.
        start: seed of the first directions.

    >>> M = np.array([[1.5, -0.5, -0.5], [-0.5, 1.5, -0.5], [-0.5, -0.5, 1.5]])
    >>> low, high = largest_move({0: M}, np.ones(3))
    >>> round(low, 9), round(high, 9)
    (6.0, 6.0)
    """
    if not np.isfinite(bounds).all():
        moved = [np.diag(of)[~np.isfinite(bounds)].any() for of in found.values()]
        return (
            Bracket(math.inf, math.inf)
            if any(moved)
            else largest_move(found, np.where(np.isfinite(bounds), bounds, 0.0))
        )
    scaled = {block: of * np.outer(bounds, bounds) for block, of in found.items()}
    count = len(bounds)
    signs = _signs(scaled)
    if signs is not None:  # all can point one way, so nothing is larger
        total = float(sum(np.abs(of).sum() for of in scaled.values()))
        if len(scaled) == 1:
            return Bracket(total, total)
    if count == 1:
        most = max(float(of[0, 0]) for of in scaled.values())
        return Bracket(most, most)
    return _ascended(scaled, count, start)


def _signs(scaled: Mapping[int, Array]) -> Array | None:
    """Signs that make every entry of a matrix positive, where there are some."""
    if len(scaled) != 1:
        return None
    (matrix,) = scaled.values()
    tiny = 1e-12 * float(np.abs(matrix).max(initial=0.0))
    signs = np.zeros(len(matrix))
    for first in range(len(matrix)):
        if signs[first]:
            continue
        signs[first], waiting = 1.0, [first]
        while waiting:
            at = waiting.pop()
            for other in np.flatnonzero(np.abs(matrix[at]) > tiny):
                sign = signs[at] * np.sign(matrix[at, other])
                if not signs[other]:
                    signs[other] = sign
                    waiting.append(int(other))
                elif signs[other] != sign:
                    return None
    return signs


def _ascended(scaled: Mapping[int, Array], count: int, start: int) -> Bracket:
    blocks = sorted(scaled)
    wide = math.isqrt(2 * count) + 2
    drawn = np.random.default_rng(start).standard_normal((count, len(blocks), wide))
    vectors = drawn / np.linalg.norm(drawn.reshape(count, -1), axis=1)[:, None, None]
    matrices = np.stack([scaled[block] for block in blocks])  # (blocks, n, n)
    low, high = 0.0, math.inf
    for sweep in range(_SWEEPS):
        for k in range(count):
            pulled = np.einsum("bl,lbw->bw", matrices[:, k], vectors)
            size = float(np.linalg.norm(pulled))
            if size > 0.0:
                vectors[k] = pulled / size
        if sweep % 20 == 0:
            pulls = np.einsum("bkl,lbw->kbw", matrices, vectors)
            low = float((pulls * vectors).sum())
            lam = np.linalg.norm(pulls.reshape(count, -1), axis=1)
            gap = max(
                float(np.linalg.eigvalsh(of - np.diag(lam)).max(initial=0.0)) for of in matrices
            )
            high = float(lam.sum()) + count * max(gap, 0.0)
            if high - low <= _CLOSE * max(low, 1e-300) * count:
                break
    return Bracket(low, high)
