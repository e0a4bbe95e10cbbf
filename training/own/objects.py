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
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ...privacy.errors import InputError
from .imports import digest_of, file_of, is_own_file

__all__ = ["OBJECT", "give", "given", "keys_of", "module_of"]

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
    path = file_of(module)
    if path is not None and path.is_file():
        return digest_of(path)
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
