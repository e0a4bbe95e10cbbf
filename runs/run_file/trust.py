"""Whether code that a run folder names may be run: somebody else may have written the folder.

A run file that a user gives is a program of the user, and is run. The run.toml of a folder is data
until somebody vouches for the code that it names: by `--trust-code`; by a policy that pins the
SHA-256 of every file, and names what of them is called with which options; because the user of
this process named the same code with the same options: then what would run is what the user's own
folder holds, which is held against the run as well; or, but for a policy, because this user trained
all of that code with these calls in this working directory (`is_remembered`): then its files are
pinned. All this is decided before anything is imported. A pin covers what its file defines
(`training.own.names`), and no file but the pinned is executed.

Paths that a folder's run.toml names are read if they lie in the folder, in the working directory or
below OVERHEAR_DATA, or if the user of this process named them.

A figure of a report is computed anew from the step, not read off the ledger, whose header is the
word of whoever wrote the folder: so reports, checks and totals need the code as audits do.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from ...privacy.errors import InputError
from ...privacy.files import (
    check_size,
    leads_inside,
    lock,
    make_folder,
    read_bounded,
    write_durably,
)
from ...privacy.formats.toml_text import toml_value
from ...training.own.names import (
    installed_digests,
    modules_of,
    own_files,
    own_object,
    parsed_name,
    take_as_asked,
)
from ...training.own.objects import digest_of, keys_of, own_path_of, pin
from ..described import Described
from .tables import Call

# sources.json of a run: which files of the user trained it, with copies of them in `sources/`.
#
# The ledger's header names the digest of sources.json. Its files are looked at when the run begins,
# and again before it is closed; whatever reads the run later imports the same ones, or refuses.

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
    """What names of one's own consist of, once they were found."""
    modules = modules_of(names.values())
    return Sources(version=1, files=own_files(modules), installed=installed_digests(modules))


def digest_of_sources(names: Mapping[str, str]) -> str:
    """SHA-256 of what names of one's own consist of; "none" where there are none."""
    if not names:
        return "none"
    found = sources_of(names)
    return hashlib.sha256(repr((found.files, found.installed)).encode()).hexdigest()


def write_sources(folder: Path, calls: Collection[Call]) -> None:
    """Write sources.json and the copies, where the run file has names of one's own.

    What the user of this process named is remembered.

    Raises:
        InputError: a file was changed since it was imported.
    """
    if not calls:
        return
    found = sources_of({call.key: call.name for call in calls})
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
    if all(call.is_code and call.line in _ASKED for call in calls):
        remember(_digest_of_run(calls, found))


def _digest_of_run(calls: Iterable[Call], held: Sources) -> str:
    """SHA-256 of all code that a run runs here: where, what is called, and of which files."""
    said = (str(Path.cwd()), sorted(call.line for call in calls), held.files, held.installed)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


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


_LEDGER = "ledger.jsonl"
_ENVIRONMENT_ROOT = "OVERHEAR_DATA"
NamedPath = tuple[str, str]  # the key of a run file, such as "[data] root", and what stands there


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trust:
    """What is vouched for: all code, or files by SHA-256 and lines of calls into them."""

    every: bool = False
    pins: Mapping[str, str] = field(default_factory=dict)
    calls: frozenset[str] = frozenset()


_ASKED: set[str | NamedPath] = set()  # lines of calls, and paths, in run files that the user gave
_FOREIGN: set[NamedPath] = set()  # paths that folders name, and nobody asked for
_NOBODY = _Trust()
_TRUST: ContextVar[_Trust] = ContextVar("trust", default=_NOBODY)


def trust_code(
    *, pins: Mapping[str, str] | None = None, calls: Iterable[Call] = ()
) -> Token[_Trust]:
    """Run the code of run folders from here on, in this context.

    Args:
        pins: SHA-256 by path, or by name of an installed module: only such code. None: any.
        calls: with pins, what of it run files may name, and with which options.

    Returns:
        What takes it back.
    """
    before = _TRUST.get()
    every = before.every or pins is None
    trust = _Trust(
        every=every,
        pins={**before.pins, **(pins or {})},
        calls=before.calls | {call.line for call in calls},
    )
    _limit(trust)
    return _TRUST.set(trust)


@contextmanager
def trusting(
    *, pins: Mapping[str, str] | None = None, calls: Iterable[Call] = ()
) -> Iterator[None]:
    """Within it the code of run folders is run; see `trust_code`."""
    token = trust_code(pins=pins, calls=calls)
    try:
        yield
    finally:
        _TRUST.reset(token)
        _limit(_TRUST.get())


def _limit(trust: _Trust) -> None:
    """Hold what is imported to the pins, where code is run by pins alone."""
    pin(None if trust.every or not trust.pins else trust.pins)


def ask(
    calls: Iterable[Call],
    paths: Iterable[NamedPath] = (),
    notice: Callable[[str], None] | None = None,
) -> None:
    """Note what a run file that the user gives names, and say which files it is about to run."""
    calls = list(calls)
    _ASKED.update(call.line for call in calls)
    named = set(paths)
    _ASKED.update(named)
    _FOREIGN.difference_update(named)
    for call in calls:
        take_as_asked(call.name)
    say_of(calls, notice)


def is_foreign(path: NamedPath) -> bool:
    """Whether a folder named a path that the user of this process did not."""
    return path in _FOREIGN


def check_path(folder: Path, path: NamedPath) -> None:
    """Refuse a path of a folder's run.toml that leads to where nobody asked to read.

    Raises:
        InputError: it leads out of the folder and of the working directory.
    """
    key, value = path
    if path in _ASKED:
        return
    _FOREIGN.add(path)
    if key == "[data] cache" or _TRUST.get().every:  # the first is not used
        return
    data = os.environ.get(_ENVIRONMENT_ROOT)
    roots = [folder, Path.cwd(), *([Path(data)] if data else [])]
    with suppress(RuntimeError):  # of a home that nobody has
        if all(leads_inside(one, *roots) for one in (Path(value), Path(value).expanduser())):
            return
    raise InputError(
        f"{folder}: {key}={value!a} leads out of the folder and of the working directory, and "
        "somebody else may have written it; if it is yours, set the environment's "
        f"{_ENVIRONMENT_ROOT} to the folder that holds it, or run the command there"
    )


def check_of_attack(folder: Path, call: Call) -> None:
    """Refuse code that the run file of a folder would be attacked with, if nobody vouches for it.

    Raises:
        InputError: nobody does.
    """
    if _is_vouched(call):
        return
    shown, path = _file_of(call)
    held = _TRUST.get()
    if (
        path is not None
        and path.is_file()
        and call.line in held.calls
        and held.pins.get(shown) == digest_of(path)
    ):
        return
    raise InputError(
        f"{folder}: {call.key}={call.name!a} names code that would be run, {shown}, and somebody "
        "else may have written the folder; read it, then add --trust-code, or name it by --denoiser"
    )


def say_of(calls: Iterable[Call], notice: Callable[[str], None] | None) -> None:
    """Say which files calls are about to run."""
    if notice is None:
        return
    told: dict[str, None] = {}
    for call in calls:
        if not call.is_code:
            continue
        shown, path = _file_of(call)
        of = "installed" if path is None else f"sha256 {digest_of(path)[:12]}"
        told[f"{shown} ({of})"] = None
    if told:
        notice(f"runs code of yours: {', '.join(told)}")


def is_of_folder(path: Path) -> bool:
    """Whether a run file lies beside what a run has written."""
    return any((path.parent / name).exists() for name in (_LEDGER, SOURCES))


def check_before(folder: Path, calls: Collection[Call]) -> Sources | None:
    """Refuse a folder whose code nobody vouches for, or was changed; nothing is imported.

    Returns:
        What its sources.json says; None where it names no code.
    """
    for call in calls:
        if call.is_code:
            parsed_name(call.name, key=call.key)  # no name of the working directory: refused first
    if not calls:
        return None
    held = read_sources(folder)
    if held is None:
        if (folder / _LEDGER).exists() or not all(call.line in _ASKED for call in calls):
            raise InputError(
                f"{folder} names code of somebody, {', '.join(call.name for call in calls)}, and "
                f"has no {SOURCES}, so nothing tells which files trained it; train it again"
            )
        return None  # a run that was cut off before its first file, and is begun again
    _check_trusted(folder, calls, held)
    check_unchanged(folder, held)
    return held


def check_after(folder: Path, calls: Iterable[Call], held: Sources | None) -> None:
    """Import what a folder names, and refuse what is not the code that trained it.

    Raises:
        InputError: it is other code, or it cannot be imported.
    """
    names = {call.key: call.name for call in calls}
    if held is None or not names:
        return
    for key, name in names.items():
        own_object(name, key=key)
    check_sources(folder, held, names)


def _check_trusted(folder: Path, calls: Collection[Call], held: Sources) -> None:
    # Calls that no one vouched for name files of the folder.
    foreign = [call for call in calls if not _is_vouched(call)]
    for call in foreign:
        if not call.is_code:
            raise InputError(
                f"{folder} hands {call.key}={call.name!a} what somebody else may have chosen: "
                f"{_cut(call.line)}; read its run.toml, then open it within "
                "overhear.runs.run_file.trust.trusting()"
            )
        shown, path = _file_of(call)
        if shown not in (held.installed if path is None else held.files):
            absent = f"{shown.replace('.', '/')}.py"
            if path is None and absent in held.files:
                raise InputError(
                    f"{folder}: {call.key}={call.name!a} names {absent}, which is not in the "
                    f"working directory; read its copy in {folder / COPIES}, and put it there"
                )
            raise InputError(
                f"{folder}: {call.key}={call.name!a} names {shown}, which is not in its {SOURCES}; "
                "the folder's files do not belong together"
            )
    if not foreign:
        return
    # A policy pins files by digest, and names what may be called of them; so does what this user
    # trained.
    wanted = {**held.files, **held.installed}
    if is_remembered(_digest_of_run(calls, held)):
        trust_code(pins=wanted, calls=foreign)
    vouched = _TRUST.get()
    missing = [path for path, digest in wanted.items() if vouched.pins.get(path) != digest]
    uncalled = [call for call in foreign if call.line not in vouched.calls]
    if not missing and not uncalled:
        return
    what = "names code that would be run, and that somebody else may have written: "
    what += ", ".join(
        f"{toml_value(path, comparable=True)} (sha256 {wanted[path][:12]})" for path in missing
    )
    if not missing:
        what = "calls what the policy pins in a way that it does not name: "
        what += ", ".join(f"{call.key}={call.name!a}" for call in uncalled)
    allowed = _cut(toml_value(wanted, comparable=True))
    raise InputError(
        f"{folder} {_cut(what)}; read its run.toml and {folder / COPIES}, then add --trust-code, "
        f"or let a policy say [code] allow = {allowed} and beside it "
        f"names = [{_cut(', '.join(call.line for call in foreign))}]"
    )


_LONGEST = 1 << 14  # characters of what somebody else wrote that a part of a refusal repeats


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is_vouched(call: Call) -> bool:
    """Whether who runs this process vouches for all code, named the same, or gave the object.

    An object that Python gave for a key is called there; what a data function is handed is chosen
    by whoever wrote the folder, so that is looked at as the options of a name are. One that nobody
    gave is told so when it is looked for.
    """
    if call.line in _ASKED or _TRUST.get().every:
        return True
    if call.is_code:
        return False
    handed, keys = call.key == "[data] name" and bool(call.options), keys_of(call.name)
    return not keys or (call.key in keys and not handed)


def _file_of(call: Call) -> tuple[str, Path | None]:
    """What a name stands for, as pins name it: a file of the working directory, or a module."""
    at = parsed_name(call.name, key=call.key)
    path = Path.cwd() / at.module if at.is_file else own_path_of(at.module)
    return (at.module, None) if path is None else (path.relative_to(Path.cwd()).as_posix(), path)


# Which code this user trained, by digest: a file of the user's own that commands look into.
#
# Who trained a run a second ago need not vouch for its code again. Each training adds a line to
# `overhear/trusted` in the user's state folder ($XDG_STATE_HOME, or `~/.local/state`): one digest
# of the working directory, all calls and all files, so nothing can be put together of two lines.
# Only what this user alone can write is believed, and whatever is wrong with it means that nothing
# is remembered; it is never an error.

_TRUSTED = "trusted"
_LINE = 65  # bytes: a digest, and the end of its line
_MOST_TRUSTED = 4096  # lines; the oldest are dropped
_USED: ContextVar[bool] = ContextVar("remembered", default=False)


def use_remembered() -> None:
    """Believe what is remembered from here on, in this context."""
    _USED.set(True)


def is_remembered(digest: str) -> bool:
    """Whether this context uses what is remembered, and a digest is."""
    if _USED.get():
        with suppress(OSError, RuntimeError), _opened_own(_state_folder()) as folder:
            return digest.encode() in _digests(folder)
    return False


def remember(digest: str) -> None:
    """Add a digest as the newest; where the user has no state folder, nothing is kept."""
    with suppress(OSError, RuntimeError):
        make_folder(_state_folder())
        with _opened_own(place := _state_folder()) as folder:  # which looks at what was made, too
            lock(folder, wait=True)
            kept = [line for line in _digests(folder) if line != digest.encode()]
            kept = [*kept, digest.encode()][-_MOST_TRUSTED:]
            write_durably(place / _TRUSTED, b"\n".join([*kept, b""]), mode=0o600)


def _state_folder() -> Path:
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
def _opened_own(path: str | Path, *, within: int | None = None) -> Iterator[int]:
    """Open a folder, or a file in an open one, that this user alone enters, and that is no link."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    try:
        held = os.fstat(file)
        if held.st_uid != os.geteuid() or held.st_mode & 0o077:
            raise PermissionError(f"{path} is not this user's alone")
        yield file
    finally:
        os.close(file)


def _digests(folder: int) -> list[bytes]:
    """The digests, the oldest first; none where the file is not as `remember` leaves it."""
    with suppress(OSError), _opened_own(_TRUSTED, within=folder) as file:
        if os.fstat(file).st_size <= _LINE * _MOST_TRUSTED:
            return [line for line in os.read(file, _LINE * _MOST_TRUSTED).split(b"\n") if line]
    return []
