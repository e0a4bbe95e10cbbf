"""What objects hold, as contents that can be held against those of later.

Looked at is all that a function reaches by its globals, closures, defaults and attributes, the
functions and classes of the user among them, and the generators of Python, numpy and torch.
Functions of installed libraries are taken as known, but not the objects of their classes.

What code of the user keeps outside of what it is given, and whether a call changed it.

A forward or a loss that counts its calls, or keeps a mean of what it has read, ties the gradient of
a record to the records before it, and no clip norm bounds that. Compared are contents, and not how
often something says that it was written to: `.data`, `.numpy()` and `set_()` raise no version. What
is filled once and then stays, such as a table of masks, is allowed.
"""

from __future__ import annotations

import array
import builtins
import functools
import gc
import hashlib
import io
import logging
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
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
from .objects import Files, is_of_python

_MOST = 200_000  # values that are looked at
_PLAIN = (bool, int, float, complex, str, bytes, type(None), CodeType)
_RAW, _WORDS = 2**20, 2**12  # bytes that are digested as they are; words of a row of more
_FEW, _OF_NUMPY = 64, frozenset({torch.float32, torch.float64, torch.int64, torch.bool})
_LONGEST = 10_000  # characters of what an object says of itself
# By these a function comes to names that it does not spell.
_OF_GLOBALS = frozenset({"globals", "vars"})
_FORMING = _OF_GLOBALS | {"getattr", "setattr", "__dict__"}
_is_wrapped = getattr(torch._C, "_functorch").is_functorch_wrapped_tensor  # noqa: B009 - untyped
# What these hold is theirs; a function of them keeps nothing of a user.
_KNOWN = frozenset({"torch", "numpy", "scipy", "opacus", "overhear", *sys.stdlib_module_names})
_KNOWN -= {"__main__"}


class Contents:
    """All values that objects reach, each once, in an order that is the same every time."""

    def __init__(self, holders: Iterable[object]) -> None:
        holders = list(holders)
        self._begin(frozenset(_root(one) for one in _called(holders)), _MOST)
        generators = {
            "the generator of random": random.getstate(),
            "the generator of numpy.random": _numpy_state(),
            "the generator of torch": torch.get_rng_state().numpy().tobytes(),
        }
        for name, state in generators.items():
            self._note(-1, name, state)
        self._walk(holders)

    def _begin(self, roots: frozenset[str] | None, most: int) -> None:
        self._roots, self._most = roots, most
        self.meets_user = False  # whether code of the user was met
        self.dead: str | None = None  # what was kept of a transform that has ended, in words
        self._met: dict[int, int] = {}
        self._alive: list[object] = []  # so that nothing takes an address
        self._states: list[object] = []
        self._places: list[tuple[int, str]] = []  # where it was found, and under which name

    def _walk(self, holders: Iterable[object]) -> None:
        waiting: list[tuple[int, str, object]] = [(-1, "", holder) for holder in holders]
        while waiting:
            found = self._meet(*waiting.pop())
            waiting += reversed(found)

    def apart(self, value: object) -> list[object]:
        """The contents of a value by itself, without the code that it reaches."""
        inner = Contents.__new__(Contents)
        inner._begin(None, self._most - len(self._states))
        inner._walk([value])
        self._most -= len(inner._states)
        return inner._states

    def difference(self, after: Contents) -> str | None:
        """What is not the same afterwards, in words."""
        for at, (one, other) in enumerate(zip(self._states, after._states, strict=False)):
            if one is not other and not _equal(one, other):
                return self._words(at)
        if len(self._states) != len(after._states):
            return max(self, after, key=lambda of: len(of._states))._words(-1)
        return None

    def _note(self, place: int, name: str, state: object) -> int:
        if len(self._states) >= self._most:
            raise InputError(
                f"{self._words(-1)} is one of more than {_MOST:,} objects that the network or the "
                "loss reaches, too many to compare with each other after every call; put tables "
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
        if isinstance(value, _PLAIN) and not hasattr(value, "__dict__"):
            self._note(place, name, (type(value), _of_plain(value)))
            return []
        if id(value) in self._met:
            self._note(place, name, ("met", self._met[id(value)]))
            return []
        self._alive.append(value)
        if isinstance(value, Tensor) and _is_wrapped(value):
            self.dead = self._words(self._note(place, name, None))
            return []
        state, held = _look(value, self)
        at = self._met[id(value)] = self._note(place, name, (type(value), state))
        return [(at, one, of) for one, of in held]

    def is_known(self, value: object) -> bool:
        """Whether what a function or a class holds is not the user's, or not looked at."""
        if self._roots is None:
            return True
        root = _root(value)
        known = _is_known(root) or (root not in self._roots and _is_installed(root))
        self.meets_user |= not known
        return known


def _called(holders: Iterable[object]) -> Iterator[object]:
    """Functions and objects that are called, those that a task holds among them."""
    for holder in holders:
        yield holder
        if _is_known(_root(holder)):
            yield from getattr(holder, "__dict__", {}).values()


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
    if isinstance(value, FunctionType):  # `functools.wraps` gives it the name of another
        of = value.__globals__.get("__name__", of)
    return str(of).partition(".")[0]


def _is_known(root: str) -> bool:
    """Whether a name is of what keeps nothing; a file of the user may be called `code`."""
    if root not in _KNOWN or root not in sys.stdlib_module_names:
        return root in _KNOWN
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is None or _is_of_python(file)


@functools.lru_cache(1024)
def _is_of_python(file: str) -> bool:
    return is_of_python(Path(file))


@functools.lru_cache(1024)
def _is_installed(root: str) -> bool:
    file = str(getattr(sys.modules.get(root), "__file__", ""))
    return "site-packages" in file or "dist-packages" in file


_Held = list[tuple[str, object]]


def _look(value: object, walk: Contents) -> tuple[object, _Held]:
    """The content of a value itself, and what it holds by name."""
    # A tensor by its values, with its gradient.
    if isinstance(value, Tensor):
        content = _of_tensor(value)
        if content is None:  # it has no values, such as one of torch.export
            return id(value), []
        held = _attributes(value)
        if value.is_leaf and value.grad is not None:
            held.append(("grad", value.grad))
        return content, held
    # Functions and classes by what they are made of; those that are known hold nothing new.
    if isinstance(value, FunctionType):
        known = walk.is_known(value)
        return value.__code__, _of_closure(value) if known else _of_function(value)
    if isinstance(value, type):
        if walk.is_known(value):
            return id(value), []
        of = [(name, one) for name, one in vars(value).items() if name not in _OF_CLASSES]
        return None, [*of, *_numbered("base", value.__bases__), ("class", type(value))]
    # A cache holds what it has returned.
    if isinstance(value, functools._lru_cache_wrapper):
        if walk.is_known(value):
            return None, []
        returned = _Returned((key, walk.apart(one)) for key, one in _of_cache(value))
        return returned, _attributes(value)
    if isinstance(value, ModuleType):
        return value.__name__, []
    # All else by its kind, and by its attributes in any case.
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


class _Returned(dict[object, object]):
    """What a function returned once; others may be asked for more, and old ones may go."""

    __hash__ = None

    def __eq__(self, later: object) -> bool:
        return isinstance(later, _Returned) and all(
            _equal(state, later.get(key, state)) for key, state in self.items()
        )


# Python makes these when they are asked for.
_OF_CLASSES = ("__dict__", "__weakref__", "__doc__", "__annotations__")


def _of_tensor(value: Tensor) -> object:
    try:
        is_small = value.numel() <= _FEW and value.dtype in _OF_NUMPY
        if is_small and value.device.type == "cpu" and value.layout == torch.strided:
            return (value.dtype, value.shape, value.detach().numpy().tobytes())
        return (value.dtype, str(value.device), value.shape, _digest(value.detach()))
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _of_storage(value: torch.UntypedStorage) -> object:
    try:
        return _digest(torch.empty(0, dtype=torch.uint8, device=value.device).set_(value))
    except RuntimeError:  # of a tensor without values
        return None


def _digest(values: Tensor) -> object:
    """Of a tensor's content itself, or its sums by rows and columns of words: of one pass each."""
    if values.layout != torch.strided:
        held = values.to_dense()
        return (str(values.layout), _digest(held))
    if values.is_quantized:
        return (_digest(values.int_repr()), repr(values.qscheme()))
    if values.device.type == "meta":
        return None
    if values.is_nested:
        return [_digest(one) for one in values.unbind()]
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    raw = values.resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() > _RAW:
        row = 8 * _WORDS
        whole = raw.numel() // row * row
        words = raw[:whole].clone() if raw.storage_offset() % 8 else raw[:whole]
        table = words.view(torch.int64).view(-1, _WORDS)
        sums = torch.cat([table.sum(0), table.sum(1)]).view(torch.uint8)
        raw = torch.cat([sums, raw[whole:]])
    return hashlib.blake2b(raw.cpu().numpy().tobytes(), digest_size=16).digest()


def _of_array(value: np.ndarray) -> tuple[object, _Held]:
    if value.dtype.hasobject:
        return value.shape, _numbered("", value.ravel().tolist())
    return (str(value.dtype), value.shape, _hash(value.tobytes())), []


def _of_plain(value: object) -> object:
    return repr(value) if value != value else value


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


def _of_cache(value: Any) -> Iterable[tuple[object, object]]:
    """The keys of what is cached, and what was returned for each."""
    held, info = gc.get_referents(value), value.cache_info()
    if info.maxsize is None:
        return next(one for one in held if type(one) is dict and one is not vars(value)).items()
    return zip(held[1::3][: info.currsize], held[2::3], strict=False)  # each before its type


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


_LOOKS: Sequence[tuple[Any, Callable[[Any], tuple[object, _Held]]]] = (
    (np.ndarray, _of_array),
    (np.random.Generator, lambda value: (repr(value.bit_generator.state), [])),
    (np.random.RandomState, lambda value: (repr(value.get_state()[1:3]), [])),
    (np.random.BitGenerator, lambda value: (repr(value.state), [])),
    (torch.Generator, lambda value: (value.get_state().numpy().tobytes(), [])),
    (random.SystemRandom, lambda _: (None, [])),
    (random.Random, lambda value: (value.getstate(), [])),
    ((logging.Logger, logging.Handler, logging.Manager), lambda value: (id(value), [])),
    (bytearray | array.array | memoryview, lambda value: (_hash(memoryview(value).tobytes()), [])),
    (io.IOBase, _of_file),
    (dict, _of_mapping),
    (set | frozenset, _of_set),
    (list | tuple | deque, _of_sequence),
    (MethodType | BuiltinFunctionType, _of_method),
    (_PLAIN, lambda value: (_of_plain(value), [])),
    (torch.UntypedStorage, lambda value: (_of_storage(value), [])),
    (functools.partial, lambda of: (None, [("func", of.func), ("", of.args), ("", of.keywords)])),
    (staticmethod | classmethod, lambda value: (None, [("__func__", value.__func__)])),
    (property, lambda value: (None, [("fget", value.fget), ("fset", value.fset)])),
    (CellType, lambda value: (None, _numbered("", gc.get_referents(value)))),
    (weakref.ref, lambda value: (None, [("of", value())])),
    (ContextVar, lambda value: (None, [("value", value.get(None))])),
    (GeneratorType | CoroutineType | FrameType, _of_frame),
    (threading.local, lambda _: (None, [])),  # its attributes are those of this thread
)


def _of_another(value: object) -> tuple[object, _Held]:
    """What is known of an object of a class without a rule."""
    try:  # mapped files, numbers of C
        with memoryview(value) as raw:  # type: ignore[arg-type]  # asked
            return _hash(raw.tobytes()), []
    except (TypeError, ValueError, BufferError, NotImplementedError):
        pass
    own = getattr(value, "__dict__", None)  # asked for, it is made
    if own is not None and not _is_in_part_of_c(type(value)):
        return None, []
    if callable(getattr(type(value), "hexdigest", None)):
        return _words_of(value), [("digest", _or_none(value.hexdigest))]  # type: ignore[attr-defined]
    held: _Held = []
    if isinstance(value, Iterator):  # how far it is
        held.append(("at", _or_none(value.__reduce__)))
    for one in gc.get_referents(value):
        if not isinstance(one, type | ModuleType) and one is not own:
            held.append(("", one))
    return _words_of(value), held


def _is_in_part_of_c(kind: type) -> bool:
    """Whether its objects are larger than Python makes them: a head and two pointers."""
    return kind.__basicsize__ > object.__basicsize__ + 8 * (2 + len(_slots(kind.__mro__)))


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
    found += [
        (name, getattr(value, name)) for name in _slots(type(value).__mro__) if hasattr(value, name)
    ]
    return found


@functools.lru_cache(4096)
def _slots(kinds: tuple[type, ...]) -> Sequence[str]:
    named = [vars(kind).get("__slots__", ()) for kind in kinds]
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
    around = function.__globals__
    package = str(around.get("__package__") or "").split(".")
    folders = [".".join(package[:end]) for end in range(len(package), 0, -1) if package[0]]
    every = [*used, *_of_users(around)] if _OF_GLOBALS & used.keys() else used
    for name in dict.fromkeys(every):
        if name in around:
            one = around[name]
        elif name in vars(builtins):
            one = vars(builtins)[name]
        else:  # imported inside, under its own name or that of a package around it
            where = (name, *(f"{folder}.{name}" for folder in folders))
            one = next((sys.modules[held] for held in where if held in sys.modules), None)
        if isinstance(one, ModuleType):
            held += _of_module(one, used, set())
        elif one is not None or name in around:
            held.append((name, one))
    return held


def _of_module(module: ModuleType, used: Mapping[str, None], met: set[str]) -> _Held:
    """What a function may read of a module, and of the modules in it."""
    if module.__name__ in met:
        return []
    met.add(module.__name__)
    root = module.__name__.partition(".")[0]
    is_known, held = _is_known(root), list[tuple[str, object]]()
    forms = not (is_known or _is_installed(root) or _FORMING.isdisjoint(used))
    for name in _of_users(vars(module)) if forms else used:
        one = vars(module).get(name)
        if isinstance(one, ModuleType):
            held += _of_module(one, used, met)
        elif name in vars(module) and not (is_known and callable(one) and _is_known(_root(one))):
            held.append((name, one))
    return held


def _of_users(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("__")]


def _names(code: CodeType) -> Mapping[str, None]:
    """Names that a function uses, those of functions in it and those in quotes among them."""
    found, pending = dict.fromkeys(code.co_names), list(code.co_consts)
    while pending:
        one = pending.pop()
        if isinstance(one, CodeType):
            found |= dict.fromkeys(one.co_names)
            pending += one.co_consts
        elif isinstance(one, str) and all(map(str.isidentifier, one.strip(".").split("."))):
            found[one.strip(".")] = None
        elif isinstance(one, tuple | frozenset):
            pending += one
    return found


def _numbered(name: str, values: Sequence[object]) -> _Held:
    return [(f"{name}{at}", value) for at, value in enumerate(values)]


class Watch:
    """What some objects keep.

    Args:
        holders: functions, networks, or what else is called.
    """

    def __init__(self, *holders: object) -> None:
        self._holders, self._files = holders, Files()
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

    def _now(self) -> Contents:
        return Contents(self._holders)
