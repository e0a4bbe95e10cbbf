"""The ledger: an append-only record of releases, written and synced before each release.

One JSON object a line. The first line says what the run is; every other line is one round whose
messages are about to leave. A crash between the two can only over-count. A torn last line is a
release that was about to happen, and counts as spent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

SCHEMA = 1


class Ledger:
    """Appends to a ledger file that must not exist yet.

    Args:
        path: the file.
        header: what every entry has in common: clip norm, noise multiplier, sampling rate.

    Raises:
        FileExistsError: the file exists; a ledger is never overwritten.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        try:
            self._file: TextIO = path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise FileExistsError(
                f"{path} exists; a ledger is never overwritten, choose another folder"
            ) from error
        self._write({"schema": SCHEMA, **header})

    def append(self, round: int, releases: Sequence[Mapping[str, Any]]) -> None:
        """Record the releases of a round; returns only when they are on the disk."""
        self._write({"round": round, "releases": list(releases)})

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a ledger says.

    Attributes:
        header: the first line.
        entries: the rounds, in order.
        torn: whether the last line was cut off.
    """

    header: Mapping[str, Any]
    entries: Sequence[Mapping[str, Any]]
    torn: bool

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
        ValueError: a line other than the last is not an entry, or the schema is unknown.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; train a run into this folder first")
    lines = path.read_text(encoding="utf-8").split("\n")
    complete, rest = lines[:-1], lines[-1]
    entries, torn = [], rest != ""
    for number, line in enumerate(complete, start=1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            if number < len(complete):
                raise ValueError(
                    f"{path} line {number} is no JSON; the ledger is damaged"
                ) from error
            torn = True
    if not entries or entries[0].get("schema") != SCHEMA:
        raise ValueError(f"{path} does not start with a header of schema {SCHEMA}")
    return Spent(header=entries[0], entries=entries[1:], torn=torn)
