"""Files that are read whole: regular ones, and no more bytes of them than a bound."""

from __future__ import annotations

from pathlib import Path

from .errors import InputError

__all__ = ["read_bounded"]


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a file.

    Args:
        path: the file.
        most: how many bytes it may have.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is larger, or no regular file; at most `most` + 1 bytes were read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "figure"
    ...     _ = path.write_bytes(b"8.0")
    ...     print(len(read_bounded(path, 3)))
    3
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file; give a file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(
            f"{path} has {path.stat().st_size} bytes, and at most {most} are read; give a smaller "
            "file"
        )
    return content
