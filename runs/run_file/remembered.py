"""Which code this user trained, by digest: a file of the user's own that commands look into.

Who trained a run a second ago need not vouch for its code again. Each training adds a line to
`overhear/trusted` in the user's state folder ($XDG_STATE_HOME, or `~/.local/state`): one digest of
the working directory, all calls and all files (`runs.run_file.trust`), so nothing can be put
together of two lines. Only what this user alone can write is believed, and whatever is wrong with
it means that nothing is remembered; it is never an error.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from ...privacy.durable import lock, make_folder, write_durably

_NAME = "trusted"
_LINE = 65  # bytes: a digest, and the end of its line
_MOST = 4096  # lines; the oldest are dropped
_USED: ContextVar[bool] = ContextVar("remembered", default=False)


def use() -> None:
    """Believe what is remembered from here on, in this context."""
    _USED.set(True)


def is_remembered(digest: str) -> bool:
    """Whether this context uses what is remembered, and a digest is."""
    if _USED.get():
        with suppress(OSError, RuntimeError), _opened(_place()) as folder:
            return digest.encode() in _lines(folder)
    return False


def remember(digest: str) -> None:
    """Add a digest as the newest; where the user has no state folder, nothing is kept."""
    with suppress(OSError, RuntimeError):
        make_folder(_place())
        with _opened(place := _place()) as folder:  # which looks at what was made, too
            lock(folder, wait=True)
            kept = [line for line in _lines(folder) if line != digest.encode()]
            kept = [*kept, digest.encode()][-_MOST:]
            write_durably(place / _NAME, b"\n".join([*kept, b""]), mode=0o600)


def _place() -> Path:
    """The folder, by a path of which no other user could take a part away.

    Raises:
        OSError: there is none; a relative path is of whoever wrote the working directory.
        RuntimeError: nobody knows the user's home.
    """
    if os.name == "nt":
        raise OSError("permissions there do not say who can write")
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not given.is_absolute():
        given = Path.home() / ".local" / "state"
    place = given / "overhear"
    for above in filter(os.path.lexists, {*place.parents, *place.resolve().parents}):
        held = above.lstat()
        shared = held.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
        of_another = held.st_uid not in {0, os.geteuid()}  # as a home under sudo
        if of_another or (shared and not above.is_symlink()) or not place.is_absolute():
            raise PermissionError(f"{above} is not this user's")
    return place


@contextmanager
def _opened(path: str | Path, *, within: int | None = None) -> Iterator[int]:
    """Open a folder, or a file in an open one, that this user alone enters, and that is no link."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    try:
        held = os.fstat(file)
        if held.st_uid != os.geteuid() or held.st_mode & 0o077:
            raise PermissionError(f"{path} is not this user's alone")
        yield file
    finally:
        os.close(file)


def _lines(folder: int) -> list[bytes]:
    """The digests, the oldest first; none where the file is not as `remember` leaves it."""
    with suppress(OSError), _opened(_NAME, within=folder) as file:
        if os.fstat(file).st_size <= _LINE * _MOST:
            return [line for line in os.read(file, _LINE * _MOST).split(b"\n") if line]
    return []
