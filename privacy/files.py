"""Files: how those from elsewhere are read within bounds, and how ours outlast a crash."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

# Files from elsewhere, looked at before they are read: what they would become has a bound.
#
# A file of a few megabytes can say that it holds terabytes, or be unpacked into them. Everything
# that is read whole, unpacked or allocated by what a header says is held against a bound first.

MOST_VALUES = 1 << 30  # numbers of a data set, 4 GiB in single precision
_BLOCK = 1 << 20
_HARMLESS = 64 << 20  # bytes that any file may become
_MOST_EXPANSION = 200  # times its own size, beyond that; packed images and text are below 50
_MOST_TEXT = 8 << 30
_LONGEST_LINE = 64 << 20
_TOML = 1 << 20
_MOST_SAID = 200  # characters of what a library says


def check_size(path: Path, most: int) -> int:
    """The bytes of a regular file, at most so many.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is larger, or no regular file.
    """
    held = path.stat()
    if not stat.S_ISREG(held.st_mode):
        raise InputError(f"{path} is no regular file; give a file")
    if held.st_size > most:
        raise InputError(
            f"{path} has {held.st_size} bytes, and at most {most} are read; give a smaller file"
        )
    return held.st_size


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a file.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is larger, or no regular file.
    """
    size = check_size(path, most)
    with path.open("rb") as file:
        return file.read(size)  # no more: Python makes room for all that is asked for


def read_text(path: Path) -> str:
    """The text of a TOML file.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is larger than a megabyte, or no text.
    """
    try:
        return read_bounded(path, _TOML).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from error


@contextmanager
def decoding(path: Path, what: str) -> Iterator[None]:
    """Make one sentence of whatever a library raises on the bytes of a file.

    What the system refuses of a named file passes as it is, and so does memory that runs out.

    Args:
        what: it should be, such as "npz file".

    Raises:
        ValueError: in place of what was raised.

    >>> import zlib
    >>> with decoding(Path("a.npz"), "npz file"):
    ...     raise zlib.error("Error -3 while decompressing data")
    Traceback (most recent call last):
    overhear...InputError: a.npz is no npz file or is damaged (Error -3 while decompressing data)...
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        why = str(error).partition("\n")[0][:_MOST_SAID].rstrip(". ") or type(error).__name__
        raise InputError(
            f"{path} is no {what} or is damaged ({why}); fetch it again, or write it anew"
        ) from error


def check_expansion(path: Path, becomes: int, *, width: int = 1) -> None:
    """Refuse a packed file that says it becomes much more than packed data do.

    Args:
        becomes: bytes that it says it holds, or that were unpacked of it so far.
        width: bytes of one of its numbers, of which a data set has at most 2^30.

    Raises:
        ValueError: more than a bound, or than its own size explains.
    """
    size = path.stat().st_size
    most = max(_HARMLESS, size, min(_MOST_EXPANSION * size, width * MOST_VALUES))
    if becomes > most:
        raise InputError(
            f"{path} becomes {becomes} bytes or more when it is unpacked, and at most {most} are "
            "read of a file of its size; unpack it yourself if you trust it"
        )


def machine_memory() -> int:
    """Bytes of memory that this process may have at all: the machine's, or its control group's."""
    found = [1 << 62]
    if hasattr(os, "sysconf"):  # not on Windows
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in _GROUP_LIMITS:
        try:
            found.append(int(Path(name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # none, or "max"
            continue
    return min(size for size in found if size > 0)


_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(what: str, needed: int, remedy: str) -> None:
    """Refuse what takes more memory than the machine has, before any of it is taken.

    Args:
        what: takes it, with its size.
        needed: bytes.

    >>> check_memory("a table of 1000 numbers", 4000, "give fewer")
    """
    if needed > (held := machine_memory()):
        raise InputError(
            f"{what} takes {needed / 1e9:.3g} GB of memory, and this machine has {held / 1e9:.3g}: "
            f"{remedy}"
        )


def count_lines(path: Path) -> int:
    """The lines of a text, plain or packed by its suffix, once it was found harmless to read.

    Raises:
        ValueError: it is unpacked into too much, is too large, has a line that is too long, or
            cannot be unpacked.
    """
    size = check_size(path, _MOST_TEXT)
    packed = path.suffix in _PACKED
    count = unpacked = open_line = 0
    with decoding(path, "text that can be unpacked"), _opened(path) as file:
        while block := file.read(_BLOCK):
            unpacked += len(block)
            if packed:
                check_expansion(path, unpacked)
            ends = block.count(b"\n")
            open_line = len(block) - block.rfind(b"\n") - 1 if ends else open_line + len(block)
            if open_line > _LONGEST_LINE:
                raise InputError(
                    f"{path} line {count + ends + 1} is longer than {_LONGEST_LINE} bytes; it "
                    "is no text of records"
                )
            count += ends
    return count + (size > 0)


_PACKED = {".gz", ".bz2"}


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile | bz2.BZ2File:
    if path.suffix == ".gz":
        return gzip.GzipFile(path)
    return bz2.BZ2File(path) if path.suffix == ".bz2" else path.open("rb")


# Folders and paths that somebody else may have made: nothing in them leads elsewhere.


def leads_inside(path: Path, *roots: Path) -> bool:
    """Whether a path, with `..` and links followed, lies in one of some folders.

    >>> leads_inside(Path("a/b"), Path("a")), leads_inside(Path("a/../b"), Path("a"))
    (True, False)
    """
    try:
        real = path.resolve()
        return any(real.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError, ValueError):  # links in a circle, or a null byte
        return False


def check_links(folder: Path) -> None:
    """Refuse a folder in which a link leads out of it, before anything is read, moved or removed.

    Raises:
        InputError: one does, or a folder in it hides what it holds; it is named.
    """

    def hidden(error: OSError) -> None:
        if isinstance(error, PermissionError):  # what can be followed by name, and not be listed
            raise InputError(
                f"{error.filename} may not be listed, and a link in it may lead out of {folder}; "
                f"`chmod -R u+rwX {folder}`"
            )

    for place, folders, files in os.walk(folder, onerror=hidden):
        for name in (*folders, *files):
            path = Path(place) / name
            if path.is_symlink() and not leads_inside(path, folder):
                raise InputError(
                    f"{path} is a link that leads out of {folder} or in a "
                    "circle, and somebody else may have made the folder; put a copy in its place"
                )


# Files that outlast a crash: written beside their place, synced, moved there, the folder synced.
#
# A file in its place is whole, the old one or the new one; what a crash leaves beside it ends in
# `.part`. Without the sync of the folder a file may be on the disk and its name not.
#
# What a run writes is readable by its user alone, from the moment that it is there: models,
# messages and pictures of records tell what no adversary of the report may see. Folders come from
# `make_folder` (0700), files from `write_durably`, `make_file` or `open_private` (0600). What is
# made to be shown says so (`SHOWN`). A folder that is there keeps the permissions that it has, and
# so does a file of the same user and group; who else made one has not chosen who reads ours.

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


# Pictures that are records: PNG, JPEG and BMP, whatever the suffix says, within a size.

_PICTURES = ("PNG", "JPEG", "BMP")
_MOST_PIXELS = 1 << 22  # of a record; 2048 x 2048
_LARGEST_PICTURE = 64 << 20  # bytes of a picture
_SCAN = b"\xff\xda"  # where a pass of a JPEG over all its pixels begins
_MOST_SCANS = 100


@contextmanager
def opened_picture(path: Path) -> Iterator[Image]:
    """A picture that is small enough to be a record, by its header; it is not decoded yet.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: no regular file, too large, or no picture of a format that is read.
    """
    from PIL import Image

    check_size(path, _LARGEST_PICTURE)
    # Pillow's own bound lies above the one here.
    quiet = warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
    with decoding(path, "picture"), quiet:
        try:
            picture = Image.open(path, formats=_PICTURES)
        except Image.DecompressionBombError:
            raise InputError(f"{path} has more than {_MOST_PIXELS} pixels; resize it") from None
        with picture as opened:
            _check_pixels(path, *opened.size)
            scans = 0 if opened.format in {"PNG", "BMP"} else path.read_bytes().count(_SCAN)
            if scans > _MOST_SCANS:
                raise InputError(
                    f"{path} is drawn in {scans} passes, must be at most {_MOST_SCANS}; save it "
                    "again, not progressively"
                )
            yield opened


def _check_pixels(path: Path, width: int, height: int) -> None:
    """Refuse a picture that is too large to be a record."""
    if width * height > _MOST_PIXELS:
        raise InputError(
            f"{path} has {width} x {height} pixels, must have at most {_MOST_PIXELS}; resize it"
        )
