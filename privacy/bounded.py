"""Files from elsewhere, looked at before they are read: what they would become has a bound.

A file of a few megabytes can say that it holds terabytes, or be unpacked into them. Everything that
is read whole, unpacked or allocated by what a header says is held against a bound first.
"""

from __future__ import annotations

import bz2
import gzip
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import InputError

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
