"""Files of a log: what one of them holds, and whether several make one system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, UnsupportedView
from .lines import Header, Release, party_name


class Played(NamedTuple):
    """A round as often as it was played: once more for each time that it was gone through again."""

    round: int
    again: int


@dataclass(kw_only=True, slots=True)
class LogFile:
    """One file of a log.

    Attributes:
        path: where it lies.
        header: its first line.
        rounds: its releases, by round.
        at: the numbers of their lines, where somebody must have received what they hold.
        torn: how many of its lines were cut off.
        resumed_after: the rounds after which the system went on.
    """

    path: Path
    header: Header
    rounds: dict[Played, list[Release]] = field(default_factory=dict)
    at: dict[Played, list[int]] = field(default_factory=dict)
    torn: int = 0
    resumed_after: list[int] = field(default_factory=list)


def check_joined(
    every: Sequence[LogFile], absent: Mapping[int, Sequence[int]], *, partial: bool
) -> list[str]:
    """Refuse files that do not make one system: a party twice, or one that says nothing.

    Returns:
        What is missing of a part of a system, in a sentence.
    """
    header, parties = every[0].header, [log_file.header.agent for log_file in every]
    for log_file in every:
        if log_file.header.agent is None:
            raise InputError(
                f"{log_file.path} names no agent, so it cannot be joined with {every[0].path}; add "
                '"agent" to the header of each file, or give one file that holds everything'
            )
    for log_file in every:
        if parties.count(log_file.header.agent) > 1:
            raise InputError(
                f"{log_file.path}: two files are of "
                f"{party_name(log_file.header.agent or 0, header)}; give each party's log once"
            )
    if unknown := [agent for agent in absent if not 0 <= agent < header.agents]:
        raise InputError(f"absent agent {unknown[0]} must lie in 0..{header.agents - 1}")
    missing = sorted(set(range(header.agents)) - set(parties) - set(absent))
    if missing and partial:
        few = ", ".join(map(str, missing[:5])) + ", ..." * (len(missing) > 5)
        return [f"no releases of agents {few} are counted: their logs are not here"]
    if missing:
        raise InputError(
            f"no log of agent {missing[0]} of {header.agents} is given; add its file, or say in "
            "which rounds it was absent"
        )
    rounds = sorted({played.round for log_file in every for played in log_file.rounds})
    for party in sorted(set(absent) - set(parties)):
        if there := sorted(set(rounds) - set(absent[party])):
            raise InputError(
                f"no log of agent {party} is given, which is not declared absent in round "
                f"{there[0]}; add its file"
            )
    for log_file in every:
        party = log_file.header.agent or 0
        held = {played.round for played in log_file.rounds}
        away = set(absent.get(party, ()))
        for number in rounds:
            if number not in held and number not in away and party != header.agents:
                raise InputError(
                    f"{log_file.path} has no release of agent {party} in round {number}, in which "
                    f"others released; say that it was absent, --absent {party}:{number}, if that "
                    "is publicly known, or add what it released"
                )
            if number in held and number in away:
                raise InputError(
                    f"agent {party} is declared absent in round {number}, and {log_file.path} "
                    "has a release of it"
                )
    if not partial:
        _check_same_plays(every)
    if header.agents not in parties and any(_sends_to_server(log_file) for log_file in every):
        return ["no log of the server is given, and what it releases is not counted"]
    return []


def _sends_to_server(one: LogFile) -> bool:
    server = one.header.agents
    return any(r.to is not None and server in r.to for of in one.rounds.values() for r in of)


def _check_same_plays(every: Sequence[LogFile]) -> None:
    """Refuse vectors of others where it cannot be told which time of a round they are of.

    Raises:
        UnsupportedView: parties that share a vector went through its round a different number of
            times.
    """
    plays = {
        log_file.header.agent: Counter(played.round for played in log_file.rounds)
        for log_file in every
    }
    again = {number for of in plays.values() for number, times in of.items() if times > 1}
    if not again:
        return
    for log_file in every:
        party = log_file.header.agent
        for played, releases in log_file.rounds.items():
            for vector in chain.from_iterable(release.of for release in releases):
                number = played.round if vector.round is None else vector.round
                there = plays.get(vector.owner, Counter())[number]
                if number in again and vector.owner != party and there != plays[party][number]:
                    raise UnsupportedView(
                        f"{log_file.path} releases a vector of agent {vector.owner} in round "
                        f"{number}, which it went through {plays[party][number]} times and agent "
                        f"{vector.owner} {there} times; which vector it was is unknown, and "
                        "no figure is known for that"
                    )


def missing_rounds(every: Sequence[LogFile]) -> tuple[tuple[int, int], ...]:
    """First and last of the rounds that no line is about, from 1 to the last that was reached.

    A log may begin with round 0, the start, or with round 1.
    """
    found, before = list[tuple[int, int]](), 0
    for number in sorted({played.round for log_file in every for played in log_file.rounds}):
        if number > before + 1:
            found.append((before + 1, number - 1))
        before = number
    reached = max((after for log_file in every for after in log_file.resumed_after), default=0)
    if reached > before:
        found.append((before + 1, reached))
    return tuple(found)


def check_same_system(first: LogFile, other: LogFile) -> None:
    """Refuse files whose headers contradict each other."""
    for key in ("system", "agents", "unit", "public", "encrypted"):
        one, two = getattr(first.header, key), getattr(other.header, key)
        if one != two:
            raise InputError(
                f"{other.path} says {key}={two!s} and {first.path} {key}={one!s}; the logs of one "
                "system agree in it"
            )
