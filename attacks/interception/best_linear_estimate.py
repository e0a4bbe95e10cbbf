"""The best linear estimate: weights of noisy equations that single out unknowns with least noise.

Equations over unknown vectors u, independent standard normal vectors z and given vectors v,

    E_u u + E_z z + E_v v = 0                                (R equations)

give for weights w with w E_u = e_k the estimate u_k = -(w E_v) v, whose error is -(w E_z) z. Among
all such w the one with the least |w E_z| is best (Gauss, Markov); several unknowns have errors of
covariance (W E_z)(W E_z)^T. Where e_k is no combination of the rows of E_u, the unknown is not
identifiable and nothing is returned for it.

    W = W_0 + T N,    W_0 = least-norm solution,  N = left null space of E_u,
    T = -(W_0 E_z)(N E_z)^+

| symbol | name here | shape |
|--------|-----------|-------|
| E_u    | unknown   | (R, U) |
| E_z    | noise     | (R, Z) |
| W      | returned  | (K, R) |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError

Array = NDArray[np.float64]

_RANK = 1e-11  # singular values below this share of the largest are rounding
_CLEAN = 1e-10  # share of the noise that was added up that rounding may leave
_IDENTIFIED = 1e-8  # what may be left of a unit vector


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights of equations.

    Attributes:
        rows: (K, R) one row for each unknown that is identifiable.
        identified: positions, among those asked for, of these unknowns.
        covariance: (K, K) of the errors.
        clean: for each whether its noise cancels, up to rounding.
    """

    rows: Array
    identified: tuple[int, ...]
    covariance: Array
    clean: tuple[bool, ...]


def best_weights(unknown: Array, noise: Array, *, targets: Sequence[int] | Array) -> Weights:
    """Weights that estimate unknowns without bias and with the least noise.

    Args:
        unknown: (R, U) coefficients of the unknowns.
        noise: (R, Z) coefficients of unit normals.
        targets: columns of `unknown` to estimate, or (K, U) combinations of the unknowns.

    Returns:
        The weights of those that are identifiable.

    Raises:
        ValueError: shapes that disagree, or a target that is no column.

    >>> found = best_weights(np.ones((2, 1)), np.diag([1.0, 2.0]), targets=[0])
    >>> found.rows.round(3).tolist(), found.covariance.round(3).tolist()
    ([[0.8, 0.2]], [[0.8]])
    """
    if unknown.ndim != 2 or noise.ndim != 2 or len(unknown) != len(noise):
        raise InputError(
            f"unknown of shape {unknown.shape} and noise of shape {noise.shape} must be matrices "
            "with one row per equation each"
        )
    wanted = _combinations(targets, count=unknown.shape[1])
    # Equations of length 1; one that holds nothing stays 0.
    size = np.sqrt(np.square(unknown).sum(axis=1) + np.square(noise).sum(axis=1))
    scale = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    M, B = unknown * scale[:, None], noise * scale[:, None]
    left, values, right = np.linalg.svd(M, full_matrices=True)
    rank = int((values > _RANK * max(values[0], 1e-300)).sum()) if values.size else 0
    picked = wanted @ right[:rank].T  # (targets, rank)
    # A vector lies in the row space exactly if its part in it has its length.
    length = np.square(wanted).sum(axis=1)
    inside = length - np.square(picked).sum(axis=1) < _IDENTIFIED * length
    # Weights without bias, and combinations of equations that no unknown is in.
    first = (picked[inside] / values[:rank]) @ left[:, :rank].T
    free = left[:, rank:].T
    # Rows are of length 1, so the cut is absolute: combinations may show no noise at all.
    left, values, right = np.linalg.svd(free @ B, full_matrices=False)
    kept = values > _RANK
    inverse = (right[kept].T / values[kept]) @ left[:, kept].T  # (Z, R - rank)
    # What these combinations tell of the noise is taken off.
    weights = first - (first @ B) @ inverse @ free
    errors, added = weights @ B, np.abs(weights) @ np.abs(B)
    return Weights(
        rows=weights * scale,
        identified=tuple(int(i) for i in np.flatnonzero(inside)),
        covariance=errors @ errors.T,
        clean=tuple(
            bool(c)
            for c in np.linalg.norm(errors, axis=1) <= _CLEAN * np.linalg.norm(added, axis=1)
        ),
    )


def _combinations(targets: Sequence[int] | Array, *, count: int) -> Array:
    """(K, U) what to estimate, over the unknowns."""
    if isinstance(targets, np.ndarray):
        if targets.ndim != 2 or targets.shape[1] != count:
            raise InputError(f"targets of shape {targets.shape} must be (K, {count})")
        return targets
    if any(not 0 <= t < count for t in targets):
        raise InputError(f"targets {list(targets)} must lie in [0, {count})")
    wanted = np.zeros((len(targets), count))
    wanted[np.arange(len(targets)), list(targets)] = 1.0
    return wanted


def seen_combination(unknown: Array, *, columns: Sequence[int]) -> Array | None:
    """The one combination of some unknowns that equations tell, where they tell exactly one.

    With the left null space N of the other unknowns' columns, the rows of N E span all that is
    told of these alone.

    Args:
        unknown: (R, U) coefficients of the unknowns.

    Returns:
        (len(columns),) coefficients, the first of which is 1; None where nothing, or several
        combinations, or nothing of the first column or of some other is told.

    Raises:
        ValueError: there are no columns.

    >>> hidden = np.array([[1.0, -0.9, 2.0], [0.0, 0.0, 1.0]])
    >>> seen_combination(hidden, columns=[0, 1]).round(3).tolist()
    [1.0, -0.9]
    """
    if not columns:
        raise InputError("columns is empty; name an unknown")
    size = np.linalg.norm(unknown, axis=1, keepdims=True)
    M = unknown / np.where(size > 0, size, 1.0)
    others = np.delete(M, list(columns), axis=1)
    left, values, _ = np.linalg.svd(others, full_matrices=True)
    rank = int((values > _RANK * max(values[0], 1e-300)).sum()) if values.size else 0
    _, values, right = np.linalg.svd(left[:, rank:].T @ M[:, list(columns)], full_matrices=False)
    told = right[values > _IDENTIFIED]  # rows of M are of length 1
    if len(told) != 1 or np.abs(told[0]).min() < _IDENTIFIED:
        return None
    return np.asarray(told[0] / told[0, 0])


def determined(rows: Array, equations: Array) -> NDArray[np.bool_]:
    """Which rows are combinations of equations that hold exactly.

    Args:
        rows: (N, C) coefficients over everything that is not given.
        equations: (R, C) of the equations.

    Returns:
        (N,) truth values.

    >>> determined(np.array([[2.0, 2.0], [1.0, 0.0]]), np.array([[1.0, 1.0]])).tolist()
    [True, False]
    """
    size = np.linalg.norm(rows, axis=1)
    if not len(equations) or not len(rows):
        return size == 0
    norms = np.linalg.norm(equations, axis=1, keepdims=True)
    scaled = equations / np.where(norms > 0, norms, 1.0)
    solution = np.linalg.lstsq(scaled.T, rows.T, rcond=_RANK)[0]
    left = np.linalg.norm(solution.T @ scaled - rows, axis=1)
    return np.asarray(left <= _IDENTIFIED * size)
