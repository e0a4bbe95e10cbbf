"""Objects that Python gives in the place of names: what a run folder then calls them.

    "object:mine.MOMENTUM@4f2a..."   the name of the object in its module, and a SHA-256

The digest is that of the module's file, so it covers whatever the object holds and calls in there;
of a notebook, which has no file, it is that of the source of the object and of the functions,
classes and plain constants of the notebook that it uses. What no digest covers is refused: an
object that is made inside a function, which holds values of that call.

Data that are values and no function stand as "object:numpy.ndarray@records": `records.json` of the
run, which is salted, tells whether others are given.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ...privacy.errors import InputError

# Importing code of the user: from the working directory first, with the digest of what ran.
#
# A module of the working directory is read, digested and compiled from the same bytes; compiled
# files beside it (`__pycache__`) are not looked at, since a digest of the source would say nothing
# of them. While a name is resolved the working directory comes before what is installed, as for
# `python -m`; afterwards it comes last, so that nothing there takes the place of a library that is
# loaded late.
#
# Where code is let run by its digest alone (`pinned`), a file of another digest is not executed:
# what is compared is what was read to be compiled.

_HERE = Path(__file__).resolve().parents[2]
# Ours by name: in a checkout that is where users work, the folder that holds them says nothing.
_PROGRAM = [
    _HERE / part
    for part in ("privacy", "training", "attacks", "runs", "reports", "commands", "testing")
]
_LIBRARY = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")]

_RAN: dict[Path, str] = {}
_LOADED_BY: dict[str, list[str]] = {}
_RUNNING: list[str] = []  # modules that are being executed, the innermost last
_PINS: ContextVar[Mapping[str, str] | None] = ContextVar("pins", default=None)


class NotPinned(InputError):
    """A file that nobody pinned would have been executed."""


def pins() -> Mapping[str, str] | None:
    """SHA-256 by path, or by name of an installed module, of what alone may run; None: anything."""
    return _PINS.get()


def pin(files: Mapping[str, str] | None) -> None:
    """Execute no file of the working directory but these from here on, in this context."""
    _PINS.set(files)


@contextmanager
def pinned(files: Mapping[str, str] | None) -> Iterator[None]:
    """Within it no file of the working directory is executed but these; None: any."""
    token = _PINS.set(files)
    try:
        yield
    finally:
        _PINS.reset(token)


def ran() -> dict[Path, str]:
    """Of every file of the user that was executed its SHA-256, by absolute path."""
    return dict(_RAN)


def digest_of(path: Path) -> str:
    """SHA-256 of a file as it is now."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_of(module: ModuleType) -> bytes:
    """The pinned source that a module was made of.

    Raises:
        NotPinned: its file is not, or is no source.
    """
    path = file_of(module)
    if path is None or path.suffix != ".py" or not path.is_file():
        raise NotPinned(f"{module.__name__!r} has no source, so no digest says what it is")
    source = path.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    if _RAN.get(path, digest) != digest:
        raise NotPinned(f"{path.name} was changed since it was imported; start the command again")
    name = _relative(path) if is_own_file(path) else module.__name__
    _check_pinned(name, digest)
    return source


def _relative(path: Path) -> str:
    """A path as pins name it."""
    here = Path.cwd()
    return (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()


def _check_pinned(name: str, digest: str) -> None:
    held = _PINS.get()
    if held is not None and held.get(name) != digest:
        raise NotPinned(
            f"{name} (sha256 {digest[:12]}) would be run, and no pin names it; read it, then pin "
            f'it too: "{name}" = "{digest}"'
        )


def import_module(name: str) -> ModuleType:
    """A module of the working directory, or else an installed one.

    Raises:
        Exception: whatever its import raises.
    """
    with _working_directory_first():
        return importlib.import_module(name)


def import_file(path: Path) -> ModuleType:
    """The module in a file of the working directory; a loaded one is not loaded a second time.

    Args:
        path: absolute.

    Raises:
        Exception: whatever its import raises.
    """
    for module in list(sys.modules.values()):
        if file_of(module) == path:
            return module
    stem = path.stem
    if path.parent == Path.cwd() and stem.isidentifier() and stem not in sys.modules:
        module = import_module(stem)
        if file_of(module) == path:
            return module
    name = f"own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Recorded(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _working_directory_first(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def own_path_of(name: str) -> Path | None:
    """The file of the working directory that a module's name stands for; nothing is imported."""
    path = Path.cwd().joinpath(*name.split("."))
    for held in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if held.is_file():
            return held
    return None


def imported_by(name: str) -> tuple[str, ...]:
    """The modules of the working directory that were loaded while a module ran."""
    return tuple(_LOADED_BY.get(name, ()))


def file_of(module: ModuleType) -> Path | None:
    """The file of a loaded module; None where it has none."""
    file = getattr(module, "__file__", None)
    return Path(file).absolute() if isinstance(file, str) else None


class _Recorded(SourceFileLoader):
    """Compiles what it reads, and keeps the digest of just that."""

    def get_code(self, fullname: str) -> object:  # type: ignore[override] # of compile
        path = self.get_filename(fullname)
        source = self.get_data(path)
        digest = hashlib.sha256(source).hexdigest()
        _check_pinned(_relative(Path(path).absolute()), digest)
        _RAN[Path(path).absolute()] = digest
        return self.source_to_code(source, path)

    def exec_module(self, module: ModuleType) -> None:
        if _RUNNING:
            _LOADED_BY.setdefault(_RUNNING[-1], []).append(module.__name__)
        _RUNNING.append(module.__name__)
        try:
            super().exec_module(module)
        finally:
            _RUNNING.pop()


class _Finder:
    """Finds modules of the working directory, however what imports them made Python look there."""

    first: tuple[str, ...] = ()  # folders that come before what is installed, while a name is found

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        del target
        first = [] if path is not None else [*cls.first]
        found = PathFinder.find_spec(name, first) if first else None
        if found is None or found.origin is None:  # a folder without __init__.py shadows nothing
            found = PathFinder.find_spec(name, path)
            if found is None or found.origin is None or not is_own_file(Path(found.origin)):
                return None
        return _recorded(found)


class _LastFinder:
    """Finds modules of the working directory that nothing installed has the name of."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        del target
        if path is not None and not any(is_own_file(Path(folder)) for folder in path):
            return None
        found = PathFinder.find_spec(name, [str(Path.cwd())] if path is None else path)
        return None if found is None else _recorded(found)


def is_of_python(path: Path) -> bool:
    """Whether a file belongs to Python's own library."""
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and any(path.is_relative_to(folder) for folder in _LIBRARY)


def is_own_file(path: Path) -> bool:
    """Whether a file belongs to the user: in the working directory, not installed, not of ours."""
    path = path.absolute()
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    elsewhere = is_of_python(path) or any(path.is_relative_to(folder) for folder in _PROGRAM)
    return path.is_relative_to(Path.cwd()) and not installed and not elsewhere


def _recorded(found: ModuleSpec) -> ModuleSpec:
    if type(found.loader) is SourceFileLoader:
        found.loader = _Recorded(found.loader.name, found.loader.path)
    elif found.origin is not None and found.has_location:
        path = Path(found.origin).absolute()  # compiled from C
        _check_pinned(_relative(path), digest_of(path))
        _RAN[path] = digest_of(path)
    return found


@contextmanager
def _working_directory_first(*before: Path) -> Iterator[None]:
    """The working directory, and what is to come before it, ahead of what is installed."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
        sys.meta_path.append(_LastFinder)
    importlib.invalidate_caches()
    kept = _Finder.first
    _Finder.first = (*map(str, before), str(Path.cwd()))
    try:
        yield
    finally:
        _Finder.first = kept


OBJECT = "object:"
_RECORDS = "records"
_GIVEN: dict[str, object] = {}
_KEYS: dict[str, set[str]] = {}  # by name where in a run file it was given
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def give(value: object, *, key: str) -> str:
    """Keep an object for this process, and say by which name run files call it.

    Args:
        value: a function, a class, an `Algorithm`, or data; a string is a name already.
        key: of the run file, such as "[model] name".

    Raises:
        InputError: its module cannot be told, or nothing could be digested.

    >>> import json
    >>> name = give(json.dumps, key="[model] name")
    >>> name.partition("@")[0], len(name.partition("@")[2])
    ('object:json.dumps', 64)
    """
    if isinstance(value, str):
        return value
    place = _place(value)
    if place is None:
        if key == "[data] name" and not callable(value):
            kind = type(value)
            name = f"{OBJECT}{kind.__module__}.{kind.__qualname__}@{_RECORDS}"
            return _kept(name, value, key)
        raise InputError(
            f"{key} is {_told(value)}, which is no attribute of a module, so no digest could cover "
            "what it holds; define it at the top of a module, such as mine.py, and give mine.NAME"
        )
    module, attribute = place
    name = f"{OBJECT}{module.__name__}.{attribute}@{_digest(value, module, key=key)}"
    return _kept(name, value, key)


def _kept(name: str, value: object, key: str) -> str:
    _GIVEN[name] = value
    _KEYS.setdefault(name, set()).add(key)
    return name


def lend(value: object, *, called: str, key: str) -> str:
    """Keep an object under a name of this process alone, which no run folder may hold.

    >>> given(lend(len, called="len", key="model"), key="model")("ab")
    2
    """
    return _kept(f"{OBJECT}{called}@{id(value):x}", value, key)


def keys_of(name: str) -> frozenset[str]:
    """The keys of a run file for which an object was given by a name in this process."""
    return frozenset(_KEYS.get(name, ()))


def given(name: str, *, key: str) -> object:
    """The object of a name that `give` returned in this process.

    Raises:
        InputError: none was given, or one of another digest.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    called, _, digest = name.removeprefix(OBJECT).partition("@")
    for other in _GIVEN:
        if other.startswith(f"{OBJECT}{called}@"):
            raise InputError(
                f"{key}={called!a} is not the object that this run was made with: its source "
                f"has sha256 {other.rpartition('@')[2][:12]}, and the run names {digest[:12]}; put "
                "the source back as it was, or train again"
            )
    raise InputError(
        f"{key}={called!a} is an object that Python gave when this run was made; give it "
        "again from Python, since no command can import it"
    )


def module_of(value: object) -> ModuleType | None:
    """The loaded module that holds an object; None where that cannot be told."""
    place = _place(value)
    return None if place is None else place[0]


def _place(value: object) -> tuple[ModuleType, str] | None:
    """A module, and the name under which it holds an object."""
    for module in _candidates(value):
        for attribute, held in list(vars(module).items()):
            if held is value and attribute.isidentifier():
                return module, attribute
        qualified = getattr(value, "__qualname__", None)
        if isinstance(qualified, str) and getattr(value, "__module__", "") == module.__name__:
            found: Any = module
            for word in qualified.split("."):
                found = getattr(found, word, None)
            if found is value:
                return module, qualified
    return None


def _candidates(value: object) -> Iterator[ModuleType]:
    """Modules that may hold an object: its own, those of its functions, then all of the user's."""
    for one in (value, getattr(value, "step", None), getattr(value, "init", None)):
        name = getattr(one, "__module__", None)
        if isinstance(name, str) and name in sys.modules and not isinstance(one, _PLAIN):
            yield sys.modules[name]
    if (main := sys.modules.get("__main__")) is not None:
        yield main
    for module in list(sys.modules.values()):
        path = file_of(module)
        if path is not None and is_own_file(path):
            yield module


def _digest(value: object, module: ModuleType, *, key: str) -> str:
    # A module with a file is digested as a whole.
    path = file_of(module)
    if path is not None and path.is_file():
        return digest_of(path)
    # Otherwise the sources of the object, and of all that these name in its module.
    found = hashlib.sha256()
    parts = (
        value,
        *(getattr(value, name, None) for name in ("init", "step", "settings", "prepare")),
    )
    pending: list[tuple[str, object]] = [
        ("", one) for one in parts if isinstance(one, FunctionType | type)
    ]
    seen: set[int] = set()
    if not pending:
        raise InputError(f"{key} is {_told(value)} without a source to digest; {_INTO_A_FILE}")
    while pending:
        name, one = pending.pop(0)
        if isinstance(one, _PLAIN):
            found.update(f"{name} = {one!r}\n".encode())
            continue
        if id(one) in seen or getattr(one, "__module__", None) != module.__name__:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType | type):
            try:
                source = inspect.getsource(one)
            except (OSError, TypeError) as error:
                raise InputError(
                    f"{key}: {name or _told(one)} has no source that could be digested ({error}); "
                    f"{_INTO_A_FILE}"
                ) from None
            found.update(f"{name}\n{source}\n".encode())
            pending += [(word, vars(module)[word]) for word in _names(one) if word in vars(module)]
    return found.hexdigest()


_INTO_A_FILE = "put it into a file, such as mine.py, and give mine.NAME"


def _names(one: Callable[..., object] | type) -> list[str]:
    """Global names that a function, or the functions of a class, use."""
    functions = [one] if isinstance(one, FunctionType) else list(vars(one).values())
    codes = [f.__code__ for f in functions if isinstance(f, FunctionType)]
    found = set[str]()
    while codes:
        code = codes.pop()
        found |= set(code.co_names)
        codes += [held for held in code.co_consts if isinstance(held, CodeType)]
    return sorted(found)


def _told(value: object) -> str:
    called = getattr(value, "__qualname__", None)
    return f"{called!r}" if isinstance(called, str) else f"a {type(value).__name__}"


# Files that code of the user opens while it is called: it writes none, and what it reads stays.
#
# Python tells of each by `sys.audit`. A writer in C, such as torch's own, is not seen; a reader is.


class Files:
    """Files that this thread opens, from `begin` to `end`."""

    _listening: Files | None = None
    _is_hooked = False

    def __init__(self) -> None:
        self._read: dict[str, object] = {}
        self._written: str | None = None
        self._thread = 0
        self._threads = frozenset(threading.enumerate())

    def begin(self) -> None:
        """Look at what is opened from now on."""
        self._read, self._written, self._thread = {}, None, threading.get_ident()
        self._threads = frozenset(threading.enumerate())
        if not Files._is_hooked:
            sys.addaudithook(_heard)
            Files._is_hooked = True
        Files._listening = self

    def end(self) -> str | None:
        """The file that was changed, in words."""
        if Files._listening is self:
            Files._listening = None
        for path, state in self._read.items():
            if _state_of_file(path) != state:
                return f"the file {path}"
        if self._written is None and self._runs_on():
            return "what is outside of it (a thread)"
        return self._written

    def _runs_on(self) -> bool:
        """Whether a thread that was begun here has not ended: what it keeps it may keep later."""
        begun = set(threading.enumerate()) - self._threads
        return any(not isinstance(one, threading._DummyThread) for one in begun)

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        """An event of `sys.audit`."""
        if threading.get_ident() != self._thread:
            return
        if event in _WRITING:
            self._written = self._written or f"what is outside of it ({event})"
        elif event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            path, (mode, flags) = os.fsdecode(args[0]), args[1:3]
            if path.startswith(("/proc/", "/sys/", "/dev/")) or "__pycache__" in path:
                return
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if writes or any(letter in str(mode) for letter in "wax+"):
                self._written = self._written or f"the file {path}"
            self._read.setdefault(path, _state_of_file(path))


_WRITING = frozenset(
    {
        *("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"),
        *("os.symlink", "os.putenv", "os.unsetenv", "os.system", "subprocess.Popen"),
        *("os.utime", "os.chmod", "os.chdir", "os.fork", "os.posix_spawn", "os.exec"),
        *("socket.connect", "socket.sendto", "sqlite3.connect"),
    }
)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if (listening := Files._listening) is not None and event in _EVENTS:
        listening.note(event, args)


_EVENTS = _WRITING | {"open"}


def _state_of_file(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
