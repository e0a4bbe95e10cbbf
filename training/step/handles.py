"""What a step holds: handles of values, without the values.

A agents   E directed edges, self-loops included, sorted by (receiver, sender)

Agents   (A, D) values, one row an agent, held by that agent
Edges    (E, D) values, one row an edge, held by the edge's receiver
Server   (1, D) value, held by a server that every agent can reach

A handle can be added to its own kind, scaled by public numbers and given to an operation of
`Round`; each of these is noted in the script of the round. It shows nothing of what it stands for:
no attribute, iteration, comparison or buffer leads to a row. What the engine and the trace need of
it, they ask the functions at the end of this module for.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError, UndeclaredOperation
from . import values
from .script import Script, frozen

_MOST = 2**64  # of an integer


class Handle:
    """A value of a round, for a step: something to compute with, and nothing to look at."""

    __slots__ = ("_number", "_script", "_table", "_value")

    def __init__(self, *_: object, **__: object) -> None:
        name = type(self).__name__
        raise UndeclaredOperation(
            f"{name}(...) in a step: a public table of all agents becomes a value by "
            "round.of_agents(table), one of all edges by round.of_edges(table)"
        )

    def public(self) -> Tensor:
        """The table that the value was made of: `round.weights`, `of_agents` or `of_edges`.

        Returns:
            (A, w) or (E, w) in float64 on the CPU, the rows of all agents or edges; a copy.

        Raises:
            UndeclaredOperation: the value is something else.
        """
        table: Tensor | None = _TABLE.__get__(self)
        if table is None:
            self._refuse(
                "public",
                ".public(): only round.weights, round.active and what round.of_agents or "
                "round.of_edges made "
                "show their numbers; compute with tables and give the result to round.of_edges",
            )
        return table.clone()

    def _do(self, operation: str, *others: object) -> Self:
        """Note an operation on this handle and others, and carry it out."""
        script: Script = _SCRIPT.__get__(self)
        try:
            given = {f"value {i}": argument(one, script) for i, one in enumerate((self, *others))}
            number = script.note(operation, given)
            raw = _ARITHMETIC[operation](
                _VALUE.__get__(self), *(value_of(o) if isinstance(o, Handle) else o for o in others)
            )
        except Exception as error:
            script.give_up(error)
            raise
        return handle(raw, script, number)

    def _refuse(self, name: str, sentence: str | None = None) -> NoReturn:
        kind = type(self).__name__
        error = UndeclaredOperation(
            f"{kind}{sentence}" if sentence else f".{name} of {kind}: {values.remedy(name)}"
        )
        _SCRIPT.__get__(self).refuse(error)
        raise error

    def __add__(self, other: object) -> Self:
        return self._do("+", self._same(other, "+"))

    def __sub__(self, other: object) -> Self:
        return self._do("-", self._same(other, "-"))

    def __radd__(self, other: object) -> Self:
        if type(other) is int and other == 0:  # where `sum` begins
            return self
        return self._same(other, "+")

    def __rsub__(self, other: object) -> Self:
        return self._same(other, "-")

    def _same(self, other: object, operation: str) -> Self:
        if type(other) is not type(self):
            mine, theirs = type(self).__name__, type(other).__name__
            self._refuse(
                operation,
                f" {operation} Tensor: noise comes from round.noise(like, std=...), a public table "
                "from round.of_agents(table) or round.of_edges(table)"
                if isinstance(other, Tensor)
                else f" {operation} {theirs}: both sides must be {mine}; a value of another holder "
                "has to be sent first (round.broadcast, round.reply, round.mix, round.upload, "
                "round.download)",
            )
        return other

    def __neg__(self) -> Self:
        return self * -1.0

    def __pos__(self) -> Self:
        return self

    def __mul__(self, factor: object) -> Self:
        return self._do("*", self._factor(factor, "*"))

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> Self:
        return self._do("/", self._factor(divisor, "/"))

    def _factor(self, factor: object, operation: str) -> object:
        """A public number or table, or a handle of the same kind."""
        if isinstance(factor, Handle):
            return self._same(factor, operation)
        if isinstance(factor, Tensor | np.ndarray):
            table = factor if isinstance(factor, Tensor) else torch.from_numpy(factor.copy())
            return Tensor.detach(table).as_subclass(Tensor)
        if isinstance(factor, values.Cohort):
            self._refuse(operation, f" {operation} Cohort: {values.UNSEEN_COHORT}")
        if not isinstance(factor, numbers.Real):
            self._refuse(
                operation, f" {operation} {type(factor).__name__}: {values.remedy(operation)}"
            )
        try:
            number = float(factor)
        except OverflowError:  # an integer that is larger than every float
            number = math.inf
        if operation == "/" and number == 0:
            self._refuse(operation, " / 0: a divisor must be a number other than 0")
        return number

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name not in _BUFFERS:
            raise AttributeError(name)
        self._refuse(name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        self._refuse(name, f".{name} = ...: a value does not change; write x = x + y")

    def __delattr__(self, name: str) -> NoReturn:
        self._refuse(name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(a value of the round; a step may not look at it)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._refuse("pickle")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    __array_ufunc__ = None  # so that an array times a handle asks the handle

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let a public tensor scale a value; refuse every other torch function."""
        del types
        name = getattr(func, "__name__", str(func))
        if name in ("mul", "__mul__", "__rmul__") and len(args) == 2 and not kwargs:
            left, right = args
            return right * left if isinstance(right, Handle) else left * right
        held = _first_handle((*args, *(kwargs or {}).values()))
        short = name.removeprefix("__").removesuffix("__").removeprefix("r")
        if held is not None and short in ("add", "sub"):
            held._same(torch.empty(0), {"add": "+", "sub": "-"}[short])
        sentence = f"torch.{name} of {cls.__name__}: {values.remedy(name)}"
        error = UndeclaredOperation(sentence)
        if held is not None:
            _SCRIPT.__get__(held).refuse(error)
        raise error


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Handle, *_: object) -> NoReturn:
        self._refuse(name)

    return refuse


_BUFFERS = (
    *("__array__", "__array_interface__", "__array_struct__", "__buffer__", "__dlpack__"),
    *("__cuda_array_interface__", "__dlpack_device__"),
)
for _name in (
    *("__bool__", "__float__", "__int__", "__index__", "__complex__", "__iter__", "__len__"),
    *("__getitem__", "__setitem__", "__contains__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__eq__", "__ne__", "__pow__", "__rpow__", "__matmul__", "__rmatmul__", "__abs__"),
    *("__round__", "__mod__", "__rmod__", "__floordiv__", "__rfloordiv__", "__rtruediv__"),
    *("__and__", "__or__", "__xor__", "__invert__", "__divmod__", "__format__", "__next__"),
):
    setattr(Handle, _name, _refusing(_name))
Handle.__hash__ = object.__hash__  # type: ignore[method-assign] # __eq__ is refused, names are not

# The slots are taken off the class, so that no attribute of a handle leads to its value.
_VALUE = Handle.__dict__["_value"]
_SCRIPT = Handle.__dict__["_script"]
_NUMBER = Handle.__dict__["_number"]
_TABLE = Handle.__dict__["_table"]
for _name in Handle.__slots__:
    delattr(Handle, _name)


class Agents(Handle):
    """(A, D) values, one row an agent."""

    __slots__ = ()


class Edges(Handle):
    """(E, D) values, one row an edge, held by the receiver; sorted by (receiver, sender)."""

    __slots__ = ()


class Server(Handle):
    """(1, D) value, held by a server that every agent can reach."""

    __slots__ = ()


_KINDS: dict[type[values.Value], type[Handle]] = {
    values.Agents: Agents,
    values.Edges: Edges,
    values.Server: Server,
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def handle(value: values.Value, script: Script, number: Any, table: Tensor | None = None) -> Any:
    """The handle of a value that an operation made.

    Args:
        value: rows, real or traced.
        script: of the round.
        number: of the operation in the script.
        table: the public numbers behind it, where there are any.
    """
    made = object.__new__(_KINDS[type(value)])
    _VALUE.__set__(made, value)
    _SCRIPT.__set__(made, script)
    _NUMBER.__set__(made, number)
    _TABLE.__set__(made, table)
    return made


def shown(held: Handle, table: Tensor) -> Any:
    """The same handle with the public numbers behind it."""
    return handle(value_of(held), script_of(held), number_of(held), table)


def value_of(held: Handle) -> Any:
    """The value behind a handle; for the engine and the trace."""
    return _VALUE.__get__(held)


def once(one: Any) -> Any:
    """An argument that is looked at only here, of plain tuples and numbers.

    A list of the step's own may hold something else at each look.
    """
    if isinstance(one, tuple | list):
        return tuple(map(once, one))
    if type(one) is int and abs(one) >= _MOST:
        raise InputError(
            f"an integer of {one.bit_length()} bits is given to an operation; at most 64"
        )
    return one.item() if isinstance(one, np.number | np.bool_) else one


def raw(one: object) -> Any:
    """An argument, once it is plain, as whoever carries out the operation takes it."""
    if isinstance(one, Handle):
        return value_of(one)
    return tuple(map(raw, one)) if isinstance(one, tuple) else one


def script_of(held: Handle) -> Script:
    """The script of the round that made a handle."""
    return _SCRIPT.__get__(held)


def number_of(held: Handle) -> Any:
    """The number of the operation that made a handle."""
    return _NUMBER.__get__(held)


def argument(one: object, script: Script, *, operation: str = "*", name: str = "factor") -> Any:
    """An argument as the script notes it: the number of a handle, or a public value."""
    if isinstance(one, Handle):
        if script_of(one) is not script:
            raise UndeclaredOperation(
                f"{type(one).__name__} of another round: carry it in the state that the step "
                "returns"
            )
        return (type(one).__name__, number_of(one))
    if isinstance(one, tuple | list):
        return tuple(argument(part, script, operation=operation, name=name) for part in one)
    return frozen(one, operation=operation, name=name)


def _first_handle(held: Any) -> Handle | None:
    for one in held:
        if isinstance(one, Handle):
            return one
        if isinstance(one, tuple | list) and (found := _first_handle(one)) is not None:
            return found
    return None
