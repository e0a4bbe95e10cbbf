"""Files that outlast a crash: written beside their place, synced, moved there, the folder synced.

A file in its place is whole, the old one or the new one; what a crash leaves beside it ends in
`.part`. Without the sync of the folder a file may be on the disk and its name not.

What a run writes is readable by its user alone, from the moment that it is there: models, messages
and pictures of records tell what no adversary of the report may see. Folders come from
`make_folder` (0700), files from `write_durably`, `make_file` or `open_private` (0600). What is made
to be shown says so (`SHOWN`). A folder that is there keeps the permissions that it has, and so does
a file of the same user and group; who else made one has not chosen who reads ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path

PART = ".part"
SHOWN = 0o664
"""The permissions of what is made to be shown, less what the process leaves out (umask)."""

_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
BINARY = getattr(os, "O_BINARY", 0)  # Windows would write another end of line


def make_folder(folder: Path) -> None:
    """Make a folder that its user alone enters, and those above it that are missing."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file that, where it is new, its user alone reads; the `opener` of `open`."""
    return os.open(path, flags | BINARY, _PRIVATE_FILE)


def make_file(path: Path) -> None:
    """Make an empty file that its user alone reads, for a library that writes to a name.

    Raises:
        FileExistsError: the file exists.
    """
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def lock(file: int, *, wait: bool = False) -> bool:
    """Lock an open file for this process until it is closed; Windows locks none.

    Args:
        file: its descriptor, of a folder too.
        wait: until no other process holds it.

    Returns:
        Whether no other process holds it.

    Raises:
        OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def part_of(path: Path) -> Path:
    """Where this process writes what will be at `path`."""
    return path.with_name(f"{path.name}.{os.getpid()}{PART}")


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder; where folders cannot be opened (Windows) the system does it."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # network folders that know no sync
            raise
    finally:
        os.close(opened)


def write_all(file: int, data: bytes) -> None:
    """Write and sync; a disk that takes only part of it is asked again, and then says why."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


def publish(part: Path, path: Path, *, new: bool = False) -> None:
    """Give a written and synced file its name.

    Args:
        new: refuse to take the place of another file.

    Raises:
        FileExistsError: with `new`, the name is taken.
    """
    if not new:
        part.replace(path)
    else:
        try:
            os.link(part, path)  # unlike a renaming, never over a file that is there
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if path.exists():
                raise FileExistsError(f"{path} exists") from None
            part.replace(path)
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_durably(path: Path, data: bytes, *, new: bool = False, mode: int | None = None) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part.

    Args:
        path: the file; its folder must exist.
        new: refuse to take the place of another file.
        mode: its permissions, such as `SHOWN`; by default those of the old file, if it is of the
            same user and group, and else that its user alone reads it.

    Raises:
        FileExistsError: with `new`, the file exists.
        OSError: the system refuses; the error names the file.
    """
    part = part_of(path)
    asked = _PRIVATE_FILE if mode is None else mode
    try:
        part.unlink(missing_ok=True)  # of a dead process of the same number, or somebody's link
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, asked)
        try:
            if mode is None and os.name != "nt":
                os.fchmod(opened, _permissions_of(path, opened))
            write_all(opened, data)
        finally:
            os.close(opened)
        publish(part, path, new=new)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)  # a full disk gets its room back
        if isinstance(error, OSError):
            raise named(error, path) from error
        raise


def _permissions_of(path: Path, opened: int) -> int:
    """Of an old file, which `opened` will follow."""
    with contextlib.suppress(FileNotFoundError):
        old, new = path.lstat(), os.fstat(opened)
        if stat.S_ISREG(old.st_mode) and (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
            return old.st_mode & SHOWN
    return _PRIVATE_FILE


def named(error: OSError, path: Path) -> OSError:
    """The error of the system with the file that it is about."""
    if error.errno is None:  # already a sentence of ours
        return error
    return OSError(error.errno, error.strerror, str(path))
