"""Pairs: no two records, nor two agents of a cohort, have a coin in common.

Over T rounds, of every pair, whosever records they are,

    rounds in which both take part     Bin(T, p q), in place of p q the chance r that both do where
                                       a batch is drawn without replacement
    rounds in which both do as one     Bin(T, 1 - p - q + 2 r)

so that a coin that two share, one that is turned round, and two that never meet all show. One
matrix product has all counts; of equal rates the largest and the smallest have the least p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...training.noise_tests.laws import binomial
from .result import TOTAL_FALSE_ALARM, Finding

_MOST = 4096  # whose pairs are looked at; of more, as many by chance
_MOST_HOLDERS = 64  # the same of holders whose pairs have laws of their own
_BLOCK = 512
# (1 - p q)^T is below e^-33 where two that never meet are told from all pairs of so many.
_NEVER = 33.0
_MOST_DRAWS = 1e4  # holders times rounds, up to which rounds are drawn for that alone


class Drawn(NamedTuple):
    """What is drawn anew in every round."""

    rate: float  # q, the chance of each to take part
    members: NDArray[np.bool_]  # (T, n) whether it did
    named: Callable[[int], str]  # each in words, by its place
    together: float | None = None  # r, the chance of two to do so in one round; q^2 when None


def rounds_for_pairs(rate: float, *, holders: int) -> int:
    """Rounds in which two that never take part together are told; 0 where they would be too many.

    >>> rounds_for_pairs(0.2, holders=10), rounds_for_pairs(0.02, holders=10)
    (809, 0)
    """
    if not 0 < rate < 1:
        return 0
    rounds = math.ceil(_NEVER / max(-math.log1p(-rate * rate), 1e-9))
    return rounds if rounds * holders <= _MOST_DRAWS else 0


def test_pairs(every: Sequence[Drawn]) -> tuple[Finding, str]:
    """Look at all pairs within and across what is drawn.

    Returns:
        The tests; and behind "what batches have in common" how many pairs they are of.
    """
    found, blind = Finding(), False
    held = [of for of in every if 0 < of.rate < 1 and of.members.size]
    total = sum(of.members.shape[1] for of in held)
    if len(held) > _MOST_HOLDERS:
        kept = np.random.default_rng().permutation(len(held))[:_MOST_HOLDERS]
        held = [held[i] for i in sorted(kept.tolist())]
    left = sum(of.members.shape[1] for of in held)
    some = [_some(of, share=min(1.0, _MOST / max(left, 1))) for of in held]
    for i, (one, at) in enumerate(some):
        for other, there in some[i:]:
            T, r = min(len(one.members), len(other.members)), one.rate * other.rate
            if other is one and one.together is not None:
                r = one.together
            pairs = len(at) * (len(at) - 1) // 2 if other is one else len(at) * len(there)
            if not pairs:
                continue
            chances = r, 1.0 - one.rate - other.rate + 2.0 * r
            counts, places = _extremes(one.members[:T, at], other.members[:T, there], one is other)
            for count, place, chance, did in zip(
                counts, places, chances, ("both take part", "do as one"), strict=True
            ):
                p = binomial(count, T, min(chance, 1.0))
                which = int(p.argmin())
                a, b = one.named(int(at[place[which][0]])), other.named(int(there[place[which][1]]))
                what = f"{a} and {b} {did} in {count[which]} of {T} rounds, where "
                found.note(
                    float(p[which]), tests=pairs, what=f"{what}{T * chance:.4g} are expected"
                )
            blind |= 4.0 * pairs * math.exp(-T * r) > TOTAL_FALSE_ALARM
    looked = sum(len(at) for _, at in some)
    if not found.tests:
        return found, ""
    words = f", every two of {looked:,} by pair" + f" (of {total:,}, by chance)" * (looked < total)
    return found, words + ", in rounds too few to tell two that never meet" * blind


def _some(of: Drawn, *, share: float) -> tuple[Drawn, NDArray[np.int64]]:
    """As large a share of what is drawn, by chance."""
    n = of.members.shape[1]
    if share >= 1:
        return of, np.arange(n)
    return of, np.sort(np.random.default_rng().permutation(n)[: max(2, int(n * share))])


def _extremes(
    one: NDArray[np.bool_], other: NDArray[np.bool_], within: bool
) -> tuple[NDArray[np.int64], list[list[tuple[int, int]]]]:
    """(2, 2) fewest and most rounds of any pair, both there and as one; and which pairs (2, 2).

    Args:
        one: (T, n) who takes part; whole numbers below 2^24, which float32 has.
        other: (T, m).
        within: whether the two are the same, of whose pairs each is looked at once.
    """
    a, b = one.astype(np.float32), other.astype(np.float32)
    T, (in_a, in_b) = len(a), (a.sum(axis=0), b.sum(axis=0))
    counts = np.array([[T + 1, -1], [T + 1, -1]], dtype=np.int64)
    places = [[(0, 0), (0, 0)], [(0, 0), (0, 0)]]
    for first in range(0, a.shape[1], _BLOCK):
        rows, start = slice(first, first + _BLOCK), first if within else 0
        both = a[:, rows].T @ b[:, start:]
        same = 2.0 * both + T - in_a[rows, None] - in_b[None, start:]
        apart = np.arange(both.shape[1])[None] > np.arange(len(both))[:, None] if within else None
        for kind, held in enumerate((both, same)):
            for end, pick, none in ((0, np.argmin, np.inf), (1, np.argmax, -np.inf)):
                looked = held if apart is None else np.where(apart, held, none)
                i, j = divmod(int(pick(looked)), looked.shape[1])
                value = looked[i, j]
                if np.isfinite(value) and (value < counts[kind, 0], value > counts[kind, 1])[end]:
                    counts[kind, end], places[kind][end] = value, (first + i, start + j)
    return counts, places
