"""The largest sum of |M| over the rounds that one record may take part in.

    any k of the rounds         each row's own block and its k - 1 largest others; the k largest
    rounds at least b apart     the same by a dynamic programme: of each row the best rounds around
                                it, and of all rows those that are b apart and have the largest sums

    Choquette-Choo, Ganesh, McKenna et al. (Amplified) banded matrix factorization. NeurIPS 2023,
        arXiv:2306.08153: sums over rows bound what a record that comes back adds up to.

Both bound the sum over all pairs of rounds of a pattern from above: the rows of a pattern are
summed one by one, each as if it could choose the pattern anew. They are exact where no two rounds
of one pattern are correlated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["largest_apart", "largest_most"]

Array = NDArray[np.float64]


def largest_most(blocks: Array, own: Array, k: int) -> float:
    """A bound on the sum over any k rounds.

    Args:
        blocks: (T, T) sums of |M| over the columns of two rounds.
        own: (T,) mu^2 of each round by itself, at most the diagonal.
        k: rounds of a record, from 1.

    >>> largest_most(np.array([[1.0, 0.5], [0.5, 1.0]]), np.ones(2), 2)
    3.0
    """
    others = np.sort(blocks - np.diag(np.diag(blocks)), axis=1)[:, ::-1]
    rows = own + others[:, : k - 1].sum(axis=1)
    return float(np.sort(rows)[::-1][:k].sum())


def largest_apart(blocks: Array, own: Array, rounds: Array, b: int) -> float:
    """A bound on the sum over rounds of which two are at least b apart.

    Args:
        blocks: as of `largest_most`.
        own: likewise.
        rounds: (T,) the numbers of the rounds, rising.
        b: how far apart they are, from 1.

    >>> M = np.full((3, 3), 0.5) + 0.5 * np.eye(3)
    >>> largest_apart(M, np.ones(3), np.arange(3.0), 2)
    3.0
    """
    count = len(blocks)
    if not count:
        return 0.0
    before = np.searchsorted(rounds, rounds - b, side="right")  # how many come b or more before
    # best[:, i]: of every row the largest sum over admissible ones of the first i rounds.
    best = np.zeros((count, count + 1))
    for at in range(count):
        best[:, at + 1] = np.maximum(best[:, at], best[:, before[at]] + blocks[:, at])
    after = np.searchsorted(rounds, rounds + b, side="left")
    rest = np.zeros((count, count + 1))  # rest[:, i]: the same over rounds from i on
    for at in reversed(range(count)):
        rest[:, at] = np.maximum(rest[:, at + 1], rest[:, after[at]] + blocks[:, at])
    every = np.arange(count)
    rows = own + best[every, before] + rest[every, after]
    chosen = np.zeros(count + 1)
    for at in range(count):
        chosen[at + 1] = max(chosen[at], chosen[before[at]] + rows[at])
    return float(chosen[count])
