"""Whether code that a run folder names may be run: somebody else may have written the folder.

A run file that a user gives is a program of the user, and is run. The run.toml of a folder is data
until somebody vouches for the code that it names: by `--trust-code`, by a policy that pins the
SHA-256 of every file, or because the user of this process named the same code: then what would run
is what the user's own folder holds, which is held against the run as well. All this is
decided before anything is imported.

A figure of a report is computed anew from the step, not read off the ledger, whose header is the
word of whoever wrote the folder: so reports, checks and totals need the code as audits do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from pathlib import Path

from ...privacy.errors import InputError
from ...training.own.imports import digest_of, own_path_of
from ...training.own.names import found_object, own_object, parsed_name
from ...training.own.objects import OBJECT
from .sources import COPIES, SOURCES, Sources, check_sources, check_unchanged, read_sources
from .tables import ATTACK_KEYS, OWN_KEYS, coded, named

__all__ = [
    "ask",
    "ask_of_attack",
    "check_after",
    "check_before",
    "check_of_attack",
    "is_of_folder",
    "trusting",
    "vouch",
]


_LEDGER = "ledger.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trust:
    """What is vouched for: all code, or files by SHA-256."""

    every: bool = False
    pins: Mapping[str, str] = field(default_factory=dict)


_ASKED: set[str] = set()  # names in run files that the user gave
_NOBODY = _Trust()
_TRUST: ContextVar[_Trust] = ContextVar("trust", default=_NOBODY)


def vouch(*, pins: Mapping[str, str] | None = None) -> Token[_Trust]:
    """Run the code of run folders from here on, in this context.

    Args:
        pins: SHA-256 by path, or by name of an installed module: only such code. None: any.

    Returns:
        What takes it back.
    """
    before = _TRUST.get()
    every = before.every or pins is None
    return _TRUST.set(_Trust(every=every, pins={**before.pins, **(pins or {})}))


@contextmanager
def trusting(*, pins: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within it the code of run folders is run; see `vouch`."""
    token = vouch(pins=pins)
    try:
        yield
    finally:
        _TRUST.reset(token)


def ask(tables: Mapping[str, object], notice: Callable[[str], None] | None = None) -> None:
    """Note what a run file that the user gives names, and say which files it is about to run."""
    _ASKED.update(coded(named(tables)).values())
    if notice is not None:
        _say(tables, notice)


def ask_of_attack(tables: Mapping[str, object], notice: Callable[[str], None] | None) -> None:
    """The same of what the user attacks a run with."""
    names = coded(named(tables, ATTACK_KEYS))
    _ASKED.update(names.values())
    if notice is not None:
        _say(tables, notice, keys=ATTACK_KEYS)


def check_of_attack(folder: Path, name: str, *, key: str) -> None:
    """Refuse code that the run file of a folder would be attacked with, if nobody vouches for it.

    Args:
        folder: of the run.
        name: "module:NAME", or that of an object from Python.
        key: of the run file.

    Raises:
        InputError: nobody does.
    """
    if name.startswith(OBJECT) or _TRUST.get().every or _is_asked(name):
        return
    path = _path_of(name, key)
    called = parsed_name(name, key=key).module
    shown = called if path is None else path.relative_to(Path.cwd()).as_posix()
    if path is not None and path.is_file() and _TRUST.get().pins.get(shown) == digest_of(path):
        return
    raise InputError(
        f"{folder}: {key}={name!a} names code that would be run, {shown}, and somebody else may "
        "have written the folder; read it, then add --trust-code, or name it by --denoiser"
    )


def _say(
    tables: Mapping[str, object],
    notice: Callable[[str], None],
    *,
    keys: Sequence[tuple[str, str]] = OWN_KEYS,
) -> None:
    told: dict[str, None] = {}
    for key, name in coded(named(tables, keys)).items():
        path = _path_of(name, key)
        if path is None:
            told[f"{parsed_name(name, key=key).module} (installed)"] = None
        else:
            shown = path.relative_to(Path.cwd()).as_posix()
            told[f"{shown} (sha256 {digest_of(path)[:12]})"] = None
    if told:
        notice(f"runs code of yours: {', '.join(told)}")


def is_of_folder(path: Path) -> bool:
    """Whether a run file lies beside what a run has written."""
    return any((path.parent / name).exists() for name in (_LEDGER, SOURCES))


def check_before(folder: Path, tables: Mapping[str, object]) -> Sources | None:
    """Refuse a folder whose code nobody vouches for, or was changed; nothing is imported.

    Args:
        folder: of a run.
        tables: of its run file.

    Returns:
        What its sources.json says; None where it names no code.

    Raises:
        InputError: it is refused.
    """
    names = named(tables)
    for key, name in coded(names).items():
        parsed_name(name, key=key)  # what is no name of the working directory is refused first
    if not names:
        return None
    held = read_sources(folder)
    if held is None:
        if (folder / _LEDGER).exists() or not all(map(_is_asked, names.values())):
            raise InputError(
                f"{folder} names code of somebody, {', '.join(names.values())}, and has no "
                f"{SOURCES}, so nothing tells which files trained it; train it again"
            )
        return None  # a run that was cut off before its first file, and is begun again
    _check_trusted(folder, names, held)
    check_unchanged(folder, held)
    return held


def check_after(folder: Path, tables: Mapping[str, object], held: Sources | None) -> None:
    """Import what a folder names, and refuse what is not the code that trained it.

    Raises:
        InputError: it is other code, or it cannot be imported.
    """
    names = named(tables)
    if held is None or not names:
        return
    for key, name in names.items():
        own_object(name, key=key)
    check_sources(folder, held, names)


def _check_trusted(folder: Path, names: Mapping[str, str], held: Sources) -> None:
    code = coded(names)
    if not code or _TRUST.get().every:
        return
    if all(_is_asked(name) for name in code.values()):
        return
    vouched = _TRUST.get().pins
    for key, name in code.items():
        path = _path_of(name, key)
        called = parsed_name(name, key=key).module
        shown = called if path is None else path.relative_to(Path.cwd()).as_posix()
        if shown not in (held.installed if path is None else held.files):
            raise InputError(
                f"{folder}: {key}={name!a} names {shown}, which is not in its {SOURCES}; the "
                "folder's files do not belong together"
            )
    wanted = {**held.files, **held.installed}
    missing = [path for path, digest in wanted.items() if vouched.get(path) != digest]
    if not missing:
        return
    listed = ", ".join(f"{ascii(path)[1:-1]} (sha256 {wanted[path][:12]})" for path in missing)
    pins = ", ".join(f'"{ascii(path)[1:-1]}" = "{wanted[path]}"' for path in missing)
    raise InputError(
        f"{folder} names code that would be run, and that somebody else may have written: "
        f"{listed}; read it in {folder / COPIES}, then add --trust-code, or pin it in a policy: "
        f"[code] allow = {{{pins}}}"
    )


def _is_asked(name: str) -> bool:
    """Whether who runs this process named the same code, or has run it."""
    return name in _ASKED or found_object(name) is not None


def _path_of(name: str, key: str) -> Path | None:
    """The file of the working directory that a name stands for; None where it is installed."""
    at = parsed_name(name, key=key)
    return Path.cwd() / at.module if at.is_file else own_path_of(at.module)
