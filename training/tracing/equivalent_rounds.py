"""Rounds that repeat an earlier one, exactly or but for how much noise there is.

A schedule of clip bounds, noise or learning rates makes every round a round of its own, and yet
their views differ by two numbers alone:

    other = base  with every bound times c, every noise coefficient times s,
                  and each row that is seen or sent times a public number r of its own

Scaling a seen row tells nobody more or less, and mu^2 = b^T G^T (N N^T)^+ G b is homogeneous in
the bounds b and in the noise N, so that mu of `other` is c / s times mu of `base` for every
adversary and every victim. Columns of known values enter no view; whether they agree is left open.
What was sent is a column of its own: where it is r times that of the base, a row that refers to it
has its coefficient times (the row's own number) / r, and where all that it holds is known, so is
it. Rounds are taken so only where nothing cancelled in them, since what rounding leaves need not
follow r.

| symbol | name here    | shape  | meaning                                                |
|--------|--------------|--------|--------------------------------------------------------|
| c      | `_bounds_ratio` | scalar | bounds of the other round over those of the base       |
| s      | `_noise_ratio`  | scalar | noise coefficients likewise, in rows of the same scale |
| r      | `_Scales`    | (rows,) | rows of the other round over those of the base        |

Coefficients that agree up to the rounding of a few products count as equal, as in the trace itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .linear_forms import Contributions, Group, Known, Messages, NoiseSources
from .record import RoundRecord

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..graphs.graph import Graph
    from .round_trace import RoundTrace


_ROUNDING = 16 * np.finfo(float).eps


def is_equivalent(base: RoundRecord, other: RoundRecord) -> bool:
    """Whether two rounds are the same, in every column, message, seen row and end state."""
    if _layout(base) != _layout(other) or not np.array_equal(_bounds(base), _bounds(other)):
        return False
    if not _same_residues(base, other):
        return False
    pairs = zip(_matrices(base), _matrices(other), strict=True)
    return all(_same_matrix(a, b) for (_, a), (_, b) in pairs)


def scale_between(base: RoundRecord, other: RoundRecord) -> float | None:
    """The number by which mu of `other` is mu of `base`, for every adversary and victim.

    Returns:
        c / s, or None where the rounds differ by more than a scale.
    """
    if _layout(base) != _layout(other):
        return None
    # c from the bounds, and entries at the same places in every matrix.
    bounds = _bounds_ratio(base, other)
    pairs = list(zip(_private_rows(base), _private_rows(other), strict=True))
    if bounds is None or not all(a.same_places(b) for a, b in pairs):
        return None
    # s from one row, and then every row has to agree with it.
    noise = _noise_ratio(pairs)
    if all(a.is_scaled_to(b, noise) for a, b in pairs):
        return bounds / noise
    # The same where what is sent has a scale, too.
    if any(c.late is None for c in (*base.cancelled, *other.cancelled)):
        return None
    noise = _noise_ratio(pairs, messages_scaled=True)
    scales = _Scales(sum(group.size for group in base.groups), noise=noise)
    if not all(scales.agree(a, b) for a, b in pairs):
        return None
    factor = bounds / scales.noise
    return 1.0 if abs(factor - 1.0) <= _ROUNDING else factor


class EarlierRounds:
    """For each graph the traced round to which later ones are compared."""

    def __init__(self) -> None:
        self._latest: dict[Graph, RoundTrace] = {}  # the last that was none of an earlier one's

    def matched(self, one: RoundTrace, graph: Graph) -> RoundTrace:
        """The round itself, with `scale_of` set where it has one, or the one that it repeats."""
        base = self._latest.setdefault(graph, one)
        if base is one:
            return one
        if is_equivalent(base.record, one.record):
            return base
        factor = scale_between(base.record, one.record)
        if factor is None:
            self._latest[graph] = one
        else:
            one.scale_of = (base, factor)
        return one


class _PrivateRows(NamedTuple):
    """The entries of a matrix outside of known columns.

    Attributes:
        row, column, value: (entries,) of each.
        is_noise: (entries,) whether the column is a noise source.
        rows: the number of rows.
        sent: of messages the first of their columns; None of other rows.
    """

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    value: NDArray[np.float64]
    is_noise: NDArray[np.bool_]
    rows: int
    sent: int | None

    @property
    def fixed(self) -> bool:
        """Whether the rows are messages."""
        return self.sent is not None

    def same_places(self, other: _PrivateRows) -> bool:
        """Whether both have their entries at the same places, zero in the same ones."""
        return (
            np.array_equal(self.row, other.row)
            and np.array_equal(self.column, other.column)
            and np.array_equal(self.value == 0, other.value == 0)
        )

    def ratios(self, other: _PrivateRows) -> NDArray[np.float64]:
        """(entries,) other over self; 1 where both are zero."""
        return np.divide(
            other.value, self.value, out=np.ones_like(self.value), where=self.value != 0
        )

    def scales(self, other: _PrivateRows, noise: float) -> NDArray[np.float64]:
        """(rows,) the number by which each row of `other` is that of self."""
        found = np.ones(self.rows)
        if not self.fixed:
            ratios = self.ratios(other) / np.where(self.is_noise, noise, 1.0)
            found[self.row[::-1]] = ratios[::-1]  # the first entry of a row decides
        return found

    def is_scaled_to(self, other: _PrivateRows, noise: float) -> bool:
        """Whether `other` is self with its rows and its noise columns scaled."""
        scales = self.scales(other, noise)
        by = scales[self.row] * np.where(self.is_noise, noise, 1.0)
        expected = self.value * by
        close = np.abs(other.value - expected) <= _ROUNDING * np.abs(expected)
        return bool(close.all() and np.isfinite(scales).all() and (scales != 0).all())


class _Scales:
    """By what rows and columns of another round are those of the base.

    Args:
        noise: s.
    """

    def __init__(self, width: int, *, noise: float) -> None:
        self.noise = noise
        self._columns = np.ones(width)  # of messages that were passed
        self._known = np.zeros(width, dtype=bool)  # of messages whether all in them is known

    def agree(self, one: _PrivateRows, two: _PrivateRows) -> bool:
        """Whether `two` is `one` with its rows scaled; of messages notes by what."""
        by_column = np.where(one.is_noise, self.noise, 1.0) / self._columns[one.column]
        held = np.flatnonzero((one.value != 0) & ~self._known[one.column])
        ratios = one.ratios(two)[held] / by_column[held]
        rows, empty = np.ones(one.rows), np.ones(one.rows, dtype=bool)
        rows[one.row[held[::-1]]] = ratios[::-1]  # the first entry of a row decides
        empty[one.row[held]] = False
        expected = (one.value * rows[one.row] * by_column)[held]
        close = np.abs(two.value[held] - expected) <= _ROUNDING * np.abs(expected)
        if not (close.all() and np.isfinite(rows).all() and (rows != 0).all()):
            return False
        if one.sent is not None:
            self._columns[one.sent : one.sent + one.rows] = rows
            self._known[one.sent : one.sent + one.rows] = empty
        return True


def _bounds_ratio(base: RoundRecord, other: RoundRecord) -> float | None:
    """c, or None where the bounds are not in one proportion."""
    one, two = _bounds(base), _bounds(other)
    finite = np.isfinite(one) & (one > 0)
    if not np.array_equal(finite, np.isfinite(two) & (two > 0)):
        return None
    if not np.array_equal(one[~finite], two[~finite]):  # unclipped, or bounded by nothing
        return None
    ratios = two[finite] / one[finite]
    if not ratios.size:
        return 1.0
    first = float(ratios[0])
    return first if np.all(np.abs(ratios - first) <= _ROUNDING * first) else None


def _noise_ratio(
    pairs: list[tuple[_PrivateRows, _PrivateRows]], *, messages_scaled: bool = False
) -> float:
    """s, from a row whose scale is known; 1 where no noise is.

    Where messages are scaled, too, it is known of a row that holds noise beside a contribution or a
    message. A row with a message takes part only if that one is not scaled, which `_Scales` sees.
    """
    for one, two in pairs:
        fixed = one.fixed and not messages_scaled
        # The scale of a row: 1 of a message, and of another what its first entry beside noise says.
        ratios, held = one.ratios(two), one.value != 0
        scale = np.ones(one.rows) if fixed else np.full(one.rows, math.nan)
        plain = np.flatnonzero(held & ~one.is_noise)
        if not fixed:
            scale[one.row[plain[::-1]]] = ratios[plain[::-1]]
        # In a row of known scale the first entry of noise gives s.
        noisy = np.flatnonzero(held & one.is_noise & np.isfinite(scale[one.row]))
        if len(noisy):
            return abs(float(ratios[noisy[0]] / scale[one.row[noisy[0]]]))
    return 1.0


def _layout(record: RoundRecord) -> list[Any]:
    """Everything about a round but numbers: columns, owners, knowers, senders, links, reasons."""
    return [
        *(_column_layout(group) for group in record.groups),
        *(what for what, _ in record.closure),
        *record.end_state,
        *record.blames,
        record.agents,
    ]


def _column_layout(group: Group) -> tuple[Any, ...]:
    if isinstance(group, Contributions):
        drawn = (group.batch, group.drawn, group.users, group.cohort, group.first_vector)
        own = (group.block, group.blame, group.reach, group.owners.tobytes())
        return (Contributions, *own, *drawn)
    if isinstance(group, NoiseSources):
        return (NoiseSources, group.block, tuple(group.known_to))
    if isinstance(group, Known):
        return (Known, group.block, group.size, group.what)
    return (Messages, group.block, group.kind, group.senders.tobytes(), group.links.tobytes())


def _matrices(record: RoundRecord) -> Iterator[tuple[int | None, csr_array]]:
    """Every matrix of a round; of messages with their first column."""
    for group in record.groups:
        if isinstance(group, Messages):
            yield group.start, group.rows
    for _, rows in record.closure:
        yield None, rows
    for rows in record.end_state.values():
        yield None, rows


def _private_rows(record: RoundRecord) -> Iterator[_PrivateRows]:
    """Every matrix of a round without its known columns, in the order of `_matrices`."""
    width = sum(group.size for group in record.groups)
    known, noise = np.zeros(width, dtype=bool), np.zeros(width, dtype=bool)
    for group in record.groups:
        if isinstance(group, Known | NoiseSources):
            mask = known if isinstance(group, Known) else noise
            mask[group.start : group.start + group.size] = True
    # Entries in the order of rows and columns, so that those of two rounds can be paired.
    for sent, matrix in _matrices(record):
        matrix.sort_indices()
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        kept = ~known[matrix.indices]
        column = matrix.indices[kept]
        yield _PrivateRows(
            row[kept], column, matrix.data[kept], noise[column], matrix.shape[0], sent
        )


def _bounds(record: RoundRecord) -> NDArray[np.float64]:
    parts = [group.bounds for group in record.groups if isinstance(group, Contributions)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _same_residues(base: RoundRecord, other: RoundRecord) -> bool:
    """Whether rounding may leave the same in both."""
    if len(base.cancelled) != len(other.cancelled):
        return False
    pairs = zip(base.cancelled, other.cancelled, strict=True)
    if not all(np.array_equal(a.size, b.size) for a, b in pairs):
        return False
    one, two = (
        [*r.residues, *(g.residue for g in r.groups if isinstance(g, Messages))]
        for r in (base, other)
    )
    return all(
        a is b or (a is not None and b is not None and _same_matrix(a, b))
        for a, b in zip(one, two, strict=True)
    )


def _same_matrix(one: csr_array, two: csr_array) -> bool:
    one.sort_indices()
    two.sort_indices()
    parts = ((one.indptr, two.indptr), (one.indices, two.indices), (one.data, two.data))
    return one.shape == two.shape and all(np.array_equal(a, b) for a, b in parts)
