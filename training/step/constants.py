"""Constants: what a function may hold, because it cannot change and says nothing of any record."""

from __future__ import annotations

import enum
import struct
import types
from typing import Any

import numpy as np
import torch

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
