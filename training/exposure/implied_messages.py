"""Hidden messages that what is seen determines, such as those of one `mix` from its result.

Every end state counts as seen. Where x = W m for messages m that were not seen and W has full
column rank, whoever sees x can compute every m: counting them as seen changes no row space, and
the rows W m, which tie all agents together, become functions of what is seen.

    R m = what is seen          rows over hidden messages alone: no data, no noise; from the
                                closure, the end states, and what was sent, less itself
    R of full column rank       all of its messages are determined
    N = null space of R         seeing the messages S as well determines all of them where N[S] has
                                full column rank

Linked messages are settled together, and a rank is decided on the safe side: what is called
determined is so by a margin, and what is not keeps its exact rows.

| symbol | name here         | shape                  | meaning                       |
|--------|-------------------|------------------------|-------------------------------|
| R      | Relations         | (relations, messages)  | what ties messages together   |
| N      | Undetermined.null | (messages, dimensions) | what the relations leave open |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..tracing.linear_forms import Contributions, Messages, NoiseSources
from ..tracing.sparse_rows import widened

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..tracing.record import RoundRecord

_MARGIN = 1e-9  # singular values below this share of the largest leave their direction open
_SURE = 1e-8  # the same for eigenvalues of R^T R, where a factorisation proves the rank
_PINNED = 1e-7  # least singular value of N[S], whose columns are orthonormal
_MOST_LINKED = 5_000  # messages of one block that a dense factorisation is asked to hold


class Undetermined(NamedTuple):
    """Linked hidden messages that the relations do not determine.

    Attributes:
        messages: their columns in the trace.
        null: (messages, dimensions) orthonormal, what is open; None where that was too large.
    """

    messages: np.ndarray
    null: np.ndarray | None

    def is_settled_by(self, seen: np.ndarray) -> bool:
        """Whether seeing the messages of a mask over all columns determines the others."""
        at = seen[self.messages]
        if at.all():
            return True
        if self.null is None or int(at.sum()) < self.null.shape[1]:
            return False
        return float(np.linalg.svd(self.null[at], compute_uv=False)[-1]) > _PINNED


class Relations:
    """The relations between the messages of a round, once made and asked for many adversaries.

    Args:
        record: what the round sent and returned.
    """

    def __init__(self, record: RoundRecord) -> None:
        from scipy.sparse import csr_array, vstack

        width = sum(group.size for group in record.groups)
        sent = [g for g in record.groups if isinstance(g, Messages)]
        seen = [rows for _, rows in (*record.closure, *record.end_state.items())]
        # What was sent less itself is nothing, whether anybody saw it or not.
        nothing = [widened(csr_array(g.rows), width) - _unit(g.start, g.size, width) for g in sent]
        parts = [csr_array((0, width)), *(widened(rows, width) for rows in seen), *nothing]
        every = csr_array(vstack(parts))
        message, private = np.zeros(width), np.zeros(width)
        for g in record.groups:
            if isinstance(g, Messages | Contributions | NoiseSources):
                kind = message if isinstance(g, Messages) else private
                kind[g.start : g.start + g.size] = 1.0
        public = np.flatnonzero(abs(every) @ private == 0)
        self._matrix = csr_array(every[public].multiply(message[None, :]))
        self._matrix.eliminate_zeros()
        self._size = np.asarray(abs(self._matrix).max(axis=1).todense()).ravel()

    def settle(self, seen: np.ndarray) -> tuple[np.ndarray, list[Undetermined]]:
        """Add to a mask over all columns every message that it determines; say what stays open."""
        seen = seen.copy()
        # A relation over one hidden message tells it; that may leave others with one.
        while True:
            R = self._over_hidden(seen)
            alone = np.flatnonzero(np.diff(R.indptr) == 1)
            plain = alone[abs(R.data[R.indptr[alone]]) > _MARGIN]
            if not len(plain):
                break
            seen[R.indices[R.indptr[plain]]] = True
        # What stays is settled block by block: all of its messages, or which directions are open.
        left: list[Undetermined] = []
        for messages, block in _linked(R):
            null = _null_space(block)
            if null is not None and null.shape[1] == 0:
                seen[messages] = True
            else:
                left.append(Undetermined(messages, null))
        return seen, left

    def _over_hidden(self, seen: np.ndarray) -> csr_array:
        """The relations over hidden messages, as shares of a relation's largest entry."""
        from scipy.sparse import csr_array, diags_array

        scale = diags_array(1.0 / np.where(self._size > 0, self._size, 1.0)).tocsr()
        R = csr_array((scale @ self._matrix).multiply(np.where(seen, 0.0, 1.0)[None, :]))
        R.eliminate_zeros()
        return csr_array(R[np.flatnonzero(np.diff(R.indptr))])


def _unit(start: int, size: int, width: int) -> csr_array:
    from scipy.sparse import csr_array

    rows = np.arange(size)
    return csr_array((np.ones(size), (rows, start + rows)), shape=(size, width))


def _linked(R: csr_array) -> list[tuple[np.ndarray, csr_array]]:
    """The columns that occur in R by linked block, and the rows over each block."""
    from scipy.sparse import block_array
    from scipy.sparse.csgraph import connected_components

    if not R.nnz:
        return []
    columns = np.unique(R.indices)
    R = R[:, columns]
    _, labels = connected_components(block_array([[None, R], [R.T, None]]), directed=False)
    of_row, of_column = labels[: R.shape[0]], labels[R.shape[0] :]
    return [
        (columns[of_column == label], R[of_row == label][:, of_column == label])
        for label in np.unique(of_column)
    ]


def _null_space(R: csr_array) -> np.ndarray | None:
    """An orthonormal basis (messages, dimensions) of what R leaves open, or almost; None if large.

    >>> from scipy.sparse import csr_array
    >>> ring = np.eye(6) + np.roll(np.eye(6), 1, axis=0) + np.roll(np.eye(6), -1, axis=0)
    >>> _null_space(csr_array(ring)).shape, _null_space(csr_array(ring[:5, :5])).shape
    ((6, 2), (5, 1))
    """
    from scipy.linalg import LinAlgError, cholesky, eigh

    count = R.shape[1]
    if count > _MOST_LINKED:
        return None
    gram = (R.T @ R).toarray()
    most = float(abs(gram).sum(axis=1).max())  # no eigenvalue is larger
    try:
        cholesky(gram - _SURE * most * np.eye(count), check_finite=False)
    except LinAlgError:
        # Squares lose half of the digits: R itself decides among the directions that are short.
        small = eigh(gram, subset_by_value=(-np.inf, 4 * _SURE * most))[1]
        _, s, vh = np.linalg.svd(R @ small, full_matrices=True)
        s = np.r_[s, np.zeros(vh.shape[0] - len(s))]
        return small @ vh[s <= _MARGIN * np.sqrt(most)].T
    return np.zeros((count, 0))
