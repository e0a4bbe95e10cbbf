"""What a function finds outside of it, one thing after the other: quick to compare.

Two functions that find the same compute the same. It is looked at whenever a function is given, in
every round, because a closure, a global or a default may be another by then.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator

from .bytecode import Chain, reads_of
from .constants import constant_parts, is_enum
from .vocabulary import own_attribute, owned_name

__all__ = ["MISSING", "content", "found_by", "same"]

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
