"""Logs of releases: one file of a whole system, or one of each agent, joined round by round.

A line is whole before the release that it announces may leave. One that an interruption cut off
may announce any round, so it counts as one more of each release. A mark `resumed_after` says that
an agent went on; rounds that come again after it are releases of their own. Where the header
carries a digest (`chain`), every line must.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError, UnsupportedView
from ..files import check_links, check_size, read_bounded
from ..guarantee import Status
from ..plain_text import plain
from .chained_file import Lines, damaged, parsed, round_number
from .lines import (
    SCHEMA,
    Header,
    LogFile,
    Played,
    Release,
    join,
    party_name,
    read_header,
    read_release,
)
from .received import hold_received

# Whether several files make one system.


def check_joined(
    every: Sequence[LogFile], absent: Mapping[int, Sequence[int]], *, partial: bool
) -> list[str]:
    """Refuse files that do not make one system: a party twice, or one that says nothing.

    Returns:
        What is missing of a part of a system, in a sentence.
    """
    # Each file is of one party, and each party has one file.
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
    # Agents without a file are absent; otherwise they are missing, which a part of a system may be.
    if unknown := [agent for agent in absent if not 0 <= agent < header.agents]:
        raise InputError(f"absent agent {unknown[0]} must lie in 0..{header.agents - 1}")
    missing = sorted(set(range(header.agents)) - set(parties) - set(absent))
    if missing and partial:
        few = ", ".join(map(str, missing[:5])) + ", ..." * (len(missing) > 5)
        return [f"no releases of agents {few} are counted: their logs are not here"]
    if missing:
        raise InputError(
            f"no log of agent {missing[0]} of {header.agents} is given; add its file, or say in "
            f"which rounds it was absent{_told(every[0].path)}"
        )
    # Who has no file was declared absent in every round that others played.
    rounds = sorted({played.round for log_file in every for played in log_file.rounds})
    for party in sorted(set(absent) - set(parties)):
        if there := sorted(set(rounds) - set(absent[party])):
            raise InputError(
                f"no log of agent {party} is given, which is not declared absent in round "
                f"{there[0]}; add its file"
            )
    # Who has a file releases in every round but those of its absence.
    for log_file in every:
        party = log_file.header.agent or 0
        held = {played.round for played in log_file.rounds}
        away = set(absent.get(party, ()))
        for number in rounds:
            if number not in held and number not in away and party != header.agents:
                raise InputError(
                    f"{log_file.path} has no release of agent {party} in round {number}, in which "
                    f"others released; say that it was absent, --absent {party}:{number}, if that "
                    f"is publicly known, or add what it released{_told(log_file.path)}"
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


_MOST_BYTES = 4 << 30
_MOST_RELEASES = 5_000_000
_PATTERN = "*.jsonl"
WITHHELD = ".withheld"
"""Ends the name of the file that says, beside a client's lines, why replies of it did not leave."""
_LONGEST_WHY = 1 << 16  # bytes
TRAINING = "training-"
"""Begins the name of the folder of a further training, in that of the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseLog:
    """What a system released, as it is declared.

    Attributes:
        header: what all releases have in common; of a joined log `agent` is None.
        rounds: by round, in order, everybody's releases of it.
        torn: how many lines were cut off.
        warnings: what was taken at its worst, or as a release says it, in sentences.
        stated: which releases count as public because they say so, in sentences.
        missing: first and last of rounds, one after the other, that no line is about.
        status: of finite figures: declared, or checked where what was kept agrees with the lines.

    Raises:
        ValueError: another status, since no list of releases proves itself.
    """

    header: Header
    rounds: Mapping[Played, Sequence[Release]]
    torn: int
    warnings: Sequence[str]
    paths: Sequence[Path]
    missing: Sequence[tuple[int, int]] = ()
    stated: Sequence[str] = ()
    status: Status = Status.DECLARED

    def __post_init__(self) -> None:
        """Refuse a status that no declared log can have."""
        if self.status not in (Status.DECLARED, Status.CHECKED):
            raise InputError(
                f"status={self.status!s} cannot be that of a log of releases: nothing shows that "
                f"the list is true; it is {Status.DECLARED!s}, or {Status.CHECKED!s}"
            )

    @property
    def sampled(self) -> bool:
        """Whether some vector counts as made of a batch that not every unit is in."""
        return any(v.rate < 1 for of in self.distinct for r in of for v in r.of)

    @property
    def distinct(self) -> list[Sequence[Release]]:
        """What rounds release, of those that share one sequence once, by their first round."""
        return list({id(of): of for of in self.rounds.values()}.values())

    @property
    def noise_first(self) -> int:
        """How many releases say that their noise met the bare sum before anything else."""
        return sum(release.noise_first for of in self.rounds.values() for release in of)


def read_log(
    paths: Path | Sequence[Path],
    *,
    absent: Mapping[int, Sequence[int]] | None = None,
    partial: bool = False,
) -> ReleaseLog:
    """Read a log, a folder of logs or several, and join them.

    Args:
        paths: files, or a folder whose *.jsonl files are those of one system.
        absent: by agent the rounds in which it released nothing, as is publicly known.
        partial: whether logs of some agents alone will do; a warning says whose are missing.

    Raises:
        FileNotFoundError: a path is not there.
        ValueError: a line that is no release, files of different systems, a round that an agent
            released twice or not at all, a release that does not say what it holds of what its
            sender received.
    """
    # Files of one system, whose rounds are complete where each agent keeps a log of its own.
    files = _files([paths] if isinstance(paths, Path) else list(paths))
    every = [_read(path) for path in files]
    first = every[0]
    for one in every[1:]:
        check_same_system(first, one)
    warnings = list[str]()
    if len(every) > 1 or first.header.agent is not None:
        warnings += check_joined(every, absent or {}, partial=partial)
    elif absent:
        raise InputError(
            f"absent={sorted(absent)} has no effect on {files[0]}, which holds everybody's "
            "releases; leave it out"
        )
    for folder in dict.fromkeys(path.parent for path in files):
        warnings += [*withheld(folder), *_other_trainings(folder)]
    # What releases say of received messages is held against those; then all go by round.
    stated = hold_received(every)
    warnings += stated
    rounds = every[0].rounds
    for one in every[1:]:
        for played, releases in one.rounds.items():
            join(rounds, played, releases)
    if any(one > following for one, following in pairwise(rounds)):
        rounds = dict(sorted(rounds.items()))
    # Warnings say what counts otherwise than it is written, or does not count.
    unsampled = sum(release.unsampled for of in rounds.values() for release in of)
    if unsampled:
        warnings.append(
            f'{unsampled} releases name a rate below 1 without sampler = "poisson"; they count '
            "at rate 1, since no bound for shuffled batches is known here"
        )
    torn = sum(one.torn for one in every)
    if torn:
        of = ", ".join(str(one.path) for one in every if one.torn)
        warnings.append(
            f"{torn} {'line was' if torn == 1 else 'lines were'} cut off in {of}; what a line "
            "announced may be any round, so every release counts once more"
        )
    # When a training stops may tell of records; what one log leaves open is open.
    declared = max((one.header.rounds or 0 for one in every), default=0) or None
    declared = declared if all(one.header.rounds for one in every) else None
    last = max((played.round for played in rounds), default=0)
    if declared is not None and last < declared:
        warnings.append(
            f"the last line is about round {last} of {declared} that were declared; who stopped by "
            "what records showed has released that, too, and no figure counts it"
        )
    missing = missing_rounds(every)
    if missing:
        few = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in missing[:3])
        warnings.append(
            f"no line is about rounds {few}{', ...' * (len(missing) > 3)}, which count as rounds "
            "without a release; every round that released something needs its line, and a round "
            'that did not may say {"round": N, "releases": []}'
        )
    joined = replace(first.header, agent=None, rounds=declared)
    return ReleaseLog(
        header=joined if len(every) > 1 else first.header,
        rounds=rounds,
        torn=torn,
        warnings=tuple(warnings),
        paths=tuple(files),
        missing=missing,
        stated=tuple(stated),
    )


def holds_logs(folder: Path) -> bool:
    """Whether a folder holds logs of releases, and is not that of a run."""
    if not folder.is_dir() or (folder / "run.toml").exists():
        return False
    for path in sorted(folder.glob(_PATTERN)):
        if path.is_file():  # a pipe would be waited for
            with path.open("rb") as file:
                return f'"{SCHEMA}"'.encode() in file.read(1 << 10)
    return False


def withheld(folder: Path) -> list[str]:
    """Why replies of clients did not leave, in a sentence for each reason that was told."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob(f"*{WITHHELD}")):
        if path.is_file():
            told = read_bounded(path, _LONGEST_WHY).decode("utf-8", "replace")
            for why in told.splitlines():
                found.setdefault(plain(why, most=None), []).append(plain(path.stem))
    return [f"replies of {', '.join(of)} did not leave: {why}" for why, of in found.items()]


def _other_trainings(folder: Path) -> list[str]:
    """That further trainings in a folder are not counted, in a sentence."""
    first = folder.parent if folder.name.startswith(TRAINING) else folder
    every = [first, *sorted(first.glob(f"{TRAINING}*"))]
    others = [one for one in every if one != folder and any(one.glob(_PATTERN))]
    if not others:
        return []
    shown = ", ".join(plain(one) for one in others[:5]) + ", ..." * (len(others) > 5)
    return [
        f"{shown} {'is' if len(others) == 1 else 'are'} of another training, of which nothing is "
        "counted here; where it has the same records, what both cost adds up"
    ]


def _told(log: Path) -> str:
    """The same behind a sentence about logs that lie beside this one."""
    return "".join(f"; {said}" for said in withheld(log.parent))


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            check_links(path)
            inside = sorted(path.glob(_PATTERN))
            if not inside:
                said = withheld(path) or ["name a file"]
                raise InputError(f"{path} holds no {_PATTERN}, the logs of releases; {said[0]}")
            found += inside
        else:
            found.append(path)
    if not found:
        raise InputError("no log of releases is named; give a file or a folder")
    resolved = [os.path.realpath(path) for path in found]  # of a loop of links too
    for path, real in zip(found, resolved, strict=True):
        if resolved.count(real) > 1:
            raise InputError(f"{path} is named twice; name each log once")
    return found


def _read(path: Path) -> LogFile:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name a log of releases")
    check_size(path, _MOST_BYTES)
    with path.open("rb") as file:
        return _Reader(file, path).read()


_ROUND = re.compile(rb'(\s*\{\s*"round"\s*:\s*)(0|[1-9][0-9]{0,8})([\s,].*)', re.DOTALL)
_LONGEST_TEXT, _MOST_TEXTS = 1 << 12, 1 << 12
_NAMES_A_ROUND = '"round"'  # what does says another thing in another round


class _Reader:
    """Reads one file, line by line; equal releases are held once.

    Lines that differ in the number of the round alone are one text, which is read once.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._lines = Lines(file, path, whole_end=True, parse=self._parsed)
        self._path, self._now = path, 1
        self._known: dict[str, Release] = {}
        # By text its list of releases, and by that list what was read of it, at first nothing.
        self._texts: dict[tuple[bytes, bytes], list[Any]] = {}
        self._read: dict[int, Sequence[Release]] = {}
        self._count = 0

    def _parsed(self, body: bytes, *, path: Path, at: int) -> dict[str, Any]:
        """The object of a line; that of a text that was met before with its number."""
        match = _ROUND.fullmatch(body)
        if match is None:
            return parsed(body, path=path, at=at)
        key, number = (match[1], match[3]), int(match[2])
        if key not in self._texts:
            found = parsed(body, path=path, at=at)
            whole = found.keys() == {"round", "releases"} and found["round"] == number
            if not whole or not isinstance(found["releases"], list):
                return found
            if len(body) > _LONGEST_TEXT or len(self._texts) == _MOST_TEXTS:
                return found
            self._texts[key] = found["releases"]
            if _NAMES_A_ROUND not in json.dumps(found["releases"]):  # decoded, whatever was escaped
                self._read[id(found["releases"])] = ()
        return {"round": number, "releases": self._texts[key]}

    def read(self) -> LogFile:
        log_file = LogFile(path=self._path, header=self._header())
        # By round in which going on it was last met, how often before, and what it holds.
        header, met = log_file.header, dict[int, tuple[int, int]]()
        last, went_on = -1, 0
        seen: set[tuple[int, str, int | None]] = set()
        unseen: Sequence[Release] = ()  # of this round, found to differ, and not in `seen` yet
        for at, body, _ in self._lines:
            if body is None:
                log_file.torn += 1
                continue
            self._now = at
            # The run went on after a round, so that later ones may be played again.
            if body.keys() == {"resumed_after"}:
                after = round_number(body["resumed_after"], least=-1)
                if after is None:
                    raise self._wrong("resumed_after must be the number of a round, or -1")
                last, went_on, seen, unseen = after, went_on + 1, set(), ()
                log_file.resumed_after.append(after)
                continue
            # A round that an earlier session played already is a play of its own.
            number = self._number(body, last)
            if number != last:
                seen, unseen = set(), ()
            again = met.get(number, (0, 0))[1]
            if went_on and met.get(number, (0, 0))[0] != went_on:
                again += number in met or Played(number, 0) in log_file.rounds
                met[number] = went_on, again
            # A text that was read is read again where its round has other lines.
            text = body["releases"]
            releases = self._read.get(id(text), ())
            if releases and number != last:
                self._count_releases(len(releases))
                unseen = releases
            else:
                releases = [_carried(self._release(one, header, number), met) for one in text]
                self._check_once(unseen, header, number, seen)
                self._check_once(releases, header, number, seen)
                unseen = ()
                if id(text) in self._read and not header.by_round:
                    releases = self._read[id(text)] = tuple(releases)
            last = number
            played = Played(number, again)
            join(log_file.rounds, played, releases)
            if header.public:
                log_file.at.setdefault(played, []).extend([self._now] * len(releases))
        # For a torn line all releases count once more, which takes one that can be read.
        if log_file.torn and not any(log_file.rounds.values()):
            raise damaged(
                self._path, self._now, "it is cut off, and no line says what it announced"
            )
        return log_file

    def _header(self) -> Header:
        lines = self._lines
        try:
            found = parsed(
                lines.header if lines.body is None else lines.body, path=self._path, at=1
            )
        except InputError:
            raise InputError(
                f"{self._path} does not start with a header, a line of JSON such as "
                '{"schema": "releases-1", "agents": 6, "clip": 1.0}'
            ) from None
        try:
            return read_header(found)
        except InputError as error:
            raise self._wrong(str(error)) from error

    def _number(self, body: Mapping[str, Any], last: int) -> int:
        if body.keys() != {"round", "releases"}:
            raise self._wrong("its keys must be round and releases, or resumed_after alone")
        number = round_number(body["round"], least=0)
        if number is None or not isinstance(body["releases"], list):
            raise self._wrong("round must be an integer of at least 0, and releases a list")
        if number < last:
            raise self._wrong(
                f"round {number} stands after round {last}; rounds are in order, and a system that "
                f'went on from a checkpoint says {{"resumed_after": {number - 1}}} first'
            )
        return number

    def _count_releases(self, more: int) -> None:
        self._count += more
        if self._count > _MOST_RELEASES:
            raise self._wrong(f"more than {_MOST_RELEASES} releases; split the log by rounds")

    def _release(self, found: Any, header: Header, number: int) -> Release:
        self._count_releases(1)
        key = json.dumps(found, sort_keys=True)
        if key in self._known:
            return self._known[key]
        try:
            release = read_release(found, header, round=number)
        except InputError as error:
            raise self._wrong(str(error)) from error
        if _NAMES_A_ROUND not in key and not header.by_round:  # it says the same in any round
            self._known[key] = release
        return release

    def _check_once(
        self,
        found: Sequence[Release],
        header: Header,
        number: int,
        seen: set[tuple[int, str, int | None]],
    ) -> None:
        for release in found:
            if header.agent is not None and release.sender != header.agent:
                raise self._wrong(
                    f"it is a release of {party_name(release.sender, header)} in the file of "
                    f"{party_name(header.agent, header)}; each party writes its own"
                )
            for to in [None] if release.to is None else sorted(release.to):
                if (release.sender, release.kind, to) in seen:
                    raise self._wrong(
                        f"round {number} has a release {release.kind!r} of "
                        f"{party_name(release.sender, header)} already; a round that was gone "
                        'through again follows {"resumed_after": N}, and another message of the '
                        "same round has another kind"
                    )
                seen.add((release.sender, release.kind, to))

    def _wrong(self, why: str) -> InputError:
        return InputError(f"{self._path} line {self._now}: {why}")


def _carried(release: Release, met: Mapping[int, tuple[int, int]]) -> Release:
    """A release whose vectors of earlier rounds are those of the last time that these were met."""
    if all(vector.round is None for vector in release.of):
        return release
    of = (
        vector if vector.round is None else replace(vector, again=met.get(vector.round, (0, 0))[1])
        for vector in release.of
    )
    return replace(release, of=tuple(of))
