"""Sums over noise vary as much as sums of independent normal values do.

Of independent values of unit variance in R rows of D coordinates

    squares of a row            chi-square, D degrees      R of them, independent
    sum of a row over sqrt(D)   normal                     R of them
    squares of a coordinate     chi-square, R degrees      D of them
    sum of a coordinate         normal                     D of them

Through their distribution functions each becomes uniform, and the largest distance between what
was seen and a uniform distribution has a law of its own (A. N. Kolmogorov 1933; exact for every
number). Noise that is centred or scaled to its own size is too regular: each sum by itself is as
expected, all of them are the same, and who knows the rest of a message has an equation without
noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, ndtr

from ...watching.result import Finding
from .pools import Pool

_FEW = 8  # sums of which no law is asked


def note_regularity(found: Finding, pool: Pool) -> None:
    """Note how sums of rows and of coordinates vary, of the whole and of each tensor.

    Args:
        found: where they are noted.
        pool: independent rows.
    """
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
