"""What code of the user keeps outside of what it is given, and whether a call changed it.

A forward or a loss that counts its calls, or keeps a mean of what it has read, ties the gradient of
a record to the records before it, and no clip norm bounds that. Compared are contents, and not how
often something says that it was written to: `.data`, `.numpy()` and `set_()` raise no version.
Looked at is all that a function reaches by its globals, closures, defaults and attributes, the
functions and classes of the user among them; the generators of Python, numpy and torch; and the
files that a call opens. Functions of installed libraries are taken as known,
but not the objects of their classes. What is filled once and then stays, such as a table of masks,
is allowed.
"""

from __future__ import annotations

import array
import builtins
import functools
import gc
import hashlib
import io
import logging
import os
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError

__all__ = ["Watch"]

_MOST = 200_000  # values that are looked at
_PLAIN = (bool, int, float, complex, str, bytes, type(None), CodeType)
_RAW, _WORDS = 2**20, 2**12  # bytes that are digested as they are; words of a row of more
_FEW, _OF_NUMPY = 64, frozenset({torch.float32, torch.float64, torch.int64, torch.bool})
_LONGEST = 10_000  # characters of what an object says of itself
# What these hold is theirs; a function of them keeps nothing of a user.
_KNOWN = frozenset({"torch", "numpy", "scipy", "opacus", "overhear", *sys.stdlib_module_names})
_KNOWN -= {"__main__"}


class Watch:
    """What some objects keep.

    Args:
        holders: functions, networks, or what else is called.

    >>> calls = []
    >>> def forward(x):
    ...     calls.append(x)
    >>> forward.__module__ = "mine"
    >>> watch = Watch(forward)
    >>> watch.changed()
    >>> calls.append(1)
    >>> watch.changed()
    "'calls'"
    """

    def __init__(self, *holders: object) -> None:
        self._holders, self._files = holders, _Files()
        self._roots = frozenset(_root(one) for one in _called(holders))
        self._before = self._now()
        self.is_empty = not self._before.meets_user
        """Whether no code of the user was met, so that nothing can be kept."""

    def begin(self) -> None:
        """Take what is kept now as what has to stay."""
        self._before = self._now()
        self._files.begin()

    def changed(self) -> str | None:
        """What was changed since, in words; None where nothing was."""
        file = self._files.end()
        return self._before.difference(self._now()) or file

    @contextmanager
    def calls(self, what: str) -> Iterator[None]:
        """Refuse calls that change something.

        Args:
            what: is called, for the sentence.

        Raises:
            InputError: they did.
        """
        self.begin()
        self.refuse(what, self._before.dead)
        try:
            yield
            name = self.changed()
        finally:
            self._files.end()
        self.refuse(what, name)

    def check_dead(self, what: str) -> None:
        """Refuse what was kept of a transform of torch; its next use may end the process."""
        self.refuse(what, self._now().dead)

    @staticmethod
    def refuse(what: str, name: str | None) -> None:
        """Raise where something was changed; its name, in words."""
        if name is not None:
            raise InputError(
                f"{what} changes {name} when it is called, which ties the gradient of a record to "
                "the records before it, and no figure covers that; compute from what it is given "
                "alone"
            )

    def _now(self) -> _Contents:
        return _Contents(self._holders, self._roots)


def _called(holders: Iterable[object]) -> Iterator[object]:
    """Functions and objects that are called, those that a task holds among them."""
    for holder in holders:
        yield holder
        if _root(holder) in _KNOWN:
            yield from getattr(holder, "__dict__", {}).values()


class _Contents:
    """All values that objects reach, each once, in an order that is the same every time."""

    def __init__(self, holders: Iterable[object], roots: frozenset[str]) -> None:
        self._roots, self.meets_user = roots, False
        self.dead: str | None = None  # what was kept of a transform that has ended, in words
        self._met: dict[int, int] = {}
        self._alive: list[object] = []  # so that nothing takes an address
        self._states: list[object] = []
        self._places: list[tuple[int, str]] = []  # where it was found, and under which name
        generators = {
            "the generator of random": random.getstate(),
            "the generator of numpy.random": _numpy_state(),
            "the generator of torch": torch.get_rng_state().numpy().tobytes(),
        }
        for name, state in generators.items():
            self._note(-1, name, state)
        waiting: list[tuple[int, str, object]] = [(-1, "", holder) for holder in holders]
        while waiting:
            found = self._meet(*waiting.pop())
            waiting += reversed(found)

    def difference(self, after: _Contents) -> str | None:
        """What is not the same afterwards, in words."""
        for at, (one, other) in enumerate(zip(self._states, after._states, strict=False)):
            if one is not other and not _equal(one, other):
                return self._words(at)
        if len(self._states) != len(after._states):
            return max(self, after, key=lambda of: len(of._states))._words(-1)
        return None

    def _note(self, place: int, name: str, state: object) -> int:
        if len(self._states) >= _MOST:
            raise InputError(
                f"{self._words(-1)} is one of more than {_MOST:,} objects that the network or the "
                "loss reaches, too many to hold against each other after every call; put tables "
                "into one tensor, and refer to what is used alone"
            )
        self._states.append(state)
        self._places.append((place, name))
        return len(self._states) - 1

    def _words(self, at: int) -> str:
        names = list[str]()
        while at != -1 or not names:
            at, name = self._places[at]
            names.insert(0, name)
        named = [part for part in names[-4:] if part.isidentifier()]
        return repr(".".join(named[-2:])) if named else names[-1]

    def _meet(self, place: int, name: str, value: object) -> list[tuple[int, str, object]]:
        if isinstance(value, _PLAIN):
            self._note(place, name, (type(value), repr(value) if value != value else value))
            return []
        if id(value) in self._met:
            self._note(place, name, ("met", self._met[id(value)]))
            return []
        self._alive.append(value)
        if isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
            self.dead = self._words(self._note(place, name, None))
            return []
        state, held = _look(value, self)
        at = self._met[id(value)] = self._note(place, name, (type(value), state))
        return [(at, one, of) for one, of in held]

    def is_known(self, value: object) -> bool:
        """Whether what a function or a class holds is not the user's."""
        root = _root(value)
        known = root in _KNOWN or (root not in self._roots and _is_installed(root))
        self.meets_user |= not known
        return known


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - objects of the user in a set
        return False


def _numpy_state() -> object:
    held: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that users share
    return (held["state"]["key"].tobytes(), held["state"]["pos"])


def _root(value: object) -> str:
    of = getattr(value, "__module__", None) or type(value).__module__
    return str(of).partition(".")[0]


@functools.lru_cache(1024)
def _is_installed(root: str) -> bool:
    file = str(getattr(sys.modules.get(root), "__file__", ""))
    return "site-packages" in file or "dist-packages" in file


_Held = list[tuple[str, object]]


def _look(value: object, walk: _Contents) -> tuple[object, _Held]:
    """The content of a value itself, and what it holds by name."""
    if isinstance(value, Tensor):
        held = _attributes(value)
        if value.is_leaf and value.grad is not None:
            held.append(("grad", value.grad))
        return _of_tensor(value), held
    if isinstance(value, FunctionType):
        return None, _of_closure(value) if walk.is_known(value) else _of_function(value)
    if isinstance(value, type):
        if walk.is_known(value):
            return id(value), []
        of = [(name, one) for name, one in vars(value).items() if name not in _OF_CLASSES]
        return None, of + _numbered("base", value.__bases__)
    if isinstance(value, ModuleType):
        return value.__name__, []
    for kinds, look in _LOOKS:
        if isinstance(value, kinds):
            state, held = look(value)
            break
    else:
        state, held = _of_another(value)
    held = held + _attributes(value)
    if not walk.is_known(type(value)):
        held.append(("class", type(value)))
    return state, held


# Python makes these when they are asked for.
_OF_CLASSES = ("__dict__", "__weakref__", "__doc__", "__annotations__")


def _of_tensor(value: Tensor) -> object:
    try:
        is_small = value.numel() <= _FEW and value.dtype in _OF_NUMPY
        if is_small and value.device.type == "cpu" and value.layout == torch.strided:
            return (value.dtype, value.shape, value.detach().numpy().tobytes())
        return (value.dtype, str(value.device), value.shape, _digest(value.detach()))
    except (RuntimeError, NotImplementedError, TypeError):  # without values
        return id(value)


def _digest(values: Tensor) -> object:
    """Of a tensor's content itself, or its sums by rows and columns of words: of one pass each."""
    if values.layout != torch.strided:
        held = values.to_dense()
        return (str(values.layout), _digest(held))
    if values.is_quantized:
        return (_digest(values.int_repr()), repr(values.qscheme()))
    if values.device.type == "meta":
        return None
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    raw = values.resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() > _RAW:
        row = 8 * _WORDS
        whole = raw.numel() // row * row
        words = raw[:whole].clone() if raw.storage_offset() % 8 else raw[:whole]
        table = words.view(torch.int64).view(-1, _WORDS)
        sums = torch.cat([table.sum(0), table.sum(1)]).view(torch.uint8)
        raw = torch.cat([sums, raw[whole:]])
    return hashlib.blake2b(raw.cpu().numpy(), digest_size=16).digest()


def _of_array(value: np.ndarray) -> tuple[object, _Held]:
    if value.dtype.hasobject:
        return value.shape, _numbered("", value.ravel().tolist())
    return (str(value.dtype), value.shape, _hash(value.tobytes())), []


def _hash(raw: bytes) -> bytes:
    return raw if len(raw) <= 64 else hashlib.blake2b(raw, digest_size=16).digest()


def _of_mapping(value: Mapping[Any, Any]) -> tuple[object, _Held]:
    items = list(value.items())
    keys = [key if isinstance(key, _PLAIN) else None for key, _ in items]
    held: _Held = [("key", key) for key, _ in items if not isinstance(key, _PLAIN)]
    return keys, held + [(str(key)[:100], one) for key, one in items]


def _of_set(value: set[Any] | frozenset[Any]) -> tuple[object, _Held]:
    plain = frozenset(one for one in value if isinstance(one, _PLAIN))
    return plain, _numbered("", [one for one in value if not isinstance(one, _PLAIN)])


def _of_sequence(value: Any) -> tuple[object, _Held]:
    return len(value), _numbered("", list(value))


def _of_method(value: Any) -> tuple[object, _Held]:
    bound = getattr(value, "__self__", None)
    held = None if isinstance(bound, ModuleType) else bound
    return (
        getattr(value, "__name__", ""),
        [("__self__", held), ("__func__", getattr(value, "__func__", None))],
    )


def _of_frame(value: Any) -> tuple[object, _Held]:
    for name in ("gi_frame", "cr_frame"):
        if hasattr(value, name):
            frame = getattr(value, name)
            return frame is None, [] if frame is None else _of_frame(frame)[1]
    return value.f_lasti, [("at", value.f_lasti), *list(value.f_locals.items())]


def _of_file(value: Any) -> tuple[object, _Held]:
    if value in (sys.stdout, sys.stderr) or value.closed:
        return None, []
    if isinstance(value, io.BytesIO | io.StringIO):
        return (value.getvalue(), value.tell()), []
    try:
        return value.tell(), []
    except (OSError, ValueError):
        return None, []


def _of_local(value: Any) -> tuple[object, _Held]:
    return None, []  # its attributes are those of this thread


_LOOKS: Sequence[tuple[Any, Callable[[Any], tuple[object, _Held]]]] = (
    (np.ndarray, _of_array),
    (np.random.Generator, lambda value: (repr(value.bit_generator.state), [])),
    (np.random.RandomState, lambda value: (repr(value.get_state()[1:3]), [])),
    (np.random.BitGenerator, lambda value: (repr(value.state), [])),
    (torch.Generator, lambda value: (value.get_state().numpy().tobytes(), [])),
    (random.SystemRandom, lambda value: (None, [])),
    (random.Random, lambda value: (value.getstate(), [])),
    ((logging.Logger, logging.Handler, logging.Manager), lambda value: (id(value), [])),
    (bytearray | array.array | memoryview, lambda value: (_hash(memoryview(value).tobytes()), [])),
    (io.IOBase, _of_file),
    (dict, _of_mapping),
    (set | frozenset, _of_set),
    (list | tuple | deque, _of_sequence),
    (MethodType | BuiltinFunctionType, _of_method),
    (functools.partial, lambda of: (None, [("func", of.func), ("", of.args), ("", of.keywords)])),
    (staticmethod | classmethod, lambda value: (None, [("__func__", value.__func__)])),
    (property, lambda value: (None, [("fget", value.fget), ("fset", value.fset)])),
    (CellType, lambda value: (None, _numbered("", gc.get_referents(value)))),
    (weakref.ref, lambda value: (None, [("of", value())])),
    (ContextVar, lambda value: (None, [("value", value.get(None))])),
    (GeneratorType | CoroutineType | FrameType, _of_frame),
    (threading.local, _of_local),
)


def _of_another(value: object) -> tuple[object, _Held]:
    """What is known of an object of a class without a rule."""
    try:  # mapped files, numbers of C
        with memoryview(value) as raw:  # type: ignore[arg-type]  # asked
            return _hash(raw.tobytes()), []
    except (TypeError, ValueError, BufferError, NotImplementedError):
        pass
    if type(value).__flags__ & (1 << 9) and hasattr(value, "__dict__"):  # of a class in Python
        return None, []
    if callable(getattr(value, "hexdigest", None)):
        return _words_of(value), [("digest", _or_none(value.hexdigest))]  # type: ignore[attr-defined]
    held: _Held = []
    if isinstance(value, Iterator):  # how far it is
        held.append(("at", _or_none(value.__reduce__)))
    for one in gc.get_referents(value):
        if not isinstance(one, type | ModuleType) and one is not getattr(value, "__dict__", None):
            held.append(("", one))
    return _words_of(value), held


def _words_of(value: object) -> object:
    """What an object says of itself, unless that is its address."""
    try:
        words = repr(value)
    except Exception:  # noqa: BLE001 - the user's own
        return id(value)
    return id(value) if "0x" in words or len(words) > _LONGEST else words


def _or_none(function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception:  # noqa: BLE001 - an object that cannot say it
        return None


def _attributes(value: object) -> _Held:
    own = getattr(value, "__dict__", None)
    found: _Held = list(own.items()) if isinstance(own, dict) else []
    found += [(name, getattr(value, name)) for name in _slots(type(value)) if hasattr(value, name)]
    return found


@functools.lru_cache(4096)
def _slots(of: type) -> Sequence[str]:
    named = [vars(kind).get("__slots__", ()) for kind in of.__mro__]
    every = [name for one in named for name in ((one,) if isinstance(one, str) else one)]
    return [name for name in every if name not in ("__dict__", "__weakref__")]


def _of_closure(function: FunctionType) -> _Held:
    held: _Held = list(vars(function).items())
    names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in names:
        try:
            held.append((name, cell.cell_contents))
        except ValueError:  # not filled yet
            continue
    return held


def _of_function(function: FunctionType) -> _Held:
    held = _of_closure(function)
    held += _numbered("default", function.__defaults__ or ())
    held += (function.__kwdefaults__ or {}).items()
    used = _names(function.__code__)
    package = function.__globals__.get("__package__") or ""
    for name in used:
        if name in function.__globals__:
            one = function.__globals__[name]
        elif name in vars(builtins):
            one = vars(builtins)[name]
        else:  # imported inside, under its own name or that of its package
            one = sys.modules.get(name, sys.modules.get(f"{package}.{name}"))
        if isinstance(one, ModuleType):
            held += _of_module(one, used, set())
        elif one is not None or name in function.__globals__:
            held.append((name, one))
    return held


def _of_module(module: ModuleType, used: Sequence[str], met: set[str]) -> _Held:
    """What a function may read of a module, and of the modules in it."""
    if module.__name__ in met:
        return []
    met.add(module.__name__)
    is_known = module.__name__.partition(".")[0] in _KNOWN
    held: _Held = []
    for name in used:
        one = vars(module).get(name)
        if isinstance(one, ModuleType):
            held += _of_module(one, used, met)
        elif name in vars(module) and not (is_known and callable(one)):
            held.append((name, one))
    return held


def _names(code: CodeType) -> Sequence[str]:
    """Names that a function uses, those of functions in it and those in quotes among them."""
    found, pending = dict.fromkeys(code.co_names), list(code.co_consts)
    while pending:
        one = pending.pop()
        if isinstance(one, CodeType):
            found |= dict.fromkeys(one.co_names)
            pending += one.co_consts
        elif isinstance(one, str) and one.isidentifier():
            found[one] = None
        elif isinstance(one, tuple | frozenset):
            pending += one
    return list(found)


def _numbered(name: str, values: Sequence[object]) -> _Held:
    return [(f"{name}{at}", one) for at, one in enumerate(values)]


class _Files:
    """Files that this thread opens: none may be written to, and what it reads has to stay.

    A writer in C, such as torch's own, is not seen; a reader of it is.
    """

    _listening: _Files | None = None
    _is_hooked = False

    def __init__(self) -> None:
        self._read: dict[str, object] = {}
        self._written: str | None = None
        self._thread = 0

    def begin(self) -> None:
        self._read, self._written, self._thread = {}, None, threading.get_ident()
        if not _Files._is_hooked:
            sys.addaudithook(_heard)
            _Files._is_hooked = True
        _Files._listening = self

    def end(self) -> str | None:
        """The file that was changed, in words."""
        if _Files._listening is self:
            _Files._listening = None
        for path, state in self._read.items():
            if _state_of_file(path) != state:
                return f"the file {path}"
        return self._written

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
        *("socket.connect", "socket.sendto", "sqlite3.connect"),
    }
)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if (listening := _Files._listening) is not None and event in _EVENTS:
        listening.note(event, args)


_EVENTS = _WRITING | {"open"}


def _state_of_file(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
