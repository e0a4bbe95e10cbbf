"""What `--quiet` and `--log-file` ask of every command: no progress, and lines in a file.

A file that can no longer be written ends no run: what it would say is then told to nobody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from ...runs.folder.names import LIFELINE


class Log:
    """Where a command tells how far it is, besides the terminal.

    Attributes:
        path: of the file; None without one.
    """

    def __init__(self) -> None:
        self.title = ""
        self.quiet = False
        self.path: Path | None = None
        self._file: TextIO | None = None

    def begin(self, title: str, *, quiet: bool = False, path: Path | None = None) -> None:
        """Take what the command line says before a command's name, and what it adds behind it.

        Lines of earlier commands in the file stay.

        Args:
            title: the first line about this command.
            quiet: whether the terminal shows no progress; it stays so once it was asked for.

        Raises:
            ValueError: the file cannot be written, or a second one is named.
        """
        self.title, self.quiet = title, self.quiet or quiet
        if path is None or (self.path is not None and path.absolute() == self.path.absolute()):
            return
        from ...privacy.errors import InputError

        if self.path is not None:
            raise InputError(
                f"--log-file is given twice, as {self.path} and as {path}; name one file"
            )
        self.path = path
        if int(os.environ.get("RANK") or 0) > 0:  # rank 0 tells for all
            return
        try:
            self._file = open(path, "a", encoding="utf-8", opener=_at_once)  # noqa: SIM115 # until `end`
        except OSError as error:
            raise InputError(
                f"--log-file {path} cannot be written ({error.strerror or error}); name a file "
                "in a folder that exists, or a pipe that is read"
            ) from error
        self.outline(title)

    def outline(self, text: str) -> None:
        """Write a line about the whole command, unless whoever started this process does."""
        if os.environ.get(LIFELINE) != "1":
            self.line(text)

    def line(self, text: str) -> None:
        """Write a line with the time in UTC, at once."""
        if self._file is not None:
            from ...privacy.plain_text import plain  # a command starts without it

            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            with suppress(OSError, ValueError):
                self._file.write(f"{stamp} {plain(' '.join(text.split()), most=None)}\n")
                self._file.flush()

    @property
    def options(self) -> list[str]:
        """What another process of the same command is given before the command's name."""
        named = [] if self.path is None else [f"--log-file={self.path}"]
        return [*(["--quiet"] if self.quiet else []), *named]

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _at_once(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody reads is an error in place of a wait for a reader."""
    opened = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    os.set_blocking(opened, True)
    return opened


_current: ContextVar[Log | None] = ContextVar("log", default=None)


def current_log() -> Log:
    """That of the command that runs; of a caller from Python one that says nothing."""
    return _current.get() or Log()


@contextmanager
def logging() -> Iterator[Log]:
    """As long as a command runs, the log that its options may begin."""
    log = Log()
    told = _current.set(log)
    try:
        yield log
    finally:
        log.end()
        _current.reset(told)
