"""What an adversary sees of declared releases, and how far one unit of a victim changes it.

    seen by everybody          releases to "all"; where everything may depend on any release, all
    by an eavesdropper         every release, or the public ones where links are encrypted
    by agents, the server      besides, what is sent to or by them, less the noise that they know

A round whose noise and vectors occur in no other round is a view by itself, and its batches are
amplified by sampling. Otherwise all rounds are one view, in which a record may take part every
time. Rounds that differ by names alone are looked at once. Sampled clients are amplified only
against those who do not see their own messages, which tell who takes part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, UnsupportedView
from ..guarantee import Adversary, Sees, Unit
from ..view.elimination import leak_sentence
from ..view.view import View
from .lines import Header, Played, Release, Vector, party_name
from .log import ReleaseLog

# The shape of a round: what is in which release, with numbers in place of names.
#
# Rounds that differ by names alone have one shape, and are looked at once.


class Column(NamedTuple):
    """A vector, or a part of one, with the bound of the whole."""

    owner: int
    batch: int
    bound: float
    rate: float
    vector: int


class Shape(NamedTuple):
    """A round, or all of a run, with names replaced by numbers.

    Attributes:
        senders, receivers, kinds: of each row; receivers None where it is public.
        parts: of each row (column, weight) pairs.
        noise: of each row (source, coefficient) pairs.
        columns: what each is a part of, and the bound of the whole.
        known_to: of each source.
    """

    senders: tuple[int, ...]
    receivers: tuple[frozenset[int] | None, ...]
    kinds: tuple[str, ...]
    parts: tuple[tuple[tuple[int, float], ...], ...]
    noise: tuple[tuple[tuple[int, float], ...], ...]
    columns: tuple[Column, ...]
    known_to: tuple[frozenset[int], ...]


def rounds_are_tied(log: ReleaseLog) -> bool:
    """Whether a source of noise or a vector occurs in more than one round."""
    seen: dict[str, Played] = {}
    named = dict[int, bool]()  # of a sequence that rounds share, whether it names noise
    for played, releases in log.rounds.items():
        if id(releases) in named:
            if named[id(releases)]:
                return True
            continue
        for release in releases:
            if any(v.round is not None for v in release.of):
                return True
            for one in release.noise:
                if one.id is not None and seen.setdefault(one.id, played) != played:
                    return True
        named[id(releases)] = any(one.id is not None for r in releases for one in r.noise)
    return False


def shape_of(rounds: Sequence[tuple[Played, Sequence[Release]]]) -> Shape:
    """Numbers in place of names, in the order of their first occurrence.

    Raises:
        ValueError: two statements about one vector, batch or source that contradict each other.
    """
    numbers = _Numbers()
    senders, receivers, kinds, parts, noise = [], [], [], [], []
    for played, releases in rounds:
        for release in releases:
            senders.append(release.sender)
            receivers.append(release.to)
            kinds.append(release.kind)
            of: dict[int, list[float]] = {}
            for vector in release.of:
                of.setdefault(numbers.column(vector, played), []).append(vector.weight)
            # Added up exactly: of 1e17, 1 and -1e17 floats would leave nothing.
            parts.append(tuple((column, math.fsum(weights)) for column, weights in of.items()))
            noise.append(
                tuple((numbers.source(one.id, one.known_to), one.std) for one in release.noise)
            )
    return Shape(
        tuple(senders), tuple(receivers), tuple(kinds), tuple(parts), tuple(noise),
        tuple(numbers.columns), tuple(numbers.known_to),
    )  # fmt: skip


class _Numbers:
    """Gives columns, batches and sources their numbers."""

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.known_to: list[frozenset[int]] = []
        self._of_vector: dict[tuple[object, ...], tuple[int, float, bool]] = {}
        self._of_column: dict[tuple[object, ...], int] = {}
        self._vectors = count()
        self._of_batch: dict[tuple[object, ...], tuple[int, float]] = {}
        self._of_source: dict[str, int] = {}

    def column(self, vector: Vector, played: Played) -> int:
        # A vector of an earlier round stands in the column that it has there.
        if vector.round is not None:
            played = Played(vector.round, vector.again)
        key = vector.owner, played, vector.batch
        batch, rate = self._of_batch.setdefault(key, (len(self._of_batch), vector.rate))
        if rate != vector.rate:
            raise InputError(
                f"batch {vector.batch} of agent {vector.owner} in round {played.round} has the "
                f"rates {rate:g} and {vector.rate:g}; a batch is drawn once"
            )
        if vector.vector is None:
            return self._new(vector, batch, next(self._vectors))
        # A vector with a name is clipped once, and released whole or in parts, never both.
        name: tuple[object, ...] = (*key, vector.vector)
        if name not in self._of_vector:
            self._of_vector[name] = next(self._vectors), vector.clip, vector.part is None
        whole = self._of_vector[name]
        if whole[1] != vector.clip:
            raise InputError(
                f"vector {vector.vector!r} of agent {vector.owner} in round {played.round} has the "
                f"clip norms {whole[1]:g} and {vector.clip:g}; it is clipped once"
            )
        if whole[2] != (vector.part is None):
            raise InputError(
                f"vector {vector.vector!r} of agent {vector.owner} in round {played.round} is "
                "released whole and in parts, which share coordinates; declare the whole as the "
                "sum of its parts, one entry of `of` for each"
            )
        # Parts have columns of their own, and share the number of their vector.
        name = (*name, vector.part)
        if name not in self._of_column:
            self._of_column[name] = self._new(vector, batch, whole[0])
        return self._of_column[name]

    def _new(self, vector: Vector, batch: int, whole: int) -> int:
        self.columns.append(Column(vector.owner, batch, vector.clip, vector.rate, whole))
        return len(self.columns) - 1

    def source(self, name: str | None, known_to: frozenset[int]) -> int:
        if name is None:
            self.known_to.append(known_to)
            return len(self.known_to) - 1
        number = self._of_source.setdefault(name, len(self.known_to))
        if number == len(self.known_to):
            self.known_to.append(known_to)
        elif self.known_to[number] != known_to:
            raise InputError(
                f"noise {name!r} is declared as known to {sorted(self.known_to[number])} and to "
                f"{sorted(known_to)}; name all who know it, each time"
            )
        return number


def insiders(shape: Shape) -> set[int]:
    """Agents that know noise which is tied to vectors of others.

    Releases are tied by noise that they share, and so are those that are tied to one of them.
    """
    above = list(range(len(shape.known_to)))  # of each source one that it is tied to

    def top(source: int) -> int:
        while above[source] != source:
            above[source] = above[above[source]]
            source = above[source]
        return source

    for of in shape.noise:
        for source, _ in of[1:]:
            above[top(source)] = top(of[0][0])
    owners = dict[int, set[int]]()
    for of, parts in zip(shape.noise, shape.parts, strict=True):
        if of:
            owners.setdefault(top(of[0][0]), set()).update(shape.columns[c].owner for c, _ in parts)
    return {
        knower
        for source, known in enumerate(shape.known_to)
        for knower in known
        if owners.get(top(source), set()) - {knower}
    }


_MOST_ROWS = 4_000  # of rounds that are one view
_MOST_COLUMNS = 4_000  # of one agent in a view
_UNCLIPPED = "a vector that is not clipped is released"
_TIED = 1e-9  # share of the information between two batches that is more than rounding


class Batch(NamedTuple):
    """What is released of one batch of the victim, in rounds that are alike.

    Attributes:
        mu: of Gaussian differential privacy, for a unit that is in the batch.
        rate: the probability that it is.
        rounds: how many rounds are alike.
        vectors: clipped vectors that are made of the batch.
        first: the first of the rounds.
    """

    mu: float
    rate: float
    rounds: int
    vectors: int
    first: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposed:
    """What one victim is exposed to against one adversary.

    Attributes:
        batches: by mu and rate.
        because: what decided the largest, in words.
        whole_run: whether all rounds are one release.
    """

    batches: tuple[Batch, ...]
    because: str
    whole_run: bool


class Views:
    """The views of a log, by shape of round.

    Attributes:
        whole_run: whether all rounds are one view.
        owners: whose vectors are in any release.
    """

    def __init__(self, log: ReleaseLog) -> None:
        self._header = log.header
        self.whole_run = rounds_are_tied(log)
        # Rounds that are tied are one view; of a torn line nobody knows what it repeats there.
        if self.whole_run:
            if log.torn:
                raise UnsupportedView(
                    "a line of the log was cut off, and noise or vectors go from round to round: "
                    "whether it was released again is unknown; no figure is known for that"
                )
            rows = sum(map(len, log.rounds.values()))
            if rows > _MOST_ROWS:
                raise UnsupportedView(
                    f"{rows} releases are tied by noise or vectors that go from round to round, "
                    f"and at most {_MOST_ROWS} are looked at together; give noise of each round "
                    "its own id, or account for fewer rounds"
                )
            self._shapes = {shape_of(list(log.rounds.items())): (1, 0)}
        else:
            # Rounds of one shape have one view, and count.
            self._shapes = dict[Shape, tuple[int, int]]()
            alike = Counter(map(id, log.rounds.values()))  # rounds that share one sequence
            firsts = dict[int, tuple[Played, Sequence[Release]]]()
            for one in log.rounds.items():
                firsts.setdefault(id(one[1]), one)
            for shared, one in firsts.items():
                shape = shape_of([one])
                times, first = self._shapes.get(shape, (0, one[0].round))
                self._shapes[shape] = times + alike[shared], first
        self._torn = log.torn
        self._views: dict[tuple[int, _Sight], _Seen] = {}
        self._sights: dict[tuple[int, Adversary], _Sight] = {}
        self.owners = sorted({c.owner for shape in self._shapes for c in shape.columns})

    def exposed(self, who: Adversary, victim: int) -> Exposed:
        """What a unit of the victim is exposed to against an adversary.

        Raises:
            ValueError: the victim is one of the adversary's agents.
            UnsupportedView: rounding hides whether noise cancels.
        """
        if victim in who.agents:
            raise InputError(f"{who.name} contains the victim {victim}; choose another")
        found: Counter[tuple[float, float, int]] = Counter()
        firsts: dict[tuple[float, float, int], int] = {}
        reasons: list[tuple[float, str]] = []
        for number, (shape, (times, first)) in enumerate(self._shapes.items()):
            if not any(column.owner == victim for column in shape.columns):
                continue
            seen = self._seen(number, shape, who)
            for mu, rate, vectors, because in seen.batches(victim, whole=self.whole_run):
                key = mu, rate, vectors
                found[key] += times + self._torn
                firsts.setdefault(key, first)
                reasons.append((mu, because))
        return Exposed(
            batches=tuple(
                Batch(mu, rate, rounds, vectors, firsts[mu, rate, vectors])
                for (mu, rate, vectors), rounds in found.items()
                if mu > 0 and rate > 0
            ),
            because=max(reasons, default=(0.0, "nothing about the data is released"))[1],
            whole_run=self.whole_run,
        )

    def _seen(self, number: int, shape: Shape, who: Adversary) -> _Seen:
        """The view of an adversary; those who see and know the same have the same one."""
        sight = self._sights.get((number, who))
        if sight is None:
            sight = self._sights[number, who] = _sight(shape, who, self._header)
        if (number, sight) not in self._views:
            self._views[number, sight] = _Seen(shape, sight, self._header)
        return self._views[number, sight]

    def apart(self) -> frozenset[int]:
        """Agents that may learn of others what one that only looks on does not.

        Where all see everything, they know noise that is tied to vectors of others; elsewhere they
        send, receive or know anything.
        """
        found = set[int]()
        for shape in self._shapes:
            if self._header.public:
                found.update(shape.senders, *shape.known_to, *filter(None, shape.receivers))
            else:
                found |= insiders(shape)
        return frozenset(found)


class _Sight(NamedTuple):
    """The rows that an adversary sees, and the sources that it does not know."""

    rows: tuple[int, ...]
    sources: tuple[int, ...]


def _sight(shape: Shape, who: Adversary, header: Header) -> _Sight:
    return _Sight(
        tuple(i for i in range(len(shape.senders)) if _sees(shape, i, who, header)),
        tuple(s for s, known in enumerate(shape.known_to) if not known & who.agents),
    )


class _Seen:
    """The view of one adversary in a round, or in all."""

    def __init__(self, shape: Shape, sight: _Sight, header: Header) -> None:
        self._shape = shape
        rows, sources = sight
        self._rows, self._by_client = rows, header.unit is Unit.CLIENT
        place = {s: j for j, s in enumerate(sources)}
        noise = [[(place[s], c) for s, c in shape.noise[i] if s in place] for i in rows]
        names = [
            f"{shape.kinds[i]} of {party_name(shape.senders[i], header)}{_to(shape, i, header)}"
            for i in rows
        ]
        self._view = View(
            contributions=_matrix([shape.parts[i] for i in rows], len(shape.columns)),
            noise=_matrix(noise, len(sources)),
            messages=names,
            vectors=[column.vector for column in shape.columns],
        )

    def batches(self, victim: int, *, whole: bool) -> list[tuple[float, float, int, str]]:
        """For each batch of the victim (mu, rate, vectors, reason); all together where tied."""
        every: dict[int, list[int]] = {}
        for c, column in enumerate(self._shape.columns):
            if column.owner == victim:
                every.setdefault(column.batch, []).append(c)
        groups = [list(columns) for columns in every.values()]
        if (vectors := sum(map(len, groups))) > _MOST_COLUMNS:
            raise UnsupportedView(
                f"{vectors} vectors of agent {victim} are released together, and at most "
                f"{_MOST_COLUMNS} are looked at; name those that are one vector"
            )
        if whole or (len(groups) > 1 and self._are_tied(groups)):
            groups = [[c for of in groups for c in of]]
            return [self._batch(groups[0], rate=1.0, whole=whole)]
        return [self._batch(of, rate=self._rate(of)) for of in groups]

    def _rate(self, columns: Sequence[int]) -> float:
        """Of a batch: that of its columns, and 1 where the adversary sees who takes part.

        A client sends in a round just where it takes part, so whoever sees its own message knows.
        """
        of, held = self._shape.columns[columns[0]], set(columns)
        rows = (i for i in self._rows if held & {c for c, _ in self._shape.parts[i]})
        seen = self._by_client and any(self._shape.senders[i] == of.owner for i in rows)
        return 1.0 if seen else of.rate

    def _batch(
        self, columns: Sequence[int], *, rate: float, whole: bool = False
    ) -> tuple[float, float, int, str]:
        bounds = [self._shape.columns[c].bound for c in columns]
        mu = self._view.mu(columns, bounds=bounds)
        vectors = len({self._shape.columns[c].vector for c in columns})
        if math.isinf(mu):
            leaks = self._view.leaks(columns)
            return mu, rate, vectors, leak_sentence(leaks) if leaks else _UNCLIPPED
        if vectors == 1:
            return mu, rate, vectors, "one vector of a batch is released"
        of = "all rounds" if whole else "one batch"
        return mu, rate, vectors, f"{vectors} vectors of {of} are released, counted jointly"

    def _are_tied(self, groups: Sequence[Sequence[int]]) -> bool:
        columns = [c for of in groups for c in of]
        if self._view.leaks(columns):
            return True
        information = np.abs(self._view.information(columns))
        own = np.sqrt(np.diag(information))
        share = information / np.maximum(np.outer(own, own), np.finfo(float).tiny)
        of = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        return bool(share[of[:, None] != of[None, :]].max(initial=0.0) > _TIED)


def _sees(shape: Shape, row: int, who: Adversary, header: Header) -> bool:
    to = shape.receivers[row]
    if to is None or not header.public:
        return True
    if who.sees is Sees.LINKS:
        return not header.encrypted
    return bool(({shape.senders[row]} | to) & who.agents)


def _to(shape: Shape, row: int, header: Header) -> str:
    to = shape.receivers[row]
    if to is None:
        return " to all"
    return " to " + ", ".join(party_name(party, header) for party in sorted(to))


def _matrix(rows: Sequence[Iterable[tuple[int, float]]], columns: int) -> Any:
    from scipy.sparse import coo_array

    entries = [(i, c, value) for i, of in enumerate(rows) for c, value in of if value]
    at, to, values = zip(*entries, strict=True) if entries else ((), (), ())
    return coo_array(
        (np.asarray(values, dtype=float), (np.asarray(at, dtype=int), np.asarray(to, dtype=int))),
        shape=(len(rows), columns),
    ).tocsr()
