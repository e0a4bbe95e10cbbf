"""Which units each record of a batch activates, from two linear images that exclude each other.

For h = W x + b, a = relu(h), every unit i and every record satisfies a_i = 0 or a_i - h_i = 0. If
a record is an unknown vector z of a known space, both are linear in z: p_i = P_i z, n_i = N_i z and

    p_i n_i = 0    for every unit i,                                                         (1)

the statement that p is a sparse direction of the column space of P, and n its complement in N.

Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact Gradient Inversion of Batches in Federated
Learning", look for the sparsest directions by sampling rows. Here (1) is solved for all records at
once:

    N z = 0 on the units that every record activates                     linear: z = R w
    <P_i R (N_i R)^T, S> = 0 on the others, linear in S = w w^T          null space of m equations
    the null space is spanned by the records' w_b w_b^T if its dimension is B
    S_1 S_2^{-1} of two of its elements has the w_b as eigenvectors
    w <- least right singular vector of the rows that its pattern selects, until the pattern stays

**Where we differ from the paper**: no sampling, hence no time exponential in B. The price is that
B (B - 1) / 2 units must be active in some records and not in others; if too few units are always
active to tie z to P z by N z = 0, about B more for each coordinate that stays free. With fewer, or
with records that share a pattern, the null space has further elements; then vectors w with w w^T
in it are sought by alternating projections from random starts, which finds some or none.

Shape letters: m units, B records, D unknowns of one record, F patterns found.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PENCILS = 6  # pairs of elements of the null space: a pair fails where two eigenvalues meet
_STARTS = 96
_STEPS = 60


def activity_patterns(
    active_rows: Tensor,
    inactive_rows: Tensor,
    *,
    always: Tensor,
    never: Tensor,
    records: int,
    noise: float,
    generator: torch.Generator,
    side: Tensor | None = None,
) -> Tensor:
    """Candidate patterns of activity, one per record if all goes well.

    Args:
        active_rows: (m, D) P, zero on a record where its unit is inactive.
        inactive_rows: (m, D) N, zero on a record where its unit is active.
        always: (m,) units that every record activates.
        never: (m,) units that no record activates.
        records: number of records B.
        noise: relative error of the rows.
        generator: source of the random combinations and starts.
        side: (rows, D) further equations that every record satisfies.

    Returns:
        (F, m) boolean, True where active; candidates to be checked, F may be 0 or exceed B.

    >>> z = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], dtype=torch.float64)
    >>> w = torch.randn(24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> h = w @ z.T                                        # two records, in a space of two
    >>> a = h.clamp_min(0)
    >>> never, always = (h < 0).all(dim=1), (h > 0).all(dim=1)
    >>> found = activity_patterns(
    ...     a, a - h, always=always, never=never, records=2, noise=1e-15,
    ...     generator=torch.Generator(),
    ... )
    >>> sorted(found.sum(dim=1).tolist()) == sorted((h > 0).sum(dim=0).tolist())
    True
    """
    linear = inactive_rows[always] if side is None else torch.cat([inactive_rows[always], side])
    space = _null_space(_unit_rows(linear), least=records, tolerance=max(1e-9, 10 * noise))
    mixed = ~always & ~never
    if not bool(mixed.any()):
        return always[None].clone()
    # Where few units are always active, vectors with P z = 0 solve (1) and mean nothing: the last
    # coordinates are theirs, and their squares are left out of S.
    _, values, right = torch.linalg.svd(active_rows @ space, full_matrices=True)
    own = int((values > max(1e-9, 10 * noise) * float(values[0])).sum())
    space = space @ right.T
    p, n = active_rows[mixed] @ space, inactive_rows[mixed] @ space
    # Without whitening the records are nearly parallel and products of small entries are lost.
    first, rest = _white(torch.cat([p, n])[:, :own]), _white(n[:, own:])
    p = _unit_rows(torch.cat([p[:, :own] @ first, torch.zeros_like(n[:, own:] @ rest)], dim=1))
    n = _unit_rows(torch.cat([n[:, :own] @ first, n[:, own:] @ rest], dim=1))
    squares, values = _squares(p, n, own=own)
    last = min(records, len(squares))
    starts = _pencils(squares[-last:, :own, :own], generator=generator)
    found = _settle(_complete(starts, p, n), p, n)
    if len(found) < records:
        wide = max(last, int((values <= max(1e-8, 30 * noise)).sum()))
        drawn = _alternate(squares[-wide:, :own, :own], generator=generator)
        found = torch.unique(torch.cat([found, _settle(_complete(drawn, p, n), p, n)]), dim=0)
    patterns = always[None].repeat(len(found), 1)
    patterns[:, mixed] = found
    return patterns


def _unit_rows(rows: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / size.clamp_min(1e-300)


def _null_space(rows: Tensor, *, least: int, tolerance: float) -> Tensor:
    """(D, at least `least`) orthonormal columns that the rows send to zero, within tolerance."""
    unknowns = rows.shape[1]
    _, values, right = torch.linalg.svd(rows, full_matrices=True)
    rank = min(int((values > tolerance).sum()), unknowns - least)
    return right[rank:].T


def _white(rows: Tensor) -> Tensor:
    """(D, D) coordinates in which the rows have equal size in all directions."""
    if rows.shape[1] == 0:
        return rows.new_zeros(0, 0)
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    return right.T / values.clamp_min(1e-14 * float(values[0]) + 1e-300)


def _squares(p: Tensor, n: Tensor, *, own: int) -> tuple[Tensor, Tensor]:
    """Symmetric matrices (q, D, D), the ones nearest to satisfying (1) last, and their errors."""
    unknowns = p.shape[1]
    i, j = torch.triu_indices(unknowns, unknowns).unbind()
    i, j = i[i < own], j[i < own]
    product = p[:, :, None] * n[:, None, :]
    product = (product + product.transpose(1, 2)) / 2
    weight = torch.where(i == j, 1.0, 2**0.5).to(p)  # the Frobenius product of the full matrices
    _, values, right = torch.linalg.svd(product[:, i, j] * weight, full_matrices=True)
    values = torch.cat([values, values.new_zeros(right.shape[0] - len(values))])
    flat = right / weight
    squares = flat.new_zeros(len(flat), unknowns, unknowns)
    squares[:, i, j] = flat
    squares[:, j, i] = flat
    return squares, values


def _pencils(squares: Tensor, *, generator: torch.Generator) -> Tensor:
    """(starts, D) common factors of matrices sum_b t_b w_b w_b^T, for independent w_b."""
    count, unknowns = len(squares), squares.shape[1]
    span = torch.linalg.svd(squares.transpose(0, 1).reshape(unknowns, -1), full_matrices=False)[0]
    span = span[:, :count]  # (D, B): where there are more unknowns than records
    small = span.T @ squares @ span
    found = []
    for _ in range(_PENCILS):
        mix = torch.randn(2, count, generator=generator, dtype=squares.dtype)
        first, second = torch.einsum("kb,bij->kij", mix, small)
        vectors = torch.linalg.eig(first @ torch.linalg.pinv(second))[1].real
        found.append((span @ vectors).T)
    return torch.cat(found)


def _alternate(squares: Tensor, *, generator: torch.Generator) -> Tensor:
    """(starts, D) vectors whose squares lie near the span of the matrices."""
    unknowns = squares.shape[1]
    left, values, _ = torch.linalg.svd(squares.flatten(1).T, full_matrices=False)
    basis = left[:, values > 1e-9 * float(values[0])]  # (D D, q)
    w = torch.randn(_STARTS, unknowns, generator=generator, dtype=squares.dtype)
    w = _unit_rows(w)
    for _ in range(_STEPS):
        near = (w[:, :, None] * w[:, None, :]).flatten(1) @ basis @ basis.T
        values, vectors = torch.linalg.eigh(near.reshape(-1, unknowns, unknowns))
        top = values.abs().argmax(dim=1)
        w = vectors[torch.arange(len(w)), :, top]
    return w


def _complete(starts: Tensor, p: Tensor, n: Tensor) -> Tensor:
    """(starts, D) the last coordinates by least squares: n = 0 where p is not."""
    own = starts.shape[1]
    if own == p.shape[1]:
        return starts
    size = starts @ p[:, :own].T
    rows = size[:, :, None] * n[:, own:]
    rest = torch.linalg.lstsq(rows, -(size * (starts @ n[:, :own].T))[:, :, None]).solution
    return torch.cat([starts, rest[:, :, 0]], dim=1)


def _settle(starts: Tensor, p: Tensor, n: Tensor) -> Tensor:
    """(F, mixed units) distinct patterns that select rows with a common null vector."""
    w = starts
    active = (w @ p.T).abs() > (w @ n.T).abs()
    for _ in range(12):
        rows = torch.where(active[:, :, None], n, p)
        w = torch.linalg.svd(rows, full_matrices=False)[2][:, -1]
        before, active = active, (w @ p.T).abs() > (w @ n.T).abs()
        if torch.equal(before, active):
            break
    return torch.unique(active, dim=0)
