"""Linear forms: what a value is made of when a step runs on symbols instead of tensors.

A form is a row of coefficients over the columns of a trace. Columns are of four kinds:
contributions (a clipped sum, or a bounded function of one), noise sources, known values (public,
or functions of what is seen), and messages (what was sent becomes a column of its own, to which
later rows refer; a broadcast is one column with its receivers).

Every column belongs to one block of coordinates. Parameters are block 0; further variables of a
min-max problem are blocks of their own, and no row holds columns of two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from ...privacy.batches.sampling import Per
from ...privacy.errors import UndeclaredOperation
from ...privacy.participation import Draws, Reach
from ..step.operations import PublicNumbers
from ..step.values import REMEDY, SERVER
from . import cancellation
from .sparse_rows import added, diagonal, pruned, scaled_rows, stacked, widened

Change = Callable[[csr_array], csr_array]  # of one part of rows
_COEFFICIENTS = (2.0**-80, 2.0**80)  # what float32 holds, with room for small and large values


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """Columns of data-dependent vectors: owner, bound on their norm, and batch of each.

    Column i is the part in `block` of the clipped vector number `first_vector + i`; groups of
    several blocks that name the same vectors hold parts of one vector, and the bound is the whole
    vector's. `reach` says whether the vector is known to stay in a ball whose radius is half of
    the bound, whatever the record is; that it moves by no more than the bound is always so.
    `draws` says which batches the record may be in where that is not the one batch at
    `sampling_rate`, and `cohort` the call that drew who takes part, where not everybody does.
    `users` says what was drawn, records or whole users, where the sum of each user is clipped.
    `scaled` says whether vectors are divided by a number that is seen before they are clipped, or
    clipped in parts.
    """

    start: int
    owners: np.ndarray
    bounds: np.ndarray
    batch: int
    sampling_rate: float | None
    first_vector: int
    blame: str | None = None
    block: int = 0
    reach: Reach = Reach.SUM
    draws: Draws | None = None
    cohort: int | None = None
    users: Per | None = None
    scaled: bool = False

    @property
    def size(self) -> int:
        """The number of columns."""
        return len(self.owners)

    @property
    def drawn(self) -> Draws:
        """How a record takes part."""
        return Draws((self.sampling_rate,)) if self.draws is None else self.draws


@dataclass(frozen=True, kw_only=True)
class NoiseSources:
    """Columns of independent standard normal vectors, and who knows each."""

    start: int
    known_to: Sequence[frozenset[int]]
    block: int = 0

    @property
    def size(self) -> int:
        """The number of columns."""
        return len(self.known_to)


@dataclass(frozen=True, kw_only=True)
class Known:
    """Columns of values that the closure counts as known.

    `inputs` are the private values that a function made them of, as rows with the position of the
    column that each row enters; none where they come from outside the round. Of a `history` they
    are noise that the rounds before remember, which counts as known within its round alone. Of a
    public `table` (rows, w) the trace has the numbers, too; of random numbers that are `public`
    what they are drawn from. `secret_rounds` is not 0 where they are data that so many rounds may
    have carried without noise.
    """

    start: int
    size: int
    what: str
    block: int = 0
    inputs: Sequence[tuple[csr_array, np.ndarray]] = ()
    history: bool = False
    secret_rounds: int = 0
    table: Tensor | None = field(default=None, compare=False)
    public: PublicNumbers | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Columns of what was sent: its definition over earlier columns, sender, receivers.

    `links` holds (message, receiver) pairs of those that cross a link; a value that an agent keeps
    for itself is in none. The server is sender or receiver -1. `residue` is what rounding may have
    left in them, over the residues of `cancellation`; None where nothing cancelled.
    """

    start: int
    kind: str
    rows: csr_array
    senders: np.ndarray
    links: np.ndarray
    block: int = 0
    residue: csr_array | None = None

    @property
    def size(self) -> int:
        """The number of columns."""
        return len(self.senders)

    @property
    def crossing(self) -> np.ndarray:
        """A mask of the messages that cross at least one link."""
        mask = np.zeros(self.size, dtype=bool)
        mask[self.links[:, 0]] = True
        return mask

    @property
    def ends(self) -> np.ndarray:
        """(size, 2): who sends each message, and who alone receives it, or -1."""
        found = np.stack([self.senders, np.full(self.size, -1)], axis=1)
        found[self.links[:, 0], 1] = self.links[:, 1]
        found[np.bincount(self.links[:, 0], minlength=self.size) > 1, 1] = -1
        return found

    def seen_by(self, agents: frozenset[int]) -> np.ndarray:
        """A mask of the messages sent to or by one of `agents`."""
        mask = np.isin(self.senders, list(agents)) & self.crossing
        mask[self.links[np.isin(self.links[:, 1], list(agents)), 0]] = True
        return mask

    def name(self, row: int) -> str:
        """The message in words."""
        to = sorted(self.links[self.links[:, 0] == row, 1].tolist())
        some = ", ".join("the server" if r == SERVER else str(r) for r in to[:4])
        sender = self.senders[row]
        by = "the server" if sender == SERVER else f"agent {sender}"
        return f"{self.kind} of {by}" + (f" to {some}{', ...' * (len(to) > 4)}" if to else "")


Group = Contributions | NoiseSources | Known | Messages


class LinearForms:
    """Rows of coefficients over the columns of one trace; linear operations only.

    `made_by` is what their round knows of its columns: those of another round mean something else.
    `block` is the block of coordinates that all their columns belong to. `residue` holds what
    rounding may have left, over the residues of `cancellation`; None where nothing cancelled.
    `rounded` holds the public columns beside which data or noise were rounded; see `cancellation`.
    What is `seen` counts as seen by everybody, as it was rounded.
    """

    __slots__ = ("block", "history", "made_by", "matrix", "origin", "residue", "rounded", "seen")

    def __init__(
        self,
        matrix: csr_array,
        made_by: cancellation.Columns,
        block: int = 0,
        *,
        history: cancellation.History,
        residue: csr_array | None = None,
        rounded: csr_array | None = None,
        origin: cancellation.Origin = cancellation.OTHER,
    ) -> None:
        self.matrix = matrix
        self.made_by = made_by
        self.block = block
        self.history = history
        self.residue = residue
        self.rounded = rounded
        self.seen = False
        self.origin = origin

    def _with(self, matrix: Any, residue: Any = None, rounded: Any = None) -> LinearForms:
        made = LinearForms(
            matrix if isinstance(matrix, csr_array) else csr_array(matrix),
            self.made_by,
            self.block,
            history=self.history,
            residue=None if residue is None else csr_array(residue),
            rounded=None if rounded is None else csr_array(rounded),
            origin=self.origin.used(),
        )
        made.seen = self.seen
        return made

    def _each(self, change: Change, of_sizes: Change | None = None) -> LinearForms:
        """Rows whose parts were changed alike, but for sizes."""
        parts = (self.matrix, change), (self.residue, change), (self.rounded, of_sizes or change)
        return self._with(*(None if of is None else by(of) for of, by in parts))

    @property
    def shape(self) -> tuple[int]:
        """The number of rows; how many coordinates they have is not known in a trace."""
        return (self.matrix.shape[0],)

    def of_table(self, table: Tensor) -> LinearForms:
        """A public table as rows of the same trace and block."""
        return self.made_by.of_table(table, self.block)

    def _combine(self, other: object, sign: float) -> LinearForms:
        # Only rows of one trace, of one block and as many can be added.
        if not isinstance(other, LinearForms):
            raise UndeclaredOperation(
                f"adding {type(other).__name__} to a traced value: only values that the round's "
                f"operations made can be added; {REMEDY}"
            )
        if other.made_by is not self.made_by:
            raise UndeclaredOperation(
                "adding a value of another round: carry it in the state that the step returns"
            )
        if other.block != self.block:
            raise UndeclaredOperation(
                f"adding rows of block {other.block} to rows of block {self.block}: blocks are "
                "different coordinates; combine them by round.postprocess once they are released"
            )
        if self.shape[0] != other.shape[0]:
            raise UndeclaredOperation(
                f"adding {other.shape[0]} rows to {self.shape[0]}: both need one row each"
            )
        # The later of the two may have more columns; those that the other lacks are zero.
        a = widened(self.matrix, other.matrix.shape[1])
        b = widened(other.matrix, self.matrix.shape[1])
        # Noise that meets bare data must not be lost in their rounding.
        if self.history.noise != other.history.noise:
            noisy, bare = (a, b) if self.history.noise else (b, a)
            if (other if self.history.noise else self).history.data:
                self.made_by.check_absorbed(noisy, bare)
        residue, size = added(self.residue, other.residue, sign), abs(a) + abs(b)
        # What either value lost to rounding before is late where noise or data meet it now.
        if not self.seen and not other.seen:
            signed = b if sign > 0 else -b
            for one, mine, theirs in ((self, a, signed), (other, signed, a)):
                found = cancellation.meet(mine, one.rounded, theirs, self.made_by.kinds)
                if found is not None:
                    late = self.made_by.note_late(found, size, noised=one.origin.noised)
                    residue = added(residue, late, 1.0)
        origin = self.origin.plus(other.origin)
        forms = self.summed(
            a + b if sign > 0 else a - b,
            size,
            history=self.history.plus(other.history),
            residue=residue,
            rounded=added(self.rounded, other.rounded, 1.0),
            operands=(a, b),
            origin=origin,
        )
        # Rows in which noise meets data without noise are known by both.
        for noise, data in ((self, other), (other, self)):
            if noise.origin.uses and data.history.data and not data.history.noise:
                forms.origin = cancellation.Origin(
                    frozenset({cancellation.Noised(noise.origin.uses, forms.matrix)})
                )
        return forms

    def summed(
        self,
        matrix: csr_array,
        size: csr_array,
        *,
        history: cancellation.History,
        residue: csr_array | None,
        rounded: csr_array | None,
        roundings: np.ndarray | float = 1.0,
        operands: tuple[csr_array, ...] = (),
        origin: cancellation.Origin | None = None,
    ) -> LinearForms:
        """Rows of the same trace and block, made by adding up entries of `size` in all.

        Each row has so many `roundings`.

        Raises:
            UndeclaredOperation: what is left of an entry is rounding of what was added.
        """
        # Where coefficients cancel nothing may be left but an exact zero. What rounding leaves is
        # data or noise that the exact step does not have, and a later factor could make it large.
        lost, kept = cancellation.cancelled_terms(matrix, size), matrix
        if lost is not None or kept.nnz != size.nnz:
            kept = pruned(matrix, size)
        if kept.nnz != matrix.count_nonzero():
            raise UndeclaredOperation(
                "coefficients cancel up to rounding, and a factor could bring the rest back: write "
                "the step so that they cancel exactly or not at all"
            )
        # In the run's own floats something may be left even so, or noise be lost.
        if lost is not None and history.noise:
            self.made_by.check_left(kept, lost)
        self._check_range(kept, kept.data)
        if lost is not None and history.data:
            noised = (self.origin if origin is None else origin).noised
            first = self.made_by.note(kept, lost, size, history, operands=operands, noised=noised)
            residue = added(residue, diagonal(first, lost), 1.0)
        if history.private:
            new = cancellation.rounded_by(size, roundings, self.made_by.kinds)
            rounded = added(rounded, new, 1.0)
        return LinearForms(
            kept,
            self.made_by,
            self.block,
            history=history,
            residue=residue,
            rounded=rounded,
            origin=self.origin.used() if origin is None else origin,
        )

    def __add__(self, other: object) -> LinearForms:
        return self._combine(other, 1.0)

    def __sub__(self, other: object) -> LinearForms:
        return self._combine(other, -1.0)

    def __mul__(self, factor: object) -> LinearForms:
        if isinstance(factor, int | float):
            try:
                return self._scaled(np.full(1, float(factor)))
            except OverflowError:  # an integer beyond all floats
                return self._scaled(np.full(1, math.inf))
        if isinstance(factor, Tensor):
            # A public tensor: one number for all rows, or one for each.
            by = factor.detach().cpu().double().numpy()
            if by.ndim == 0:
                return self._scaled(by.reshape(1))
            if by.shape in ((self.shape[0], 1), (1, 1)):
                return self._scaled(by[:, 0])
            raise UndeclaredOperation(
                f"scaling {self.shape[0]} rows by a tensor of shape {tuple(factor.shape)}: a "
                f"public factor is a number or one number a row, ({self.shape[0]}, 1)"
            )
        raise UndeclaredOperation(
            f"multiplying a traced value by {type(factor).__name__}: a product of two private "
            f"values is not linear; {REMEDY}"
        )

    def _scaled(self, by: np.ndarray) -> LinearForms:
        """Rows times one number, or one each."""
        if not np.isfinite(by).all():
            wrong = by[~np.isfinite(by)][0]
            raise UndeclaredOperation(
                f"scaling by {wrong}: a public factor must be a finite number; leave the term out"
            )
        if len(by) == 1:
            one = float(by[0])
            scaled = self._each(lambda of: of * one, lambda of: of * abs(one))
        else:
            scaled = self._times(by)
        # Coefficients that leave the floats of a run are data or noise that it does not have.
        self._check_range(scaled.matrix, by)
        return scaled

    def _check_range(self, matrix: csr_array, factors: np.ndarray) -> None:
        """Refuse coefficients, and what they make of their columns, that float32 does not hold."""
        used = np.abs(factors[factors != 0])
        held = np.abs(matrix.data)
        units = self.made_by.units[matrix.indices]
        units = np.where(np.isfinite(units) & (units > 0), units, 1.0)
        for sizes in (used, held[held != 0], (held * units)[held != 0]):
            least, most = sizes.min(initial=math.inf), sizes.max(initial=0.0)
            if least < _COEFFICIENTS[0] or most > _COEFFICIENTS[1]:
                wrong = least if least < _COEFFICIENTS[0] else most
                raise UndeclaredOperation(
                    f"scaling to coefficients of up to {wrong:.3g}, where float32 underflows or "
                    f"overflows: they must lie in [{_COEFFICIENTS[0]:.3g}, {_COEFFICIENTS[1]:.3g}] "
                    "or be 0; choose other units, or mix less often in a round"
                )

    def only(self, mask: np.ndarray) -> LinearForms:
        """The rows of a mask as they are; the others hold nothing."""
        return self._times(mask.astype(float))

    def _times(self, by: np.ndarray) -> LinearForms:
        """Each row times a number of its own."""
        size = np.abs(by)
        return self._each(lambda of: scaled_rows(by, of), lambda of: scaled_rows(size, of))

    def beside(self, other: LinearForms) -> LinearForms:
        """Rows of two forms of one trace of which no row is in both, so that none cancels."""
        width = max(self.matrix.shape[1], other.matrix.shape[1])
        matrix = widened(self.matrix, width) + widened(other.matrix, width)
        forms = self._with(
            matrix, added(self.residue, other.residue, 1.0), added(self.rounded, other.rounded, 1.0)
        )
        forms.history = self.history.plus(other.history)
        forms.seen = self.seen and other.seen
        forms.origin = self.origin.plus(other.origin)
        return forms

    def __getitem__(self, index: Any) -> LinearForms:
        pick = index.cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)
        return self._each(lambda of: of[pick])

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UndeclaredOperation(f".{name} of a traced value: {REMEDY}")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Refuse torch functions on a traced value."""
        del types, args, kwargs
        name = getattr(func, "__name__", str(func))
        raise UndeclaredOperation(f"torch.{name} of a traced value: {REMEDY}")


def combined(weights: Any, rows: LinearForms) -> LinearForms:
    """Public combinations of rows, weights (combinations, rows)."""
    public = csr_array(weights)
    matrix = csr_array(public @ rows.matrix)
    terms = np.diff(public.indptr)
    several, rounded = bool((terms > 1).any()), None
    if rows.rounded is not None:
        rounded = csr_array(abs(public) @ rows.rounded)
        kinds = rows.made_by.kinds
        rows.made_by.meetings += cancellation.meet_in_sums(public, rows.matrix, rows.rounded, kinds)
    return rows.summed(
        matrix,
        csr_array(abs(public) @ abs(rows.matrix)),
        history=rows.history.plus(rows.history) if several else rows.history,
        residue=None if rows.residue is None else csr_array(public @ rows.residue),
        rounded=rounded,
        roundings=np.maximum(terms - 1.0, 0.0),
    )


def only_of(here: np.ndarray, rows: LinearForms) -> LinearForms:
    """Rows of which those that belong to an absent agent hold nothing."""
    return rows if here.all() else rows.only(here)


def chosen(here: np.ndarray, new: LinearForms, old: LinearForms) -> LinearForms:
    """The rows of `new` where agents take part, and those of `old` elsewhere."""
    return new.only(here).beside(old.only(~here))


def weighted(weights: Sequence[float], every: Sequence[LinearForms]) -> LinearForms:
    """The sum of forms of one trace and as many rows, each times a public number."""
    first = every[0]
    if any(
        linear_forms.block != first.block or linear_forms.residue is not None
        for linear_forms in every
    ):
        raise UndeclaredOperation("round.remembered of values of two blocks, or of more than noise")
    count, width = first.shape[0], max(linear_forms.matrix.shape[1] for linear_forms in every)
    below = first._with(stacked([linear_forms.matrix for linear_forms in every], width))
    for linear_forms in every[1:]:
        below.history = below.history.plus(linear_forms.history)
        below.origin = below.origin.plus(linear_forms.origin)
    first._check_range(below.matrix, np.asarray(weights))
    at = (np.arange(len(weights))[None, :] * count + np.arange(count)[:, None]).ravel()
    public = csr_array((np.tile(weights, count), at, len(weights) * np.arange(count + 1)))
    return combined(public, below)
