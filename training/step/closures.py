"""What a function holds besides its arguments, in a closure, a default or a global."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from .operations import Operations
from .values import Batch, UndeclaredOperation, Value


def refuse_captured(fn: Callable[..., object], operation: str) -> None:
    """Refuse a function that brings values along instead of taking them as arguments.

    Functions given to `postprocess` and `bounded` do not run in a trace, so what they hold would
    never be seen there.

    Raises:
        UndeclaredOperation: the function holds a value, a batch or a round.
    """
    held: list[object] = [fn]
    seen: set[int] = set()
    while held:
        one = held.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Value | Batch | Operations):
            raise UndeclaredOperation(
                f"the function given to round.{operation} holds {type(one).__name__}: give it as "
                "an argument, so that it counts as seen"
            )
        if isinstance(one, functools.partial):
            held += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, types.MethodType):
            held += [one.__func__, one.__self__]
        elif isinstance(one, types.FunctionType):
            held += [c.cell_contents for c in one.__closure__ or () if _is_filled(c)]
            held += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
            used = (one.__globals__.get(name) for name in one.__code__.co_names)
            held += [g for g in used if isinstance(g, Value | Batch | list | tuple | dict | set)]
        elif isinstance(one, list | tuple | set | frozenset):
            held += list(one)
        elif isinstance(one, dict):
            held += list(one.values())


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
