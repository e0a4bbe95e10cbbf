"""The ledger: an append-only record of releases, written and synced before each release.

One JSON object a line. The first line says what the run is; every other line is one round whose
messages are about to leave. A crash between the two can only over-count.

    {"schema": 1, ...}                 the header, there as soon as the file is
    {"round": 41, "releases": [...]}   round 41 is about to be released; 0 is the start
     {"resumed_after": 40}             the run went on from its state after round 40

Nothing is ever rewritten. What an interruption cut off stays as a damaged line, and whoever goes on
starts a new line with where it goes on from. The line that was cut off is the announcement of the
round that was next, since rounds are announced in order: it counts as a release of that round, or,
at the end of the file, of any round. An entry of where the run went on begins with a blank, so that
it is known for what it is wherever it is cut off: it announces nothing. Other damage is refused.

One process at a time has the file open for appending. The lock is the system's, and goes with the
process however that ends; where the system has none (Windows) nothing keeps a second one out.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .durable import BINARY, named, part_of, publish, write_all
from .errors import InputError

SCHEMA = 1
_MARK = ' {"resumed_after": '


class LedgerInUse(OSError):
    """Another process appends to the ledger."""


class Ledger:
    """Appends to a ledger file that must not exist yet.

    `reopen` goes on with one that does.

    Args:
        path: the file.
        header: what every entry has in common: clip norm, noise multiplier, sampling rate.

    Raises:
        FileExistsError: the file exists; a ledger is never overwritten.
        OSError: the system refuses to write; the error names the file.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        part = part_of(path)
        part.unlink(missing_ok=True)  # of a dead process of the same number
        self._open(part, path, os.O_CREAT | os.O_EXCL)
        try:
            self._write({"schema": SCHEMA, **header})
            publish(part, path, new=True)
        except OSError as error:
            self.close()
            part.unlink(missing_ok=True)
            if isinstance(error, FileExistsError):
                raise FileExistsError(
                    f"{path} exists; a ledger is never overwritten, choose another folder"
                ) from error
            raise named(error, path) from error

    @classmethod
    def reopen(cls, path: Path) -> Ledger:
        """Go on with a ledger; nothing is written until `resume` says from where.

        Raises:
            LedgerInUse: another process appends to it.
            OSError: the system refuses; the error names the file.
        """
        ledger = cls.__new__(cls)
        ledger._open(path, path, 0)
        return ledger

    def _open(self, file: Path, path: Path, flags: int) -> None:
        self._path, self._broken = path, False
        try:
            self._file = os.open(file, os.O_RDWR | os.O_APPEND | BINARY | flags, 0o666)
        except OSError as error:
            raise named(error, path) from error
        try:
            _lock(self._file, path)
        except OSError:
            self.close()
            raise

    def append(self, round: int, releases: Sequence[Mapping[str, Any]]) -> None:
        """Record the releases of a round; returns only when they are on the disk.

        Raises:
            OSError: they may not be, so nothing of the round must leave; the error names the file.
        """
        self._write({"round": round, "releases": list(releases)})

    def resume(self, after: int) -> None:
        """Record that the run goes on from its state after a round; -1 is before the start.

        Raises:
            OSError: as for `append`.
        """
        size = os.fstat(self._file).st_size
        cut_off = size > 0 and _last_byte(self._file, size) != b"\n"
        self._write({"resumed_after": after}, before="\n " if cut_off else " ")

    def _write(self, entry: Mapping[str, Any], before: str = "") -> None:
        if self._broken:
            raise OSError(f"{self._path} could not be written to before; go on by resuming the run")
        self._broken = True  # until this line is whole, the next one must not stand behind it
        try:
            write_all(self._file, (before + json.dumps(entry, allow_nan=False) + "\n").encode())
        except OSError as error:
            raise named(error, self._path) from error
        self._broken = False

    def close(self) -> None:
        """Close the file, and let other processes have it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _last_byte(file: int, size: int) -> bytes:
    os.lseek(file, size - 1, os.SEEK_SET)  # what is appended goes to the end all the same
    return os.read(file, 1)


def _lock(file: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LedgerInUse(
            f"another process is training into {path.parent} and holds its {path.name}; wait until "
            "it ends, or choose another folder"
        ) from None
    except OSError as error:
        raise OSError(
            f"{path} cannot be locked ({error.strerror}), so two processes could train into one "
            "folder; choose a folder on a file system that has locks"
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a ledger says.

    Attributes:
        header: the first line.
        entries: the rounds, in order; one that was cut off before a resumption has `torn`.
        torn: whether the last line was cut off, and nobody has gone on since.
        torn_round: the round that this line was about to announce, as told by its place.
        resumed_after: the rounds after which the run went on, in order; -1 is before the start.
    """

    header: Mapping[str, Any]
    entries: Sequence[Mapping[str, Any]]
    torn: bool
    torn_round: int | None = None
    resumed_after: Sequence[int] = ()

    @property
    def rounds(self) -> int:
        """Rounds to account for: a replayed round is a new release, a torn line counts."""
        return sum(number > 0 for number in self.numbers) + int(self.torn)

    @property
    def numbers(self) -> list[int]:
        """The number of each entry's round; 0 is the start."""
        return [int(entry["round"]) for entry in self.entries]


def read_ledger(path: Path) -> Spent:
    """Read a ledger.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged in a way that no interruption explains, or the schema is unknown.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; train a run into this folder first")
    first, *lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    header = _parsed(first)
    if not lines or header is None or header.get("schema") != SCHEMA:
        raise InputError(f"{path} does not start with a header of schema {SCHEMA}")
    entries: list[Mapping[str, Any]] = []
    resumed: list[int] = []
    cut_off: list[tuple[int, str]] = []
    following = 0  # the round that is announced next
    for at, line in enumerate(lines[:-1], start=2):
        found = _parsed(line)
        if found is None:
            cut_off.append((at, line))
        elif (after := _number(found.get("resumed_after"), least=-1)) is not None:
            torn = _announced(cut_off, path)
            entries += [{"round": following, "releases": [], "torn": True}] * torn
            resumed.append(after)
            cut_off, following = [], after + 1
        elif cut_off or (number := _number(found.get("round"), least=0)) is None:
            wrong = cut_off[0][0] if cut_off else at
            raise InputError(f"{path} line {wrong} is no entry; the ledger is damaged")
        else:
            entries.append(found)
            following = number + 1
    if lines[-1]:
        cut_off.append((len(lines) + 1, lines[-1]))
    torn = _announced(cut_off, path)
    return Spent(
        header=header,
        entries=entries,
        torn=torn,
        torn_round=following if torn else None,
        resumed_after=tuple(resumed),
    )


def _announced(cut_off: Sequence[tuple[int, str]], path: Path) -> bool:
    """Whether one of these damaged lines announced a round; an interruption leaves one at most."""
    found = [at for at, line in cut_off if not _is_mark(line)]
    if len(found) > 1:
        raise InputError(f"{path} line {found[0]} is no JSON; the ledger is damaged")
    return bool(found)


def _is_mark(line: str) -> bool:
    """Whether a damaged line is what is left of an entry of where the run went on."""
    return line.startswith(_MARK) or (line != "" and _MARK.startswith(line))


def _number(value: Any, *, least: int) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value >= least else None


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
