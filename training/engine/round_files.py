"""How files of a round are named, and which files of a folder are of rounds."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"round-([0-9]{6,18})\.safetensors")


def round_name(number: int) -> str:
    """The name of the file of a round.

    >>> round_name(7)
    'round-000007.safetensors'
    """
    return f"round-{number:06d}.safetensors"


def round_files(folder: Path) -> list[tuple[int, Path]]:
    """The rounds of which a folder has files, in their order, and the files.

    What has another name, such as a copy that a file manager made, and what is no regular file,
    is no file of a round.
    """
    found = []
    for path in folder.glob("round-*.safetensors"):
        named = _NAME.fullmatch(path.name)
        if named and path.name == round_name(int(named[1])) and path.is_file():
            found.append((int(named[1]), path))
    return sorted(found)
