"""The shared view: the rows that all adversaries of a kind see in a round, and hidden messages'.

An adversary adds some of the hidden messages' rows and knows some of the noise. Rows are linked by
the noise that they share, so what an adversary adds can change the figure of those victims alone
that have contributions in linked rows.

| symbol | name here     | shape                 | meaning                                      |
|--------|---------------|-----------------------|----------------------------------------------|
| A      | contributions | (rows, contributions) | rows that are seen, then those of messages   |
| B      | noise         | (rows, sources)       | over all noise sources, known or not         |

Hidden messages that what is seen determines, such as those of one `mix` from its result, count as
seen, too.

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

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...privacy.view.elimination import entries, rows_at
from ..tracing.linear_forms import Contributions, Messages, NoiseSources
from ..tracing.round_trace import RoundTrace
from ..tracing.sparse_rows import widened

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..tracing.record import RoundRecord

_MARGIN = 1e-9  # singular values below this share of the largest leave their direction open
_SURE = 1e-8  # the same for eigenvalues of R^T R, where a factorisation proves the rank
_PINNED = 1e-7  # least singular value of N[S], whose columns are orthonormal
_MOST_LINKED = 5_000  # messages of one block that a dense factorisation is asked to hold
_MOST_ROWS = 3_000  # of a dense system of equations


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


class SharedView:
    """What every adversary of a kind sees, closed under what it determines.

    Args:
        relations: between its messages.
        seen: a mask over all columns of the messages that are seen.
        without: a mask over all columns; rows that refer to one of them are left out, so that less
            is seen.

    Attributes:
        seen: the mask with the messages that are determined.
        undetermined: blocks of hidden messages that the relations leave open.
        contributions: (rows, contributions) csr.
        noise: (rows, sources) csr.
        is_seen: (rows,) whether a row is seen; the others are the contents of hidden messages.
        places: (rows, 3) what each row belongs to, and its agent and the other one, or -1.
        row_of_message: (columns,) the row of a hidden message, -1 where it holds nothing private.
        source_of_column: (columns,) the position of a column among the sources, -1 elsewhere.
        owners: (contributions,) whose data each is.
        vectors: (contributions,) the clipped vector that each is a part of.
    """

    def __init__(
        self,
        trace: RoundTrace,
        relations: Relations,
        seen: np.ndarray,
        *,
        without: np.ndarray | None = None,
    ) -> None:
        from scipy.sparse import csr_array, vstack

        self.seen, self.undetermined = relations.settle(seen)
        width = trace.columns
        # Rows of what is seen first: the closure, the end states and the messages of the mask.
        closed = [rows for _, rows in (*trace.record.closure, *trace.record.end_state.items())]
        places = [
            np.stack([np.arange(of.shape[0]), -np.ones(of.shape[0], int)], 1) for of in closed
        ]
        hidden, of_hidden = list[Any](), list[np.ndarray]([np.zeros(0, dtype=int)])
        places_of_hidden = list[np.ndarray]()
        for g in trace.messages:
            mask = self.seen[g.start : g.start + g.size]
            for matrices, agents, at in (
                (closed, places, np.flatnonzero(mask)),
                (hidden, places_of_hidden, np.flatnonzero(~mask)),
            ):
                matrices.append(g.rows[at])
                agents.append(g.ends[at])
            of_hidden.append(g.start + np.flatnonzero(~mask))
        # Then the contents of hidden messages, each with the column of its message.
        parts = [widened(csr_array(part), width) for part in (*closed, *hidden)]
        rows = csr_array(vstack([csr_array((0, width)), *parts]))
        message = np.full(rows.shape[0], -1)
        message[len(message) - sum(map(len, of_hidden)) :] = np.concatenate(of_hidden)
        ends = enumerate([*places, *places_of_hidden])
        numbered = [np.insert(of, 0, number, axis=1) for number, of in ends]
        self.places = np.concatenate([np.zeros((0, 3), dtype=int), *numbered])
        if without is not None:
            kept = np.flatnonzero((message >= 0) | (abs(rows) @ without.astype(float) == 0))
            rows, message, self.places = rows[kept], message[kept], self.places[kept]
        # In terms of contributions and noise; rows that hold neither say nothing.
        rows = trace.expand(rows, unseen=self._is_hidden)
        contributions = columns_of(trace, Contributions)
        sources = columns_of(trace, NoiseSources)
        private = np.flatnonzero(np.diff(rows[:, np.r_[contributions, sources]].indptr))
        rows, message, self.places = rows[private], message[private], self.places[private]
        self.contributions = csr_array(rows[:, contributions])
        self.noise = csr_array(rows[:, sources])
        self.is_seen = message < 0
        # Where messages and sources of noise are found among rows and columns.
        self.row_of_message = np.full(width, -1)
        self.row_of_message[message[message >= 0]] = np.flatnonzero(message >= 0)
        self.source_of_column = np.full(width, -1)
        self.source_of_column[sources] = np.arange(len(sources))
        groups = [g for g in trace.groups if isinstance(g, Contributions)]
        self.owners = np.concatenate([np.zeros(0, dtype=int), *(g.owners for g in groups)])
        self.vectors = trace.vectors
        self._rows_of_contribution = self.contributions.tocsc()
        self._rows_of_source = self.noise.tocsc()
        self._link()

    def _is_hidden(self, messages: Messages) -> np.ndarray:
        return ~self.seen[messages.start : messages.start + messages.size]

    def _link(self) -> None:
        """Label seen rows and sources by what links them, and list the owners in each label."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        count, sources = self.noise.shape
        at, to = self.noise.tocoo().coords
        at, to = at[self.is_seen[at]], to[self.is_seen[at]]
        links = csr_array((np.ones(len(at)), (at, count + to)), shape=(count + sources,) * 2)
        labels, self._label = connected_components(links, directed=False)
        at, to = self.contributions.tocoo().coords
        at, to = at[self.is_seen[at]], to[self.is_seen[at]]
        of_label, owner = _different_pairs(self._label[at], self.owners[to])
        self._first_owner = np.searchsorted(of_label, np.arange(labels + 1))
        self._owners_by_label = owner

    def touched(self, rows: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Owners whose figure may change when hidden rows are seen and sources are known."""
        less_noisy = rows_at(self._rows_of_source, known)
        at = less_noisy[self.is_seen[less_noisy]], len(self.is_seen) + rows_at(self.noise, rows)
        labels = np.unique(self._label[np.concatenate(at)])
        spans = entries(self._first_owner, labels)
        mine = self.owners[rows_at(self.contributions, rows)]
        return np.unique(np.concatenate([mine, self._owners_by_label[spans]]))

    def rows_holding(self, contributions: np.ndarray) -> np.ndarray:
        """Rows, seen or not, that hold one of the contributions."""
        return np.unique(rows_at(self._rows_of_contribution, contributions))

    def owners_in(self, rows: np.ndarray) -> np.ndarray:
        """Whose contributions some rows hold."""
        return np.unique(self.owners[rows_at(self.contributions, rows)])

    def linked(self, rows: np.ndarray, *, seen: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """All rows of the mask `seen` that unknown sources link to some of it, in order."""
        reached, passed = np.zeros(len(seen), dtype=bool), np.zeros(len(unknown), dtype=bool)
        while len(rows):
            reached[rows] = True
            sources = rows_at(self.noise, rows)
            sources = np.unique(sources[unknown[sources] & ~passed[sources]])
            passed[sources] = True
            rows = rows_at(self._rows_of_source, sources)
            rows = np.unique(rows[seen[rows] & ~reached[rows]])
        return np.flatnonzero(reached)


class Pairs:
    """Which agents go with which columns, for questions about few agents and about nearly all.

    Args:
        agents: the agent of each pair; negative ones, such as the server, are no agents.
        shape: numbers of columns and of agents.
    """

    def __init__(self, columns: np.ndarray, agents: np.ndarray, *, shape: tuple[int, int]) -> None:
        from scipy.sparse import csc_array

        columns, agents = _different_pairs(columns[agents >= 0], agents[agents >= 0])
        self._columns = csc_array((np.ones(len(columns)), (columns, agents)), shape=shape)
        self._agents = np.bincount(columns, minlength=shape[0])

    def of(self, agents: Collection[int]) -> np.ndarray:
        """The columns that go with at least one of the agents, ascending."""
        many = self._columns.shape[1]
        if 2 * len(agents) <= many:
            return np.unique(rows_at(self._columns, np.asarray(sorted(agents), dtype=int)))
        outside = np.asarray(sorted(set(range(many)) - set(agents)), dtype=int)
        others = np.bincount(rows_at(self._columns, outside), minlength=len(self._agents))
        return np.flatnonzero(self._agents > others)


def _different_pairs(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers from 0, each pair once, in ascending order of the first and the second."""
    base = int(second.max(initial=0)) + 1
    pairs = np.sort(first.astype(np.int64) * base + second)  # np.unique hashes, which is slower
    return np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], base)


def columns_of(trace: RoundTrace, kind: type) -> np.ndarray:
    """The columns of all groups of a kind."""
    ranges = [np.arange(g.start, g.start + g.size) for g in trace.groups if isinstance(g, kind)]
    return np.concatenate([np.zeros(0, dtype=int), *ranges])


def numbered(rows: csr_array, numbers: dict[bytes, int]) -> np.ndarray:
    """The same number for rows that are multiples of each other; -1 for rows of zeros."""
    from scipy.sparse import csr_array

    rows = csr_array(rows)
    rows.eliminate_zeros()
    rows.sort_indices()
    found = np.full(rows.shape[0], -1)
    for i, (start, end) in enumerate(zip(rows.indptr[:-1], rows.indptr[1:], strict=True)):
        if end > start:
            share = np.round(rows.data[start:end] / rows.data[start], 9) + 0.0
            key = rows.indices[start:end].tobytes() + b"/" + share.tobytes()
            found[i] = numbers.setdefault(key, len(numbers))
    return found


def in_row_space(row: csr_array, of: csr_array) -> bool:
    """Whether a row (1, columns) is a combination of others, (rows, columns).

    >>> from scipy.sparse import csr_array
    >>> in_row_space(csr_array([[1.0, 2.0]]), csr_array([[2.0, 4.0]]))
    True
    >>> in_row_space(csr_array([[1.0, 0.0]]), csr_array([[2.0, 4.0]]))
    False
    """
    held = row.toarray()[0]
    if not held.any():
        return True
    # Only rows and columns that hang together with the row matter.
    columns = held != 0
    rows = np.zeros(of.shape[0], dtype=bool)
    pattern = abs(of)
    while True:
        rows = np.asarray(pattern @ columns.astype(float)) > 0
        more = columns | (np.asarray(rows.astype(float) @ pattern) > 0)
        if (more == columns).all():
            break
        columns = more
    if rows.sum() > _MOST_ROWS:
        return False
    basis = of[rows][:, columns].toarray()
    wanted = held[columns]
    weights = np.linalg.lstsq(basis.T, wanted, rcond=None)[0]
    return bool(np.linalg.norm(weights @ basis - wanted) <= 1e-9 * np.linalg.norm(wanted))


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
