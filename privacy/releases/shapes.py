"""The shape of a round: what is in which release, with numbers in place of names.

Rounds that differ by names alone have one shape, and are looked at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError
from .files import Played
from .lines import Release, Vector
from .log import ReleaseLog

__all__ = ["Column", "Shape", "insiders", "rounds_are_tied", "shape_of"]


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
    for played, releases in log.rounds.items():
        for release in releases:
            if any(v.round is not None for v in release.of):
                return True
            for one in release.noise:
                if one.id is not None and seen.setdefault(one.id, played) != played:
                    return True
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
        self._count = 0
        self._of_batch: dict[tuple[object, ...], tuple[int, float]] = {}
        self._of_source: dict[str, int] = {}

    def column(self, vector: Vector, played: Played) -> int:
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
            return self._new(vector, batch, self._vectors())
        name: tuple[object, ...] = (*key, vector.vector)
        if name not in self._of_vector:
            self._of_vector[name] = self._vectors(), vector.clip, vector.part is None
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
        name = (*name, vector.part)
        if name not in self._of_column:
            self._of_column[name] = self._new(vector, batch, whole[0])
        return self._of_column[name]

    def _vectors(self) -> int:
        """The number of the next vector."""
        self._count += 1
        return self._count - 1

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
