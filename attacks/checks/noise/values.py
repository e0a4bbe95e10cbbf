"""Numbers that noise is made of do not come twice: no grid, no coarse rounding, no copies.

Of two independent normal numbers, rounded to floats of p bits, the sizes are equal with probability

    P(|a| = |b|) <= integral of (2 phi(x))^2 ulp(x) dx, about .5 2^-p

and the tests allow 4 times as much, for what samplers and the multiplication by a deviation do to
the last bit. So of n numbers at most n^2 / 2 times 2^(1-p) pairs are expected to be equal, and
their number is about Poisson: noise on a grid, in half precision or in 8 bits, cut off at a bound,
copied within a row or from row to row in any order and sign, has many more. Counted are pairs
within all, within each row, each tensor of parameters and each coordinate, among the largest, and
between rows.

A grid of h deviations is found in n numbers from h of about 16 2^-p on, where p = 24 in single
precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....training.noise_tests.laws import many
from ...watching.recording import Part
from ...watching.result import Finding

_BITS = {np.dtype(np.float32): 24, np.dtype(np.float64): 53}
_LARGEST = 256  # numbers among which a bound would show
_MOST_VALUES = 600_000  # of which rows are left out beyond


def note_values(
    found: Finding,
    rows: NDArray[np.floating],
    names: Sequence[str],
    parts: Sequence[Part],
    what: str,
) -> None:
    """Note how many sizes are equal.

    Args:
        found: where they are noted.
        rows: (n, D) numbers as they were made, in the precision of the run.
        names: (n,) of the rows.
        parts: the tensors of a row.
        what: all of it in words.
    """
    step = max(1, -(-rows.size // _MOST_VALUES))
    rows, names = rows[::step], list(names)[::step]
    n, D = rows.shape
    chance = 2.0 ** (1 - _BITS[rows.dtype])
    size = np.abs(rows)

    def note(equal: NDArray[np.int64], of: NDArray[np.int64], words: list[str]) -> None:
        pairs = of * (of - 1.0) / 2.0
        found.worst(
            many(equal, pairs * chance),
            lambda at: (
                f"{int(equal[at]):,} pairs of the {int(of[at]):,} numbers of {words[at]} "
                f"are of equal size, where at most {pairs[at] * chance:.3g} are expected"
            ),
        )

    by_row = _equal_pairs(np.sort(size, axis=1))
    note(by_row, np.full(n, D), [f"the noise of {name}" for name in names])
    pairs = n * D * (D - 1.0) / 2.0
    p = float(many(by_row.sum(), pairs * chance))
    told = (
        f"{int(by_row.sum()):,} pairs of numbers within one row of {what} are of equal size, where"
    )
    found.note(p, what=f"{told} at most {pairs * chance:.3g} are expected")
    words = [f"{what} on coordinate {j}" for j in range(D)]
    note(_equal_pairs(np.sort(size.T, axis=1)), np.full(D, n), words)
    for part in parts:
        held = np.sort(size[:, part.start : part.stop], axis=None)[None]
        note(_equal_pairs(held), np.array([held.size]), [f"{what} on {part.name}"])
    order = np.argsort(size, axis=None, kind="stable")
    ordered = size.ravel()[order]
    note(_equal_pairs(ordered[None]), np.array([size.size]), [what])
    largest = ordered[-_LARGEST:]
    if len(largest) > 2 and size.size >= 100 * _LARGEST:
        _note_bound(found, largest, what)
    _note_rows(found, ordered, order // D, names, chance * D * D)


def _equal_pairs(ordered: NDArray[np.floating]) -> NDArray[np.int64]:
    """(rows,) pairs of equal numbers in each sorted row."""
    # A run of k equal numbers has k (k - 1) / 2 pairs: each counts the equal ones before it.
    if ordered.shape[1] == 0:
        return np.zeros(len(ordered), dtype=np.int64)
    same = np.zeros(ordered.shape, dtype=bool)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    place = np.broadcast_to(np.arange(ordered.shape[1]), ordered.shape)
    begun = np.maximum.accumulate(np.where(same, 0, place), axis=1)
    return np.asarray((place - begun).sum(axis=1))


def _note_bound(found: Finding, largest: NDArray[np.floating], what: str) -> None:
    """Note how often the largest number comes."""
    # Numbers grow rarer towards the end, so that fewer than so many are expected at its very float;
    # 32 times as many allow for what samplers do to the last bits of their tails.
    spacing = float(np.spacing(largest[-1]))
    span = max(float(largest[-1] - largest[0]), spacing)
    mean = 32.0 * len(largest) * spacing / span
    count = int((largest == largest[-1]).sum())
    told = f"the largest size of {what} comes {count} times, as if noise were cut off there"
    found.note(many(count - 1, mean), what=told)


def _note_rows(
    found: Finding,
    ordered: NDArray[np.floating],
    row_of: NDArray[np.int64],
    names: Sequence[str],
    mean: float,
) -> None:
    """Note the pair of rows with most neighbouring equal numbers."""
    n = len(names)
    at = np.flatnonzero(ordered[1:] == ordered[:-1])
    one, other = row_of[at], row_of[at + 1]
    low, high = np.minimum(one, other), np.maximum(one, other)
    pairs, counts = np.unique((low * n + high)[low < high], return_counts=True)
    if not len(pairs):
        return
    worst = int(counts.argmax())
    i, j = divmod(int(pairs[worst]), n)
    told = (
        f"{counts[worst]} numbers of {names[i]} are those of {names[j]}, in some order and sign, "
    )
    told += f"where at most {mean:.2g} equal ones are expected"
    found.note(many(counts[worst], mean), tests=n * (n - 1) // 2, what=told)
