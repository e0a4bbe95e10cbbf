"""Files that code of the user opens while it is called: it writes none, and what it reads stays.

Python tells of each by `sys.audit`. A writer in C, such as torch's own, is not seen; a reader is.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any


class Files:
    """Files that this thread opens, from `begin` to `end`."""

    _listening: Files | None = None
    _is_hooked = False

    def __init__(self) -> None:
        self._read: dict[str, object] = {}
        self._written: str | None = None
        self._thread = 0
        self._threads = frozenset(threading.enumerate())

    def begin(self) -> None:
        """Look at what is opened from now on."""
        self._read, self._written, self._thread = {}, None, threading.get_ident()
        self._threads = frozenset(threading.enumerate())
        if not Files._is_hooked:
            sys.addaudithook(_heard)
            Files._is_hooked = True
        Files._listening = self

    def end(self) -> str | None:
        """The file that was changed, in words."""
        if Files._listening is self:
            Files._listening = None
        for path, state in self._read.items():
            if _state_of_file(path) != state:
                return f"the file {path}"
        if self._written is None and self._runs_on():
            return "what is outside of it (a thread)"
        return self._written

    def _runs_on(self) -> bool:
        """Whether a thread that was begun here has not ended: what it keeps it may keep later."""
        begun = set(threading.enumerate()) - self._threads
        return any(not isinstance(one, threading._DummyThread) for one in begun)

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        """An event of `sys.audit`."""
        if threading.get_ident() != self._thread:
            return
        if event in _WRITING:
            self._written = self._written or f"what is outside of it ({event})"
        elif event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            path, (mode, flags) = os.fsdecode(args[0]), args[1:3]
            if path.startswith(("/proc/", "/sys/", "/dev/")) or "__pycache__" in path:
                return
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if writes or any(letter in str(mode) for letter in "wax+"):
                self._written = self._written or f"the file {path}"
            self._read.setdefault(path, _state_of_file(path))


_WRITING = frozenset(
    {
        *("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"),
        *("os.symlink", "os.putenv", "os.unsetenv", "os.system", "subprocess.Popen"),
        *("os.utime", "os.chmod", "os.chdir", "os.fork", "os.posix_spawn", "os.exec"),
        *("socket.connect", "socket.sendto", "sqlite3.connect"),
    }
)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if (listening := Files._listening) is not None and event in _EVENTS:
        listening.note(event, args)


_EVENTS = _WRITING | {"open"}


def _state_of_file(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
