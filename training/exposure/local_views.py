"""Local views: the rows of an adversary's view that a victim's figure depends on, and no others.

The view of one adversary is a large sparse matrix, and there are as many adversaries as agents.
Two exact facts keep the work in proportion to what differs:

    O_k = seen rows + messages that k sees,  over the noise that k does not know
    M_v = sum over linked rows that hold v's columns

1. Rows interact through shared unknown noise alone, so M_v needs the rows that hold v's columns and
   those linked to them; all others may be left out.
2. Adversary k differs from one who sees the closure alone by messages and by known noise. Only
   victims in rows that these touch can fare otherwise; all others take the figure of the closure.

Messages that the closure determines count as seen (`Relations`): their rows are local, where the
end states that they replace tie all agents together. Where linked rows span the graph, as with
noise that every agent shares with its neighbours, the local view is the whole one.

Equal local views are factorised once, and a victim's figures in them found once. Their columns are
named by first appearance; where rows span the graph these are ordered from the adversary on, and
columns by what they hold, so that on a ring all agents have one problem. The key is the whole local
problem, byte by byte, so nothing is taken to be equal that is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import Adversary, Sees
from ...privacy.participation import Draws, Reach
from ...privacy.view.elimination import entries
from ...privacy.view.view import View
from ..tracing.linear_forms import Messages, NoiseSources
from ..tracing.round_trace import Charge, Key, RoundTrace, Sensitivity, charges, joined, kinds
from .shared_view import Pairs, Relations, SharedView

_FEW_OWNERS = 8  # in linked rows, that are not yet worth a problem for all of them
_MOST_KEPT = 5_000  # coefficients of a local problem that is kept for others like it

_Batches = Sequence[tuple[Sequence[int], Sequence[float]]]
_Batch = tuple[list[int], list[float], Draws]


class LocalViews:
    """The view of any adversary of one traced round, from which rows are taken victim by victim."""

    def __init__(self, trace: RoundTrace) -> None:
        self.trace = trace
        self.problems: dict[Any, _Problem] = {}
        self._relations = Relations(trace.record)
        self._shared: dict[bytes, SharedView] = {}
        self._closed: dict[bool, SharedView] = {}  # with every message on a link, or none
        self.found: dict[Any, list[Sensitivity]] = {}
        self._batches: dict[int, _VictimBatches] = {}
        self._alike: dict[Any, int] = {}
        self.asked: dict[Any, list[Sensitivity]] = {}
        self._seen_by, self._known_to = _seen_by(trace), _known_to(trace)

    def of_adversary(self, who: Adversary) -> AdversaryView:
        """The closed view of an adversary.

        Raises:
            UnsupportedView: it has none.
        """
        if who.sees is Sees.ONE_MESSAGE:
            raise UnsupportedView(f"{who.name} has no closed view; use single_message")
        # Every message on a link, or none: neighbours' own are added row by row.
        links = who.sees is Sees.LINKS
        if links not in self._closed:
            seen = np.zeros(self.trace.columns, dtype=bool)
            for g in self.trace.messages if links else ():
                seen[g.start : g.start + g.size] = g.crossing
            self._closed[links] = self._shared_view(seen)
        shared = self._closed[links]
        if who.sees is Sees.OWN_LINKS and shared.undetermined:
            shared = self._settled(shared, self._seen_by.of(who.agents))
        return self._view_over(shared, who)

    def bracket(self, who: Adversary) -> tuple[AdversaryView, AdversaryView]:
        """An adversary who sees no more and one who sees no less, both of local rows.

        Where blocks of hidden messages stay open, the first does without all rows that refer to
        them, and the second sees them.
        """
        shared = self.of_adversary(who).shared
        if not shared.undetermined:
            return self._view_over(shared, who), self._view_over(shared, who)
        # Whoever sees what is open, and then what that leaves open, sees no less.
        more = shared
        while more.undetermined:
            seen = more.seen.copy()
            seen[np.concatenate([block.messages for block in more.undetermined])] = True
            more = self._shared_view(seen)
        # Whoever goes without every row that refers to any of it sees no more.
        key = b"without" + shared.seen.tobytes()
        if key not in self._shared:
            without = more.seen & ~shared.seen
            self._shared[key] = SharedView(
                self.trace, self._relations, shared.seen, without=without
            )
        return self._view_over(self._shared[key], who), self._view_over(more, who)

    def _view_over(self, shared: SharedView, who: Adversary) -> AdversaryView:
        if who.sees is not Sees.OWN_LINKS:
            none = np.zeros(0, dtype=int)
            return AdversaryView(self, who, shared=shared, rows=none, known=none)
        rows = shared.row_of_message[self._seen_by.of(who.agents)]
        known = shared.source_of_column[self._known_to.of(who.agents)]
        return AdversaryView(self, who, shared=shared, rows=rows[rows >= 0], known=known)

    def _settled(self, shared: SharedView, own: np.ndarray) -> SharedView:
        """The shared view with all blocks of hidden messages that the messages `own` settle."""
        while True:
            seen = shared.seen.copy()
            seen[own] = True
            blocks = [b.messages for b in shared.undetermined if b.is_settled_by(seen)]
            if not blocks:
                return shared
            grown = shared.seen.copy()
            grown[np.concatenate(blocks)] = True
            shared = self._shared_view(grown)

    def _shared_view(self, seen: np.ndarray) -> SharedView:
        key = seen.tobytes()
        if key not in self._shared:
            self._shared[key] = SharedView(self.trace, self._relations, seen)
        return self._shared[key]

    def local(
        self,
        shared: SharedView,
        rows: np.ndarray,
        unknown: np.ndarray,
        *,
        origin: int | None = None,
    ) -> _Local:
        """Some rows of a shared view as a problem, a known one where there is an equal one.

        Args:
            origin: the agent from which on rows are ordered; None leaves their order.
        """
        if origin is not None:
            group, *ends = shared.places[rows].T
            from_here = [
                np.where(of < 0, -1, (of - origin) % self.trace.record.agents) for of in ends
            ]
            rows = rows[np.lexsort((*reversed(from_here), group))]
        A, columns, names = _renamed(
            shared.contributions, rows, None, by_content=origin is not None
        )
        B, _, _ = _renamed(shared.noise, rows, unknown, by_content=origin is not None)
        vectors = _by_appearance(shared.vectors[columns[np.argsort(names)]])[1]
        key = tuple(part.tobytes() for part in (*A, *B, vectors))
        problem = self.problems.get(key)
        if problem is None:
            view = View(contributions=_matrix(A), noise=_matrix(B), vectors=vectors.tolist())
            problem = _Problem(view)
            if len(A.data) + len(B.data) <= _MOST_KEPT:
                self.problems[key] = problem
        return _Local(rows, problem, columns, names)

    def batches(self, victim: int) -> _VictimBatches:
        """What a victim's records enter."""
        if victim not in self._batches:
            by_key, reaches = self.trace.of_victim(victim), self.trace.reaches(victim)
            every = np.asarray([c for held, _, _ in by_key.values() for c in held], dtype=int)
            parts = tuple((len(held), *bounds, draws) for held, bounds, draws in by_key.values())
            vectors = _by_appearance(self.trace.vectors[every])[1].tobytes()
            like = (tuple(by_key), parts, vectors, tuple(reaches))
            number = self._alike.setdefault(like, len(self._alike))
            self._batches[victim] = _VictimBatches(by_key, reaches, every, number)
        return self._batches[victim]


class AdversaryView:
    """What one adversary sees of one round.

    Args:
        shared: what it shares with others of its kind; where two share one, all victims that
            neither touches have the same figures.
        rows: rows of hidden messages that it sees besides.
        known: noise sources that it knows.
    """

    def __init__(
        self,
        views: LocalViews,
        who: Adversary,
        *,
        shared: SharedView,
        rows: np.ndarray,
        known: np.ndarray,
    ) -> None:
        self.shared = shared
        self._views, self._who = views, who
        self._rows, self._known = rows, known
        self._spanning: list[tuple[np.ndarray, _Local]] = []
        self._seen = id(shared), rows.tobytes(), known.tobytes()

    def touched(self) -> list[int]:
        """Victims who may fare otherwise than against one who sees the shared view alone."""
        if not len(self._rows) and not len(self._known):
            return []
        owners = self.shared.touched(self._rows, self._known).tolist()
        return [v for v in owners if v not in self._who.agents]

    def sensitivities(self, victim: int, *, sums: bool = True) -> list[Sensitivity]:
        """As `RoundTrace.sensitivities`, but `because` is empty where it would name messages.

        Args:
            victim: the agent that holds the record.
            sums: whether batches that are one sum are charged as one.

        Raises:
            UnsupportedView: as there.
        """
        if victim in self._who.agents:
            raise UnsupportedView(f"{self._who.name} contains the victim {victim}; choose another")
        asked = (self._seen, victim, sums)  # what one sees decides, whoever it is
        if asked not in self._views.asked:
            self._views.asked[asked] = self._found(victim, sums=sums)
        return self._views.asked[asked]

    def _found(self, victim: int, *, sums: bool) -> list[Sensitivity]:
        of = self._views.batches(victim)
        local = self._local(of.contributions)
        # A victim whose columns are called the same in the same problem was looked at before.
        key = (id(local.problem), local.names_of(of.contributions).tobytes(), of.alike, sums)
        if key not in self._views.found:
            batches, trace = list(of.by_key.values()), self._views.trace
            drawn = [draws for _, _, draws in batches]
            alike = kinds(drawn, of.reaches) if sums else [None] * len(drawn)
            charged = local.charges([(held, bounds) for held, bounds, _ in batches], alike)
            found = trace.found(charged, batches, of.reaches)
            self._views.found[key] = joined(found, list(of.by_key), unit=trace.unit)
        return self._views.found[key]

    def local_to(self, contributions: Sequence[int]) -> LocalColumns:
        """The linked rows of some contributions as a view, and what the columns are called in it.

        Args:
            contributions: positions among the contributions.
        """
        return self._local(np.asarray(list(contributions), dtype=int)).columns(contributions)

    @cached_property
    def _masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Which rows are seen, and which sources are unknown."""
        seen, unknown = self.shared.is_seen.copy(), np.ones(self.shared.noise.shape[1], dtype=bool)
        seen[self._rows], unknown[self._known] = True, False
        return seen, unknown

    def _local(self, contributions: np.ndarray) -> _Local:
        seen, unknown = self._masks
        for owned, local in self._spanning:
            if owned[contributions].all():
                return local
        rows = self.shared.rows_holding(contributions)
        rows = rows[seen[rows]]
        # What shares unknown noise with these rows says something of them; nothing else does.
        rows = self.shared.linked(rows, seen=seen, unknown=unknown)
        owners = self.shared.owners_in(rows)
        spans = len(owners) > max(_FEW_OWNERS, self._views.trace.record.agents // 4)
        while spans:  # one problem for all whose rows are in it, instead of one each
            held = self.shared.rows_holding(np.flatnonzero(np.isin(self.shared.owners, owners)))
            rows = self.shared.linked(held[seen[held]], seen=seen, unknown=unknown)
            more = self.shared.owners_in(rows)
            if len(more) == len(owners):
                break
            owners = more
        if not spans:
            return self._views.local(self.shared, rows, unknown)
        local = self._views.local(
            self.shared, rows, unknown, origin=min(self._who.agents, default=0)
        )
        self._spanning.append((np.isin(self.shared.owners, owners), local))
        return local


class _VictimBatches(NamedTuple):
    """What a victim's records enter; `alike` is the same number where only the victim differs."""

    by_key: dict[Key, _Batch]
    reaches: list[tuple[Reach, bool]]
    contributions: np.ndarray
    alike: int


class LocalColumns(NamedTuple):
    """Linked rows of what is seen, as a view over columns without names.

    Attributes:
        view: of the rows.
        names: by position among the contributions its column; no row holds those that are left out.
    """

    view: View
    names: dict[int, int]


class _Problem:
    """A view over columns without names, and the figures that were asked of it.

    Victims whose columns hold the same have the same figures, and are asked about once.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self._columns = view.contributions.tocsc()  # type: ignore[union-attr] # always sparse here
        self._columns.sort_indices()
        self._lengths = np.diff(self._columns.indptr)
        self._vectors = np.asarray(view.vectors)
        self._found: dict[Any, list[Charge]] = {}

    def charges(self, batches: _Batches, kinds: Sequence[Draws | None]) -> list[Charge]:
        every = np.asarray([c for columns, _ in batches for c in columns], dtype=int)
        held = entries(self._columns.indptr, every)
        key = (
            self._columns.indices[held].tobytes(),
            self._columns.data[held].tobytes(),
            self._lengths[every].tobytes(),
            _by_appearance(self._vectors[every])[1].tobytes(),
            tuple(tuple(bounds) for _, bounds in batches),
            tuple(kinds),
        )
        if key not in self._found:
            self._found[key] = charges(self.view, batches, kinds)
        return self._found[key]


class _Local(NamedTuple):
    """Linked rows of a shared view as a problem, and what the columns are called there."""

    rows: np.ndarray
    problem: _Problem
    contributions: np.ndarray  # ascending
    names: np.ndarray  # of each, in the problem

    def columns(self, contributions: Sequence[int]) -> LocalColumns:
        """What the contributions that are in some row are called."""
        at = dict(zip(self.contributions.tolist(), self.names.tolist(), strict=True))
        return LocalColumns(self.problem.view, {c: at[c] for c in contributions if c in at})

    def names_of(self, contributions: np.ndarray) -> np.ndarray:
        """What contributions are called; -1 for those that are in no row."""
        if not len(self.contributions):
            return np.full(len(contributions), -1)
        at = np.searchsorted(self.contributions, contributions)
        at = np.minimum(at, len(self.contributions) - 1)
        return np.where(self.contributions[at] == contributions, self.names[at], -1)

    def charges(self, batches: _Batches, kinds: Sequence[Draws | None]) -> list[Charge]:
        """What a victim's batches are charged; contributions that are in no row add nothing."""
        inside = []
        for columns, bounds in batches:
            names = self.names_of(np.asarray(columns, dtype=int))
            kept = [b for b, name in zip(bounds, names.tolist(), strict=True) if name >= 0]
            inside.append((names[names >= 0].tolist(), kept))
        return self.problem.charges(inside, kinds)


class _Parts(NamedTuple):
    """What a compressed matrix consists of."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray


def _renamed(
    matrix: Any, rows: np.ndarray, keep: np.ndarray | None, *, by_content: bool
) -> tuple[_Parts, np.ndarray, np.ndarray]:
    """Rows over the columns `keep`; the columns used and their names.

    Columns are named by first appearance, or by what they hold in which rows. Noise is the same
    with another sign, so columns of sources are given by `keep` and begin with a positive entry.
    """
    at = entries(matrix.indptr, rows)
    columns, data = matrix.indices[at], matrix.data[at]
    row = np.repeat(np.arange(len(rows)), matrix.indptr[rows + 1] - matrix.indptr[rows])
    if keep is not None:
        kept = keep[columns]
        columns, data, row = columns[kept], data[kept], row[kept]
    used, named, names = _by_appearance(columns)
    if by_content:
        order = np.lexsort((row, named))
        starts = np.searchsorted(named[order], np.arange(len(used)))
        if keep is not None:
            data = data * np.sign(data[order][starts])[named]
        held = [(row[of].tolist(), data[of].tolist()) for of in np.split(order, starts[1:])]
        again = np.argsort(sorted(range(len(used)), key=held.__getitem__))
        named, names = again[named], again[names]
        order = np.lexsort((named, row))
        data, named, row = data[order], named[order], row[order]
    indptr = np.concatenate([[0], np.bincount(row, minlength=len(rows)).cumsum()])
    return _Parts(data, named, indptr), used, names


def _by_appearance(things: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different ones ascending, each named by when it first appears, and those names."""
    listed = things.tolist()  # few, for which np.unique takes longer
    names = {one: name for name, one in enumerate(dict.fromkeys(listed))}
    used = np.array(sorted(names), dtype=things.dtype)
    found = (np.array([names[one] for one in of], dtype=int) for of in (listed, used.tolist()))
    return used, next(found), next(found)


def _matrix(parts: _Parts) -> Any:
    from scipy.sparse import csr_array

    shape = (len(parts.indptr) - 1, int(parts.indices.max(initial=-1)) + 1)
    return csr_array((parts.data, parts.indices, parts.indptr), shape=shape)


def _seen_by(trace: RoundTrace) -> Pairs:
    """Messages that cross a link, with their sender and their receivers."""
    columns, agents = [np.zeros(0, dtype=int)], [np.zeros(0, dtype=int)]
    for g in trace.groups:
        if isinstance(g, Messages):
            crossing = np.flatnonzero(g.crossing)
            columns += [g.start + crossing, g.start + g.links[:, 0]]
            agents += [g.senders[crossing], g.links[:, 1]]
    shape = (trace.columns, trace.record.agents)
    return Pairs(np.concatenate(columns), np.concatenate(agents), shape=shape)


def _known_to(trace: RoundTrace) -> Pairs:
    """Noise sources with those who know them."""
    pairs = [
        (g.start + i, agent)
        for g in trace.groups
        if isinstance(g, NoiseSources)
        for i, knowers in enumerate(g.known_to)
        for agent in knowers
    ]
    columns, agents = np.asarray(pairs, dtype=int).reshape(-1, 2).T
    return Pairs(columns, agents, shape=(trace.columns, trace.record.agents))
