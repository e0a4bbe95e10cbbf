"""The operations that a step of an algorithm may use.

A step is written once, against `Round`. Given tensors it trains; given unit sources (`trace.py`)
its messages and end states come out as rows over gradients and noise. What a step does to a value
other than the operations below could not be traced, so it is refused in both cases.

    A agents   D parameters   E directed edges, self-loops included, sorted by (receiver, sender)

    Agents   (A, D) values, one row an agent, held by that agent
    Edges    (E, D) values, one row an edge, held by the edge's receiver
"""

from __future__ import annotations

import functools
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from .graph import Graph


class UndeclaredOperation(TypeError):
    """A step did something to a private value that no operation declares."""


REMEDY = (
    "declare it: round.postprocess(fn, ...) for a function of released values, "
    "round.bounded(fn, secret, ...) for one of a secret"
)


class Value:
    """Rows with a holder; supports + - between equal holders and * / by public numbers.

    A value keeps its rows as `base[pick]`, so that one row sent to many receivers stays one row.
    """

    __slots__ = ("base", "pick")

    def __init__(self, base: Any, pick: Tensor | None = None) -> None:
        self.base = base
        self.pick = pick

    @property
    def rows(self) -> Any:
        """The rows themselves; for the engine and the trace, not for a step."""
        return self.base if self.pick is None else self.base[self.pick]

    def _same(self, other: object, operation: str) -> Self:
        if type(other) is not type(self):
            kind, theirs = type(self).__name__, type(other).__name__
            raise UndeclaredOperation(
                f"{kind} {operation} {theirs}: both sides must be {kind}; a value of another "
                "holder has to be sent first (round.broadcast, round.reply, round.mix)"
            )
        return other

    def _scaled(self, factor: object, operation: str) -> Self:
        if isinstance(factor, Value):
            public, private = self._same(factor, operation), self
            if not isinstance(public.base, Tensor) and isinstance(self.base, Tensor):
                public, private = self, public  # the traced side is the private one
            return type(self)(private.rows * public.rows)
        if isinstance(factor, int | float):
            return type(self)(self.base * factor, self.pick)
        if isinstance(factor, Tensor):
            return type(self)(self.rows * factor)
        raise UndeclaredOperation(
            f"{type(self).__name__} {operation} {type(factor).__name__}: {REMEDY}"
        )

    def _addend(self, other: object, operation: str) -> tuple[Any, Any]:
        mine, theirs = self.rows, self._same(other, operation).rows
        if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and mine.shape != theirs.shape:
            raise UndeclaredOperation(
                f"{operation} of rows of shapes {tuple(mine.shape)} and {tuple(theirs.shape)}: "
                "both need the same width, nothing is broadcast over coordinates"
            )
        return mine, theirs

    def __add__(self, other: object) -> Self:
        mine, theirs = self._addend(other, "+")
        return type(self)(mine + theirs)

    def __sub__(self, other: object) -> Self:
        mine, theirs = self._addend(other, "-")
        return type(self)(mine - theirs)

    def __neg__(self) -> Self:
        return self * -1.0

    def __mul__(self, factor: object) -> Self:
        return self._scaled(factor, "*")

    def __rmul__(self, factor: object) -> Self:
        return self._scaled(factor, "*")

    def __truediv__(self, divisor: object) -> Self:
        if isinstance(divisor, Value):
            self._same(divisor, "/")
            if not isinstance(divisor.base, Tensor):
                raise UndeclaredOperation(f"dividing by a private value: {REMEDY}")
            return self * type(self)(1.0 / divisor.rows)
        if isinstance(divisor, int | float | Tensor):
            return self * (1.0 / divisor)
        raise UndeclaredOperation(f"/ by {type(divisor).__name__}: {REMEDY}")

    def _refuse(self, *_: object) -> NoReturn:
        raise UndeclaredOperation(
            f"a step may not read, compare or iterate over {type(self).__name__}: {REMEDY}"
        )

    __bool__ = __float__ = __int__ = __iter__ = __len__ = __getitem__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __pow__ = __matmul__ = __abs__ = _refuse

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let a public tensor scale a value; refuse every other torch function."""
        del types, kwargs
        name = getattr(func, "__name__", str(func))
        if name in ("mul", "__mul__", "__rmul__") and len(args) == 2:
            left, right = args
            return right * left if isinstance(right, Value) else left * right
        raise UndeclaredOperation(f"torch.{name} of {cls.__name__}: {REMEDY}")


class Agents(Value):
    """(A, D) values, one row an agent."""

    __slots__ = ()


class Edges(Value):
    """(E, D) values, one row an edge, held by the receiver; sorted by (receiver, sender)."""

    __slots__ = ()


V = TypeVar("V", Agents, Edges)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One secret Poisson batch per agent, as a token: its records stay with the round.

    `call` tells the draws of a round apart.
    """

    call: int
    sampling_rate: float | None


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
        if isinstance(one, Value | Batch | Round):
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


def check_drawn(batch: Batch, drawn: Sequence[Batch]) -> None:
    """Refuse a batch that another round drew: it would be accounted as a fresh sample.

    Raises:
        UndeclaredOperation: the batch is not one of `drawn`.
    """
    if not any(batch is mine for mine in drawn):
        raise UndeclaredOperation(
            "a batch of another round: its records would be used again, but accounted as a fresh "
            "sample; call round.draw() in every round"
        )


def reply_order(graph: Graph) -> Tensor:
    """(E,) for each edge d -> m the position of the edge m -> d, along which a reply came.

    Raises:
        ValueError: some link has no way back.
    """
    if not graph.symmetric:
        raise ValueError(f"graph {graph.name!r} is directed: round.reply needs links both ways")
    return torch.from_numpy(np.lexsort((graph.receivers, graph.senders)))


class Round(ABC):
    """One round. Attributes that are plain numbers or tensors are public."""

    agents: int
    weights: Edges  # (E, 1) mixing weights, public

    @property
    @abstractmethod
    def index(self) -> int:
        """The number of the round; a step that reads it is traced round by round."""

    @abstractmethod
    def initial(self) -> Agents:
        """(A, D) the public initial model, equal on all agents."""

    @abstractmethod
    def draw(self, sampling_rate: float | None = None) -> Batch:
        """Draw a secret Poisson batch on every agent, at the run's rate unless one is given."""

    @abstractmethod
    def clipped_sums(self, points: V, *, batch: Batch, clip_norm: float | None) -> V:
        """Sum over the holder's batch of per-example gradients at `points`, each clipped.

        Row of an edge m -> d: gradients on model m of d's batch, computed at and held by d.
        `clip_norm=None` does not clip, so one record's influence has no bound.
        """

    @abstractmethod
    def noise(
        self,
        like: V,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> V:
        """Gaussian noise of standard deviation `std` per coordinate, one source a row of `like`.

        With `factor` (rows, sources) the noise is `std * factor @ z`. A source is known to the
        agents whose rows it enters, unless `known_to` names the agents for each source.
        """

    @abstractmethod
    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """Send every agent's row along its out-edges; a self-loop does not cross a link."""

    @abstractmethod
    def reply(self, value: Edges, *, kind: str) -> Edges:
        """Send the value held by d for the edge m -> d back to m; needs a symmetric graph."""

    @abstractmethod
    def mix(self, value: Agents, *, kind: str) -> Agents:
        """Broadcast, and sum what arrives with the mixing weights."""

    @abstractmethod
    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """Each holder's sum over its in-edges, times public (E, 1) weights."""

    @abstractmethod
    def own(self, value: Edges) -> Agents:
        """The rows of the self-loops."""

    @abstractmethod
    def spread(self, value: Agents) -> Edges:
        """Each holder's row on all its in-edges; nothing is sent."""

    @abstractmethod
    def bounded(
        self,
        fn: Callable[..., Tensor],
        secret: Agents,
        *,
        released: Sequence[Edges] = (),
        private: Sequence[Agents] = (),
        lipschitz: float,
        blame: str,
    ) -> Agents:
        """A non-linear function of a secret, as a new contribution of the secret's owner.

        `fn(secret (D,), *released (n_i - 1, .), *private (D,))` runs once per agent. `released`
        are the rows that other agents sent, so they count as seen; `private` arguments are held
        fixed, although they are not released. The bound is lipschitz times the bound of the
        secret. The guarantee becomes heuristic and says `blame`.
        """

    @abstractmethod
    def postprocess(self, fn: Callable[..., Tensor], *values: Agents | Edges) -> Agents:
        """A function of values that count as seen by whoever may see the result.

        `fn` runs once per agent on its (D,) rows of Agents and (n_i, D) rows of Edges.
        """
