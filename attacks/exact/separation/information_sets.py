"""Sparse vectors of a space, by sets of coordinates on which they may vanish.

For rows u_i of a basis, u_i . q = 0 on many coordinates i is a sparse vector of the space. Any D
independent coordinates (an information set, as in decoding of linear codes: Prange 1962) make the
basis the identity there, and a sparse vector that vanishes on all but one of them is a column:

    inverse(rows of the set) = [q_1 .. q_D],   q_k vanishes on all of the set but its k-th row

so that one inverse tries D vectors. A vector that vanishes on each coordinate with probability p
is a column of a random set with probability D p^(D - 1). A column is a candidate if it vanishes on
further coordinates, too, on which a vector without meaning does not.

Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact Gradient Inversion of Batches in Federated
Learning", draw D - 1 coordinates and take the one vector that vanishes there, p^(D - 1) each.

Shape letters: m coordinates, D dimensions of the space, F candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

FEWEST = 6
"""Zeros beyond those of its set that a candidate has, where many would be met by chance."""

TOGETHER = 256
"""Sets of one portion, which are inverted at once: a few MB."""

_LOOKED_AT = 40  # further coordinates on which a column is looked at
_VANISHING = 0.2  # share of them that a candidate vanishes on
_COARSE = 0.05  # error of a unit row beyond which zeros are met by chance
_ROUNDING = 1e-11


def sparse_mixtures(
    rows: Tensor,
    *,
    doubt: Tensor,
    chances: Tensor,
    tries: int,
    generator: torch.Generator,
    fewest: int = FEWEST,
    dependent: bool = False,
) -> Iterator[Tensor]:
    """Candidates q for which rows @ q vanishes on many coordinates, in portions.

    Args:
        rows: (m, D) of a basis; rows of zeros are left out.
        doubt: (D,) error of each column of the basis, for rows of norm 1.
        chances: (m,) how likely each coordinate is to vanish, up to a factor.
        tries: number of sets to try at most.
        generator: source of the sets.
        fewest: zeros beyond the set's own that a candidate needs.
        dependent: whether small sets of coordinates depend on each other, as those of one category
            do; then a set is made of the first of its coordinates that do not.

    Yields:
        (F, D) candidates of norm 1 of `TOGETHER` sets, F may be 0; nothing where there are too
        few coordinates to tell a sparse vector by.

    >>> g = torch.Generator().manual_seed(0)
    >>> sparse = torch.randn(60, 5, generator=g, dtype=torch.float64).clamp_min(0)
    >>> basis = torch.linalg.qr(sparse)[0]
    >>> found = next(sparse_mixtures(
    ...     basis, doubt=torch.full((5,), 1e-15), chances=torch.ones(60), tries=256, generator=g
    ... ))
    >>> kept = (basis @ found.T).abs().gt(1e-9).sum(dim=0).tolist()
    >>> set(sparse.gt(0).sum(dim=0).tolist()) <= set(kept)
    True
    """
    if min(rows.shape) == 0:
        return
    sizes = torch.linalg.vector_norm(rows, dim=1)
    alive = sizes > 1e-9 * float(sizes.max())
    rows, chances = rows[alive] / sizes[alive, None], chances[alive].double()
    count, unknowns = rows.shape
    looked = min(_LOOKED_AT, count - unknowns)
    if looked < fewest:
        return
    needed = max(fewest, math.ceil(_VANISHING * looked))
    for done in range(0, tries, TOGETHER):
        many = min(TOGETHER, tries - done)
        # Without replacement by chances: the largest of log(chance) + Gumbel noise.
        keys = torch.rand(many, count, generator=generator, dtype=torch.float64)
        keys = chances.log() - (-keys.log()).log()
        order = keys.topk(unknowns + looked, dim=1).indices
        if dependent:
            order = _independent_first(rows, keys)
        drawn, further = order[:, :unknowns], order[:, unknowns : unknowns + looked]
        inverse, failed = torch.linalg.inv_ex(rows[drawn])  # (many, D, D)
        columns = inverse / torch.linalg.vector_norm(inverse, dim=1, keepdim=True)
        error = 3 * torch.linalg.vector_norm(columns * doubt.to(columns)[:, None], dim=1)
        zeros = (rows[further] @ columns).abs() <= (error + _ROUNDING)[:, None]
        fits = (zeros.sum(dim=1) >= needed) & (error <= _COARSE) & (failed == 0)[:, None]
        yield columns.transpose(1, 2)[fits]


def _independent_first(rows: Tensor, keys: Tensor) -> Tensor:
    """(N, m) coordinates by falling keys (N, m), the first D that are independent in front.

    LU picks the largest row that is left, which are made to be the earliest ones.
    """
    order = keys.argsort(dim=1, descending=True)
    many, count = order.shape
    unknowns = rows.shape[1]
    falling = torch.logspace(0, -6, count, dtype=rows.dtype)
    pivots = torch.linalg.lu_factor_ex(rows[order] * falling[:, None])[1].long() - 1  # (N, D)
    every = torch.arange(many)
    for step in range(unknowns):
        chosen = pivots[:, step]
        here, there = order[:, step].clone(), order[every, chosen]
        order[:, step] = there
        order[every, chosen] = here
    return order
