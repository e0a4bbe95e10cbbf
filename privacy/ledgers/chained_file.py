"""A file of chained lines that one process at a time appends to, each on the disk on return.

It is there with its first line or not at all, and is never overwritten. A write that fails leaves
the file closed to others, since a next line must not stand behind half of one. The lock is the
system's, and goes with the process however that ends; where the system has none (Windows) nothing
keeps a second process out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..bounded import check_size
from ..durable import BINARY, SHOWN, lock, named, part_of, publish, write_all
from ..errors import InputError
from .ledger_lines import LONGEST_LINE, Chain

__all__ = ["ChainedFile", "LedgerInUse"]

_BLOCK = 1 << 20


class LedgerInUse(OSError):
    """Another process appends to the ledger."""


class ChainedFile:
    """A new file with its first line; `reopen` goes on with one that is there.

    Args:
        first: what its first line holds.
        most: bytes of the first line that a reader takes.
        exists: what to say where the file exists.

    Raises:
        FileExistsError: the file exists.
        ValueError: the first line is longer than a reader takes.
        OSError: the system refuses to write; the error names the file.
    """

    def __init__(
        self, path: Path, first: Mapping[str, Any], *, most: int = LONGEST_LINE, exists: str
    ) -> None:
        part = part_of(path)
        part.unlink(missing_ok=True)  # of a dead process of the same number
        self._open(part, path, os.O_CREAT | os.O_EXCL)
        try:
            self.append(first, most=most)
            publish(part, path, new=True)
        except (OSError, InputError) as error:
            self.close()
            part.unlink(missing_ok=True)
            if isinstance(error, InputError):
                raise
            if isinstance(error, FileExistsError):
                raise FileExistsError(exists) from error
            raise named(error, path) from error

    @classmethod
    def reopen(cls, path: Path) -> ChainedFile:
        """Go on with a file; nothing is written until something is appended.

        Raises:
            LedgerInUse: another process appends to it.
            OSError: the system refuses; the error names the file.
            ValueError: it is no regular file.
        """
        check_size(path, 1 << 62)
        held = cls.__new__(cls)
        held._open(path, path, 0)
        try:
            while block := os.read(held._file, _BLOCK):
                held._chain.add(block)
        except OSError as error:
            held.close()
            raise named(error, path) from error
        return held

    def _open(self, file: Path, path: Path, flags: int) -> None:
        self.path, self._broken, self._chain = path, False, Chain()
        try:
            self._file = os.open(file, os.O_RDWR | os.O_APPEND | BINARY | flags, SHOWN)
        except OSError as error:
            raise named(error, path) from error
        try:
            _lock(self._file, path)
        except OSError:
            self.close()
            raise

    def append(
        self, entry: Mapping[str, Any], *, before: str = "", most: int = LONGEST_LINE
    ) -> None:
        """Write a line; returns only when it is on the disk.

        Args:
            entry: what it holds, without its digest.
            before: what stands before the object.
            most: bytes that a reader takes.

        Raises:
            ValueError: the line is longer; nothing was written.
            OSError: it may not be on the disk; the error names the file.
        """
        if self._broken:
            raise OSError(f"{self.path} could not be written to before; go on by resuming the run")
        if self._is_gone():
            raise FileNotFoundError(
                f"{self.path} was removed while it was written, so a line would be nowhere; put "
                "it back, and go on by resuming"
            )
        line = self._chain.line(entry, before=before, most=most)
        self._broken = True  # until this line is whole, the next one must not stand behind it
        try:
            write_all(self._file, line)
        except OSError as error:
            raise named(error, self.path) from error
        self._chain.add(line)
        self._broken = False

    def _is_gone(self) -> bool:
        return sys.platform != "win32" and os.fstat(self._file).st_nlink == 0

    def append_mark(self, entry: Mapping[str, Any]) -> None:
        """Write a line that announces nothing: it begins with a blank, on a line of its own.

        Raises:
            OSError: as for `append`.
        """
        size = os.fstat(self._file).st_size
        cut_off = size > 0 and _last_byte(self._file, size) != b"\n"
        self.append(entry, before="\n " if cut_off else " ")

    def start(self, length: int) -> bytes:
        """The first bytes of the file."""
        os.lseek(self._file, 0, os.SEEK_SET)  # what is appended goes to the end all the same
        return os.read(self._file, length)

    def close(self) -> None:
        """Close the file, and let other processes have it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _last_byte(file: int, size: int) -> bytes:
    os.lseek(file, size - 1, os.SEEK_SET)  # what is appended goes to the end all the same
    return os.read(file, 1)


def _lock(file: int, path: Path) -> None:
    try:
        held = lock(file)
    except OSError as error:
        raise OSError(
            f"{path} cannot be locked ({error.strerror}), so two processes could train into one "
            "folder; choose a folder on a file system that has locks"
        ) from error
    if not held:
        raise LedgerInUse(
            f"another process writes to {path}, as training and adding a run do; wait until it "
            "ends, or choose another place"
        )
