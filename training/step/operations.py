"""The operations of a round: a row for each, the checks of what it is given, and one door.

`Round` documents every operation for whoever writes a step. A new one is a method of `Round`, a row
of `OPERATIONS`, and a method of its name in each kind of round: on tensors (`TensorRound`), on
symbols (`TracedRound`) and on dense numbers (`DenseRound`). What each of them is given was checked
here, once.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...privacy.batches.sampling import Per, Scheme, scheme_of_cohort, size_of_cohort
from ...privacy.errors import InputError, InputTypeError, UndeclaredOperation, whole
from ..graphs.graph import Graph
from . import values as step_values
from .purity import PureFunction
from .script import remembered
from .values import Agents, Edges

# Random numbers that everybody may know: masks, roundings, directions of a seed that is public.
#
# They hide nothing. Each row is a stream of its own of Philox4x64, at (call, row, round) under a
# key that is a digest of the seed, so that no seed meets the root of a run's secret noise; they are
# drawn on the CPU, and are the same in every process, on every device and whenever they are drawn
# again.
#
# Uniform numbers are multiples of 2^-24 in [0, 1), which float32 and float64 hold alike.

_BITS = 24  # of a uniform number


class PublicKind(enum.StrEnum):
    """How public numbers are distributed."""

    UNIFORM = "uniform"
    NORMAL = "normal"


class PublicNumbers(NamedTuple):
    """What one call of `round.public` asks for.

    Attributes:
        seed: in [0, 2^64).
        kind: uniform in [0, 1), or standard normal.
        same: whether all agents have the same row.
        round: the number of the round.
        call: how many calls of the round came before.
    """

    seed: int
    kind: PublicKind
    same: bool
    round: int
    call: int

    @classmethod
    def of(
        cls, seed: object, *, kind: object, same: object, round: int, call: int
    ) -> PublicNumbers:
        """What is asked for, once it is checked.

        Raises:
            TypeError: a seed that is no integer, or `same` that is neither true nor false.
            ValueError: a seed out of range, or a kind that is not known.
        """
        number = whole("round.public seed", seed, f"[0, {2**64})")
        if not isinstance(same, bool):
            raise InputTypeError(f"same={same!r:.40} of round.public must be True or False")
        if kind not in tuple(PublicKind):
            known = " or ".join(repr(str(one)) for one in PublicKind)
            raise InputError(f"kind={kind!r:.40} of round.public must be {known}")
        return cls(number, PublicKind(str(kind)), same, round, call)

    def rows(self, agents: Iterable[int], *, width: int) -> Tensor:
        """(agents, width) float64, the rows of these agents."""
        digest = hashlib.blake2b(b"public" + self.seed.to_bytes(8, "little"), digest_size=16)
        key = np.frombuffer(digest.digest(), dtype=np.uint64)
        found = []
        for agent in agents:
            at = np.array([0, 0 if self.same else agent, self.call, self.round], dtype=np.uint64)
            stream = np.random.Generator(np.random.Philox(key=key, counter=at))
            if self.kind is PublicKind.NORMAL:
                found.append(stream.standard_normal(width))
            else:
                found.append(stream.integers(2**_BITS, size=width) / 2.0**_BITS)
        return torch.from_numpy(np.array(found).reshape(-1, width))


# What a count looks at, and numbers that were released and that gradients are divided by.


class Of(enum.StrEnum):
    """What the function of a count is given of one record."""

    LOSS = "loss"
    NORM = "norm"
    OUTPUTS = "outputs"

    @classmethod
    def _missing_(cls, value: object) -> Of:
        known = ", ".join(f"'{member}'" for member in cls)
        raise InputError(f"of={value!r:.40} of round.count must be one of {known}")


def checked_scale(rows: Tensor) -> list[float]:
    """The numbers (A, 1) by which vectors are divided before they are clipped.

    Raises:
        InputError: another shape, or one that is no positive finite number.
    """
    if rows.ndim != 2 or rows.shape[1] != 1:
        raise InputError(
            f"scale of shape {tuple(rows.shape)} of round.clipped_sums must be (A, 1): one number "
            "an agent"
        )
    found: list[float] = rows[:, 0].tolist()
    for number in found:
        if not 0.0 < number < math.inf:
            raise InputError(
                f"scale={number} of round.clipped_sums must be a positive number; keep it away "
                "from 0 by round.postprocess, which may clamp it"
            )
    return found


V = TypeVar("V", Agents, Edges, step_values.Server)
P = TypeVar("P", Agents, Edges)
Coef = float | tuple[float, ...]  # of a point, or of each of its blocks
Values = tuple[Any, ...]  # what is given by position
How = dict[str, Any]  # what is given by name
CarryOut = Callable[[str, Values, How], Any]
Wrapper = Callable[[CarryOut, str, Values, How], Any]


class Readers(enum.Enum):
    """Who may read the values that an operation is given."""

    HOLDER = "no one else"
    RECEIVERS = "those to whom they are sent, and who listens on the link"
    ADVERSARIES = "every adversary that may see the result"


class Apart(enum.IntEnum):
    """What an operation tells apart: its result changes where two of them change places."""

    NOTHING = 0
    AGENTS = 1
    LINKS = 2


class Operation(NamedTuple):
    """What is known of an operation, whoever carries it out.

    Attributes:
        takes: who may hold the values that are given by position; not looked at where empty.
        readers: who may read what it is given.
        apart: what it can tell apart.
        check: of what is given makes what a round is given; refuses what none may be.
        calls: whether it calls a function on rows of what it is given.
        hides: whether the value after its function is a secret, which no one reads after all.
    """

    takes: tuple[type[step_values.Value], ...] = ()
    readers: Readers = Readers.HOLDER
    apart: Apart = Apart.LINKS
    check: Callable[[Door, Values, How], tuple[Values, How]] | None = None
    calls: bool = False
    hides: bool = False


class NoiseWatch(Protocol):
    """Is shown every noise as the step gets it, and stops a round whose noise is wrong."""

    def note(self, value: step_values.Value, *, std: float, factor: Tensor | None) -> None:
        """Take note of what an operation `noise` gave, and of what was asked for."""
        ...

    def settle(self, *, at_end: bool) -> None:
        """Decide on what was noted: before something is sent, and at the end of the round.

        Raises:
            Exception: the noise is not what was asked for.
        """
        ...


class Operations(ABC):
    """What carries out the operations of one round, each by the method of its name."""

    agents: int
    weights: Edges  # (E, 1) mixing weights, public
    active: Agents  # (A, 1) 1 for each agent that takes part, 0 for an absent one; public
    _index: int
    _wrappers: tuple[Wrapper, ...] = ()

    def do(self, name: str, values: Values, how: How) -> Any:
        """Carry out an operation on what was checked, through all that is wrapped around it."""
        carry_out: CarryOut = self._carry_out
        for wrapper in self._wrappers:
            carry_out = functools.partial(wrapper, carry_out)
        return carry_out(name, values, how)

    def wrap(self, wrapper: Wrapper) -> None:
        """Let whatever is done pass through a wrapper, which is around those from before.

        Args:
            wrapper: gets what carries out an operation, its name, and what it is given by position
                and by name; returns the result.
        """
        self._wrappers = (*self._wrappers, wrapper)

    def _carry_out(self, name: str, values: Values, how: How) -> Any:
        return getattr(self, name)(*values, **how)

    @property
    @abstractmethod
    def index(self) -> int:
        """See `Round.index`."""

    @property
    @abstractmethod
    def weight_table(self) -> Tensor:
        """(E, 1) the mixing weights of all edges, in float64 on the CPU."""

    @property
    @abstractmethod
    def active_table(self) -> Tensor:
        """(A, 1) 1 for each agent that takes part, 0 for an absent one; float64 on the CPU."""

    @property
    @abstractmethod
    def everybody(self) -> bool:
        """Whether no agent is absent from the round."""

    @abstractmethod
    def held(self, field: str, value: Agents) -> Agents:
        """A value as a field of the state, where a public table is one like any other.

        Raises:
            InputError: its rows are no block of the run's.
        """

    @abstractmethod
    def kept(self, old: Agents, new: Agents) -> Agents:
        """What agents hold after the round: an absent one what it held before."""

    # Where kinds of round do not differ.

    def draw(self, batch: step_values.Batch) -> step_values.Batch:
        """See `Round.draw`."""
        return batch

    def cohort(self, cohort: step_values.Cohort) -> step_values.Cohort:
        """See `Round.cohort`."""
        return cohort

    def remembered(self, fresh: Agents, *past: Agents, row: Sequence[float]) -> Agents:
        """See `Round.remembered`; the noise alone, of as much of the past as the row speaks of."""
        return remembered(fresh, past, row=row)

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """See `Round.mix`."""
        sent = self._carry_out("broadcast", (value,), {"kind": kind})
        mixed: Agents = self._carry_out("sum_in", (sent,), {"weights": self.weights})
        return mixed


class Door:
    """Where a step asks for operations: checks what each is given, for every kind of round.

    Args:
        operations: carries them out.
    """

    __slots__ = ("batches", "cohorts", "operations", "public_calls")

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.batches: list[tuple[step_values.Batch, step_values.Batch]] = []  # `Drawn`
        self.cohorts: list[tuple[step_values.Cohort, step_values.Cohort]] = []
        self.public_calls = 0

    def do(self, name: str, values: Values, how: How) -> Any:
        """Carry out an operation, once it may be.

        Raises:
            UndeclaredOperation: values of another holder, or batches and cohorts of another round.
            InputError: a number out of range.
        """
        row, alone = OPERATIONS[name], not any(isinstance(one, tuple) for one in values)
        for value in values if row.takes else ():
            if not isinstance(value, PureFunction):
                step_values.check_holder(name, value, *row.takes)
        if "block" in how:
            how = {**how, "block": whole("block", how["block"], f"[{step_values.NUMBERS}, inf)")}
        if row.check is not None:
            values, how = row.check(self, values, how)
        made = self.operations.do(name, values, how)
        return made[0] if isinstance(made, tuple) and alone else made


def values_in(given: object) -> Iterator[step_values.Value]:
    """The values among what an operation is given, in their order."""
    if isinstance(given, step_values.Value):
        yield given
    elif isinstance(given, tuple | list):
        for one in given:
            yield from values_in(one)


def read_by_others(name: str, values: Values, how: How) -> list[step_values.Value]:
    """What an operation is given that others than its holder may read, or that it hides from them.

    >>> x = Agents(torch.zeros(3, 2))
    >>> read_by_others("broadcast", (x,), {"kind": "model"}) == [x]
    True
    >>> read_by_others("own", (x,), {})
    []
    """
    if OPERATIONS[name].readers is Readers.HOLDER:
        return []
    return [*values_in(values), *values_in(tuple(how.values()))]


def reply_order(graph: Graph) -> Tensor:
    """(E,) for each edge d -> m the position of the edge m -> d, along which a reply came.

    Raises:
        ValueError: some link has no way back.
    """
    if not graph.symmetric:
        raise InputError(f"graph {graph.name!r} is directed: round.reply needs links both ways")
    return torch.from_numpy(np.lexsort((graph.receivers, graph.senders)))


def _public(door: Door, values: Values, how: How) -> tuple[Values, How]:
    call, door.public_calls = door.public_calls, door.public_calls + 1
    of = {"kind": how["kind"], "same": how["same"]}
    asked = PublicNumbers.of(*values, **of, round=door.operations._index, call=call)
    return (asked,), {"block": how["block"]}


def _draw(door: Door, values: Values, how: How) -> tuple[Values, How]:
    del values
    rate = how["sampling_rate"]
    if rate is not None:
        remedy = "a probability; leave it out for the run's own rate"
        rate = step_values.checked_number("sampling_rate", rate, least=0.0, most=1.0, remedy=remedy)
    per = Per(how.get("per", Per.RECORD))
    given = step_values.Batch(call=len(door.batches), sampling_rate=rate, per=per)
    door.batches.append((given, replace(given)))
    return (given,), {}


def _clipped_sums(door: Door, values: Values, how: How) -> tuple[Values, How]:
    parts, per = how.get("parts"), Per(how.get("per", Per.RECORD))
    within = step_values.clip_norm_of(how["clip_norm"], parts, how.get("quantile"))
    if isinstance(within, step_values.Quantile) and per is Per.USER:
        raise InputError(f"quantile={within.share} is of records, and per='user' clips users' sums")
    batch = step_values.checked_batch(how["batch"], door.batches, clipped=per)
    points = _split_points(values, how["coefs"])
    if "scale" in how:
        step_values.check_holder("clipped_sums with scale", how["scale"], Agents)
    rest = {name: one for name, one in how.items() if name not in ("parts", "quantile")}
    return tuple(points), {**rest, "batch": batch, "clip_norm": within, "per": per}


def _count(door: Door, values: Values, how: How) -> tuple[Values, How]:
    of = Of(how["of"])
    batch = step_values.checked_batch(how["batch"], door.batches)
    _check_listed("count", "released", how["released"], Agents)
    return values, {**how, "of": of, "batch": batch}


def _clipped_mean(door: Door, values: Values, how: How) -> tuple[Values, How]:
    remedy = "the public expected size of a batch"
    size = step_values.checked_number(
        "batch_size", how["batch_size"], least=0.0, most=math.inf, remedy=remedy
    )
    batch = step_values.checked_batch(how["batch"], door.batches)
    if not size > 0:
        raise InputError(f"batch_size={size} must be a positive number")
    ((only, *others),) = _split_points(values, (1.0,))
    if others:
        raise UndeclaredOperation(
            "round.clipped_mean of several blocks: it clips one; use round.clipped_sums((x, y))"
        )
    return (only,), {**how, "batch": batch, "batch_size": size}


def _local_update(door: Door, values: Values, how: How) -> tuple[Values, How]:
    return (*values, step_values.LocalSteps.of(**how, drawn=door.batches)), {}


def _cohort(door: Door, values: Values, how: How) -> tuple[Values, How]:
    del values
    share, drawn = step_values.checked_rate(how["rate"]), scheme_of_cohort(how["scheme"])
    if share == 1.0:
        drawn = Scheme.POISSON  # everybody, however cohorts are drawn
    if drawn is not Scheme.POISSON:
        size_of_cohort(share, door.operations.agents, scheme=drawn)
    start = door.operations._index == 0
    if drawn.in_epochs and (start or door.cohorts):
        when = "the start draws" if start else "the step draws"
        several = " after another one" if door.cohorts else ""
        raise UndeclaredOperation(
            f"{when} a cohort of scheme={str(drawn)!r}{several}, and an epoch of these has one "
            "for each round from 1 on; draw it once and first, or use 'poisson' or 'fixed'"
        )
    if any(before.scheme.in_epochs for _, before in door.cohorts):
        raise UndeclaredOperation(
            "the step draws another cohort beside one of an epoch, which has one for each "
            "round; draw one alone, or use 'poisson' or 'fixed'"
        )
    given = step_values.Cohort(call=len(door.cohorts), rate=share, scheme=drawn)
    door.cohorts.append((given, replace(given)))
    return (given,), {}


def _upload(door: Door, values: Values, how: How) -> tuple[Values, How]:
    del door
    if "cohort" in how:
        raise UndeclaredOperation(f"round.upload of a cohort: {step_values.UNSEEN_COHORT}")
    return values, how


def _average(door: Door, values: Values, how: How) -> tuple[Values, How]:
    cohort = how.get("cohort")
    if cohort is not None and not isinstance(cohort, step_values.Cohort):
        raise UndeclaredOperation(
            f"round.average with a cohort of {type(cohort).__name__}: give what "
            "round.cohort(rate) returned"
        )
    kept = step_values.kept_of(cohort, door.cohorts)
    if cohort is not None and kept is None:
        raise UndeclaredOperation(
            "a cohort of another round, or one that was written to: its draw would be used again, "
            "but accounted as fresh; call round.cohort(rate) in every round"
        )
    return values, how if kept is None else {**how, "cohort": kept}


def _bounded(door: Door, values: Values, how: How) -> tuple[Values, How]:
    del door
    _check_listed("bounded", "released", how["released"], Edges)
    _check_listed("bounded", "private", how["private"], Agents)
    if type(how["blame"]) is not str:
        raise InputTypeError(
            f"blame of {type(how['blame']).__name__} of round.bounded must be a str"
        )
    return values, how


def _check_listed(operation: str, name: str, given: object, kind: type[step_values.Value]) -> None:
    """Refuse what is no list of values of a holder."""
    if not isinstance(given, tuple):
        raise UndeclaredOperation(
            f"{name} of round.{operation} must be a list of {kind.__name__}, such as [x], and is "
            f"{type(given).__name__}"
        )
    for value in given:
        step_values.check_holder(operation, value, kind)


def _postprocess(door: Door, values: Values, how: How) -> tuple[Values, How]:
    del door
    if len(values) < 2:  # its function alone
        raise UndeclaredOperation(
            "round.postprocess of no value: give what its function takes; public numbers become a "
            "value by round.of_agents(table)"
        )
    return values, how


def _split_points(points: Sequence[Any], coefs: Sequence[object]) -> list[tuple[Any, ...]]:
    """Points as tuples of blocks, one block where a point is a value, once they are checked.

    Raises:
        UndeclaredOperation: no point, holders or numbers of blocks that differ, or a coefficient
            that is no number.
        ValueError: a coefficient that is not finite, or another count than of points or blocks.
    """
    # Points of one holder, and of the same blocks.
    split = [point if isinstance(point, tuple) else (point,) for point in points]
    kinds = sorted({type(value).__name__ for point in split for value in point})
    if kinds not in (["Agents"], ["Edges"]):
        raise UndeclaredOperation(
            f"round.clipped_sums at points of {', '.join(kinds) or 'no value'}: give Agents, or "
            "Edges, for every point; a value of another holder has to be sent first"
        )
    if len({len(point) if isinstance(point, tuple) else None for point in points}) > 1:
        raise UndeclaredOperation(
            "round.clipped_sums at points of different blocks: every point has the same blocks"
        )
    # Coefficients are public and finite: one a point, or one for each of its blocks.
    if not isinstance(coefs, tuple):
        raise InputTypeError(f"coefs of {type(coefs).__name__} must be a list of public numbers")
    for coef in coefs:
        numbers: tuple[Any, ...] = coef if isinstance(coef, tuple) else (coef,)
        wrong = [type(number).__name__ for number in numbers if not isinstance(number, int | float)]
        if wrong:
            raise UndeclaredOperation(
                f"round.clipped_sums with a coefficient of {wrong[0]}: coefs are public numbers"
            )
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"coefs={tuple(coefs)} must be finite; drop the point instead")
        if isinstance(coef, tuple) and split and len(coef) != len(split[0]):
            raise InputError(
                f"coefs={tuple(coefs)} for points of {len(split[0])} blocks: give one number for "
                "each block, or one for all of them"
            )
    if len(coefs) != len(points):
        raise InputError(
            f"coefs={tuple(coefs)} for {len(points)} points: give one number for each point"
        )
    return split


_HOLDER, _RECEIVERS, _ADVERSARIES = Readers.HOLDER, Readers.RECEIVERS, Readers.ADVERSARIES
_NOTHING, _AGENTS, _LINKS = Apart.NOTHING, Apart.AGENTS, Apart.LINKS

OPERATIONS: dict[str, Operation] = {
    "initial": Operation((), _HOLDER, _NOTHING),
    "of_agents": Operation((), _HOLDER, _AGENTS),
    "of_edges": Operation((), _HOLDER, _LINKS),
    "public": Operation((), _HOLDER, _AGENTS, _public),
    "draw": Operation((), _HOLDER, _NOTHING, _draw),
    "clipped_sums": Operation((), _ADVERSARIES, _NOTHING, _clipped_sums),
    "count": Operation((Agents,), _ADVERSARIES, _LINKS, _count),
    "clipped_mean": Operation((), _ADVERSARIES, _NOTHING, _clipped_mean),
    "local_update": Operation((Agents,), _ADVERSARIES, _NOTHING, _local_update),
    "cohort": Operation((), _HOLDER, _LINKS, _cohort),  # who takes part is secret
    "noise": Operation((), _HOLDER, _NOTHING),
    "remembered": Operation((Agents,), _HOLDER, _LINKS),
    "broadcast": Operation((Agents,), _RECEIVERS, _LINKS),
    "reply": Operation((Edges,), _RECEIVERS, _LINKS),
    "mix": Operation((Agents,), _RECEIVERS, _LINKS),
    "upload": Operation((Agents,), _RECEIVERS, _NOTHING, _upload),
    "download": Operation((step_values.Server,), _RECEIVERS, _NOTHING),
    "average": Operation((Agents,), _HOLDER, _NOTHING, _average),
    "sum_in": Operation((Edges,), _HOLDER, _LINKS),
    "own": Operation((Edges,), _HOLDER, _LINKS),
    "spread": Operation((Agents,), _HOLDER, _LINKS),
    "bounded": Operation((Agents,), _ADVERSARIES, _LINKS, _bounded, calls=True, hides=True),
    "postprocess": Operation((Agents, Edges), _ADVERSARIES, _LINKS, _postprocess, calls=True),
    "project": Operation((Agents, Edges), _ADVERSARIES, _LINKS, calls=True),
}
