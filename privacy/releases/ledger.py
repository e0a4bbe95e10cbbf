"""The ledger: an append-only record of releases, written and synced before each release.

One JSON object a line. The first line says what the run is; every other line is one round whose
messages are about to leave. A crash between the two can only over-count.

    {"schema": 4, ..., "chain": ...}                   the header, there as soon as the file is
    {"round": 41, "releases": [...], "chain": ...}     round 41 is about to be released; 0: start
     {"resumed_after": 40, "chain": ...}               the run went on from its state after round 40
     {"noise_tested": {...}, "chain": ...}             the noise of so many rounds passed its tests

A round's line says in `noise_tested`, too, what passed before it, since the run last went on: how
many rounds and how many numbers, and no figure of theirs, which would help to take noise off.

`chain` is a digest of all of the file before it (`ledger_lines`), so no line but the last can be
changed, moved or taken away unseen. Nothing is ever rewritten. What an interruption cut off stays
as a damaged line, and whoever goes on starts a new line with where it goes on from. The line that
was cut off is the announcement of the round that was next, since rounds are announced in order: it
counts as a release of that round, or, at the end of the file, of any round. An entry that announces
nothing begins with a blank, so that it is known for what it is wherever it is cut off. Other
damage is refused.

One process at a time has the file open for appending (`chained_file`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError
from ..files import check_size
from . import chained_file
from .chained_file import READABLE, SCHEMA

_OLD, _WITHOUT_DIGESTS = b'{"schema": 2,', b'{"schema": 1,'


class Ledger:
    """Appends to a ledger file that must not exist yet.

    `reopen` goes on with one that does.

    Args:
        header: what every entry has in common: clip norm, noise multiplier, sampling rate.

    Raises:
        FileExistsError: the file exists; a ledger is never overwritten.
        ValueError: the header is longer than a reader takes.
        OSError: the system refuses to write; the error names the file.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._schema = SCHEMA
        self._lines = chained_file.ChainedFile(
            path,
            {"schema": SCHEMA, **header},
            most=chained_file.LONGEST_HEADER,
            exists=f"{path} exists; a ledger is never overwritten, choose another folder",
        )

    @classmethod
    def reopen(cls, path: Path) -> Ledger:
        """Go on with a ledger; nothing is written until `resume` says from where.

        Raises:
            LedgerInUse: another process appends to it.
            OSError: the system refuses; the error names the file.
            ValueError: it is no regular file.
        """
        ledger = cls.__new__(cls)
        ledger._lines = chained_file.ChainedFile.reopen(path)
        old = ledger._lines.start(len(_OLD)) == _OLD  # a reader checks the rest
        ledger._schema = 2 if old else SCHEMA
        return ledger

    def append(
        self,
        round: int,
        releases: Sequence[Mapping[str, Any]],
        *,
        noise_tested: Mapping[str, int] | None = None,
    ) -> None:
        """Record the releases of a round; returns only when they are on the disk.

        Args:
            round: the number of the round; 0 is the start.
            releases: an object {"kind": ...} for each kind of message.
            noise_tested: the rounds and numbers of noise that passed their tests so far, since the
                run last went on; None says nothing of it.

        Raises:
            ValueError: they are none that a reader takes; nothing was written.
            OSError: they may not be, so nothing of the round must leave; the error names the file.
        """
        if chained_file.round_number(round, least=0) is None:
            raise InputError(f"round={round!r} must be a whole number of at least 0")
        for release in releases:
            chained_file.check_release(release)
        entry: dict[str, Any] = {"round": round, "releases": [dict(one) for one in releases]}
        self._lines.append(entry | self._tested(noise_tested))

    def conclude(self, noise_tested: Mapping[str, int]) -> None:
        """Record what of the noise was tested, after the last round.

        Raises:
            OSError: as for `append`.
        """
        if said := self._tested(noise_tested):
            self._lines.append_mark(said)

    def _tested(self, noise_tested: Mapping[str, int] | None) -> dict[str, Any]:
        """What an entry says of it; nothing in a ledger that was begun without."""
        if noise_tested is None or self._schema < chained_file.TESTS_NOISE:
            return {}
        chained_file.check_tested(noise_tested)
        return {"noise_tested": dict(noise_tested)}

    def resume(self, after: int) -> None:
        """Record that the run goes on from its state after a round; -1 is before the start.

        Raises:
            OSError: as for `append`.
        """
        self._lines.append_mark({"resumed_after": after})

    def close(self) -> None:
        """Close the file, and let other processes have it."""
        self._lines.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a ledger says.

    Attributes:
        header: the first line, without what only the file needs.
        schema: the number of its format.
        entries: the rounds, in order; one that was cut off before a resumption has `torn`.
        torn: whether the last line was cut off, and nobody has gone on since.
        torn_round: the round that this line was about to announce, as told by its place.
        resumed_after: the rounds after which the run went on, in order; -1 is before the start.
        tested_rounds, tested_numbers: of which the noise passed its tests, the start among the
            rounds; a round that was released again counts again.
    """

    header: Mapping[str, Any]
    entries: Sequence[Mapping[str, Any]]
    torn: bool
    torn_round: int | None = None
    schema: int = SCHEMA
    resumed_after: Sequence[int] = ()
    tested_rounds: int = 0
    tested_numbers: int = 0

    @property
    def rounds(self) -> int:
        """Rounds to account for: a replayed round is a new release, a torn line counts."""
        return sum(number > 0 for number in self.numbers) + int(self.torn)

    @property
    def numbers(self) -> list[int]:
        """The number of each entry's round; 0 is the start."""
        return [int(entry["round"]) for entry in self.entries]

    @property
    def last_announced(self) -> int:
        """The highest round that was announced, or may have been by a line cut off; -1 is none."""
        torn = -1 if self.torn_round is None else self.torn_round
        return max([torn, *self.numbers])


def read_ledger(path: Path) -> Spent:
    """Read a ledger, of which at most a line is held besides what it says.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged in a way that no interruption explains, was changed, or the
            schema is unknown.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; train a run into this folder first")
    check_size(path, 1 << 62)
    with path.open("rb") as file:
        return _read(file, path)


def _read(file: BinaryIO, path: Path) -> Spent:
    lines = chained_file.Lines(file, path, most=chained_file.LONGEST_HEADER)
    schema, header = _header(lines, path)
    entries: list[Mapping[str, Any]] = []
    resumed: list[int] = []
    tested = [{"rounds": 0, "numbers": 0}]  # each time that the run went on
    torn = False  # whether a line that announced a round was cut off since then
    following = 0  # the round that is announced next
    for at, found, is_mark in lines:
        # A line that was cut off may have announced a round, which counts where the run went on.
        if found is None:
            torn = torn or not is_mark
        elif found.keys() == {"resumed_after"}:
            after = chained_file.round_number(found["resumed_after"], least=-1)
            if after is None:
                raise chained_file.damaged(path, at, "it names no round")
            if torn:
                entries.append({"round": following, "releases": [], "torn": True})
            resumed.append(after)
            tested.append({"rounds": 0, "numbers": 0})
            torn, following = False, after + 1
        else:
            tested[-1] = _check_tested(found, tested[-1], path, at)
            if found:
                following = _check_entry(found, path, at) + 1
                entries.append(found)
    return Spent(
        header=header,
        schema=schema,
        entries=entries,
        torn=torn,
        torn_round=following if torn else None,
        resumed_after=tuple(resumed),
        tested_rounds=sum(one["rounds"] for one in tested),
        tested_numbers=sum(one["numbers"] for one in tested),
    )


def _header(lines: chained_file.Lines, path: Path) -> tuple[int, Mapping[str, Any]]:
    body = lines.body
    if body is None and not lines.header.startswith(_WITHOUT_DIGESTS):
        raise InputError(
            f"{path} does not start with a header that carries its digest; put the ledger back as "
            "it was written, or start a new run in another folder"
        )
    header = {"schema": 1} if body is None else chained_file.parsed(body, path=path, at=1)
    schema = header.pop("schema", None)
    if schema not in READABLE or isinstance(schema, bool | float):
        by = "a newer" if isinstance(schema, int) and schema > SCHEMA else "another"
        raise InputError(
            f"{path} is of schema {str(schema)[:20]}, and this version reads {READABLE[0]} to "
            f"{READABLE[-1]}: {by} version of overhear wrote it, which environment.json beside "
            "it names. Report the run with that version; until then its rounds stay spent, and "
            "count as an epsilon without a bound"
        )
    return schema, header


def _check_entry(found: Mapping[str, Any], path: Path, at: int) -> int:
    """The number of an entry's round; what is no entry is refused."""
    if found.keys() != {"round", "releases"}:
        raise chained_file.damaged(
            path, at, "its keys must be round, releases and chain, or resumed_after"
        )
    number, releases = chained_file.round_number(found["round"], least=0), found["releases"]
    if number is None or not isinstance(releases, list):
        raise chained_file.damaged(path, at, "it names no round and its releases")
    try:
        for release in releases:
            chained_file.check_release(release)
    except InputError as error:
        raise chained_file.damaged(path, at, str(error)) from error
    return number


def _check_tested(
    found: dict[str, Any], before: dict[str, int], path: Path, at: int
) -> dict[str, int]:
    """Take out of an entry what it says of tested noise; it never grows less."""
    tested = found.pop("noise_tested", None)
    if tested is None:
        if not found:
            raise chained_file.damaged(path, at, "it says nothing")
        return before
    try:
        chained_file.check_tested(tested)
    except InputError as error:
        raise chained_file.damaged(path, at, str(error)) from error
    if any(tested[name] < before[name] for name in before):
        raise chained_file.damaged(path, at, "less noise was tested than before")
    return dict(tested)
