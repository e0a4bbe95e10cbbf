"""What one adversary is told of a whole run by its messages and last models, as unit normals.

A run in which noise persists is one release, so it is looked at as one. With what is known taken
off, what the adversary sees of round t is

    D_t = C_t (S_t-1 - known) + A_t G_t + B_t Z_t

and `StreamedView` turns it, round by round, into whitened rows e_t: what D_t adds to what the
rounds before told of the noise that is carried on,

    e_t = weights_t (D_t - C_t Shat_t-1),   Shat_t = F_t Shat_t-1 + gain_t e_t

Without contributions e_t is standard normal; a unit contribution of column c moves it by
response_t[:, c]. So sum_t response_t' e_t is the matched filter of every contribution of the run,
for all directions at once, and M is its covariance.

| symbol | name here  | shape          | meaning                                        |
|--------|------------|----------------|------------------------------------------------|
| D      | left       | (seen, n)      | what is seen, less what is known               |
| known  | ``_known`` | (carried, n)   | what is known of the rows that are carried     |
| Shat   | ``_noise`` | (carried, n)   | what was told of the noise in them             |
|        | ``scores`` | (columns, n)   | the filter of each contribution of the hosts   |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.guarantee import Adversary
from ...privacy.view.whole_run import Rows, StreamedView
from ...training.exposure.dense_rounds import RoundRows
from ...training.step.final_release import NOTHING, FinalRelease
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.round_trace import RoundTrace
from .canaries import HappenedRound
from .observed_rows import Projected, values_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array


Array = NDArray[np.float64]
_MOST_HEARD = 40_000  # values of a round that are kept, which tell of its noise to .7 %


class Column(NamedTuple):
    """A contribution of a host: its round, its place among all of the round, and its bound."""

    round: int
    place: int
    bound: float


def host_columns(part: RoundTrace, host: int) -> list[tuple[int, float]]:
    """Places among all contributions of a round, and bounds, of a host's in the first block."""
    found, start = list[tuple[int, float]](), 0
    for group in part.groups:
        if isinstance(group, Contributions):
            if group.block == 0:
                mine = np.flatnonzero(group.owners == host)
                found += [(start + int(i), float(group.bounds[i])) for i in mine]
            start += group.size
    return found


class _Part(NamedTuple):
    """A traced round as one adversary sees it: rows of the first block, and what is known."""

    rows: RoundRows
    seen: list[int]  # of the rows, those of the first block
    sent: list[tuple[int, NDArray[np.int64]]]  # which messages these are
    places: dict[int, list[tuple[int, float]]]  # of each host's contributions
    contributions: NDArray[np.int64]  # columns of everybody's
    known: list[NDArray[np.int64] | None]  # of each group's columns those that count as known
    released: dict[str, range]  # carried rows of the fields of it that are out at the end


class MatchedFilter:
    """The matched filter of one adversary, as a run goes on.

    Args:
        adversary: whose view.
        hosts: whose contributions are looked for.
        count: n, of directions; 0 for the information alone.
        release: which fields of the state leave after the last round; none where it is not played.
    """

    def __init__(
        self,
        adversary: Adversary,
        hosts: Sequence[int],
        *,
        count: int = 0,
        release: FinalRelease = NOTHING,
    ) -> None:
        self.adversary, self.hosts = adversary, list(hosts)
        self.columns: dict[int, list[Column]] = {host: [] for host in hosts}
        self.heard: list[NDArray[np.float32]] = []  # e of every round
        self.lost = 0.0  # share of a unit normal that rounding of what is sent amounts to
        self._view, self._round, self._released = StreamedView(), -1, release
        self._owners: list[int] = []
        self._parts: dict[int, _Part] = {}
        self._last: _Part | None = None
        self._known, self._noise = np.zeros((0, count)), np.zeros((0, count))
        self._scores = np.zeros((0, count))

    def information(self, host: int) -> Array:
        """M over a host's contributions so far."""
        return self._view.information(host)

    def scores(self, host: int) -> Array:
        """(columns, n) the matched filter of each of a host's contributions."""
        return self._scores[np.flatnonzero(np.equal(self._owners, host))]

    def leaks(self, host: int) -> bool:
        """Whether a contribution of a host is seen without noise."""
        return bool(self._view.leaks(host))

    def expect(self, part: RoundTrace) -> None:
        """Take in a round of which nothing but its trace is known."""
        self._advance(self._part(part))

    def expect_end(self) -> None:
        """The same of the models that the end of a run releases."""
        self._release(None)

    def add(self, happened: HappenedRound, contributed: Array, project: Projected) -> None:
        """Take in a round.

        What everybody contributed is (contributions, n), and `project` is onto the directions.
        """
        part = self._part(happened.trace)
        left, known = self._less_known(part, happened, contributed, project)
        sizes = [happened.messages[i].rows[torch.from_numpy(at)] for i, at in part.sent]
        self._advance(part, left, known, sizes)

    def end(self, after: Mapping[str, Tensor], project: Projected) -> None:
        """Take in the models that the end of a run releases."""
        self._release(after, project)

    def _part(self, part: RoundTrace) -> _Part:
        # Rounds that repeat a part share its rows.
        held = self._parts.get(id(part))
        if held is not None:
            return held
        rows = RoundRows.of(part, self.adversary, closed=False, release=self._released)
        # Messages of the first block that the adversary sees, by group.
        unseen = part.seen_rows(self.adversary, end_state=False, closed=False)[2]
        seen, sent, start = list[int](), list[tuple[int, NDArray[np.int64]]](), 0
        for number, group in enumerate(part.messages):
            at = np.flatnonzero(~unseen(group))
            if group.block == 0:
                sent.append((number, at))
                seen += range(start, start + len(at))
            start += len(at)
        # Columns whose values it knows; contributions are never among them.
        hidden = np.zeros(part.columns, dtype=bool)
        hidden[rows.unknown] = hidden[rows.held] = True
        everybody = [g for g in part.groups if isinstance(g, Contributions)]
        spans = [np.arange(g.start, g.start + g.size) for g in everybody]
        known: list[NDArray[np.int64] | None] = []
        for of in part.groups:
            told = np.flatnonzero(~hidden[of.start : of.start + of.size])
            own = isinstance(of, Contributions) or of.block != 0
            known.append(None if own or not len(told) else told)
        # Fields of the state that are released, by their place among the rows.
        released, position = dict[str, range](), 0
        for field, matrix in part.record.end_state.items():
            if position in rows.released and _block(part, matrix) == 0:
                released[field] = range(position, position + matrix.shape[0])
            position += matrix.shape[0]
        found = _Part(
            rows,
            seen,
            sent,
            {host: host_columns(part, host) for host in self.hosts},
            np.concatenate([np.zeros(0, dtype=int), *spans]),
            known,
            released,
        )
        self._parts[id(part)] = found
        return found

    def _less_known(
        self, part: _Part, happened: HappenedRound, contributed: Array, project: Projected
    ) -> tuple[Array, Array]:
        """What is seen less what is known, and what is known of what is carried on."""
        rows = part.rows
        seen = [project(happened.messages[i].rows, at) for i, at in part.sent]
        left = np.concatenate([np.zeros((0, self._known.shape[1])), *seen])
        known = np.zeros((rows.carried.shape[0], left.shape[1]))
        mine = rows.seen[part.seen]

        def take_off(columns: NDArray[np.int64], values: Array) -> None:
            nonlocal left, known
            left = left - mine[:, columns] @ values
            known = known + rows.carried[:, columns] @ values

        take_off(rows.held, self._known)
        take_off(part.contributions, contributed)
        groups = happened.trace.groups
        for group, value, told in zip(groups, values_of(happened), part.known, strict=True):
            if told is not None and value is not None:
                take_off(group.start + told, project(value)[told])
        return left, known

    def _advance(
        self,
        part: _Part,
        left: Array | None = None,
        known: Array | None = None,
        sent: Sequence[Tensor] = (),
    ) -> None:
        self._round += 1
        at, owners = list[int](), list[int]()
        for host in self.hosts:
            for place, bound in part.places[host]:
                at.append(int(part.contributions[place]))
                owners.append(host)
                self.columns[host].append(Column(self._round, place, bound))
        rows, here = part.rows, np.asarray(at, dtype=int)
        seen, carried = rows.over(rows.seen[part.seen], here), rows.over(rows.carried, here)
        self._owners += owners
        self._turn(seen, carried, owners, left=left, sent=sent)
        if known is not None:
            self._known = known
        self._last = part

    def _turn(
        self,
        seen: Rows,
        carried: Rows,
        owners: Sequence[int],
        *,
        left: Array | None,
        sent: Sequence[Tensor] = (),
    ) -> None:
        """Whiten what is seen, and add it to the filter of every contribution so far."""
        told = self._view.advance(seen, carried, owners=owners)
        n = self._scores.shape[1]
        if left is None:
            left = np.zeros((seen.carried.shape[0], n))
        if not len(self._noise):
            self._noise = np.zeros((seen.carried.shape[1], n))
        e = told.weights @ (left - seen.carried @ self._noise)
        self._noise = carried.carried @ self._noise + told.gain @ e
        if n:
            self.heard.append(_some(e))
        self._scores = np.pad(self._scores, ((0, len(owners)), (0, 0))) + told.response.T @ e
        lost = [
            torch.finfo(one.dtype).eps
            * torch.linalg.vector_norm(one.double(), dim=1).cpu().numpy()
            / np.sqrt(max(1, one.shape[1]))
            for one in sent
        ]
        if lost and len(told.weights):
            of_rows = np.sqrt(told.weights**2 @ np.concatenate(lost) ** 2)
            self.lost = max(self.lost, float(of_rows.max(initial=0.0)))

    def _release(
        self, after: Mapping[str, Tensor] | None, project: Projected | None = None
    ) -> None:
        part = self._last
        if part is None or not part.released:
            return
        at = [row for rows in part.released.values() for row in rows]
        size = part.rows.carried.shape[0]
        kept, none = np.eye(size), np.zeros((size, 0))
        seen, sent, left = Rows(kept[at], none[: len(at)], none[: len(at)]), list[Tensor](), None
        if after is not None and project is not None:
            sent = [after[field] for field in part.released]
            left = np.concatenate([project(one) for one in sent]) - self._known[at]
        self._turn(seen, Rows(kept, none, none), [], left=left, sent=sent)


def _some(e: Array) -> NDArray[np.float32]:
    """At most so many values of a round as all rounds together have room for."""
    return e[:, : max(1, _MOST_HEARD // max(1, len(e)))].astype(np.float32)


def _block(part: RoundTrace, matrix: csr_array) -> int:
    """The block of coordinates that rows belong to."""
    used = int(matrix.indices[0]) if matrix.nnz else -1
    return next((g.block for g in part.groups if g.start <= used < g.start + g.size), 0)
