"""sources.json of a run: which files of the user trained it, with copies of them in `sources/`.

The ledger's header names the digest of sources.json. Its files are looked at when the run begins,
and again before it is closed; whatever reads the run later imports the same ones, or refuses.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from ...privacy.bounded import check_size, read_bounded
from ...privacy.durable import make_folder, write_durably
from ...privacy.errors import InputError
from ...training.own.imports import digest_of
from ...training.own.sources import installed_digests, modules_of, own_files
from ..described import Described

__all__ = [
    "COPIES",
    "SOURCES",
    "Sources",
    "check_at_end",
    "check_sources",
    "check_unchanged",
    "digest_of_sources",
    "read_sources",
    "sources_of",
    "write_sources",
]

SOURCES, COPIES = "sources.json", "sources"
_LARGEST = 16 << 20  # bytes of sources.json, and of a file of the user
_MOST = 10_000  # files
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Sources(Described):
    """The files of the user that a run consists of."""

    version: Annotated[Literal[1], Field(alias="schema")]
    """Of this format."""
    files: dict[str, _Digest]
    """SHA-256 by path, relative to the working directory."""
    installed: dict[str, Annotated[str, Field(pattern=r"^([0-9a-f]{64}|none)$")]] = Field(
        default_factory=dict
    )
    """Of modules that the run file names and that are installed, SHA-256 by name."""


def sources_of(names: Mapping[str, str]) -> Sources:
    """What names of one's own consist of, once they were found.

    Args:
        names: by key of the run file.
    """
    modules = modules_of(names.values())
    return Sources(version=1, files=own_files(modules), installed=installed_digests(modules))


def digest_of_sources(names: Mapping[str, str]) -> str:
    """SHA-256 of what names of one's own consist of; "none" where there are none."""
    if not names:
        return "none"
    found = sources_of(names)
    return hashlib.sha256(repr((found.files, found.installed)).encode()).hexdigest()


def write_sources(folder: Path, names: Mapping[str, str]) -> None:
    """Write sources.json and the copies, where the run file has names of one's own.

    Raises:
        InputError: a file was changed since it was imported.
    """
    if not names:
        return
    found = sources_of(names)
    for path, digest in found.files.items():
        source = read_bounded(Path(path), _LARGEST)
        if hashlib.sha256(source).hexdigest() != digest:
            raise InputError(
                f"{path} was changed since it was imported (sha256 {digest[:12]} then), so the "
                "run would not be what its file says; start it again"
            )
        copy = folder / COPIES / path
        make_folder(copy.parent)
        write_durably(copy, source)
    found.write(folder / SOURCES)


def read_sources(folder: Path) -> Sources | None:
    """What sources.json says; None where there is none.

    Raises:
        InputError: it cannot be read, or names a file outside of the working directory.
    """
    path = folder / SOURCES
    if not os.path.lexists(path):
        return None
    check_size(path, _LARGEST)
    found = Sources.read(path, refusal=lambda at, what: f"{path} cannot be read: {at}: {what}")
    if len(found.files) > _MOST:
        raise InputError(f"{path} names {len(found.files)} files, and at most {_MOST} are read")
    for name in found.files:
        at = PurePosixPath(name)
        if (
            at.is_absolute()
            or ".." in at.parts
            or at.as_posix() != name
            or "\\" in name
            or not name.isprintable()
            or not at.name
        ):
            raise InputError(
                f"{path} names {name!a}, which is no path of a file below the working "
                "directory; put sources.json back as it was written"
            )
    return found


def check_unchanged(folder: Path, held: Sources) -> None:
    """Refuse files of the working directory that are not those of a run; nothing is imported.

    Args:
        held: what its sources.json says.

    Raises:
        InputError: one is missing or was changed.
    """
    for name, digest in held.files.items():
        path = Path.cwd() / name
        if not path.is_file():
            raise InputError(
                f"{name}, which trained the run of {folder}, is not in {Path.cwd()}; run the "
                f"command in its folder, or take the copy in {folder / COPIES}"
            )
        check_size(path, _LARGEST)
        if (found := digest_of(path)) != digest:
            raise InputError(
                f"{name} is not the file that trained this run (sha256 {found[:12]}, not "
                f"{digest[:12]}); use {folder / COPIES} or train again"
            )


def check_sources(folder: Path, held: Sources, names: Mapping[str, str]) -> None:
    """Refuse imported code that is not the code of a run.

    Args:
        held: what its sources.json says.
        names: by key of its run file, and found.

    Raises:
        InputError: something was changed, is missing, or was not part of it.
    """
    check_unchanged(folder, held)
    now = sources_of(names)
    for what, before, after in (
        ("file", held.files, now.files),
        ("installed module", held.installed, now.installed),
    ):
        for name in sorted({**before, **after}):
            if before.get(name) != after.get(name):
                raise InputError(_differs(what, name, before.get(name), after.get(name), folder))


def check_at_end(folder: Path, names: Mapping[str, str]) -> None:
    """Refuse to close a run whose code is not what it was when it began.

    Raises:
        InputError: a file was changed on the way, or one was imported that was not at the start.
    """
    held = read_sources(folder) if names else None
    if held is None:
        return
    try:
        check_sources(folder, held, names)
    except InputError as error:
        raise InputError(
            f"since this run began its code was changed: {error}; put the files back as they are "
            f"in {folder / COPIES}, import at the top of a module what is imported later, then "
            "close the run with --resume"
        ) from None


def _differs(what: str, name: str, before: str | None, after: str | None, folder: Path) -> str:
    if before is None:
        return (
            f"{name} is imported now and did not train this run; use {folder / COPIES} or train "
            "again"
        )
    if after is None:
        return (
            f"{name} trained this run and is not imported now; use {folder / COPIES} or train again"
        )
    return (
        f"{name} is not the {what} that trained this run (sha256 {after[:12]}, not "
        f"{before[:12]}); use {folder / COPIES} or train again"
    )
