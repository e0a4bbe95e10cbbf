"""Eliminating the noise of a view: what each source can be solved for, and what then has no noise.

A row with one noise source left determines that source, which is then subtracted from the other
rows; only rows whose sources stay entangled go to a singular value decomposition, of B and never of
B B^T, whose cut would be the square root too coarse.

    O = A G + B Z, each row of (A | B) scaled to length 1
    while a row has one source left:
        p <- of the rows over a source z alone the one with the largest |B_pz|
        A_i <- A_i - B_iz / B_pz A_p,  B_iz <- 0          for every other row i
    whitened: A_p / B_pz of every p; noiseless: rows without sources; entangled: all others

| symbol   | name here      | shape                   | meaning                                 |
|----------|----------------|-------------------------|-----------------------------------------|
| A        | A              | (rows, contributions)   | what of each contribution a row holds   |
| B        | B              | (rows, sources)         | what of each source is left in it       |
|          | S              | (rows, contributions)   | sum of |terms| that A was added up      |
|          |                |                         | from: the measure of its rounding       |
|          | T              | (rows, contributions)   | the part of S that small entries are    |
|          | message        | (rows,)                 | which message a row was at first        |
| p, z     | pivots, solved | (solved,)               | rows, and the sources they determine    |
| A_p/B_pz | white          | (solved, contributions) | what is seen of each source             |

Rounding is measured against the largest of what was added up. An entry that is small beside another
one of its column, by `CUT`, would pass for rounding wherever the two meet; so small entries are
followed by a measure of their own, and a row without noise of which one is a part, that nothing
surely shows, is doubtful.

How a leak is named: the messages whose combination is free of noise, and when they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UnsupportedView

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array

CUT = 1e-12  # noise below this share of its row is no noise; the bound is relative to the row
ROUNDING = 256 * np.finfo(float).eps  # share of what was added up that rounding may leave
_CORE_LIMIT = 20_000  # rows of entangled noise that a dense decomposition is asked to hold
_SOURCES_A_ROW = 1.5  # beyond these they are made fewer
_FEW = 2**12  # entries of noise that are looked at all at once
_NAMED = 8  # messages of one combination: enough to name what cancels


class Factors(NamedTuple):
    """A view after elimination.

    `whitened` rows carry unit noise of their own, `clean` rows none, each made of the messages in
    `sources`; `doubtful` holds what of the clean rows is neither rounding nor surely more. They
    lie column by column, since a victim's columns are what is asked of them.
    """

    whitened: csc_array
    clean: csc_array
    doubtful: csc_array
    sources: list[tuple[int, ...]]


def entries(start: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Positions start[i], ..., start[i + 1] - 1 for every i of `which`, one after the other."""
    first, count = start[which], start[which + 1] - start[which]
    before = count.cumsum() - count
    return np.asarray((first - before).repeat(count) + np.arange(count.sum()))


def rows_at(matrix: Any, which: np.ndarray) -> np.ndarray:
    """Where lines of a compressed matrix have entries: columns of rows, or rows of columns."""
    return np.asarray(matrix.indices[entries(matrix.indptr, which)])


def factor(contributions: np.ndarray | csr_array, noise: np.ndarray | csr_array) -> Factors:
    """Eliminate the noise sources of a view.

    Args:
        contributions: (messages, contributions).
        noise: (messages, sources).

    Raises:
        UnsupportedView: more entangled messages than can be factorised.

    >>> factor(np.array([[1.0], [2.0]]), np.array([[1.0], [1.0]])).sources  # their difference
    [(1, 0)]
    """
    elimination = _Elimination(*_scaled(contributions, noise))
    elimination.set_noiseless_aside()
    while len(pivots := elimination.pivots()):
        elimination.solve(pivots)
        elimination.set_noiseless_aside()
    elimination.untangle()
    return elimination.factors()


def _scaled(
    contributions: np.ndarray | csr_array, noise: np.ndarray | csr_array
) -> tuple[csr_array, csr_array]:
    """A and B with rows of (A | B) of length 1."""
    from scipy.sparse import csr_array, diags_array

    A, B = csr_array(contributions, dtype=float), csr_array(noise, dtype=float)
    # A power of two first, which is exact: the squares of 1e200 or 1e-200 are no floats.
    largest = np.maximum(_largest(A), _largest(B))
    near = diags_array(np.ldexp(1.0, -np.maximum(np.frexp(largest)[1], -1000))).tocsr()
    A, B = near @ A, near @ B
    size = np.sqrt(_square_sums(A) + _square_sums(B))
    scale = diags_array(1.0 / np.where(size > 0, size, 1.0)).tocsr()
    A, B = scale @ A, scale @ B
    B.eliminate_zeros()
    return A, B


class _Elimination:
    """The rows that are left, and what was made of the others."""

    def __init__(self, A: csr_array, B: csr_array) -> None:
        self.A, self.B, self.S, self.T = A, B, abs(A), _small(A, B)
        self.message = np.arange(A.shape[0])
        self._made_of: dict[int, tuple[int, ...]] = {int(r): (int(r),) for r in self.message}
        self._solved_by: dict[int, int] = {}  # the message that each source was solved for from
        self._white: list[Any] = []
        self._clean: list[tuple[Any, Any, Any]] = []
        self._sources: list[tuple[int, ...]] = []

    def set_noiseless_aside(self) -> None:
        """Rows without a source left show what they hold."""
        empty = np.diff(self.B.indptr) == 0
        if empty.any():
            self._note_clean(np.flatnonzero(empty))
            self._keep(~empty)

    def pivots(self) -> np.ndarray:
        """Of the rows with one source left the strongest for each source."""
        single = np.flatnonzero(np.diff(self.B.indptr) == 1)
        source, value = self._entries_of(single)
        order = np.lexsort((-np.abs(value), source))
        first = order[np.diff(source[order], prepend=-1) != 0]
        return single[first]

    def solve(self, pivots: np.ndarray) -> None:
        """Solve the pivots for their sources, and subtract these from all other rows."""
        from scipy.sparse import csr_array, diags_array

        solved, by = self._entries_of(pivots)
        # Noise this weak hides nothing, but still tells what the source is.
        self._note_clean(pivots[np.abs(by) < CUT])
        white = diags_array(1.0 / by).tocsr() @ self.A[pivots]
        scale = diags_array(1.0 / np.abs(by)).tocsr()
        white_size, white_small = scale @ self.S[pivots], scale @ self.T[pivots]
        self._white.append(white)
        self._solved_by.update(zip(solved.tolist(), self.message[pivots].tolist(), strict=True))
        others = np.ones(len(self.message), dtype=bool)
        others[pivots] = False
        self._keep(others)
        weight = self.B[:, solved]  # (rows, solved)
        self._note_parts(weight, solved)
        self.A = csr_array(self.A - weight @ white)
        self.S = csr_array(self.S + abs(weight) @ white_size)
        self.T = csr_array(self.T + abs(weight) @ white_small)
        unknown = np.ones(self.B.shape[1])
        unknown[solved] = 0.0
        self.B = self.B @ diags_array(unknown).tocsr()
        self.B.eliminate_zeros()

    def untangle(self) -> None:
        """Rows whose noise no elimination disentangles: through the singular values of B itself."""
        for rows in apart(self.B):
            self._untangle(rows)

    def _untangle(self, rows: np.ndarray) -> None:
        """Some rows, whose noise no other row shares."""
        from scipy.linalg import svd
        from scipy.sparse import csr_array

        if len(rows) > _CORE_LIMIT:
            raise UnsupportedView(
                f"{len(rows)} messages share entangled noise, more than the {_CORE_LIMIT} "
                "that can be factorised; account for a smaller graph"
            )
        B = self.B[rows]
        live = np.unique(B.indices)
        u, s, _ = svd(B[:, live].toarray(), full_matrices=True, lapack_driver="gesvd")
        rank = int((s > CUT).sum())
        rotated = csr_array(u.T @ self.A[rows].toarray())
        # Every entry of u is only known to rounding, so each row may leak into every rotated one.
        size = csr_array(np.tile(self.S[rows].toarray().sum(axis=0), (len(u), 1)))
        small = csr_array((abs(u.T[rank:]) > CUT).astype(float)) @ self.T[rows]
        self._white.append(csr_array(rotated[:rank].toarray() / s[:rank, None]))
        self._clean.append((rotated[rank:], size[rank:], small))
        together = tuple(self.message[rows][:_NAMED].tolist())
        self._sources += [together] * (rotated.shape[0] - rank)

    def factors(self) -> Factors:
        """What was made, and of rows without noise which entries are surely more than rounding."""
        from scipy.sparse import csc_array, csr_array, vstack

        none = csr_array((0, self.A.shape[1]))
        held = csr_array(vstack([none, *(rows for rows, _, _ in self._clean)]))
        against = csr_array(vstack([none, *(size for _, size, _ in self._clean)]))
        small = csr_array(vstack([none, *(small for _, _, small in self._clean)])).tocoo()
        sure = csr_array(held * (abs(held) > against * CUT))
        perhaps = csr_array(held * (abs(held) > against * ROUNDING))
        of_small = csr_array((np.zeros(0), (np.zeros(0, dtype=int),) * 2), shape=held.shape)
        if small.nnz:
            at = small.coords
            hidden = is_hidden(small.data, np.asarray(against[at]), np.asarray(sure[at]) != 0)
            of_small = csr_array((hidden.astype(float), at), shape=held.shape)
        doubtful = csr_array(abs(perhaps - sure) + of_small)
        doubtful.eliminate_zeros()
        white = csc_array(vstack([none, *self._white]))
        return Factors(white, csc_array(sure), csc_array(doubtful), self._sources)

    def _entries_of(self, single: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The only source of each of some rows, and its coefficient."""
        at = self.B.indptr[single]
        return self.B.indices[at], self.B.data[at]

    def _keep(self, rows: np.ndarray) -> None:
        self.A, self.B, self.S, self.T = self.A[rows], self.B[rows], self.S[rows], self.T[rows]
        self.message = self.message[rows]

    def _note_clean(self, rows: np.ndarray) -> None:
        self._clean.append((self.A[rows], self.S[rows], self.T[rows]))
        self._sources += [self._made_of[int(m)] for m in self.message[rows]]

    def _note_parts(self, weight: csr_array, solved: np.ndarray) -> None:
        """Remember which messages a row is made of, by the sources subtracted from it."""
        for row, column in zip(*weight.tocoo().coords, strict=True):
            key = int(self.message[row])
            if len(self._made_of[key]) < _NAMED:
                of = self._solved_by[int(solved[column])]
                self._made_of[key] = (*self._made_of[key], of)


def apart(noise: csr_array | np.ndarray) -> list[np.ndarray]:
    """The rows that sources link with each other, of each set in order; all rows are in one.

    >>> [rows.tolist() for rows in apart(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]))]
    [[0, 2], [1]]
    """
    if isinstance(noise, np.ndarray) and noise.size <= _FEW:
        label = _least_linked(noise)
    else:
        from scipy.sparse import coo_array, csr_array
        from scipy.sparse.csgraph import connected_components

        held = coo_array(noise)
        count, (at, to) = sum(held.shape), held.coords
        links = csr_array((held.data != 0, (at, held.shape[0] + to)), shape=(count, count))
        label = connected_components(links, directed=False)[1][: held.shape[0]]
    order = np.argsort(label, kind="stable")
    ends = np.flatnonzero(np.diff(label[order])) + 1
    return [rows for rows in np.split(order, ends) if len(rows)]


def _least_linked(noise: np.ndarray) -> np.ndarray:
    """(rows,) the first row that each is linked with; of few rows, in a few passes over all."""
    (at, to), label = noise.nonzero(), np.arange(len(noise))
    while True:
        of_source, least = np.full(noise.shape[1], len(noise)), label.copy()
        np.minimum.at(of_source, to, label[at])
        np.minimum.at(least, at, of_source[to])
        if (least == label).all():
            return label
        label = least[least]


def small_entries(contributions: np.ndarray) -> np.ndarray:
    """The sizes of entries that are small beside the largest one of their column; else zero.

    >>> small_entries(np.array([[1.0, 1e-13], [1e-13, 1e-13]])).tolist()
    [[0.0, 0.0], [1e-13, 0.0]]
    """
    size = np.abs(contributions)
    return np.where(size <= size.max(axis=0, initial=0.0) * CUT, size, 0.0)


def is_hidden(small: np.ndarray, size: np.ndarray, sure: np.ndarray) -> np.ndarray:
    """Whether a small part of what was added up is lost in the rest, and nothing surely shown."""
    return (small > 0) & (small <= size * CUT) & ~sure


def _small(A: csr_array, B: csr_array) -> csr_array:
    """Small entries of A, but in columns that one source of noise has throughout as they are.

    There each small entry stands behind a small part of the source, and the two cancel together.
    """
    from scipy.sparse import csr_array, diags_array

    none = csr_array(A.shape)
    if not A.nnz:
        return none
    # Entries that are small beside the largest one of their column.
    columns = np.asarray(abs(A).max(axis=0).toarray(), dtype=float).ravel()
    held = A.tocoo()
    is_small = abs(held.data) <= columns[held.coords[1]] * CUT
    if not is_small.any():
        return none
    at = tuple(of[is_small] for of in held.coords)
    T = csr_array((abs(held.data[is_small]), at), shape=A.shape)
    # Sources of noise by the rows that they enter.
    by_source, by_column = B.tocsc(), A.tocsc()
    by_source.sort_indices()
    by_column.sort_indices()
    sources = dict[bytes, list[int]]()
    for z in range(B.shape[1]):
        rows = by_source.indices[by_source.indptr[z] : by_source.indptr[z + 1]]
        sources.setdefault(rows.astype(np.int64).tobytes(), []).append(z)
    # A column that is a multiple of a source in the same rows cancels with it as a whole.
    kept = np.ones(A.shape[1])
    for c in np.unique(at[1]).tolist():
        span = slice(by_column.indptr[c], by_column.indptr[c + 1])
        values = by_column.data[span]
        for z in sources.get(by_column.indices[span].astype(np.int64).tobytes(), ()):
            share = values / by_source.data[by_source.indptr[z] : by_source.indptr[z + 1]]
            if np.ptp(share) <= abs(share).max() * ROUNDING:
                kept[c] = 0.0
                break
    T = csr_array(T @ diags_array(kept).tocsr())
    T.eliminate_zeros()
    return T


def _square_sums(matrix: csr_array) -> np.ndarray:
    return np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()


def _largest(matrix: csr_array) -> np.ndarray:
    """The largest entry of each row, in absolute value."""
    if 0 in matrix.shape:
        return np.zeros(matrix.shape[0])
    return np.asarray(abs(matrix).max(axis=1).toarray(), dtype=float).ravel()


def without_rounding(response: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Entries, zero where they are no more than rounding of what was added up for them."""
    return np.where(abs(response) > size * ROUNDING, response, 0.0)


def compressed(noise: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The same covariance over as few sources as there are rows; a remnant of rounding is none.

    Args:
        noise: (rows, sources) what is left of the noise of each row.
        before: (rows,) its norm before something was taken away.
    """
    left = np.where(abs(noise) > before[:, None] * ROUNDING, noise, 0.0)
    left = left[:, np.any(left != 0.0, axis=0)]
    if left.shape[1] <= _SOURCES_A_ROW * len(left):
        return left
    triangle: np.ndarray = np.linalg.qr(left.T).R  # (rows, rows)
    return triangle.T


_END = "at the end of the round"
_FINAL = re.compile(r"final (?:model|field (\w+)), row \d+")
_SENT = (" of agent ", " of the server")


def final_row(row: int, field: str | None = None) -> str:
    """What is released after the last round: a model, or a row of another field of the state.

    >>> final_row(1), final_row(1, "v")
    ('final model, row 1', 'final field v, row 1')
    """
    return f"final {'model' if field is None else f'field {field}'}, row {row}"


def in_round(name: str, number: int) -> str:
    """What was sent or kept in a round, which is the start where the number is 0.

    >>> in_round("model of agent 0 to 1, 3", 2)
    'model of agent 0 to 1, 3 in round 2'
    >>> in_round("state x at the end of the round, row 1", 0)
    'state x after the start, row 1'
    """
    if _FINAL.fullmatch(name):
        return name
    if _END in name:
        return name.replace(_END, f"at the end of round {number}" if number else "after the start")
    return f"{name} in round {number}" if number else f"{name} at the start"


def leak_sentence(messages: Sequence[str]) -> str:
    """What is shown without noise: one message alone, or several whose noise cancels.

    Args:
        messages: their names, in the order of sending.

    >>> leak_sentence(["first of agent 0 in round 1", "second of agent 0 in round 2"])[:71]
    'the noise cancels between: first of agent 0 in round 1, which showed it'
    >>> leak_sentence(["final field v, row 0"]).split("; ")[1].split(":")[0]
    'the field v counts as released after the last round'
    """
    first, *others = messages
    ends = (_FINAL.fullmatch(name) for name in messages)
    field = next((end[1] for end in ends if end is not None and end[1] is not None), None)
    remedy = (
        ""
        if field is None
        else f"; the field {field} counts as released after the last round: where it never leaves "
        f"its agent, declare released=(...), with the fields that do, and without {field!r}"
    )
    if not others:
        return f"sent or kept without noise that the adversary does not know: {first}{remedy}"
    if any(sender in first for sender in _SENT):
        first += ", which showed it"
    return f"the noise cancels between: {'; '.join((first, *others))}{remedy}"
