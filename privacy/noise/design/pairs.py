"""What own noise and pair secrets hide from whom."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from ..correlated import decor_covariance
from ..covariance import victim_information

__all__ = ["pair_exposure"]


def pair_exposure(
    weights: ArrayLike, *, ratio: float, knowing: Collection[frozenset[int]] = ()
) -> float:
    """Largest [R^-1]_ii of own noise of variance 1 and pair secrets of variance r.

    Args:
        weights: W; a link is where it is not zero.
        ratio: r.
        knowing: sets of agents that know their own noise and the secrets of their links; the
            largest figure of these and of an outsider counts.

    >>> round(pair_exposure(np.ones((3, 3)), ratio=2.0), 6)
    0.428571
    >>> pair_exposure(np.ones((3, 3)), ratio=2.0, knowing=[frozenset({1, 2})])
    1.0
    """
    R = decor_covariance(weights, local_variance=1.0, pair_variance=ratio)
    found = [float(victim_information(R).max())]
    for known in knowing:
        hidden = [i for i in range(len(R)) if i not in known]
        left = R[np.ix_(hidden, hidden)].copy()
        for at, i in enumerate(hidden):
            links = [j for j in known if R[i, j] != 0]
            left[at, at] -= ratio * len(links)
        found.append(float(victim_information(left).max()))
    return max(found)
