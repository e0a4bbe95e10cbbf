"""Files that outlast a crash: written beside their place, synced, moved there, the folder synced.

A file in its place is whole, the old one or the new one; what a crash leaves beside it ends in
`.part`. Without the sync of the folder a file may be on the disk and its name not.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

PART = ".part"
BINARY = getattr(os, "O_BINARY", 0)  # Windows would write another end of line


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
        part: the file.
        path: its name from here on.
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


def write_durably(path: Path, data: bytes, *, new: bool = False, mode: int = 0o666) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part.

    Args:
        path: the file; its folder must exist.
        data: all of it.
        new: refuse to take the place of another file.
        mode: its permissions, less what the process leaves out anyway.

    Raises:
        FileExistsError: with `new`, the file exists.
        OSError: the system refuses; the error names the file.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_durably(Path(folder) / "figure", b"8.0")
        ...     print((Path(folder) / "figure").read_text())
        8.0
    """
    part = part_of(path)
    try:
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, mode)
        try:
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


def named(error: OSError, path: Path) -> OSError:
    """The error of the system with the file that it is about."""
    if error.errno is None:  # already a sentence of ours
        return error
    return OSError(error.errno, error.strerror, str(path))
