"""Terms that cancel: in exact arithmetic nothing of them is left, and in floats a residue is.

A step that sends ((s + b) - b) - s, of a clipped sum s, sends 0 by its coefficients, and in
float32 what rounding lost: a function of s that no noise hides. So wherever terms cancel, what may
be left of them becomes a column of its own, beside those of the trace:

    fl(a + b) = a + b + e,   |e_i| <= u (|a|_i + |b|_i)  where |a_i + b_i| < (|a|_i + |b|_i) / 8

per coordinate, with u = 2^-24, |a|_i the sum of a row's terms and each term at its unit: a bounded
contribution its bound, a noise source its deviation, a known value 1, a message what it is made of.
A residue is followed through every later operation, as any other column is. What is made of the
residues of what an adversary sees is decided in `residue`.

| symbol | name here         | shape           | meaning                                        |
|--------|-------------------|-----------------|------------------------------------------------|
| u      | UNIT_ROUNDING     | scalar          | of float32, the coarsest arithmetic of a run   |
| e      | Cancelled         | (rows,)         | residues, one a row in which terms cancel      |
|        | Cancelled.size    | (rows,)         | the most that e may be                         |

A residue that is a function of the row's noised data is no release of its own, such as that of
((s + n) + b) - b: rounding a value that is covered by noise is postprocessing. `History` says
whether every rounding so far was of that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from ...privacy.errors import UndeclaredOperation
from ..step.floor import NO_FLOOR, UNIT, Beside, Floor
from .sparse_rows import scaled_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

# Public values beside which data are rounded before all of their noise came in.
#
# In floats fl(c s + x) is no clipped sum and a public value any more: what rounding took is a
# function of the data, and noise that comes in later must be large beside it. How large x is, only
# a run knows. So a trace writes down what the noise of each row is beside, and a run looks
# (`step.floor`).
#
# Rows carry their roundings along: the public columns of what was added up, in absolute value, each
# time that a row which holds data or noise was rounded. When more data or noise comes into such a
# row, the noise that does not enter the rounding is what hides it:
#
# noise comes in   its own deviation, of sources that nobody but its holder knows and that are in
#                       no other row: pairs of noise that cancel over agents hide no rounding
# data comes in    that of the noise in the row. The noise was rounded to a grid, which hides the
#                       low digits of the data as long as nothing made the row finer meanwhile; so
#                       public values may have come in once, by one addition, and none of them left
# nothing does     that of messages of noise alone in the row, for whoever does not hear them
#
# A run looks at that deviation alone, so no other row may hold the same noise: of x - s - z and s +
# z the rounding of x - s is left, without noise. The rounding is therefore a residue, too, as large
# as its noise may hide, and is followed as those of `cancellation` are.
#
# Where data and noise meet bare, and then a public value comes in, rounding is postprocessing of
# what is noised: of such rows nothing is asked, however large the value. So it is of values that
# count as seen. Noise that earlier rounds remember counts as noise, not as a public value. A field
# of the state that holds data without noise is data of the next round as well, rounded once in
# every round.

_ONCE = 1.0 + 1e-9  # roundings of the public values that a row holds, where there was one


class Meeting(NamedTuple):
    """Rows into which data or noise came after they were rounded.

    Attributes:
        rows: which rows of the value.
        rounded: (rows, columns) the public columns that were added up before.
        deviation: (rows,) of the noise that hides the rounding.
        own: (rows, columns) that noise, where it is one row's own; None where it is of others.
    """

    rows: np.ndarray
    rounded: csr_array
    deviation: np.ndarray
    own: csr_array | None = None


class Kinds(NamedTuple):
    """Masks of columns.

    Attributes:
        public: whose size a run measures: known values but for a history, and messages.
        data: contributions, and known values that are data which rounds carry without noise.
        noise: noise sources.
        own: sources that at most one agent knows.
        variance: of such noise in each column, and in each message of noise alone.
    """

    public: np.ndarray
    data: np.ndarray
    noise: np.ndarray
    own: np.ndarray
    variance: np.ndarray


def holds(rows: csr_array, mask: np.ndarray) -> np.ndarray:
    """(rows,) whether each has an entry, other than 0, among columns."""
    found = np.cumsum(mask[rows.indices] & (rows.data != 0))
    upto = np.concatenate([[0], found])[rows.indptr]
    return upto[1:] > upto[:-1]


def _own(rows: csr_array, kinds: Kinds) -> csr_array:
    """(rows, columns) the noise that nobody else knows and no other row of the value holds."""
    alone = np.bincount(rows.indices[rows.data != 0], minlength=rows.shape[1]) <= 1
    own = csr_array(rows.multiply((kinds.own[: rows.shape[1]] & alone).astype(float)[None, :]))
    own.eliminate_zeros()
    return own


def _squares(rows: csr_array) -> np.ndarray:
    return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()


def rounded_by(size: csr_array, roundings: np.ndarray | float, kinds: Kinds) -> csr_array | None:
    """What an addition rounds beside data or noise, by its terms in absolute value.

    Args:
        size: (rows, columns) the terms.
        roundings: (rows,) how many each row has, or one number for all.
        kinds: of the columns.

    Returns:
        (rows, columns); None where it rounds nothing.
    """
    if not kinds.public[size.indices].any():
        return None
    private = holds(size, kinds.data) | holds(size, kinds.noise)
    found = scaled_rows(np.where(private, roundings, 0.0), size, kinds.public.astype(float))
    return found if found.nnz else None


def meet(
    mine: csr_array, rounded: csr_array | None, theirs: csr_array, kinds: Kinds
) -> Meeting | None:
    """What an addition asks for what one of its two values lost to rounding before.

    Args:
        mine: (rows, columns) that value.
        theirs: (rows, columns) the other.

    Raises:
        UndeclaredOperation: data are added to noise that was rounded more than once.
    """
    if rounded is None:
        return None
    has_data, has_noise = holds(theirs, kinds.data), holds(theirs, kinds.noise)
    was = np.diff(rounded.indptr) > 0
    late = was & holds(mine, kinds.noise) & has_data & ~has_noise
    _check_once(mine, rounded, late, kinds)
    asked = (was & has_noise) | late
    if not asked.any():
        return None
    own = scaled_rows(has_noise.astype(float), _own(theirs, kinds))
    at = np.flatnonzero(asked)
    hides = (own + scaled_rows((~has_noise).astype(float), _own(mine, kinds)))[at]
    return Meeting(at, rounded[at], np.sqrt(_squares(hides)), hides)


def meet_in_sums(
    weights: csr_array, rows: csr_array, rounded: csr_array, kinds: Kinds
) -> list[Meeting]:
    """What sums of a value's rows ask for, such as a mean over agents: the noise of other rows.

    Args:
        weights: (sums, rows) public.
    """
    noisy = holds(rows, kinds.noise)
    several = np.asarray((weights != 0) @ noisy.astype(float)) > 1
    if not several.any():
        return []
    squares = csr_array(weights.multiply(weights) * _squares(_own(rows, kinds))[None, :])
    largest = squares.max(axis=1).toarray().ravel()
    others = np.sqrt(np.maximum(np.asarray(squares.sum(axis=1)).ravel() - largest, 0.0))
    return [_meeting(csr_array(abs(weights) @ rounded), others, several)]


def leave(rows: csr_array, rounded: csr_array, kinds: Kinds) -> list[Meeting]:
    """What rows ask for that leave, or are kept, with no noise but shares that were received."""
    received = np.sqrt(np.asarray(rows.multiply(rows) @ kinds.variance[: rows.shape[1]]))
    bare = holds(rows, kinds.data) & ~holds(rows, kinds.noise) & (np.diff(rounded.indptr) > 0)
    asked = bare & (received > 0)
    return [_meeting(rounded, received, asked)] if asked.any() else []


def _meeting(rounded: csr_array, deviation: np.ndarray, asked: np.ndarray) -> Meeting:
    at = np.flatnonzero(asked)
    return Meeting(at, rounded[at], deviation[at])


def _check_once(mine: csr_array, rounded: csr_array, late: np.ndarray, kinds: Kinds) -> None:
    """Refuse data that come to noise which was rounded more than once, or whose values left."""
    if not late.any():
        return
    public = kinds.public[: mine.shape[1]].astype(float)
    held = np.asarray(abs(mine) @ public)
    before = np.asarray(rounded.sum(axis=1)).ravel()
    wrong = np.flatnonzero(late & (before > held * _ONCE))
    if len(wrong):
        raise UndeclaredOperation(
            f"row {int(wrong[0])}: data are added to noise that was rounded beside other values "
            "more than once, whose last digits the run's floats do not hold any more; add the "
            "noise to the clipped sum first, and other terms after"
        )


def floor_of(
    meetings: Sequence[Meeting],
    contents: Sequence[tuple[int, str | csr_array]],
    units: np.ndarray,
    kinds: Kinds,
) -> Floor:
    """The floor of a round, by the names of its public values.

    Args:
        meetings: what its operations ask for.
        contents: of each group of public columns the first and its name, or of messages what they
            hold; in the order of the columns.
        units: (columns,) the size of each column.
    """
    if not meetings:
        return NO_FLOOR
    # What public columns are made of, by name; of messages it is what they hold.
    names = sorted({UNIT, *(held for _, held in contents if isinstance(held, str))})
    made = np.zeros((len(units), len(names)))
    private = np.isfinite(units) & (kinds.data | kinds.noise) & ~kinds.public
    made[private, names.index(UNIT)] = units[private]
    ends = [*(start for start, _ in contents[1:]), len(units)]
    for (start, held), end in zip(contents, ends, strict=True):
        if isinstance(held, str):
            at = start + np.flatnonzero(kinds.public[start:end])
            made[at, names.index(held)] = 1.0
        else:
            made[start : start + held.shape[0]] = abs(held) @ made[: held.shape[1]]
    # Of each name the row whose noise is smallest beside it.
    worst: dict[str, Beside] = {}
    for meeting in meetings:
        sizes = np.asarray(meeting.rounded @ made[: meeting.rounded.shape[1]])
        for row, name in zip(*(axis.tolist() for axis in np.nonzero(sizes)), strict=True):
            found = Beside(names[name], float(sizes[row, name]), float(meeting.deviation[row]))
            known = worst.get(found.what)
            if known is None or found.mu_lost(1.0, eps=1.0) > known.mu_lost(1.0, eps=1.0):
                worst[found.what] = found
    return Floor(tuple(worst[name] for name in sorted(worst)))


UNIT_ROUNDING = 2.0**-24
MOST_SHOWN = 1e-3  # of mu, that a residue may add
CANCELS = 8.0  # terms this often as large as their sum cancel
_ABSORBED = 2.0**-20  # noise below this share of what it is added to is rounded away


class History(NamedTuple):
    """How rows came about.

    Attributes:
        data: whether they may hold contributions.
        noise: whether they may hold noise.
        added: whether they were rounded, as sums are.
        early: whether some sum with data in it was rounded before the last of their data and noise
            came in.
        bare: whether some sum with data and without noise was rounded: its low digits are a
            function of clean data, whatever noise comes in later.
    """

    data: bool = False
    noise: bool = False
    added: bool = False
    early: bool = False
    bare: bool = False

    @property
    def private(self) -> bool:
        """Whether the rows may hold anything that is not public."""
        return self.data or self.noise

    def plus(self, other: History) -> History:
        """That of a sum."""
        late = self.private and other.private
        rounded = (self.data and self.added) or (other.data and other.added)
        data = self.data or other.data
        return History(
            data,
            self.noise or other.noise,
            True,
            self.early or other.early or (late and rounded),
            self.bare or other.bare or (data and not (self.noise or other.noise)),
        )


class Noised:
    """Rows in which clean data met noise that nothing else holds, as they were rounded then.

    Whatever is made of them and of known values is a function of these very floats. As long as
    each value that led the noise here was used once, no other value holds it, and so none shows
    what these lost when they were rounded.

    Attributes:
        uses: of each value of noise alone that led to them, how often it was used.
        matrix: (rows, columns) what they hold.
    """

    __slots__ = ("matrix", "uses")

    def __init__(self, uses: tuple[list[int], ...], matrix: csr_array) -> None:
        self.uses, self.matrix = uses, matrix

    @property
    def alone(self) -> bool:
        """Whether nothing else holds their noise."""
        return all(len(use) <= 1 for use in self.uses)


class Origin(NamedTuple):
    """What rows are functions of.

    Attributes:
        noised: rows of data under noise, beside known values; None where they are of anything else.
        uses: of rows of noise alone, a list for each value on their way that grows by its uses.
    """

    noised: frozenset[Noised] | None = None
    uses: tuple[list[int], ...] = ()

    def used(self) -> Origin:
        """That of rows made of these alone."""
        if not self.uses:
            return self
        self.uses[-1].append(1)
        return Origin(None, (*self.uses, []))

    def plus(self, other: Origin) -> Origin:
        """That of a sum, but for one in which data meet noise."""
        for one in (self, other):
            one.used()
        if self.noised is None or other.noised is None:
            alone = self.uses if other.noised == frozenset() else ()
            alone = other.uses if self.noised == frozenset() else alone
            return Origin(None, (*alone, []) if alone else ())
        return Origin(self.noised | other.noised)


PUBLIC = Origin(frozenset())  # of known values
OTHER = Origin()


class Cancelled(NamedTuple):
    """Residues of one operation, one a row.

    Attributes:
        start: the first of their columns, among residues.
        size: (rows,) the most that each may be, in coordinates' units; 0 where nothing cancels.
        reach: (rows, columns) where what was added up has entries: what a residue is made of.
        covered: (rows, columns) the noised rows of which the residues are functions; None where
            there are no such.
        operands: what was added up, each (rows, columns); none where it is not kept.
        noised: the noised rows that all of it is a function of; None where it is of others, too.
        late: (rows, columns) the noise that came into a row after it was rounded, and alone hides
            the residue; see `rounding`. None of what cancels.
    """

    start: int
    size: np.ndarray
    reach: csr_array
    covered: csr_array | None
    operands: tuple[csr_array, ...] = ()
    noised: frozenset[Noised] | None = None
    late: csr_array | None = None


class Columns:
    """The units of the columns of a round, and what cancelled in them.

    Args:
        of_table: makes rows of a public table, in a block.
    """

    def __init__(self, of_table: Callable[[Tensor, int], Any]) -> None:
        self.of_table = of_table
        self.cancelled: list[Cancelled] = []
        self.residues = 0
        self.meetings: list[Meeting] = []
        self._parts: list[tuple[np.ndarray, ...]] = []
        self.add(np.zeros(0))

    def add(
        self,
        units: np.ndarray,
        *,
        known: bool = False,
        public: bool = False,
        secret: bool = False,
        own: np.ndarray | None = None,
        variance: np.ndarray | None = None,
    ) -> None:
        """Note new columns: the size of each in every coordinate, as far as it is known.

        Args:
            units: (columns,) these sizes.
            known: whether they are known values.
            public: whether they are released, as known values but for a history are, and messages.
            secret: whether they hold data that earlier rounds carried without noise.
            own: of noise sources, whether at most one agent knows each.
            variance: of messages, of such noise in each that holds noise alone.
        """
        masks = (np.full(len(units), of) for of in (known, own is not None, public, secret))
        mine = np.zeros(len(units), dtype=bool) if own is None else own
        shares = mine.astype(float) if variance is None else variance
        self._parts.append((units, *masks, mine, shares))

    def _joined(self) -> tuple[np.ndarray, ...]:
        """Units; masks: known, noise, public, secret, own noise; variances."""
        if len(self._parts) > 1:
            self._parts = [tuple(map(np.concatenate, zip(*self._parts, strict=True)))]
        return self._parts[0]

    @property
    def units(self) -> np.ndarray:
        """(columns,) the size of each."""
        return self._joined()[0]

    @property
    def kinds(self) -> Kinds:
        """Masks of the columns by what they are."""
        _, known, noise, public, secret, own, variance = self._joined()
        return Kinds(public, ~(public | noise | known) | secret, noise, own, variance)

    def sizes(self, rows: csr_array) -> np.ndarray:
        """(rows,) the sum of a row's terms, each at its unit."""
        units = self.units[: rows.shape[1]]
        endless = np.isinf(units)
        size = np.asarray(abs(rows) @ np.where(endless, 0.0, units))
        return np.where(holds(rows, endless), np.inf, size)

    def note(
        self,
        matrix: csr_array,
        lost: csr_array,
        size: csr_array,
        history: History,
        *,
        operands: tuple[csr_array, ...] = (),
        noised: frozenset[Noised] | None = None,
    ) -> int:
        """Note what cancelled in an operation; the column of its first residue.

        Args:
            matrix: (rows, columns) the sum.
            lost: (rows, columns) the terms that cancel, added up in absolute value.
            size: the same of all terms.
            history: of the sum.
            operands: the rows that were added up; of no use where clean data was rounded first.
            noised: the noised rows that these are functions of.
        """
        start, private = self.residues, ~self._joined()[1][: matrix.shape[1]]
        # A function of noised data: nothing but known values cancels, and each row has noise.
        covered = csr_array(matrix.multiply(private.astype(float)[None, :]))
        has_noise = np.asarray(abs(matrix) @ self.kinds.noise[: matrix.shape[1]].astype(float)) > 0
        touched = np.diff(lost.indptr) > 0
        is_late = not history.early and not private[lost.indices].any()
        self.cancelled.append(
            Cancelled(
                start,
                UNIT_ROUNDING * self.sizes(lost),
                size,
                covered if is_late and has_noise[touched].all() else None,
                () if history.bare else operands,
                noised,
            )
        )
        self.residues += matrix.shape[0]
        return start

    def note_late(
        self, meeting: Meeting, size: csr_array, *, noised: frozenset[Noised] | None = None
    ) -> csr_array | None:
        """Note roundings that noise came after, each as large as the noise it counts on may hide.

        Args:
            meeting: of some rows.
            size: (rows, columns) all terms of the sum, in absolute value.
            noised: the noised rows that the rounded value is a function of.

        Returns:
            (rows, residues) of the sum; None where a run looks at no noise of a row's own.
        """
        hidden = meeting.deviation > 0
        self.meetings.append(meeting)
        if meeting.own is None or not hidden.any():
            return None
        rows, start = meeting.rows[hidden], self.residues
        most = MOST_SHOWN * meeting.deviation[hidden] * (1.0 - 1e-6)
        late = meeting.own[hidden]
        self.cancelled.append(Cancelled(start, most, size[rows], None, noised=noised, late=late))
        self.residues += len(rows)
        at = (rows, start + np.arange(len(rows)))
        return csr_array((np.ones(len(rows)), at), shape=(size.shape[0], self.residues))

    def check_absorbed(self, noise: csr_array, other: csr_array) -> None:
        """Refuse noise that rounding loses in what it is added to.

        Args:
            noise: (rows, columns) rows that hold the noise.
            other: rows of data without noise.

        Raises:
            UndeclaredOperation: it does.
        """
        self._check_hidden(
            noise,
            other,
            "is added to data and known values of size {:.3g}, in whose float32 rounding it is "
            "lost; add the noise to the clipped sum first, before other terms, and scale both "
            "alike",
        )

    def check_left(self, rows: csr_array, lost: csr_array) -> None:
        """Refuse noise that rounding lost in terms that cancel, such as (b + z) - b of a large b.

        Args:
            rows: (rows, columns) what is left.

        Raises:
            UndeclaredOperation: it did.
        """
        self._check_hidden(
            rows,
            lost,
            "is left of terms of size {:.3g} that cancel, in whose float32 rounding it is lost; "
            "leave the terms that cancel out of the step",
        )

    def _check_hidden(self, noise: csr_array, beside: csr_array, said: str) -> None:
        """Refuse rows whose noise is below the rounding of the terms beside it."""
        sources = self.kinds.noise[: noise.shape[1]].astype(float)
        deviation = np.sqrt(np.asarray((noise * noise) @ sources))
        size = self.sizes(beside)
        lost = (deviation > 0) & np.isfinite(size) & (deviation < _ABSORBED * size)
        if lost.any():
            row = int(np.flatnonzero(lost)[0])
            raise UndeclaredOperation(
                f"row {row}: noise of deviation {deviation[row]:.3g} {said.format(size[row])}"
            )


def cancelled_terms(matrix: csr_array, size: csr_array) -> csr_array | None:
    """Entries of `size`, terms added up in absolute value, that the sum has an eighth of at most.

    None where there is none, which takes one pass over the entries.
    """
    if matrix.nnz == size.nnz and np.array_equal(matrix.indices, size.indices):
        small = np.abs(matrix.data) * CANCELS <= size.data
        if not small.any():
            return None
    lost = csr_array(size - size.multiply(abs(matrix) * CANCELS > size))
    lost.eliminate_zeros()
    return lost if lost.nnz else None
