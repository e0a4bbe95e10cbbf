"""What earlier lines say, which later ones may not deny.

A reader refuses a log that contradicts itself, so a line that would is never written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...privacy.errors import InputError
from ...privacy.releases.files import Played
from ...privacy.releases.lines import Header, Release, Vector
from ...privacy.releases.received import Received

# (owner, batch, None) with its rate, or (owner, batch, vector) with its clip norm.
_Fact = tuple[tuple[int, str, str | None], float]


class EarlierLines:
    """Rates of batches, clip norms of vectors, knowers of sources, and who received what.

    Rounds that are alike share what is held of them.

    Args:
        header: of the log.
    """

    def __init__(self, header: Header) -> None:
        self._received = Received(header)
        self._sent: set[tuple[int, str, int | None]] = set()
        self._now: dict[tuple[int, str, str | None], float] = {}
        self._past: dict[int, frozenset[_Fact]] = {}
        self._played: set[int] = set()
        self._held: dict[frozenset[_Fact], frozenset[_Fact]] = {}
        self._knowers: dict[str, frozenset[int]] = {}

    def batches(self, owner: int) -> set[str]:
        """Names of the batches of an owner in this round."""
        return {batch for who, batch, vector in self._now if who == owner and vector is None}

    def sources(self) -> frozenset[str]:
        """Names of all noise so far."""
        return frozenset(self._knowers)

    def new_round(self, last: int) -> None:
        """What was said of the last round is of the past."""
        self._add(last, self._now.items())
        self._played.add(last)
        self._now = {}
        self._sent.clear()

    def take_in(self, release: Release, *, round: int) -> None:
        """Take in a release of an earlier session."""
        self._played.add(round)
        for vector in release.of:
            self._add(round if vector.round is None else vector.round, _facts(vector))
        self._know(release)
        self._received.take_in(release, Played(round, 0))

    def carried_on(self, vector: dict[str, Any]) -> dict[str, Any]:
        """A vector of an earlier round, with the rate that its batch was drawn at."""
        at, batch = vector.get("round"), str(vector.get("batch", 0))
        past = self._past.get(at, frozenset()) if isinstance(at, int) else frozenset()
        rates = {rate for key, rate in past if key == (vector.get("owner"), batch, None)}
        if len(rates) != 1 or "rate" in vector or "sampler" in vector:
            return vector
        (rate,) = rates
        return {**vector, "rate": rate, **({"sampler": "poisson"} if rate < 1 else {})}

    def check(self, release: Release, *, round: int) -> None:
        """Refuse a release that contradicts an earlier line, and take it in.

        Raises:
            ValueError: it does, or does not say what it holds of what its sender received.
        """
        ends = [None] if release.to is None else sorted(release.to)
        if any((release.sender, release.kind, to) in self._sent for to in ends):
            raise InputError(
                f"round {round} has a release {release.kind!r} to the same receiver already; give "
                "another message of the round another kind, or the next round its number"
            )
        now: dict[tuple[int, str, str | None], float] = dict(self._now)
        past: dict[int, dict[tuple[int, str, str | None], float]] = {}
        for vector in release.of:
            for key, value in _facts(vector):
                at, said = round if vector.round is None else vector.round, {value}
                # A round that is gone through again draws its batches anew.
                if vector.round is not None or round not in self._played:
                    said |= {of for fact, of in self._past.get(at, ()) if fact == key}
                of = now if vector.round is None else past.setdefault(at, {})
                said.add(of.setdefault(key, value))
                if said != {value}:
                    raise _contradiction(vector, key[2], sorted(said))
        for one in release.noise:
            if one.id is not None and self._knowers.get(one.id, one.known_to) != one.known_to:
                raise InputError(
                    f"noise {one.id!r} is declared as known to others than before; name all who "
                    "know it, each time"
                )
        self._received.check(release, Played(round, 0))
        self._received.with_knowers(release, Played(round, 0))
        self._received.take_in(release, Played(round, 0))
        self._now = now
        for number, facts in past.items():
            self._add(number, facts.items())
        self._sent |= {(release.sender, release.kind, to) for to in ends}
        self._know(release)

    def _know(self, release: Release) -> None:
        self._knowers.update({one.id: one.known_to for one in release.noise if one.id is not None})

    def _add(self, round: int, facts: Iterable[_Fact]) -> None:
        whole = self._past.get(round, frozenset()) | frozenset(facts)
        self._past[round] = self._held.setdefault(whole, whole)


def _facts(vector: Vector) -> list[_Fact]:
    found: list[_Fact] = [((vector.owner, vector.batch, None), vector.rate)]
    if vector.vector is not None:
        found.append(((vector.owner, vector.batch, vector.vector), vector.clip))
    return found


def _contradiction(vector: Vector, name: str | None, values: list[float]) -> InputError:
    several = " and ".join(f"{value:g}" for value in values)
    of = f"of agent {vector.owner}" + ("" if vector.round is None else f" in round {vector.round}")
    if name is None:
        return InputError(
            f"batch {vector.batch} {of} has the rates {several}; a batch is drawn once, so give "
            "another its own name"
        )
    return InputError(f"vector {name!r} {of} has the clip norms {several}; it is clipped once")
