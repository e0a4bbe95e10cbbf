"""Rows of coefficients as sparse matrices: widened, pruned of rounding, and their residues."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

_ROUNDING = 4 * np.finfo(float).eps


def diagonal(first: int, lost: csr_array) -> csr_array:
    """Each row's own residue, where something cancelled in it."""
    rows = np.flatnonzero(np.diff(lost.indptr))
    shape = (lost.shape[0], first + lost.shape[0])
    return csr_array((np.ones(len(rows)), (rows, first + rows)), shape=shape)


def added(one: csr_array | None, other: csr_array | None, sign: float) -> csr_array | None:
    """The sum of two rows of residues; None where neither has some."""
    if one is None or other is None:
        return one if other is None else (other if sign > 0 else -other)
    width = max(one.shape[1], other.shape[1])
    return widened(one, width) + sign * widened(other, width)


def scaled_rows(by: np.ndarray, rows: csr_array, columns: np.ndarray | None = None) -> csr_array:
    """Rows times a number each, and columns likewise: a product of diagonal matrices and these.

    Entries stand as in scipy's product, in the reverse order and without zeros: sums over them are
    the same to the last digit.
    """
    lengths = np.diff(rows.indptr)
    at = np.repeat(rows.indptr[:-1] + rows.indptr[1:] - 1, lengths) - np.arange(rows.nnz)
    data = rows.data if columns is None else rows.data * columns[rows.indices]
    parts = np.repeat(by, lengths) * data[at], rows.indices[at], rows.indptr.copy()
    made = csr_array(parts, shape=rows.shape)
    made.eliminate_zeros()
    return made


def widened(matrix: csr_array, columns: int) -> csr_array:
    """The same rows over at least `columns` columns; itself where it has them."""
    if matrix.shape[1] >= columns:
        return matrix
    shape = (matrix.shape[0], columns)
    return csr_array((matrix.data, matrix.indices, matrix.indptr), shape=shape)


def stacked(matrices: Sequence[csr_array], columns: int) -> csr_array:
    """The rows of all matrices below each other, over `columns` columns.

    As `scipy.sparse.vstack` of `widened` ones, whose checks of each take longer than the rest.
    """
    ends = np.cumsum([0, *(matrix.nnz for matrix in matrices)])
    starts = [matrix.indptr[1:] + end for matrix, end in zip(matrices, ends[:-1], strict=True)]
    parts = (
        np.concatenate([np.zeros(0), *(matrix.data for matrix in matrices)]),
        np.concatenate([np.zeros(0, dtype=np.int64), *(matrix.indices for matrix in matrices)]),
        np.concatenate([np.zeros(1, dtype=np.int64), *starts]),
    )
    return csr_array(parts, shape=(len(parts[2]) - 1, columns))


def pruned(matrix: csr_array, size: csr_array) -> csr_array:
    """The matrix with entries that are rounding relative to `size` set to zero."""
    kept = csr_array(matrix.multiply(abs(matrix) > size * _ROUNDING))
    kept.eliminate_zeros()
    return kept
