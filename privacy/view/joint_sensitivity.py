"""Joint sensitivity: how far one record can change all that is seen at once, over its noise.

A record changes clipped vectors x_v by at most 1 each, here with the bounds folded into M. A vector
has one part x_c for each column c that holds some of its coordinates: usually one column in all,
two where parameters and dual variables are clipped together but released differently.

    mu^2 = max over |x_v| <= 1 of  sum_cd M_cd <x_c, x_d>,   |x_v|^2 = sum_{c in v} |x_c|^2

For any lam with diag(lam_v(c)) >= M

    sum_cd M_cd <x_c, x_d> <= sum_c lam_v(c) |x_c|^2 = sum_v lam_v |x_v|^2 <= sum_v lam_v

so every such lam is a certificate, and the best one is tight: the two problems are dual
semidefinite programmes. Nothing is assumed of M between parts of one vector, which are other
coordinates; there it is 0, and one vector costs its dearest part, max_c M_cc.

| symbol | name here   | shape              | meaning                                  |
|--------|-------------|--------------------|------------------------------------------|
| M      | information | (columns, columns) | positive semidefinite                    |
| v(c)   | vectors     | (columns,)         | the vector that a column is a part of    |
| lam    |             | (vectors,)         | a certificate                            |
| mu     | its square  | scalar             | the joint sensitivity                    |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_SWEEPS = 2_000  # of the search; it may stop early at no risk


def squared_joint_sensitivity(information: np.ndarray, vectors: Sequence[int] = ()) -> float:
    """Upper bound on mu^2, sum_cd M_cd <x_c, x_d> over vectors of norm 1 and of any dimension.

    The row sums of |M| are one certificate: signs may align. The best one is found from vectors x
    that are improved in turn, and made feasible by its largest eigenvalue, so that a poor search
    costs tightness, never validity.

    Args:
        information: (columns, columns), positive semidefinite.
        vectors: for each column the vector that it is a part of; a vector each when empty.

    >>> M = np.linalg.inv(np.full((3, 3), 0.5) + 0.5 * np.eye(3))  # correlation 1/2
    >>> round(float(np.abs(M).sum()), 6), round(squared_joint_sensitivity(M), 6)
    (7.5, 6.0)
    >>> round(squared_joint_sensitivity(np.diag([1.0, 4.0]), [0, 0]), 6)  # two parts of one vector
    4.0
    """
    parts, of = _parts(information, vectors)
    row_sums = np.abs(information).sum(axis=1)
    sum_rule = float(sum(row_sums[at].max() for at in parts))
    found = _search(information, parts, of)
    if found is None:
        return sum_rule
    common, pull, slack = found
    return min(sum_rule, float(common.sum() + pull.sum() + len(parts) * slack))


def certificate(information: np.ndarray, vectors: Sequence[int] = ()) -> np.ndarray:
    """A lam with diag(lam_v(c)) >= M, which is verified: what each vector is charged on its own.

    A view whose M is below diag(lam) is a post-processing of releases of the contributions, one
    after the other, with independent noise of variance 1 / lam_v. So the columns of several units
    that take part independently can be accounted for apart, each by the sum of its own lam.

    Args:
        information: as for `squared_joint_sensitivity`.
        vectors: as there.

    Returns:
        (vectors,) in the ascending order of their numbers; the sum is the least that is found, and
        every rounding goes up.

    Source: that a Cholesky factorisation which succeeds after a small shift proves a matrix
    positive definite: J. W. Demmel, On floating point errors in Cholesky, LAPACK Working Note 14,
    1989.

    >>> certificate(np.diag([1.0, 4.0])).tolist()
    [1.0, 4.0]
    >>> lam = certificate(np.array([[1.0, -0.5], [-0.5, 1.0]]))
    >>> lam.round(6).tolist()
    [1.5, 1.5]
    """
    parts, of = _parts(information, vectors)
    k, eps = len(information), float(np.finfo(float).eps)
    if not k:
        return np.zeros(0)
    # Row sums that are rounded up; a row with one entry has no sum to round.
    lone = np.count_nonzero(information, axis=1) <= 1
    sums = np.abs(information).sum(axis=1) * np.where(lone, 1.0, 1.0 + 4.0 * k * eps)
    aligned = np.array([sums[at].max() for at in parts])
    found = _search(information, parts, of)
    if found is None:
        return aligned
    common, pull, slack = found
    slack = max(slack, 16.0 * (k + 2) * eps * float(np.diag(information).sum() + pull.sum()))
    for wider in (1.0, 1e1, 1e2, 1e3, 1e4):
        lam = np.nextafter(common + pull + wider * slack, np.inf)
        if lam.sum() >= aligned.sum():
            break
        if is_above(lam[of], information):
            return lam
    return aligned


def is_above(lam: np.ndarray, information: np.ndarray) -> bool:
    """Whether diag(lam) - M is proven to be positive semidefinite, all rounding counted against it.

    Args:
        lam: (columns,)
        information: (columns, columns) M.

    >>> is_above(np.array([1.5, 1.5]), np.array([[1.0, 0.5], [0.5, 1.0]]))
    False
    >>> is_above(np.array([1.5, 1.51]), np.array([[1.0, 0.5], [0.5, 1.0]]))
    True
    """
    k, eps = len(lam), float(np.finfo(float).eps)
    shift = 4.0 * (k + 2) * eps * float(lam.sum() + np.abs(np.diag(information)).sum())
    below = 0.5 * (information + information.T)
    try:
        np.linalg.cholesky(np.diag(lam - shift) - below)
    except np.linalg.LinAlgError:
        return False
    return True


_Parts = list[np.ndarray]


def _parts(information: np.ndarray, vectors: Sequence[int]) -> tuple[_Parts, np.ndarray]:
    """The columns of each vector, and for each column the position of its vector."""
    k = len(information)
    names, of = np.unique(np.asarray(vectors if len(vectors) else range(k)), return_inverse=True)
    return [np.flatnonzero(of == v) for v in range(len(names))], of


def _search(
    information: np.ndarray, parts: _Parts, of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float] | None:
    """What lam consists of, common + pull + slack; None where row sums are tight."""
    k = len(information)
    # What all parts of a vector have in common adds the same wherever the vector points.
    common = np.array([np.diag(information)[at].min() for at in parts])
    rest = information - np.diag(common[of])
    if len(parts) == k and not (rest < 0).any():  # all signs align: the sum rule is tight
        return None
    # The search: each vector in turn along the pull of all others, whose length is its lam.
    x = np.random.default_rng(0).normal(size=(k, min(k, math.isqrt(2 * k) + 2)))
    for at in parts:
        x[at] /= np.linalg.norm(x[at])
    pull = np.zeros(len(parts))
    for _ in range(_SWEEPS):
        before = pull.copy()
        for v, at in enumerate(parts):
            towards = rest[at] @ x  # the sum never falls, since M is semidefinite
            pull[v] = float(np.linalg.norm(towards))
            if pull[v] > 0:
                x[at] = towards / pull[v]
        if np.abs(pull - before).max(initial=0.0) <= 1e-12 * max(1.0, pull.max(initial=0.0)):
            break
    # The certificate: lam is raised by what it lacks to be above M, and so holds in any case.
    excess = float(np.linalg.eigvalsh(rest - np.diag(pull[of]))[-1])
    slack = max(0.0, excess) + 1e-12 * (np.abs(information).max() + pull.max())
    return common, pull, slack
