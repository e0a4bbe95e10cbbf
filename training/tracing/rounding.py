"""Public values beside which data are rounded before all of their noise came in.

In floats fl(c s + x) is no clipped sum and a public value any more: what rounding took is a
function of the data, and noise that comes in later must be large beside it. How large x is, only a
run knows. So a trace writes down what the noise of each row is beside, and a run looks
(`step.floor`).

Rows carry their roundings along: the public columns of what was added up, in absolute value, each
time that a row which holds data or noise was rounded. When more data or noise comes into such a
row, the noise that does not enter the rounding is what hides it:

    noise comes in   its own deviation, of sources that nobody but its holder knows and that are in
                     no other row: pairs of noise that cancel over agents hide no rounding
    data comes in    that of the noise in the row. The noise was rounded to a grid, which hides the
                     low digits of the data as long as nothing made the row finer meanwhile; so
                     public values may have come in once, by one addition, and none of them left
    nothing does     that of messages of noise alone in the row, for whoever does not hear them

A run looks at that deviation alone, so no other row may hold the same noise: of x - s - z and s + z
the rounding of x - s is left, without noise. The rounding is therefore a residue, too, as large as
its noise may hide, and is followed as those of `cancellation` are.

Where data and noise meet bare, and then a public value comes in, rounding is postprocessing of what
is noised: of such rows nothing is asked, however large the value. So it is of values that count as
seen. Noise that earlier rounds remember counts as noise, not as a public value. A field of the
state that holds data without noise is data of the next round as well, rounded once in every round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...privacy.errors import UndeclaredOperation
from ..step.floor import NO_FLOOR, UNIT, Beside, Floor
from .sparse_rows import scaled_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scipy.sparse import csr_array


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
    from scipy.sparse import csr_array

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
        kinds: of the columns.

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
        kinds: of the columns.
    """
    from scipy.sparse import csr_array

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
        kinds: of the columns.
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
