"""What each party received that is not public, and whether its releases say what of it they hold.

Where `depends_on` is "public", a release is its clipped vectors, its noise, and a function of
public releases. A party that received anything else may have put it in, so that

    no vector     every receiver has seen all that the sender received, or by the end of the round
                  a public release shows it, under no other noise and without other vectors, or it
                  is refused; noise alone may be received by who sends noise with a name, such as
                  masks
    vectors       what the receivers have not seen is in `of`, or is by the end of the round in a
                  release of the sender to all of them, or in a public one, or it is refused; beside
                  vectors of its own alone what came in the same round came at the same time

unless the release says `public`, why there is nothing of it; that is named beside the figures.
Noise without a name beside vectors that were received under noise may be that noise: it counts, as
far as it goes, as known to those who know or saw it, and is refused where it is all that there is,
or hides vectors of the sender, too. Where any release may depend on any other,
everybody counts as seeing all, and nothing is asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from ..errors import InputError
from .lines import Header, LogFile, Noise, Played, Release, Vector, party_name

_Key = tuple[int, Played, str]  # owner, round and batch of a vector
_SHOWN = 3
_ROUNDING = 1e-6


class _Message(NamedTuple):
    """A release that somebody received."""

    at: Played
    release: Release


class Received:
    """What the parties of a log have received so far."""

    def __init__(self, header: Header) -> None:
        self._header = header
        # Of a party, by who saw a message.
        self._seen: dict[int, dict[frozenset[int], list[_Message]]] = {}
        # Of a party, by who saw a message or was told of what it holds: those that hold vectors.
        self._due: dict[int, dict[frozenset[int], list[_Message]]] = {}
        self._published: set[int] = set()
        self._of: dict[_Key, list[tuple[Vector, _Message]]] = {}
        self._owners: set[int] = set()
        self._public: set[_Key] = set()
        self._stated: Counter[tuple[int, str]] = Counter()

    def take_in(self, release: Release, at: Played) -> None:
        """Note who receives a release."""
        if not self._header.public:
            return
        self._owners.update(v.owner for v in release.of if v.owner == release.sender)
        if release.to is None:
            self._public.update(_key(vector, at) for vector in release.of)
            # Whoever received what a public release shows whole need not list it again.
            listed = _names(release, at)
            self._published.update(
                id(one)
                for key in listed
                for _, one in self._of.get(key, ())
                if _lists(listed, one) and _shows(release, one.release)
            )
            return
        if not release.of and not release.noise:
            return
        message, audience = _Message(at, release), release.to | {release.sender}
        for vector in release.of:
            self._of.setdefault(_key(vector, at), []).append((vector, message))
        for party in release.to - {release.sender}:
            self._seen.setdefault(party, {}).setdefault(audience, []).append(message)
            if release.of:
                self._due.setdefault(party, {}).setdefault(audience, []).append(message)

    def check(self, release: Release, at: Played) -> None:
        """Refuse a release that does not say what it holds of what its sender received."""
        left_out = self.left_out(release, at)
        if left_out is None:
            return
        if release.public is None:
            raise InputError(self._sentence(release, left_out))
        self._stated[release.sender, release.public] += 1

    def left_out(self, release: Release, at: Played) -> _Message | None:
        """A message to the sender that may be in a release, and of which it does not say so.

        Raises:
            ValueError: it lists a vector that nobody brought to a sender without records.
        """
        if not self._header.public or release.sender not in self._seen:
            return None
        stray = next((v for v in release.of if self._is_stray(v, release.sender, at)), None)
        if stray is not None:
            raise InputError(
                f"{self._name(release)} holds a vector of agent {stray.owner} in round "
                f"{_key(stray, at)[1].round}, and no release brought it to "
                f"{self._party(release.sender)}; name the round and the batch in "
                "which it was received, or add the line by which it was"
            )
        return self._unlisted(release, at) if release.of else self._unseen(release)

    def with_knowers(self, release: Release, at: Played) -> Release:
        """A release whose noise without a name counts as known to whose it may be.

        Raises:
            ValueError: it is no more than what was received, or hides own vectors beside these.
        """
        if not release.of or release.sender not in self._due:
            return release
        theirs = self._noise_of_others(release, at)
        free = [one for one in release.noise if one.id is None]
        if not theirs or not free:
            return release
        squared = math.fsum(std**2 for std, _ in theirs)
        own = any(vector.owner == release.sender for vector in release.of)
        if own or math.fsum(one.std**2 for one in free) <= squared * (1 + _ROUNDING):
            holds = "vectors of its own beside others" if own else "no more noise than these"
            raise InputError(
                f"{self._name(release)} holds vectors that {self._party(release.sender)} received "
                f"under noise, and {holds}, which may be that noise: give each noise an id where "
                "it is added, and list it by that id here"
            )
        noise = [one for one in release.noise if one.id is not None]
        for one in free:
            part = one.std / math.sqrt(math.fsum(other.std**2 for other in free))
            noise += [Noise(std=part * std, id=None, known_to=one.known_to | known)
                      for std, known in theirs]  # fmt: skip
            rest = math.sqrt(one.std**2 - part**2 * squared)
            noise.append(Noise(std=rest, id=None, known_to=one.known_to))
        return replace(release, noise=tuple(noise))

    @property
    def stated(self) -> list[str]:
        """In sentences what releases count as public because they say so."""
        found = [
            f"{count} {'release' if count == 1 else 'releases'} of "
            f"{self._party(sender)} count as holding nothing of what it received, "
            f"because it says so: {why}"
            for (sender, why), count in self._stated.most_common()
        ]
        more = len(found) - _SHOWN
        return found[:_SHOWN] + ([f"{more} more such reasons are given"] if more > 0 else [])

    def _unseen(self, release: Release) -> _Message | None:
        """A message to the sender which a receiver of no vector has not seen.

        Noise with a name may be a mask, of somebody who received other masks.
        """
        masked = any(one.id is not None for one in release.noise)
        for audience, messages in self._seen[release.sender].items():
            if release.to is None or not release.to <= audience:
                for message in messages:
                    if id(message) not in self._published and (message.release.of or not masked):
                        return message
        return None

    def _unlisted(self, release: Release, at: Played) -> _Message | None:
        """A message to the sender which a receiver has not seen, was not told of, nor is now."""
        due = self._due.get(release.sender, {})
        listed = _names(release, at)
        own = all(vector.owner == release.sender for vector in release.of)
        for audience in [a for a in due if release.to is None or not release.to <= a]:
            told, later = list[_Message](), list[_Message]()
            for one in due[audience]:
                if id(one) in self._published:
                    continue
                if _lists(listed, one):
                    told.append(one)
                elif own and one.at == at:
                    later.append(one)
                else:
                    return one
            due[audience] = later
            if not later:
                del due[audience]
            if release.to is not None and told:
                due.setdefault(audience | release.to, []).extend(told)
        return None

    def _is_stray(self, vector: Vector, sender: int, at: Played) -> bool:
        """Whether a vector came to its sender, who holds no records of its own, by no release."""
        if sender in self._owners or vector.owner == sender or sender not in self._due:
            return False
        key = _key(vector, at)
        return key not in self._public and not any(
            sender in (one.release.to or ()) for _, one in self._of.get(key, ())
        )

    def _noise_of_others(self, release: Release, at: Played) -> list[tuple[float, frozenset[int]]]:
        """Deviations of noise under which its vectors were received, and to whom it may be known.

        Whoever saw a message may take it off, and its noise with it.
        """
        named = {one.id for one in release.noise if one.id is not None}
        found: dict[tuple[int, int], tuple[float, frozenset[int]]] = {}
        for vector in release.of:
            for theirs, message in self._of.get(_key(vector, at), ()):
                audience = (message.release.to or frozenset()) | {message.release.sender}
                if release.sender not in audience or not _is_same(vector, theirs):
                    continue
                for place, one in enumerate(message.release.noise):
                    if release.sender not in one.known_to and one.id not in named:
                        std = abs(vector.weight / theirs.weight * one.std)
                        before, _ = found.get((id(message), place), (0.0, None))
                        found[id(message), place] = max(before, std), one.known_to | audience
        return list(found.values())

    def _sentence(self, release: Release, message: _Message) -> str:
        sender = self._party(release.sender)
        whose = self._party(message.release.sender)
        says = "lists other vectors" if release.of else "lists no vector"
        says += "" if release.of or release.noise else " and no noise"
        return (
            f"{self._name(release)} {says}, and {sender} has received "
            f"{message.release.kind!r} of {whose} in round {message.at.round}, which is not "
            "public; list in `of` and `noise` what of it is in it, each vector and each noise by "
            'the name that it has there, or say "public": "why nothing of it is"'
        )

    def _party(self, party: int) -> str:
        return party_name(party, self._header)

    def _name(self, release: Release) -> str:
        to = "all"
        if release.to is not None:
            every = [self._party(party) for party in sorted(release.to)]
            to = ", ".join(every[:_SHOWN]) + ", ..." * (len(every) > _SHOWN)
        return f"{release.kind!r} of {self._party(release.sender)} to {to}"


def hold_received(every: Sequence[LogFile]) -> list[str]:
    """Hold the releases of a log against what their senders received, in place.

    In one file releases left in its order. Of several files nobody knows what came first in a
    round, so all of it counts as received before; where rounds came again, so does everything.

    Returns:
        What counts as public because a release says so, in sentences.

    Raises:
        ValueError: a release that does not say what of that which its sender received is in it.
    """
    header = every[0].header
    if not header.public:
        return []
    received = Received(header)
    # Of several files no order within a round is known, and after a resumption none at all.
    several = len(every) > 1
    at_once = several and any(log_file.resumed_after for log_file in every)
    rounds = list(dict.fromkeys(played for log_file in every for played in log_file.rounds))
    if several:
        rounds.sort()
    if at_once:
        _take_in(received, every, rounds)
    for played in rounds:
        if several and not at_once:
            _take_in(received, every, [played])
        # What a release leaves out may stand in a later one of its round.
        later = list[tuple[str, Release]]()
        for log_file in every:
            of = list(log_file.rounds.get(played, ()))
            for place, release in enumerate(of.copy()):
                line = f"{log_file.path} line {log_file.at[played][place]}"
                with _in(line):
                    if received.left_out(release, played) is not None:
                        later.append((line, release))
                    of[place] = received.with_knowers(release, played)
                if not several:
                    received.take_in(release, played)
            if of:
                log_file.rounds[played] = of
        for line, release in later:
            with _in(line):
                received.check(release, played)
    return received.stated


@contextmanager
def _in(line: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{line}: {error}") from error


def _take_in(received: Received, every: Sequence[LogFile], rounds: Iterable[Played]) -> None:
    for played in rounds:
        for log_file in every:
            for release in log_file.rounds.get(played, ()):
                received.take_in(release, played)


def _key(vector: Vector, at: Played) -> _Key:
    played = at if vector.round is None else Played(vector.round, vector.again)
    return vector.owner, played, vector.batch


def _names(release: Release, at: Played) -> Mapping[_Key, list[Vector]]:
    found: dict[_Key, list[Vector]] = {}
    for vector in release.of:
        found.setdefault(_key(vector, at), []).append(vector)
    return found


def _lists(listed: Mapping[_Key, list[Vector]], message: _Message) -> bool:
    """Whether all vectors of a message are among those that are listed."""
    return all(
        any(_is_same(one, vector) for one in listed.get(_key(vector, message.at), ()))
        for vector in message.release.of
    )


def _shows(public: Release, private: Release) -> bool:
    """Whether a release holds nothing that would hide what is in another, which it lists.

    Other vectors would, other noise, and noise that is larger beside them: without a name any may
    be other noise.
    """
    named: dict[str | None, float] = {
        one.id: one.std for one in private.noise if one.id is not None
    }
    if len(public.of) != len(private.of) or not {one.id for one in public.noise} <= named.keys():
        return False
    least, most = (
        of(abs(one.weight) for one in release.of) for of, release in ((min, public), (max, private))
    )
    return all(
        most * abs(one.std) <= least * (1 + _ROUNDING) * abs(named[one.id]) for one in public.noise
    )


def _is_same(one: Vector, received: Vector) -> bool:
    """Whether a vector of one batch may be another; without a name each may be."""
    if one.vector is None or received.vector is None:
        return True
    return one.vector == received.vector and one.part in (None, received.part)
