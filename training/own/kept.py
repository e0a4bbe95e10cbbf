"""What code of the user keeps outside of what it is given, and whether a call changed it.

A forward or a loss that counts its calls, or keeps a mean of what it has read, ties the gradient of
a record to the records before it, and no clip norm bounds that. Looked at are globals, closures,
defaults and attributes that a function reaches, the functions that it calls among them, and the
generators of Python and numpy. What is filled once and then stays, such as a table of masks, is
allowed.
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...privacy.errors import InputError

__all__ = ["Watch"]

_MOST = 20_000  # values that are looked at
_DEEPEST = 12
_LONGEST = 100  # characters of a key
_PLAIN = (bool, int, float, complex, str, bytes, type(None), CodeType)
# What these hold is theirs; a function of them keeps nothing of a user.
_KNOWN = frozenset({"torch", "numpy", "scipy", "opacus", "overhear", *sys.stdlib_module_names})
_KNOWN -= {"__main__"}


class _Seen(NamedTuple):
    """One value: itself, so that nothing takes its address, and how far it was written to."""

    value: object
    state: object

    def same(self, other: _Seen) -> bool:
        """Whether nothing was put in its place, and nothing written to it."""
        if isinstance(self.value, _PLAIN):
            return type(self.value) is type(other.value) and (
                self.value == other.value or self.value != self.value
            )
        return self.value is other.value and self.state == other.state


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
        self._holders = holders
        self._before = self._now()

    def begin(self) -> None:
        """Take what is kept now as what has to stay."""
        self._before = self._now()

    def changed(self) -> str | None:
        """What was changed since, in words; None where nothing was."""
        after = self._now()
        for place in (*self._before, *after):
            one, other = self._before.get(place), after.get(place)
            if one is None or other is None or not one.same(other):
                return _words(place)
        return None

    def check(self, what: str) -> None:
        """Refuse a call that changed something.

        Args:
            what: was called, for the sentence.

        Raises:
            InputError: it did.
        """
        if (name := self.changed()) is not None:
            raise InputError(
                f"{what} changes {name} when it is called, which ties the gradient of a record to "
                "the records before it, and no figure covers that; compute from what it is given "
                "alone"
            )

    def _now(self) -> dict[tuple[str, ...], _Seen]:
        found: dict[tuple[str, ...], _Seen] = {
            ("the generator of random",): _Seen(random, random.getstate()),
            ("the generator of numpy.random",): _Seen(np.random, _numpy_state()),
        }
        walk = _Walk()
        for at, holder in enumerate(self._holders):
            for place, seen in walk.of(holder, (f"{at}",)):
                found[place] = seen
        return found


def _numpy_state() -> object:
    held: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that users share
    return (held["state"]["key"].tobytes(), held["state"]["pos"])


def _words(place: tuple[str, ...]) -> str:
    named = [part for part in place[1:] if part.isidentifier()]
    return repr(".".join(named[-2:])) if named else place[-1]


class _Walk:
    """All values that objects reach, each once."""

    def __init__(self) -> None:
        self._met: set[int] = set()

    def of(self, value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _Seen]]:
        """A value and what it holds, by where it was found."""
        if isinstance(value, _PLAIN):
            yield place, _Seen(value, None)
            return
        if id(value) in self._met or len(self._met) > _MOST or len(place) > _DEEPEST:
            if len(place) > 1:
                yield place, _Seen(value, None)
            return
        self._met.add(id(value))
        yield place, _Seen(value, _state(value))
        for name, held in _held(value):
            yield from self.of(held, (*place, name))


def _state(value: object) -> object:
    """How far a value was written to, as far as it says so itself."""
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return hash(value.tobytes()) if value.dtype != object else None
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, itertools.count):
        return repr(value)
    return len(value) if isinstance(value, list | dict | set | deque | tuple) else None


def _held(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Tensor | np.ndarray | ModuleType):
        return
    if isinstance(value, MethodType | BuiltinMethodType):
        yield "__self__", value.__self__
        yield "__func__", getattr(value, "__func__", None)
    elif isinstance(value, functools.partial):
        yield "func", value.func
        yield from _numbered("argument", value.args)
        yield from value.keywords.items()
    elif isinstance(value, FunctionType):
        if not _is_known(value):
            yield from _of_function(value)
    elif isinstance(value, type):
        if not _is_known(value):
            yield from vars(value).items()
            yield from _numbered("base", value.__bases__)
    elif isinstance(value, dict):
        yield from ((str(key)[:_LONGEST], one) for key, one in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from _numbered("", list(value))
    elif isinstance(value, staticmethod | classmethod):
        yield "__func__", value.__func__
    else:
        yield from _of_instance(value)


def _of_instance(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, nn.Module) and _is_known(type(value)):
        # A layer of torch's own keeps nothing but what is called with it.
        for name in ("_modules", "_forward_hooks", "_forward_pre_hooks", "parametrizations"):
            if held := vars(value).get(name):
                yield name, held
        return
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        yield from list(own.items())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
    if not _is_known(type(value)):
        yield "class", type(value)


def _of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    yield from vars(function).items()
    yield from _numbered("default", function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
    names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in names:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    used = _names(function.__code__)
    for name in used:
        held = function.__globals__.get(name)
        if isinstance(held, ModuleType):
            if held.__name__.partition(".")[0] not in _KNOWN:
                yield from ((one, vars(held)[one]) for one in used if one in vars(held))
        elif name in function.__globals__:
            yield name, held


def _names(code: CodeType) -> Sequence[str]:
    """Names that a function uses, those of functions in it among them."""
    found, pending = dict.fromkeys(code.co_names), list(code.co_consts)
    while pending:
        one = pending.pop()
        if isinstance(one, CodeType):
            found |= dict.fromkeys(one.co_names)
            pending += one.co_consts
    return list(found)


def _numbered(name: str, values: Sequence[object]) -> Iterator[tuple[str, object]]:
    return ((f"{name}{at}", one) for at, one in enumerate(values))


def _is_known(value: FunctionType | type | Callable[..., object]) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _KNOWN
