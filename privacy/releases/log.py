"""Logs of releases: one file of a whole system, or one of each agent, joined round by round.

A line is whole before the release that it announces may leave. One that an interruption cut off
may announce any round, so it counts as one more of each release. A mark `resumed_after` says that
an agent went on; rounds that come again after it are releases of their own. Where the header
carries a digest (`chain`), every line must.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..bounded import check_size
from ..errors import InputError
from ..ledger_lines import LONGEST_LINE, Chain, damaged, is_complete_object, parsed, round_number
from .lines import SCHEMA, Header, Release, read_header, read_release

__all__ = ["Played", "ReleaseLog", "holds_logs", "party_name", "read_log"]

_MOST_BYTES = 4 << 30
_MOST_RELEASES = 5_000_000
_PATTERN = "*.jsonl"
_MARK = b'{"resumed_after"'


class Played(NamedTuple):
    """A round as often as it was played: once more for each time that it was gone through again."""

    round: int
    again: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseLog:
    """What a system released, as it is declared.

    Attributes:
        header: what all releases have in common; of a joined log `agent` is None.
        rounds: by round, in order, everybody's releases of it.
        torn: how many lines were cut off.
        warnings: what was taken at its worst, in sentences.
        paths: the files.
    """

    header: Header
    rounds: Mapping[Played, Sequence[Release]]
    torn: int
    warnings: Sequence[str]
    paths: Sequence[Path]


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
            released twice or not at all.
    """
    files = _files([paths] if isinstance(paths, Path) else list(paths))
    every = [_read(path) for path in files]
    first = every[0]
    for one in every[1:]:
        _check_same_system(first, one)
    warnings = list[str]()
    if len(every) > 1 or first.header.agent is not None:
        warnings += _check_joined(every, absent or {}, partial=partial)
    elif absent:
        raise InputError(
            f"absent={sorted(absent)} has no effect on {files[0]}, which holds everybody's "
            "releases; leave it out"
        )
    rounds: dict[Played, list[Release]] = {}
    for one in every:
        for played, releases in one.rounds.items():
            rounds.setdefault(played, []).extend(releases)
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
    return ReleaseLog(
        header=replace(first.header, agent=None) if len(every) > 1 else first.header,
        rounds=dict(sorted(rounds.items())),
        torn=torn,
        warnings=tuple(warnings),
        paths=tuple(files),
    )


def holds_logs(folder: Path) -> bool:
    """Whether a folder holds logs of releases, and is not that of a run."""
    if not folder.is_dir() or (folder / "run.toml").exists():
        return False
    for path in sorted(folder.glob(_PATTERN))[:1]:
        with path.open("rb") as file:
            return f'"{SCHEMA}"'.encode() in file.read(1 << 10)
    return False


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob(_PATTERN))
            if not inside:
                raise InputError(f"{path} holds no {_PATTERN}, the logs of releases; name a file")
            found += inside
        else:
            found.append(path)
    if not found:
        raise InputError("no log of releases is named; give a file or a folder")
    resolved = [path.resolve() for path in found]
    for path, real in zip(found, resolved, strict=True):
        if resolved.count(real) > 1:
            raise InputError(f"{path} is named twice; name each log once")
    return found


@dataclass(kw_only=True, slots=True)
class _File:
    path: Path
    header: Header
    rounds: dict[Played, list[Release]]
    torn: int = 0


def _read(path: Path) -> _File:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name a log of releases")
    check_size(path, _MOST_BYTES)
    with path.open("rb") as file:
        return _Reader(file, path).read()


class _Reader:
    """Reads one file, line by line; equal releases are held once."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self._at = file, path, 0
        self._chain: Chain | None = None
        self._known: dict[str, Release] = {}
        self._count = 0

    def read(self) -> _File:
        one = _File(path=self._path, header=self._header(), rounds={})
        # By round in which going on it was last met, how often before, and what it holds.
        met: dict[int, tuple[int, int]] = {}
        last, went_on = -1, 0
        seen: set[tuple[int, str, int | None]] = set()
        for body in self._bodies(one):
            if body.keys() == {"resumed_after"}:
                after = round_number(body["resumed_after"], least=-1)
                if after is None:
                    raise self._wrong("resumed_after must be the number of a round, or -1")
                last, went_on, seen = after, went_on + 1, set()
                continue
            number = self._number(body, last)
            if number != last:
                seen = set()
            last = number
            session, again = met.get(number, (went_on, 0))
            met[number] = went_on, again + (session != went_on)
            found = [self._release(release, one.header, number) for release in body["releases"]]
            self._check_once(found, one.header, number, seen)
            one.rounds.setdefault(Played(number, met[number][1]), []).extend(found)
        if one.torn and not any(one.rounds.values()):
            raise damaged(self._path, self._at, "it is cut off, and no line says what it announced")
        return one

    def _header(self) -> Header:
        line = self._line()
        body = Chain().body(line, path=self._path, at=1)
        if body is not None:
            self._chain = Chain()
            self._chain.add(line)
        try:
            found = parsed(line if body is None else body, path=self._path, at=1)
        except InputError:
            raise InputError(
                f"{self._path} does not start with a header, a line of JSON such as "
                '{"schema": "releases-1", "agents": 6, "clip": 1.0}'
            ) from None
        try:
            return read_header(found)
        except InputError as error:
            raise InputError(f"{self._path} line 1: {error}") from error

    def _bodies(self, one: _File) -> Iterator[dict[str, Any]]:
        """The objects of the lines; a line that was cut off is last, or before going on."""
        following = self._line()
        while line := following:
            at, following = self._at, self._line()
            body = self._body(line, at, following)
            if body is None:
                one.torn += 1
                continue
            self._now = at
            yield body

    def _body(self, line: bytes, at: int, following: bytes) -> dict[str, Any] | None:
        """The object of a line; None where an interruption cut it off."""
        interrupted = not line.endswith(b"\n") or following.lstrip().startswith(_MARK)
        if self._chain is None:
            try:
                return parsed(line, path=self._path, at=at)
            except InputError:
                if interrupted:
                    return None
                raise
        body = self._chain.body(line, path=self._path, at=at)
        self._chain.add(line)
        if body is not None:
            return parsed(body, path=self._path, at=at)
        if is_complete_object(line) or not interrupted:
            raise damaged(self._path, at, "it carries no digest of what stands before it")
        return None

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

    def _release(self, found: Any, header: Header, number: int) -> Release:
        self._count += 1
        if self._count > _MOST_RELEASES:
            raise self._wrong(f"more than {_MOST_RELEASES} releases; split the log by rounds")
        key = json.dumps(found, sort_keys=True)
        if key in self._known:
            return self._known[key]
        try:
            release = read_release(found, header, round=number)
        except InputError as error:
            raise self._wrong(str(error)) from error
        if '"round"' not in key:  # what it says does not depend on the round it stands in
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

    _now = 1

    def _wrong(self, why: str) -> InputError:
        return InputError(f"{self._path} line {self._now}: {why}")

    def _line(self) -> bytes:
        line = self._file.readline(LONGEST_LINE + 1)
        self._at += bool(line)
        if len(line) > LONGEST_LINE:
            raise damaged(self._path, self._at, f"it is longer than {LONGEST_LINE} bytes")
        return line


def party_name(party: int, header: Header) -> str:
    """An agent by its number, or the server.

    >>> party_name(6, read_header({"schema": "releases-1", "agents": 6}))
    'the server'
    """
    return "the server" if party == header.agents else f"agent {party}"


def _check_joined(
    every: Sequence[_File], absent: Mapping[int, Sequence[int]], *, partial: bool
) -> list[str]:
    """Refuse files that do not make one system: a party twice, or one that says nothing.

    Returns:
        What is missing of a part of a system, in a sentence.
    """
    header, parties = every[0].header, [one.header.agent for one in every]
    for one in every:
        if one.header.agent is None:
            raise InputError(
                f"{one.path} names no agent, so it cannot be joined with {every[0].path}; add "
                '"agent" to the header of each file, or give one file that holds everything'
            )
    for one in every:
        if parties.count(one.header.agent) > 1:
            raise InputError(
                f"{one.path}: two files are of {party_name(one.header.agent or 0, header)}; "
                "give each party's log once"
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
    rounds = sorted({played.round for one in every for played in one.rounds})
    for party in sorted(set(absent) - set(parties)):
        if there := sorted(set(rounds) - set(absent[party])):
            raise InputError(
                f"no log of agent {party} is given, which is not said to be absent in round "
                f"{there[0]}; add its file"
            )
    for one in every:
        party = one.header.agent or 0
        held = {played.round for played in one.rounds}
        away = set(absent.get(party, ()))
        for number in rounds:
            if number not in held and number not in away and party != header.agents:
                raise InputError(
                    f"{one.path} has no release of agent {party} in round {number}, in which "
                    f"others released; say that it was absent, --absent {party}:{number}, if that "
                    "is publicly known, or add what it released"
                )
            if number in held and number in away:
                raise InputError(
                    f"agent {party} is said to be absent in round {number}, and {one.path} has a "
                    "release of it"
                )
    return []


def _check_same_system(first: _File, other: _File) -> None:
    for key in ("system", "agents", "unit", "public", "encrypted"):
        one, two = getattr(first.header, key), getattr(other.header, key)
        if one != two:
            raise InputError(
                f"{other.path} says {key}={two!s} and {first.path} {key}={one!s}; the logs of one "
                "system agree in it"
            )
