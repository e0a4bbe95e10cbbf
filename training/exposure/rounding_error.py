"""What rounding leaves of terms that cancel, beside the noise that an adversary does not know.

A residue is a function of the data that no coefficient of the trace speaks of. It is followed by
two routes, and refused where an adversary sees it without enough noise:

    cancelled in the step      `tracing.cancellation` made a column of it: a further contribution e
                               of everybody whose data it is made of, |e| at most its size. In the
                               closed view, jointly, its own mu must be at most 1e-3.
    cancelled with a message   such as received - s - n: seen once messages are replaced by what
                               they hold, in rows F and sums of absolute values S,

        lost = sum over columns c with |F_c| <= S_c / 8 of  S_c unit_c, and of messages unseen
        2^-24 lost  <=  1e-3 (deviation of the unknown noise in F)

What a figure is then worth: a contribution e that moves by at most r over noise of deviation d adds
at most r / d to mu, so mu is understated by at most 1e-3 for each unit of r in norm. Sizes are
those of one coordinate and of one record; a batch whose sum is k clip norms long, or noise of k^2
coordinates, has residues k times as long.

Rows that are functions of what the adversary sees already, rounded, release nothing more. Where
known values alone cancel, beside noise that stays, rounding is that of noised values but for their
order, and noise of 2^-20 of their size is asked for. So it is with what cancels in functions of
noised rows, such as x - y with y = (x + s) + n, if no other value holds n and those rows count as
seen: then all of it is made of the floats of y (`cancellation.Noised`). A victim whose data some
adversary sees without any noise is infinitely exposed, and nothing is refused for it.

The sign test: where every column can be given a sign with which all terms of every row agree,
nothing can cancel when messages are replaced; that is the common case and costs one pass.

| symbol | name here | shape            | meaning                                             |
|--------|-----------|------------------|-----------------------------------------------------|
| F      | _full     | (rows, columns)  | all rows that may be seen, no message left in them  |
| S      |           | (rows, columns)  | |rows| times what their columns hold, in absolute   |
|        |           |                  | value                                               |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import Adversary, Sees
from ...privacy.view.view import View
from ..tracing.cancellation import MOST_SHOWN, UNIT_ROUNDING, Cancelled, Noised, cancelled_terms
from ..tracing.linear_forms import Contributions, Known, Messages, NoiseSources
from ..tracing.record import RoundRecord
from ..tracing.round_trace import RoundTrace
from ..tracing.scripts import state_column
from ..tracing.sparse_rows import stacked, widened
from .shared_view import columns_of, in_row_space, numbered

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_SMALL_KNOWN = 2.0**-4  # the same where known values alone cancel: 2^-20 of their size
_ROUNDED = 2.0**-20  # of a row's noise: as much as rounding of the noise itself
_CANCELS = (
    "what it holds of agent {}'s data cancels to rounding error",
    "leave the terms that cancel out of the step, and ",
)
_LATE = (
    "data of agent {} were rounded in it before noise came in that other rows hold as well, and "
    "beside those rows the rounding error is left",
    "",
)


class _Found(NamedTuple):
    """A seen row with too little noise, whose data it holds, and whether noise came in late."""

    row: int
    owners: np.ndarray
    late: bool = False


class _Released(NamedTuple):
    """Rows that may be seen: every message, and then the closure and the end states."""

    rows: csr_array
    residue: csr_array
    names: list[str]


class Residues:
    """The residues of one traced round."""

    def __init__(self, trace: RoundTrace) -> None:
        self._trace, self._record = trace, trace.record
        self._contributions = columns_of(trace, Contributions)
        groups = [g for g in trace.groups if isinstance(g, Contributions)]
        self._owners = np.concatenate([np.zeros(0, dtype=int), *(g.owners for g in groups)])

    @classmethod
    def of(cls, trace: RoundTrace) -> Residues:
        """Those of a round, whose matrices are made once for all adversaries."""
        trace.residues = trace.residues or cls(trace)
        return trace.residues

    def check(self, adversary: Adversary, *, whole_run: bool = False) -> None:
        """Refuse an adversary who sees a residue with too little noise that it does not know.

        Args:
            adversary: who sees.
            whole_run: whether all rounds are accounted for together, so that histories, and fields
                of the state that hold data without noise, are carried on and not seen.

        Raises:
            UnsupportedView: it does.
        """
        if not self._record.cancelled and not self._lost.nnz:
            return
        if adversary.sees is Sees.ONE_MESSAGE:  # whichever it is, it crosses a link
            adversary = Adversary(name=adversary.name, sees=Sees.LINKS)
        seen, message = self._masks(adversary, whole_run=whole_run)
        noise = self._trace.unknown_noise(adversary)
        found = self._through_messages(seen, message, noise)
        if self._record.cancelled:
            found += self._in_the_step(seen, message, noise, own=adversary.agents)
        if all(adversary.agents.issuperset(one.owners.tolist()) for one in found):
            return
        exposed = self._exposed(adversary, whole_run=whole_run)
        for row, owners, late in sorted(found, key=lambda one: one.late):
            for victim in sorted(set(owners.tolist()) - adversary.agents - exposed):
                what, remedy = _LATE if late else _CANCELS
                raise UnsupportedView(
                    f"{self._released.names[row]}: {what.format(victim)}, which the run's floats "
                    f"do send and no noise unknown to {adversary.name} hides; {remedy}add noise to "
                    "a clipped sum, or to a change of round.local_update, before anything else: "
                    "x + (change + noise)"
                )

    def _masks(self, adversary: Adversary, *, whole_run: bool) -> tuple[np.ndarray, np.ndarray]:
        """Which released rows the adversary sees, and which columns are messages that it sees."""
        seen = np.ones(self._released.rows.shape[0], dtype=bool)
        message = np.zeros(self._trace.columns, dtype=bool)
        place = 0
        for g in self._trace.messages:
            if adversary.sees is Sees.OWN_LINKS:
                mask = g.seen_by(adversary.agents)
            elif adversary.sees is Sees.END_STATES:
                mask = np.zeros(g.size, dtype=bool)
            else:
                mask = g.crossing
            seen[place : place + g.size] = message[g.start : g.start + g.size] = mask
            place += g.size
        if whole_run:
            place += sum(rows.shape[0] for _, rows in self._record.closure)
            for field, rows in self._record.end_state.items():
                if field in self._record.secrets or self._is_history(field):
                    seen[place : place + rows.shape[0]] = False
                place += rows.shape[0]
        return seen, message

    @cached_property
    def _is_message(self) -> np.ndarray:
        """(rows,) which of the released rows are messages, whoever sees them."""
        sent = sum(g.size for g in self._trace.messages)
        return np.arange(self._released.rows.shape[0]) < sent

    def _is_history(self, field: str) -> bool:
        of = state_column(field)
        return any(isinstance(g, Known) and g.history and g.what == of for g in self._trace.groups)

    @cached_property
    def _released(self) -> _Released:
        from scipy.sparse import csr_array

        record, width = self._record, self._trace.columns
        count = sum(c.size.size for c in record.cancelled)
        parts: list[tuple[csr_array, csr_array | None]] = []
        names = list[str]()
        for g in self._trace.messages:
            parts.append((g.rows, g.residue))
            names += [g.name(i) for i in range(g.size)]
        closed = [*record.closure, *((f"state {f}", m) for f, m in record.end_state.items())]
        residues = record.residues if record.cancelled else [None] * len(closed)
        for (what, matrix), residue in zip(closed, residues, strict=True):
            parts.append((matrix, residue))
            names += [f"{what}, row {i}" for i in range(matrix.shape[0])]
        left = [csr_array((m.shape[0], count)) if r is None else csr_array(r) for m, r in parts]
        return _Released(stacked([m for m, _ in parts], width), stacked(left, count), names)

    @cached_property
    def _lost(self) -> csr_array:
        """(rows, columns) the terms that cancel once messages are replaced by what they hold."""
        from scipy.sparse import csr_array

        if _signs_agree(self._record):
            return csr_array((0, self._trace.columns))
        lost = cancelled_terms(self._full, csr_array(abs(self._released.rows) @ abs(self._held)))
        if lost is None:
            return csr_array(self._full.shape)
        lost = csr_array(lost.multiply(self._of_data[:, None]))  # of public values alone it is none
        lost.eliminate_zeros()
        return lost

    @cached_property
    def _held(self) -> csr_array:
        """(columns, columns) what each column holds without messages; but for those, itself."""
        from scipy.sparse import csr_array, eye_array

        width = self._trace.columns
        before, end = csr_array((0, width)), 0  # groups lie side by side, so those between are one
        for g in self._trace.messages:
            between = csr_array(eye_array(g.start - end, width, k=end))
            before, end = stacked([before, between], width), g.start + g.size
            before = stacked([before, csr_array(g.rows @ before[: g.rows.shape[1]])], width)
        return stacked([before, csr_array(eye_array(width - end, width, k=end))], width)

    @cached_property
    def _full(self) -> csr_array:
        """F."""
        from scipy.sparse import csr_array

        return csr_array(self._released.rows @ self._held)

    @cached_property
    def _lost_sizes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows,) the sizes of lost known values and of others, and whether data are lost."""
        known = _mask(columns_of(self._trace, Known), self._trace.columns)
        units = np.where(np.isfinite(self._record.units), self._record.units, 1.0)
        data = _mask(self._contributions, self._trace.columns).astype(float)
        endless = np.asarray(self._lost @ (data * np.isinf(self._record.units))) > 0  # not clipped
        return (
            UNIT_ROUNDING * (self._lost @ np.where(known, units, 0.0)),
            np.where(endless, np.inf, UNIT_ROUNDING * (self._lost @ np.where(known, 0.0, units))),
            np.asarray(self._lost @ data) > 0,
        )

    @cached_property
    def _of_data(self) -> np.ndarray:
        """(rows,) whether data entered each, by itself or in messages, cancelled or not."""
        holds = _mask(self._contributions, self._trace.columns).astype(float)
        for g in self._trace.messages:
            holds[g.start : g.start + g.size] = abs(g.rows) @ holds[: g.rows.shape[1]] > 0
        return np.asarray(abs(self._released.rows) @ holds) > 0

    @cached_property
    def _squares(self) -> csr_array:
        return self._full**2

    def _through_messages(
        self, seen: np.ndarray, message: np.ndarray, noise: np.ndarray
    ) -> list[_Found]:
        """Seen rows with too little noise for what is lost in them, and whose data they hold."""
        if not self._lost.nnz:
            return []
        width = self._trace.columns
        known = _mask(columns_of(self._trace, Known), width)
        # Functions of public values and of messages that are seen anyhow say nothing more.
        more = np.asarray(abs(self._released.rows) @ (~(message | known)).astype(float)) > 0
        of_known, of_others, data = self._lost_sizes
        deviation = np.sqrt(self._squares @ _mask(noise, width).astype(float))
        of_known = self._passed_on(of_known * more, message, floor=_SMALL_KNOWN * deviation)
        of_others = np.where(more, of_others, 0.0)
        of_others = self._passed_on(of_others, message, floor=_ROUNDED * deviation)
        much = (of_known > _SMALL_KNOWN * deviation) | (of_others > MOST_SHOWN * deviation)
        # Data that is seen without noise in the row itself is exposed in any case.
        clear = np.diff(self._full[:, self._contributions].indptr) > 0
        exposed = clear & ~data & (deviation == 0)
        return [
            _Found(int(row), self._owners_of(self._released.rows[[int(row)]]))
            for row in np.flatnonzero(seen & more & much & ~exposed)
        ]

    def _passed_on(self, own: np.ndarray, message: np.ndarray, *, floor: np.ndarray) -> np.ndarray:
        """(rows,) sizes with those, above a floor, of the messages in each row that are not seen.

        Below the floor a message's residue is as the rounding of its own noise, and counts no more
        than that: else it would grow with every step of a gossip that cancels nothing.
        """
        passed, place = np.zeros(self._trace.columns), 0
        found = own.copy()
        for g, sizes in zip(self._trace.messages, self._sizes, strict=False):
            hidden = np.where(message, 0.0, passed)[: g.rows.shape[1]]
            found[place : place + g.size] += sizes @ hidden
            mine = found[place : place + g.size]
            passed[g.start : g.start + g.size] = mine * (mine > floor[place : place + g.size])
            place += g.size
        found[place:] += self._sizes[-1] @ np.where(message, 0.0, passed)
        return found

    @cached_property
    def _sizes(self) -> list[csr_array]:
        """Absolute values of the rows of each group of messages, and of the other ones."""
        messages = self._trace.messages
        rest = self._released.rows[sum(g.size for g in messages) :]
        return [abs(rows) for rows in (*(g.rows for g in messages), rest)]

    def _owners_of(self, rows: csr_array) -> np.ndarray:
        """Whose data entered rows, whether it cancels or not."""
        touched = np.zeros(self._trace.columns, dtype=bool)
        touched[rows.indices] = True
        for g in reversed(self._trace.messages):
            used = g.rows[np.flatnonzero(touched[g.start : g.start + g.size])]
            touched[used.indices] = True
        return np.unique(self._owners[touched[self._contributions]])

    def _in_the_step(
        self, seen: np.ndarray, message: np.ndarray, noise: np.ndarray, *, own: frozenset[int]
    ) -> list[_Found]:
        """Seen rows that show a residue of the step's own, and whose data it is made of.

        Late ones of the adversary's `own` data are left out.
        """
        from scipy.sparse import csr_array

        # Residues but for those that are functions of noised rows that are seen anyhow.
        of_row, covered_by = self._kinds
        covered = np.isin(covered_by, of_row[seen & (of_row >= 0)])
        covered |= self._covered_late(seen | self._is_message, _mask(noise, self._trace.columns))
        for column in (
            np.flatnonzero(~covered & (self._late_sources[0] >= 0)).tolist() if own else ()
        ):
            covered[column] = own.issuperset(self._made_of(column, message).tolist())
        residue = csr_array(self._released.residue.multiply(~covered[None, :]))
        residue.eliminate_zeros()
        if covered.all():
            return []
        # What is seen, and what rounding may have left in it and in messages that are not seen.
        rows = self._released.rows
        for g in reversed(self._trace.messages):
            hidden = np.flatnonzero(~message[g.start : g.start + g.size])
            weight = csr_array(rows[:, g.start + hidden])
            if weight.nnz:
                mask = np.ones(rows.shape[1])
                mask[g.start + hidden] = 0.0
                held = widened(csr_array(g.rows[hidden]), rows.shape[1])
                rows = csr_array(rows.multiply(mask[None, :]) + weight @ held)
                if g.residue is not None:
                    held = widened(csr_array(g.residue[hidden]), residue.shape[1])
                    held = csr_array(held.multiply(~covered[None, :]))
                    residue = csr_array(residue + weight @ held)
        rows, residue = rows[seen], residue[seen]
        # Each residue by its size; an endless one is hidden by no noise.
        size = np.concatenate([c.size for c in self._record.cancelled])
        endless = np.isinf(size)
        residue = csr_array(residue * np.where(endless, 1.0, size)[None, :])
        residue.eliminate_zeros()
        shown = np.unique(residue.indices)
        view = View(contributions=residue[:, shown], noise=csr_array(rows[:, noise]))
        at, found = np.flatnonzero(seen), []
        settled = dict[Noised | None, bool]()
        private = np.r_[self._contributions, noise]
        # It shows where noise does not hide it, and it is not a function of what is seen anyhow.
        for place, column in enumerate(shown.tolist()):
            if endless[column] or view.leaks([place]) or view.mu([place]) > MOST_SHOWN:
                if self._of_seen(column, rows[:, private], private):
                    continue
                noised: Sequence[Noised | None] = [
                    *(self._cancelled_at(column)[0].noised or [None])
                ]
                for one in noised:
                    if one not in settled:
                        settled[one] = self._is_hidden(one, rows[:, private], private)
                if all(settled[one] for one in noised):
                    continue
                held = residue[:, [column]].tocoo().coords[0]
                late = self._cancelled_at(column)[0].late is not None
                seen_by = message if late else None
                found.append(_Found(int(at[held[0]]), self._made_of(column, seen_by), late))
        return found

    def _covered_late(self, rows: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """(residues,) whether each is of noise that came in late and is nowhere without it.

        Args:
            rows: which of the released rows are looked at.
            unknown: (columns,) whether each is noise that the adversary does not know.
        """
        from scipy.sparse import csr_array, diags_array

        source, share = self._late_sources
        covered = np.zeros(len(source), dtype=bool)
        at = np.flatnonzero(source >= 0)
        at = at[unknown[source[at]]]
        if not len(at):
            return covered
        noise = csr_array(self._released.rows[rows][:, source[at]])
        residue = csr_array(self._released.residue[rows][:, at])
        apart = abs(noise - residue @ diags_array(share[at])).max(axis=0).toarray().ravel()
        covered[at] = apart <= 1e-9 * abs(noise).max(axis=0).toarray().ravel()
        return covered

    @cached_property
    def _late_sources(self) -> tuple[np.ndarray, np.ndarray]:
        """(residues,) the column of the one source that hides each, and its factor there; or -1."""
        sources, shares = [np.zeros(0, dtype=int)], [np.zeros(0)]
        for c in self._record.cancelled:
            sources.append(np.full(len(c.size), -1))
            shares.append(np.zeros(len(c.size)))
            if c.late is not None:
                one = np.flatnonzero(np.diff(c.late.indptr) == 1)
                sources[-1][one] = c.late.indices[c.late.indptr[one]]
                shares[-1][one] = c.late.data[c.late.indptr[one]]
        return np.concatenate(sources), np.concatenate(shares)

    @cached_property
    def _kinds(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of released rows, and of the noised row that covers each residue.

        Rows whose data and noise are multiples of each other have the same number; -1 is none.
        """
        private = np.r_[self._contributions, columns_of(self._trace, NoiseSources)]
        numbers: dict[bytes, int] = {}
        rows = [numbered(self._full[:, private], numbers)]
        residues = [np.zeros(0, dtype=int)]
        for c in self._record.cancelled:
            if c.covered is None:
                residues.append(np.full(len(c.size), -1))
            else:
                full = widened(c.covered, self._trace.columns) @ self._held
                residues.append(numbered(full[:, private], numbers))
        return np.concatenate(rows), np.concatenate(residues)

    def _cancelled_at(self, column: int) -> tuple[Cancelled, int]:
        """The operation that left a residue, and the row there."""
        starts = np.array([c.start for c in self._record.cancelled])
        which = int(np.searchsorted(starts, column, side="right")) - 1
        return self._record.cancelled[which], column - int(starts[which])

    def _of_seen(self, column: int, seen: csr_array, private: np.ndarray) -> bool:
        """Whether a residue is a function of values that the adversary sees in any case.

        What was added up is then known, of noised data too, and rounding it is postprocessing.
        """
        cancelled, place = self._cancelled_at(column)
        width = self._trace.columns
        operands = [
            (widened(o, width)[[place]] @ self._held)[:, private] for o in cancelled.operands
        ]
        return bool(operands) and all(in_row_space(operand, seen) for operand in operands)

    def _is_hidden(self, noised: Noised | None, seen: csr_array, private: np.ndarray) -> bool:
        """Whether rows count as seen anyhow, and noise hides what they lost to rounding.

        Of them a residue may be a function, such as that of x - y, where y = (x + change) + noise:
        clean data was rounded before the noise came in, and no other value holds that noise.
        """
        if noised is None or not noised.alone:
            return False
        full = (widened(noised.matrix, self._trace.columns) @ self._held)[:, private]
        return all(in_row_space(full[[i]], seen) for i in range(full.shape[0]))

    def _made_of(self, column: int, seen: np.ndarray | None) -> np.ndarray:
        """Whose data a residue is made of, but for those in messages that are seen."""
        from scipy.sparse import csr_array

        cancelled, place = self._cancelled_at(column)
        reach = csr_array(cancelled.reach[[place]])
        if seen is not None:
            reach = csr_array(reach.multiply(~seen[None, : reach.shape[1]]))
            reach.eliminate_zeros()
        return self._owners_of(reach)

    def _exposed(self, adversary: Adversary, *, whole_run: bool) -> set[int]:
        """Whose data the adversary sees without noise in any case."""
        view = self._trace.view(adversary, end_state=not whole_run)
        found = set[int]()
        for victim in set(self._owners.tolist()) - adversary.agents:
            for columns, bounds, _ in self._trace.of_victim(victim).values():
                held = [c for c, b in zip(columns, bounds, strict=True) if b > 0]
                if held and (view.leaks(held) or np.isinf(view.mu(columns, bounds=bounds))):
                    found.add(victim)
        return found


def _mask(columns: np.ndarray, width: int) -> np.ndarray:
    found = np.zeros(width, dtype=bool)
    found[columns] = True
    return found


def _signs_agree(record: RoundRecord) -> bool:
    """Whether columns can be given signs with which all terms of every row agree."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    width = sum(group.size for group in record.groups)
    closed = [rows for _, rows in record.closure] + list(record.end_state.values())
    parts = list(closed)
    at = [np.full(rows.shape[0], -1) for rows in closed]
    for g in record.groups:
        if isinstance(g, Messages):
            parts.append(g.rows)
            at.append(g.start + np.arange(g.size))
    every = stacked(parts, width).tocoo()
    # A message's row has the sign of its column; other rows have signs of their own.
    node = np.concatenate([np.zeros(0, dtype=int), *at])
    node = np.where(node < 0, width + np.arange(len(node)), node)
    used = every.data != 0
    row, column = node[every.coords[0][used]], every.coords[1][used]
    negative = every.data[used] < 0
    size = width + len(node)
    # Two copies of every node, for both signs; a contradiction joins them.
    ends = np.where(negative, column + size, column), np.where(negative, column, column + size)
    links = csr_array(
        (np.ones(2 * len(row)), (np.r_[row, row + size], np.concatenate(ends))),
        shape=(2 * size,) * 2,
    )
    _, label = connected_components(links, directed=False)
    return bool((label[:size] != label[size:]).all())
