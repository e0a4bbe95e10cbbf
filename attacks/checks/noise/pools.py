"""Rows that are independent of one another, pooled over rows and rounds.

Rows of one kind that are declared independent are pooled as they are, and of correlated ones their
independent combinations. A pool is a matrix of independent standard normals, n rows by D
coordinates, so that faults that act on few coordinates of every row, or a little on all of them,
add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...watching.recording import Part
from .rows import Rows, is_correlated

_SHARE = 0.2  # of a coordinate's deviation: most that rounding may put on it


class Pool(NamedTuple):
    """Independent rows of unit variance.

    Attributes:
        kind: of the rows, such as "message model".
        values: (n, D).
        names: (n,) of the rows, with their rounds.
        parts: the tensors that the coordinates belong to.
    """

    kind: str
    values: NDArray[np.float64]
    names: list[str]
    parts: Sequence[Part]


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
        for kind in dict.fromkeys(of.kinds):
            rows = of.only(np.flatnonzero(np.array(of.kinds) == kind))
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
