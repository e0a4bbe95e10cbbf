"""Folders and paths that somebody else may have made: nothing in them leads elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import InputError

__all__ = ["check_links", "leads_inside"]


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
