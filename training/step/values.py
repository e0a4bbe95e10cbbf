"""Values behind the handles of a step: rows with a holder, their arithmetic, and batches.

A agents   D parameters   E directed edges, self-loops included, sorted by (receiver, sender)

Agents   (A, D) values, one row an agent, held by that agent
Edges    (E, D) values, one row an edge, held by the edge's receiver
Server   (1, D) value, held by a server that every agent can reach
Batch    a token of secret records, which only the round that drew it can use

A vector that is clipped in parts, each to its own bound, such as the layers of a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import torch
from torch import Tensor

from ...privacy.batches.sampling import MOST_STEPS, Per, Scheme
from ...privacy.errors import InputError, InputTypeError, UndeclaredOperation, whole, within
from ..device.precision import on_device

T = TypeVar("T")

SERVER = -1  # the server among the senders and receivers of messages

NUMBERS = -1  # the block of values that are one number a row, and no parameters

UNSEEN_COHORT = "who sends is seen on a link: a secret cohort can only enter a trusted sum"

_EXPECTED_SIZE = (
    "its records and their number are secret; divide a sum by batch_size, the public expected size"
)

# What to use in place of what a step may not do to a value, by name.


REMEDY = (
    "declare it: round.postprocess(fn, ...) for a function of released values, "
    "round.bounded(fn, secret, ...) for one of a secret"
)

_SEEN = (
    "a step may not look at a value; a public table shows its numbers by .public(), and a function "
    "of the rows goes into round.postprocess (of released values) or round.bounded (of a secret)"
)
_NAMES = {
    "a norm is a bound on a record: give clip_norm to round.clipped_sums (each record) or "
    "round.clipped_mean (a batch's mean); another function with a known Lipschitz constant goes "
    "through round.bounded": (
        *("norm", "vector_norm", "clip", "clamp", "clip_", "clamp_", "normalize", "renorm"),
        *("linalg_norm", "linalg_vector_norm", "linalg_matrix_norm", "abs", "__abs__", "absolute"),
        *("clamp_min", "clamp_max", "max", "min", "amax", "amin", "clip_grad_norm_"),
    ),
    _SEEN: (
        *("rows", "base", "pick", "data", "numpy", "tolist", "item", "cpu", "cuda", "to", "value"),
        *("detach", "clone", "copy", "__array__", "__iter__", "__getitem__", "__len__", "__next__"),
        *("__float__", "__int__", "__index__", "__bool__", "__array_interface__", "__buffer__"),
        *("__dlpack__", "__contains__", "__format__", "storage", "untyped_storage", "data_ptr"),
        *("grad", "matrix", "pickle", "__complex__", "float", "double", "half", "_value"),
        *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "eq", "gt", "lt", "equal"),
    ),
    "how many coordinates a value has is the same for all of a block: for noise of the same shape "
    "use round.noise(like, std=...), for zeros 0.0 * value": (
        *("shape", "size", "ndim", "dim", "numel", "dtype", "device", "zeros_like", "ones_like"),
        *("empty_like", "full_like", "expand_as", "new_zeros", "new_ones", "new_empty"),
    ),
    "sums over agents are sent: round.mix, round.sum_in, round.upload or round.average": (
        *("sum", "mean", "average", "median", "stack", "cat", "concat", "einsum"),
    ),
    "randomness comes from round.noise(like, std=...)": (
        *("randn_like", "rand_like", "randint_like", "normal", "normal_", "bernoulli", "dropout"),
        *("uniform_", "random_", "poisson", "multinomial", "noise", "add_noise"),
    ),
    "a value does not change; write x = x + y or x = 0.5 * x": (
        *("add_", "sub_", "mul_", "div_", "copy_", "zero_", "fill_", "__setitem__", "index_add_"),
        *("iadd", "addcmul_", "addcdiv_", "lerp_", "neg_", "square_", "sqrt_"),
    ),
}
_BY_NAME = {name: sentence for sentence, names in _NAMES.items() for name in names}


def remedy(name: str) -> str:
    """What to use in place of an operation that a step tried on a value.

    >>> remedy("shape").split(":")[0]
    'how many coordinates a value has is the same for all of a block'
    """
    return _BY_NAME.get(name, REMEDY)


def foreign_weights(given: object) -> str:
    """What is wrong with weights of `round.sum_in` that are no value of the round.

    >>> foreign_weights(0.5)[:34]
    'round.sum_in with weights of float'
    """
    return (
        f"round.sum_in with weights of {type(given).__name__}: give round.weights, or a table of "
        "all edges by round.of_edges(table)"
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
                "holder has to be sent first (round.broadcast, round.reply, round.mix, "
                "round.upload, round.download)"
            )
        return other

    def _scaled(self, factor: object, operation: str) -> Self:
        if isinstance(factor, Value):
            public, private = self._same(factor, operation), self
            if not isinstance(public.base, Tensor) and isinstance(self.base, Tensor):
                public, private = self, public  # the traced side is the private one
            mine, theirs = _alike(private.rows, public.rows)
            return type(self)(mine * theirs)
        if isinstance(factor, int | float):
            return type(self)(self.base * factor, self.pick)
        if isinstance(factor, Tensor):
            return type(self)(self.rows * self._fitting(factor))
        raise UndeclaredOperation(
            f"{type(self).__name__} {operation} {type(factor).__name__}: {REMEDY}"
        )

    def _fitting(self, factor: Tensor) -> Tensor:
        """A public tensor that is one number, or has a row for each row of the value."""
        if not isinstance(self.base, Tensor) or factor.ndim == 0:
            return factor  # rows of a trace look at the shape themselves
        count = len(self.base if self.pick is None else self.pick)
        if factor.ndim != 2 or len(factor) != count:
            raise UndeclaredOperation(
                f"scaling {count} rows of {type(self).__name__} by a tensor of shape "
                f"{tuple(factor.shape)}: a public factor is a number or one number a row, "
                f"({count}, 1); for a table of all agents use round.of_agents(table)"
            )
        # Public numbers are kept in float64, which must not widen the rows of a run.
        return on_device(factor, self.base.device, self.base.dtype)

    def _addend(self, other: object, operation: str) -> tuple[Any, Any]:
        mine, theirs = self.rows, self._same(other, operation).rows
        if not isinstance(mine, Tensor):  # a trace knows no width; a table is a column there
            return mine, mine.of_table(theirs) if isinstance(theirs, Tensor) else theirs
        if not isinstance(theirs, Tensor):
            return theirs.of_table(mine), theirs
        if mine.shape != theirs.shape:
            raise UndeclaredOperation(
                f"{operation} of rows of shapes {tuple(mine.shape)} and {tuple(theirs.shape)}: "
                "both need the same width, nothing is broadcast over coordinates"
            )
        return _alike(mine, theirs)

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

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> Self:
        if isinstance(divisor, Value):
            self._same(divisor, "/")
            if not isinstance(divisor.base, Tensor):
                raise UndeclaredOperation(f"dividing by a private value: {REMEDY}")
            return self * type(self)(1.0 / divisor.rows)
        if isinstance(divisor, int | float | Tensor):
            return self * (1.0 / divisor)
        raise UndeclaredOperation(f"/ by {type(divisor).__name__}: {REMEDY}")


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Rows of one precision: public numbers are kept in float64 until they meet a value."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dtype == other.dtype:
        return one, other
    coarse = one.dtype if other.dtype == torch.float64 else other.dtype
    return one.to(coarse), other.to(coarse)


class Agents(Value):
    """(A, D) values, one row an agent."""

    __slots__ = ()


class Edges(Value):
    """(E, D) values, one row an edge, held by the receiver; sorted by (receiver, sender)."""

    __slots__ = ()


class Server(Value):
    """(1, D) value, held by a server that every agent can reach."""

    __slots__ = ()


def check_holder(operation: str, value: object, *kinds: type[Value]) -> None:
    """Refuse a value of another holder than one of `kinds`.

    Raises:
        UndeclaredOperation: `value` is none of them.
    """
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UndeclaredOperation(
            f"round.{operation} takes {names}, not {type(value).__name__}; a value of another "
            "holder has to be sent first"
        )


class HiddenRecords(UndeclaredOperation, AttributeError):
    """A step asked a batch for what it holds."""


def unusual(per: str) -> dict[str, str]:
    """What a script says of a draw or a clip that is not by record; of these it says nothing.

    Raises:
        ValueError: neither a record nor a user.

    >>> unusual("record"), unusual("user")
    ({}, {'per': 'user'})
    """
    return {} if Per(per) is Per.RECORD else {"per": Per.USER.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One secret Poisson batch per agent, as a token: its records stay with the round.

    `call` tells the draws of a round apart; `per` is what has a coin of its own.
    """

    call: int
    sampling_rate: float | None
    per: Per = Per.RECORD

    def _refuse(self, *_: object) -> NoReturn:
        raise HiddenRecords(f"a step may not read, count or iterate over a batch: {_EXPECTED_SIZE}")

    __len__ = __iter__ = __getitem__ = __contains__ = __float__ = __int__ = __index__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        raise HiddenRecords(f"a batch does not show {name!r}: {_EXPECTED_SIZE}")


ALL = Batch(call=-1, sampling_rate=1.0)  # an agent's whole data, for `Round.local_update` alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Cohort:
    """Who takes part, as a token: each agent by a coin of its own, or as `scheme` says.

    `call` tells the cohorts of a round apart, and `rate` is the probability, or the share, of the
    agents that are in it.
    """

    call: int
    rate: float
    scheme: Scheme = Scheme.POISSON

    def _refuse(self, *_: object) -> NoReturn:
        raise UndeclaredOperation(
            f"a step may not see or use who is in a cohort: {UNSEEN_COHORT}, "
            "round.average(value, cohort=cohort)"
        )

    __len__ = __iter__ = __getitem__ = __contains__ = __float__ = __int__ = __index__ = _refuse
    __mul__ = __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __bool__ = _refuse


Drawn = Sequence[tuple[T, T]]  # each token as the step has it, and as the round keeps it


def kept_of(token: object, drawn: Drawn[T]) -> T | None:
    """What a round keeps of a token; None of another round's, and of one that was written to.

    >>> given, kept = Batch(call=0, sampling_rate=0.1), Batch(call=0, sampling_rate=0.1)
    >>> kept_of(given, [(given, kept)]) is kept, kept_of(kept, [(given, kept)])
    (True, None)
    """
    return next((kept for given, kept in drawn if token is given and token == kept), None)


def checked_batch(batch: Batch, drawn: Drawn[Batch], *, clipped: Per = Per.RECORD) -> Batch:
    """A batch as its round keeps it; another round's would be accounted as a fresh sample.

    Raises:
        UndeclaredOperation: the batch is not one of `drawn`, or a user would move what is made of
            it by as many bounds as it has records.
    """
    if batch is ALL:
        raise UndeclaredOperation(
            "an agent's whole data are for round.local_update alone; for gradients of all records "
            "draw a batch at rate 1: round.draw(1.0)"
        )
    if (kept := kept_of(batch, drawn)) is None:
        raise UndeclaredOperation(
            "a batch of another round, or one that was written to: its records would be used "
            "again, but accounted as a fresh sample; call round.draw() in every round"
        )
    if kept.per is Per.USER and clipped is not Per.USER:
        raise UndeclaredOperation(
            "a batch of whole users, of which all records of one come together, is for "
            'round.clipped_sums(..., per="user") alone: clipped otherwise they would move it '
            "together, and by more than one bound; draw each record on its own, by round.draw()"
        )
    return kept


def check_parameters(block: int) -> None:
    """Refuse the block of numbers where an operation is about parameters."""
    if block == NUMBERS:
        raise InputError(
            f"block={block} of round.initial is that of one number an agent, which no model has; "
            "start from a table (A, 1): round.of_agents(table)"
        )


def check_table(table: Tensor, *, rows: int, of: str) -> None:
    """Refuse a table of public numbers without exactly one row for each agent, or edge.

    Raises:
        ValueError: another shape than (rows, w).
    """
    if table.ndim != 2 or len(table) != rows or not table.shape[1]:
        raise InputError(
            f"table of shape {tuple(table.shape)} must be ({rows}, w): one row for each {of}"
        )


# What a local update is asked for: its steps, and the data that each of them takes.


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSteps:
    """K gradient steps of an agent, whose change is clipped as one vector.

    Attributes:
        steps: K.
        learning_rate: of these steps.
        batch: one batch, a tuple of K of them, or `ALL`.
        clip_norm: bound on the change of the model; None does not clip.
        momentum: how much of a step's direction the next one keeps.
        proximal: how strongly the start pulls the model back.
    """

    steps: int
    learning_rate: float
    batch: Batch | tuple[Batch, ...]
    clip_norm: float | None
    momentum: float = 0.0
    proximal: float = 0.0

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The different batches: none where every step takes all data."""
        if isinstance(self.batch, tuple):
            return self.batch
        return () if self.batch is ALL else (self.batch,)

    @property
    def call(self) -> int:
        """The call of `draw` that stands for all of them."""
        return self.batches[0].call if self.batches else ALL.call

    def of_step(self, number: int) -> Batch:
        """What a step takes, from 0."""
        return self.batch[number] if isinstance(self.batch, tuple) else self.batch

    @staticmethod
    def of(
        *,
        steps: object,
        learning_rate: object,
        batch: object,
        clip_norm: Any,
        momentum: object,
        proximal: object,
        drawn: Drawn[Batch],
    ) -> LocalSteps:
        """The same from what a step gave, once it is checked.

        Args:
            drawn: the batches of the round; the others are as above.

        Raises:
            ValueError: a number out of range, or another number of batches than of steps.
            TypeError: what is no number.
            UndeclaredOperation: something else than batches of this round, or one of them twice.
        """
        count = whole("steps", steps, f"[1, {MOST_STEPS}]")
        # A batch for each step, one for all of them, or all data.
        if isinstance(batch, tuple | list):
            given = tuple(_batch_of_step(one, drawn) for one in batch)
            if len(given) != count:
                raise InputError(
                    f"batch has {len(given)} batches for steps={count}; give one for each step, "
                    "one alone for all of them, or ALL"
                )
            if len({one.call for one in given}) < count:
                raise UndeclaredOperation(
                    "one batch stands twice in round.local_update: draw one for each step, or give "
                    "one alone for all of them"
                )
            taken: Batch | tuple[Batch, ...] = given if count > 1 else given[0]
        else:
            taken = ALL if batch is ALL else _batch_of_step(batch, drawn)
        return LocalSteps(
            steps=count,
            learning_rate=_number("learning_rate", learning_rate, "(0, inf)"),
            batch=taken,
            clip_norm=None if clip_norm is None else _number("clip_norm", clip_norm, "(0, inf)"),
            momentum=_number("momentum", momentum, "[0, 1)"),
            proximal=_number("proximal", proximal, "[0, inf)"),
        )


def checked_number(name: str, value: Any, *, least: float, most: float, remedy: str) -> float:
    """A finite real number in [least, most].

    Raises:
        TypeError: no number.
        ValueError: not finite, or out of range.

    >>> checked_number("std", 2, least=0.0, most=math.inf, remedy="")
    2.0
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    within(name, value, f"[{least}, {most}{')' if math.isinf(most) else ']'}", remedy)
    return float(value)


def checked_rate(rate: object) -> float:
    """The probability of an agent to be in a cohort.

    >>> checked_rate(0.01)
    0.01
    """
    return _number("rate", rate, "(0, 1]")


def _batch_of_step(one: object, drawn: Drawn[Batch]) -> Batch:
    if not isinstance(one, Batch):
        raise UndeclaredOperation(
            f"round.local_update with a batch of {type(one).__name__}: give what round.draw() "
            "returned, a tuple of as many as there are steps, or ALL"
        )
    return checked_batch(one, drawn)


def _number(name: str, value: Any, bound: str) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    within(name, value, bound)
    return float(value)


class Parts(NamedTuple):
    """The bounds of consecutive parts of a vector.

    Attributes:
        bounds: of each part.
        sizes: coordinates of each.

    >>> Parts((3.0, 4.0), (20, 3)).whole
    5.0
    """

    bounds: tuple[float, ...]
    sizes: tuple[int, ...]

    @property
    def whole(self) -> float:
        """The bound of the whole vector."""
        return math.hypot(*self.bounds)


class Quantile(NamedTuple):
    """Vectors are clipped to the norm at a quantile of their own batch, which bounds nothing.

    Attributes:
        share: of the vectors that keep their length, in (0, 1).
    """

    share: float

    @property
    def whole(self) -> None:
        """The bound of a vector: none, as the norms are those of the records."""
        return


ClipNorm = float | Parts | Quantile | None  # of a vector; None does not clip


def whole_of(clip_norm: ClipNorm) -> float | None:
    """The bound of a whole vector; None where there is none."""
    return clip_norm.whole if isinstance(clip_norm, Parts | Quantile) else clip_norm


def clip_norm_of(
    clip_norm: object, parts: Sequence[int] | None, quantile: float | None = None
) -> ClipNorm:
    """What a step asks for: one bound, none, a bound for each part, or a quantile of the batch.

    Raises:
        TypeError: parts without a bound for each, or the other way round; sizes or bounds that are
            no numbers.
        ValueError: as many bounds as there are not parts, or a bound or size that is not positive.
    """
    if quantile is not None:
        within("quantile", quantile, "(0, 1)", "the share of vectors that keep their length")
        if clip_norm is not None or parts is not None:
            raise InputError(
                f"quantile={quantile} goes without clip_norm and parts: it takes the norm to clip "
                "to from the records of the batch, so it bounds nothing"
            )
        return Quantile(float(quantile))
    if isinstance(clip_norm, Parts) or (parts is None and not isinstance(clip_norm, tuple | list)):
        return clip_norm  # type: ignore[return-value] # what is no number is refused later
    if parts is None or not isinstance(clip_norm, tuple | list):
        raise InputTypeError(
            f"clip_norm={clip_norm!r:.60} and parts={parts!r:.60} of round.clipped_sums: give one "
            "bound, or a tuple of bounds and the number of coordinates of each part"
        )
    if len(parts) != len(clip_norm) or not parts:
        raise InputError(
            f"clip_norm has {len(clip_norm)} bounds for {len(parts)} parts; give one for each"
        )
    for bound in clip_norm:
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise InputTypeError(f"clip_norm holds {bound!r:.40}, which is no number")
        if not 0.0 < bound < math.inf:
            raise InputError(f"clip_norm holds {bound}; the bound of a part is positive and finite")
    for size in parts:
        if isinstance(size, bool) or not isinstance(size, int):
            raise InputTypeError(f"parts holds {size!r:.40}, which is no number of coordinates")
        if size < 1:
            raise InputError(f"parts holds {size}; a part has at least one coordinate")
    return Parts(tuple(map(float, clip_norm)), tuple(parts))
