"""Functions that carry nothing in: what `postprocess` and `bounded` may be given.

They do not run in a trace. What such a function holds, or finds in a global, never counts as seen,
so that a secret in it would leave with the result and not be counted. Hence

- what it reads from outside is looked at before it runs: constants, functions written in Python of
  which the same holds, and functions of torch, numpy and Python that only compute;
- what runs is a copy which sees these alone, as they were when it was given;
- its fingerprint says what it computes, so that a round can be held to the one that was planned.

Constants: what a function may hold, because it cannot change and says nothing of any record.
"""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import importlib
import struct
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError, UndeclaredOperation, describe, line_of
from .bytecode import (
    ATTRIBUTES,
    BUILTINS,
    MODULES,
    RANDOM,
    Chain,
    Reads,
    made_by,
    mode_is_on,
    own_attribute,
    owned_name,
    reads_of,
    stand_in,
)

# What a function finds outside of it, one thing after the other: quick to compare.
#
# Two functions that find the same compute the same. It is looked at whenever a function is given,
# in every round, because a closure, a global or a default may be another by then.

MISSING = object()  # a name that is not there, or a cell that is empty


def found_by(fn: object) -> list[object]:
    """What decides what a function computes.

    A function made anew, of the same code with the same constants, gives the same.

    >>> makes = [lambda row, c=c: c * row for c in (1.5, 2.5, 1.5)]
    >>> [same(found_by(makes[0]), found_by(one)) for one in makes]
    [True, False, True]
    """
    return list(_reached(fn, {}))


def same(one: list[object], other: list[object]) -> bool:
    """Whether two functions found the same."""
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: object, other: object) -> bool:
    """Whether two things are one, or equal numbers or texts that no program can tell apart."""
    if one is other:
        return True
    return type(one) is type(other) and type(one) in _COMPARED and repr(one) == repr(other)


_COMPARED = (int, float, bool, str, bytes)


def _reached(one: object, seen: dict[int, int]) -> Iterator[object]:
    if type(one) is types.FunctionType:
        yield one.__code__
        if id(one) in seen:
            yield seen[id(one)]
        elif owned_name(one) is None:
            seen[id(one)] = len(seen)
            yield from _reached_by(one, seen)
        return
    if type(one) is functools.partial:
        yield len(vars(one))
        for given in (one.func, *one.args):
            yield from _reached(given, seen)
        for name, given in one.keywords.items():
            yield name
            yield from _reached(given, seen)
        return
    yield one
    if type(one) is tuple or type(one) is frozenset:
        for part in one:
            yield from _reached(part, seen)
    elif is_enum(type(one)):
        yield from constant_parts(one)


def _reached_by(fn: types.FunctionType, seen: dict[int, int]) -> Iterator[object]:
    """The same of what a function written in Python holds and names."""
    reads = reads_of(fn.__code__)
    for default in fn.__defaults__ or ():
        yield from _reached(default, seen)
    for name, default in (fn.__kwdefaults__ or {}).items():
        yield name
        yield from _reached(default, seen)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        for chain in reads.cells.get(name, ()):
            yield from _followed(content(cell), chain, seen)
    for name, chains in reads.globals.items():
        found = dict.get(fn.__globals__, name, MISSING)
        for chain in chains:
            yield from _followed(found, chain, seen)
    for name in reads.attributes:
        yield own_attribute(name)


def _followed(one: object, chain: Chain, seen: dict[int, int]) -> Iterator[object]:
    """What a name holds, and what is asked of it as long as it is a module or an enum."""
    for name in chain:
        if not (isinstance(one, types.ModuleType) or is_enum(one)):
            break
        yield one
        one = vars(one).get(name, MISSING)
    yield from _reached(one, seen)


def content(cell: types.CellType) -> object:
    """What a cell of a closure holds; `MISSING` where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


@dataclass(frozen=True, kw_only=True, slots=True)
class PureFunction:
    """A function of its arguments alone.

    Attributes:
        name: for messages.
        fingerprint: of what it computes: code, constants, defaults and what it calls. It is the
            same in every process of one version of Python, whose code it is of.
        run: the copy that sees nothing else.
        one_by_one: whether it looks at what it returns, so that each agent needs a call.
    """

    name: str
    fingerprint: str
    run: Callable[..., Tensor]
    one_by_one: bool = False

    def __call__(self, *values: Tensor) -> Tensor:
        """The result for one agent.

        Raises:
            InputError: the function raises an error of its own, or exits.
        """
        try:
            return self.run(*values)
        except (InputError, RecursionError, MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:  # the user's own code
            raise InputError(
                f"the function {self.name} raised {describe(error)}{line_of(error)}; mend it"
            ) from error


def purified(fn: Callable[..., Tensor], operation: str) -> PureFunction:
    """A function that sees its arguments, and nothing else that could change or hold a record.

    Args:
        fn: a function written in Python, a `functools.partial` of one with constants, or a function
            of torch.
        operation: of the round that it was given to, for messages.

    Returns:
        Its copy. What fn finds in globals, closures and defaults is looked at again in every call.

    Raises:
        UndeclaredOperation: it holds or uses something that is no constant and no such function.
    """
    if mode_is_on():
        raise UndeclaredOperation(
            f"round.{operation} within a mode of torch, which may change what torch computes: "
            "leave the mode first (torch.set_default_device is one, too)"
        )
    # The same function with the same contents has its copy already.
    key = id(_code_of(fn))
    try:
        seen = found_by(fn)
    except RecursionError:
        raise _too_deep(fn, operation) from None
    for held, pure in _kept.get(key, ()):
        if same(held, seen):
            return pure
    copy = _Copy(operation, _name(fn))
    try:
        run, said = copy.of(fn, "itself")
        text = repr((said, copy.said))
    except RecursionError:
        raise _too_deep(fn, operation) from None
    if not callable(run):
        raise UndeclaredOperation(f"round.{operation} takes a function, not {type(fn).__name__}")
    called = cast("Callable[..., Tensor]", run)
    print_ = hashlib.sha256(text.encode()).hexdigest()
    pure = PureFunction(name=_name(fn), fingerprint=print_, run=called)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[key] = [(seen, pure), *_kept.get(key, [])[: _MOST_OF_ONE - 1]]
    return pure


_MOST_KEPT, _MOST_OF_ONE = 256, 4
_kept: dict[int, list[tuple[list[object], PureFunction]]] = {}  # holds `seen`, so ids stay taken


def _too_deep(fn: object, operation: str) -> UndeclaredOperation:
    return UndeclaredOperation(
        f"the function {_name(fn)} of round.{operation} holds what is nested too deep to be looked "
        "at: flatten it"
    )


def _code_of(fn: Any) -> object:
    while type(fn) is functools.partial:
        fn = fn.func
    return fn.__code__ if type(fn) is types.FunctionType else fn


def _name(fn: object) -> str:
    if type(fn) is functools.partial:
        return f"functools.partial of {_name(fn.func)}"
    if isinstance(fn, types.FunctionType | types.BuiltinFunctionType | type):
        return owned_name(fn) or fn.__qualname__
    return type(fn).__name__


class _Names:
    """What a function sees of a module: the names that it uses, which it cannot change."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise UndeclaredOperation(f"{name!r} is written to: what a function computes it returns")

    def put(self, name: str, value: object) -> None:
        """Show one name."""
        vars(self)[name] = value


class _Copy:
    """The copy of one function, with the functions that it calls.

    Attributes:
        said: of each function that was copied what it computes, in the order of their finding.
    """

    def __init__(self, operation: str, name: str) -> None:
        self._operation, self._name = operation, name
        self._functions: dict[int, tuple[object, Callable[..., Any], str]] = {}
        self.said: list[object] = []

    def _refuse(self, words: str) -> NoReturn:
        raise UndeclaredOperation(f"the function {self._name} of round.{self._operation} {words}")

    def of(self, one: Any, where: str) -> tuple[Any, object]:
        """The copy of a constant or a function, and what it is in words."""
        if type(one) is types.FunctionType and owned_name(one) is None:
            return self._function(one)
        if type(one) is functools.partial and not vars(one):
            return self._partial(one, where)
        if type(one) is tuple and any(callable(part) for part in one):
            pairs = [self.of(part, f"{where}, in a tuple") for part in one]
            return tuple(copy for copy, _ in pairs), ("tuple", *(said for _, said in pairs))
        words = constant_text(one)
        if words is not None:
            return one, words
        name = owned_name(one)
        if name is None:
            self._refuse(held_words(one, where, operation=self._operation))
        return stand_in(one), name

    def _partial(self, one: functools.partial[Any], where: str) -> tuple[Any, object]:
        func, said = self.of(one.func, f"{where}, the function of a partial")
        args = [self.of(given, f"{where}, an argument of a partial") for given in one.args]
        named = {
            name: self.of(given, f"{where}, the argument {name!r} of a partial")
            for name, given in one.keywords.items()
        }
        copy = functools.partial(
            func,
            *(given for given, _ in args),
            **{name: given for name, (given, _) in named.items()},
        )
        by_name = tuple(sorted((name, said) for name, (_, said) in named.items()))
        return copy, ("partial", said, tuple(said for _, said in args), by_name)

    def _function(self, fn: types.FunctionType) -> tuple[Any, object]:
        # Each function is copied once.
        known = self._functions.get(id(fn))
        if known is not None:
            return known[1], known[2]
        code, reads = fn.__code__, reads_of(fn.__code__)
        of = "" if fn.__qualname__ == self._name else f"calls {fn.__qualname__}, which "
        if any(made_by(code, package) for package in ("torch", "numpy", "scipy")):
            self._refuse(
                f"uses {code.co_qualname}, which a library made: what is not a function of "
                "training.step.bytecode, such as what torch.func.vmap gives, is made "
                "within the function"
            )
        if reads.refusal:
            self._refuse(of + reads.refusal)

        # The copy exists before what it calls is copied: functions may call each other in circles.
        cells = tuple(types.CellType() for _ in code.co_freevars)
        seen: dict[str, Any] = {"__name__": "", "__builtins__": dict(BUILTINS)}
        copy = types.FunctionType(code, seen, fn.__name__, None, cells)
        index = f"function {len(self._functions)}"
        self._functions[id(fn)] = fn, copy, index
        at = len(self.said)
        self.said.append(index)

        # All that it can reach is copied with it, or refused.
        defaults = [
            self.of(held, f"a default of {fn.__qualname__}") for held in fn.__defaults__ or ()
        ]
        named = {
            name: self.of(held, f"the default {name!r} of {fn.__qualname__}")
            for name, held in (fn.__kwdefaults__ or {}).items()
        }
        copy.__defaults__ = tuple(held for held, _ in defaults) or None
        copy.__kwdefaults__ = {name: held for name, (held, _) in named.items()} or None
        constants = [self._constant(constant, fn) for constant in reads.constants]
        closed = self._closure(fn, reads, cells)
        globals_ = self._globals(fn, reads, seen)
        imports = self._imports(fn, reads, seen)
        if reads.asks:
            self._refuse(of + reads.asks)
        for name in sorted(reads.attributes):
            if not own_attribute(name):
                self._refuse(f"{of}asks for .{name}, which is not torch's own on torch.Tensor")
        # Two functions are the same where all of this is.
        self.said[at] = (
            reads.digest,
            tuple(constants),
            tuple(said for _, said in defaults),
            tuple(sorted((name, said) for name, (_, said) in named.items())),
            closed,
            globals_,
            imports,
        )
        return copy, index

    def _constant(self, held: object, fn: types.FunctionType) -> str:
        said = constant_text(held)
        if said is None:
            self._refuse(
                held_words(held, f"a constant of {fn.__qualname__}", operation=self._operation)
            )
        return said

    def _closure(
        self, fn: types.FunctionType, reads: Reads, cells: tuple[types.CellType, ...]
    ) -> object:
        said: list[object] = []
        for name, cell, copied in zip(
            fn.__code__.co_freevars, fn.__closure__ or (), cells, strict=True
        ):
            held = content(cell)
            if held is MISSING or name not in reads.cells:  # not set yet, or passed on unread
                said.append((name, "empty"))
                continue
            where = f"{name!r} in the closure of {fn.__qualname__}"
            copied.cell_contents, words = self._named(held, reads.cells[name], where)
            said.append((name, words))
        return tuple(said)

    def _globals(self, fn: types.FunctionType, reads: Reads, seen: dict[str, Any]) -> object:
        said: list[object] = []
        for name in sorted(reads.globals):
            held = dict.get(fn.__globals__, name, MISSING)
            if name == "__builtins__":
                self._refuse("uses __builtins__: name the function that it takes from there")
            elif held is not MISSING:
                where = f"the global {name!r} of {fn.__qualname__}"
                seen[name], words = self._named(held, reads.globals[name], where)
                said.append((name, words))
            elif name in BUILTINS:
                self._check_attributes(reads.globals[name], name)
                said.append((name, "builtin"))
            elif hasattr(builtins, name):
                self._refuse(f"uses {name}, which {_builtin_words(name)}")
            else:
                self._refuse(f"uses the name {name!r}, which is not defined where it is given")
        return tuple(said)

    def _imports(self, fn: types.FunctionType, reads: Reads, seen: dict[str, Any]) -> object:
        found: dict[str, object] = {}
        said: list[object] = []
        for name in sorted(reads.imports):
            if name not in MODULES:
                self._refuse(
                    f"imports {name!r}: it may import {', '.join(sorted(MODULES))}, and use of "
                    "them what only computes"
                )
            where = f"the import of {name!r} in {fn.__qualname__}"
            module = importlib.import_module(name)
            chains = reads.imports[name]
            found[name], words = self._named(module, chains, where) if chains else (_Names(), ())
            said.append((name, words))

        def bring(name: str, *how: Any) -> object:
            if len(how) > 2 and type(how[2]) is list:  # numpy and torch import so, within a call
                return importlib.__import__(name, *how)
            return found[name]

        seen["__builtins__"]["__import__"] = bring
        return tuple(said)

    def _named(self, held: Any, chains: set[Chain], where: str) -> tuple[Any, object]:
        """What a name is to hold: for a module or an enum only what is asked of it."""
        if not (isinstance(held, types.ModuleType) or is_enum(held)):
            copy = self.of(held, where)
            if any(chains) and callable(held) and owned_name(held) not in BUILTINS:
                (name, *_), *_ = sorted(chain for chain in chains if chain)
                self._refuse(
                    f"asks for the attribute .{name} of {where}: give what it holds as an argument "
                    f"of round.{self._operation}, so that it is treated as public"
                )
            self._check_attributes(chains, where)
            return copy
        names, said = _Names(), list[object]()
        by_first: dict[str, set[Chain]] = {}
        for chain in chains:
            if not chain:
                self._refuse(f"uses {where} as a value: name what it takes, such as torch.sigmoid")
            by_first.setdefault(chain[0], set()).add(chain[1:])
        for first in sorted(by_first):
            inner, words = self._of_module(held, first, by_first[first], where)
            names.put(first, inner)
            said.append((first, words))
        return names, tuple(said)

    def _of_module(
        self, holder: Any, name: str, chains: set[Chain], where: str
    ) -> tuple[Any, object]:
        """One name of a module or of an enum."""
        at, held = str(vars(holder).get("__name__", "")), vars(holder).get(name, MISSING)
        if is_enum(holder):
            at, held = holder.__name__, holder.__members__.get(name, MISSING)
        shown = f"{at}.{name}"
        inner = isinstance(held, types.ModuleType) and vars(held).get("__name__") in MODULES
        known = MODULES.get(at) if sys.modules.get(at) is holder else None
        if at == "random" or (known is not None and name not in known and not inner):
            if name in RANDOM or at == "random":
                self._refuse(
                    f"makes random numbers by {shown}: add round.noise, which is accounted for, "
                    "or give the function round.public(seed), which everybody knows"
                )
            self._refuse(f"uses {shown}, which is not among what only computes")
        if held is MISSING:
            self._refuse(f"uses {shown}, which is not there")
        return self._named(held, chains, f"{shown} (by {where})")

    def _check_attributes(self, chains: set[Chain], where: str) -> None:
        for chain in sorted(chains):
            for name in chain:
                if name not in ATTRIBUTES:
                    self._refuse(f"asks for the attribute .{name} of {where}")


def _builtin_words(name: str) -> str:
    if name in ("type", "object", "super"):
        return "shows classes and what they hold: use isinstance, or a tensor's dtype"
    return "may read or write what is outside of it"


_PLAIN = (int, str, bytes, bool, types.NoneType, types.EllipsisType, torch.dtype, torch.device)
_SCALARS = frozenset(one for one in np.sctypeDict.values() if issubclass(one, np.bool_ | np.number))
_MEMBER = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
_ENUMS = (enum.Enum, enum.IntEnum, enum.StrEnum, enum.Flag, enum.IntFlag, enum.ReprEnum)
_BASES = frozenset({*_ENUMS, int, str, object})


def is_enum(one: object) -> bool:
    """Whether something is a class of enum members."""
    return type(one) is enum.EnumType


def constant_text(one: object) -> str | None:
    """A constant in words that tell it from every other, the same in each process; else None.

    >>> constant_text((1, 0.5)), constant_text([1])
    ('(int:1,float:3fe0000000000000)', None)
    """
    kind: Any = type(one)  # and no subclass, which could hold anything besides
    held: Any = one
    if kind is float:
        return f"float:{struct.pack('>d', one).hex()}"
    if kind in _PLAIN:
        return f"{kind.__name__}:{one!r}"
    if kind is complex:
        return f"complex:{struct.pack('>dd', held.real, held.imag).hex()}"
    if kind in (tuple, frozenset, torch.Size):
        parts = [constant_text(part) for part in held]
        said = [part for part in parts if part is not None]
        if len(said) < len(parts):
            return None
        return f"({','.join(said)})" if kind is not frozenset else f"{{{','.join(sorted(said))}}}"
    if kind in _SCALARS:
        return f"numpy.{kind.__name__}:{held.tobytes().hex()}"
    if kind in (range, slice):
        parts = [constant_text(part) for part in (held.start, held.stop, held.step)]
        return None if None in parts else f"{kind.__name__}:{parts}"
    if is_enum(kind):
        return _written_member(one)
    return None


def _written_member(member: object) -> str | None:
    """An enum member whose class computes nothing and whose value is a constant."""
    kind = type(member)
    value = constant_text(getattr(member, "_value_", None))
    if value is None or not vars(member).keys() <= _MEMBER or not _only_members(kind):
        return None
    return f"enum:{kind.__module__}.{kind.__qualname__}.{vars(member).get('_name_')}:{value}"


def _only_members(kind: type) -> bool:
    """Whether an enum class has no method, property or other attribute of its user's."""
    for base in kind.__mro__:
        if base in _BASES:
            continue
        if type(base) is not enum.EnumType:
            return False
        for name, held in vars(base).items():
            if name in base.__members__ or (name[:1] == "_" and _made_by_enum(name, held)):
                continue
            return False
    return True


def _made_by_enum(name: str, held: object) -> bool:
    """Whether an underscored attribute of an enum class is one that the module enum puts there."""
    if isinstance(held, staticmethod | classmethod):
        held = held.__func__
    if isinstance(held, types.FunctionType):
        return held.__module__ == "enum" and held.__code__.co_filename == enum.__file__
    if isinstance(held, torch.Tensor | np.ndarray):
        return False
    if name.startswith("_") and not name.endswith("_"):
        return False
    return not isinstance(held, property)


def constant_parts(member: object) -> tuple[object, ...]:
    """What of an enum member could be changed although it is the same member."""
    return getattr(member, "_value_", None), len(vars(member)), len(vars(type(member)))


def held_words(one: object, where: str, *, operation: str) -> str:
    """Why a thing may not be held, and what to do instead."""
    kind = type(one)
    what, instead = _a(kind.__name__), ""
    if isinstance(one, types.MethodType | types.BuiltinMethodType):
        owner = getattr(one, "__self__", None)
        if isinstance(owner, types.ModuleType) or owner is None:
            return f"uses {where}, which is not among what only computes"
        what = f"the method {one.__name__} of {_a(type(owner).__name__)}"
    elif isinstance(one, types.FunctionType):
        what = f"the function {one.__qualname__}"
    elif isinstance(one, type):
        what = f"the class {one.__name__}"
    elif isinstance(one, list | dict | set | bytearray):
        what, instead = f"{what}, which may change", "hold a tuple of numbers, or "
    elif not isinstance(one, torch.Tensor | np.ndarray):
        instead = "hold the numbers that it needs themselves, or "
    return (
        f"holds {what}, as {where}: a function carries nothing in but numbers, text and tuples of "
        f"them, which stay as they are, and functions of which the same holds; {instead}give it as "
        f"an argument of round.{operation}, so that it is treated as public (a secret: as an "
        "argument of round.bounded; a public table: round.of_agents(table))"
    )


def _a(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
