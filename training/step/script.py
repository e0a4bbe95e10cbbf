"""The script of a round: its operations in order, with everything public that they were given.

A trace writes a script down while it runs a step on symbols. A real round writes one too, and
compares it with the traced one operation by operation, before each is carried out. So what is sent
is what was accounted for: a step that does otherwise is stopped before the first message that was
not planned leaves.

Every value has the number of the operation that made it, and an operation names the values that it
takes by these numbers. Public tensors enter by value, as a digest.

Noise that remembers: a round's noise, less what earlier rounds added and this one takes back.

    H. B. McMahan et al. "(Amplified) Banded Matrix Factorization", NeurIPS 2023, arXiv 2306.08153:
        the noise of all rounds together is C^-1 Z, for a lower triangular strategy C.

Solved row by row, C n = z is

    n_t = (z_t - sum_{j >= 1} C[t, t-j] n_{t-j}) / C[t, t]

| symbol | name here | shape      | meaning                                            |
|--------|-----------|------------|----------------------------------------------------|
| z_t    | fresh     | (A, D)     | noise that this round makes                        |
| n_t-j  | past      | j x (A, D) | noise that the rounds before added, latest first   |
| C[t]   | row       | (1 + p,)   | of the strategy, from its diagonal backwards       |

It is linear, so the trace reads it as it reads any sum of values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from ...privacy.errors import InputError, InputTypeError, UndeclaredOperation
from .purity import PureFunction, purified
from .values import UNSEEN_COHORT, Agents, Batch, Cohort

MOST_OPERATIONS = 10_000  # of a round, arithmetic included
_SHOWN = 120  # characters of a value in a sentence


class UnplannedOperation(UndeclaredOperation):
    """A round of a run does another thing than its trace did."""


class TooManyOperations(UndeclaredOperation):
    """A round does more than can be accounted for.

    Attributes:
        most: operations that it may do.
    """

    def __init__(self, round: int, most: int) -> None:
        self.most = most
        super().__init__(
            f"round {round} does more than {most} operations, the most that can be accounted for "
            "on so many agents: lower what repeats them, or the number of agents"
        )


class Operation(NamedTuple):
    """One operation: its name and what it was given, by position or by name."""

    operation: str
    given: tuple[tuple[str, Any], ...]


class _Digest(NamedTuple):
    """A public tensor by value: shape, type and digest of its entries."""

    shape: tuple[int, ...]
    dtype: str
    digest: bytes

    def __repr__(self) -> str:
        return f"a table of shape {self.shape} ({self.dtype}, digest {self.digest.hex()[:12]})"


class Script:
    """The operations of one round so far.

    Args:
        round: the number of the round, for sentences.
        planned: what the trace of the round did; None where nothing is compared.
        most: operations that the round may do.
    """

    __slots__ = ("_broken", "_entries", "_most", "_planned", "_round")

    def __init__(
        self, *, round: int, planned: Sequence[Operation] | None = None, most: int = MOST_OPERATIONS
    ) -> None:
        self._round, self._planned, self._most = round, planned, most
        self._entries: list[Operation] = []
        self._broken: UndeclaredOperation | None = None

    def note(self, operation: str, given: dict[str, Any]) -> int:
        """Write an operation down, once it was compared; the number of its result.

        Raises:
            UnplannedOperation: the trace did something else here.
            UndeclaredOperation: an operation before was refused, and the step went on; or there
                are too many.
        """
        if self._broken is not None:
            raise self._broken
        entry = Operation(operation, tuple(given.items()))
        at = len(self._entries)
        if self._differs(at, entry):
            self.refuse(UnplannedOperation(self._difference(at, entry)))
        if at >= self._most:
            self.refuse(TooManyOperations(self._round, self._most))
        self._entries.append(entry)
        return at

    def _differs(self, at: int, found: Operation) -> bool:
        """Whether the trace did something else here."""
        planned = self._planned
        return planned is not None and (at >= len(planned) or planned[at] != found)

    def refuse(self, error: UndeclaredOperation) -> None:
        """Raise an error, now and at everything that the step tries after it."""
        self._broken = self._broken or error
        raise error

    def give_up(self, error: Exception) -> None:
        """Remember that an operation failed, so that a step that goes on is refused."""
        if self._broken is None:
            self._broken = (
                error
                if isinstance(error, UndeclaredOperation)
                else UndeclaredOperation(
                    f"round {self._round} goes on after an operation failed ({error}): let the "
                    "error pass"
                )
            )

    def named(self, kind: object) -> str:
        """The kind of a message, a plain name."""
        if type(kind) is not str or not kind:
            self.refuse(
                UndeclaredOperation(f"kind={kind!r:.40} must be the name of the message, a string")
            )
        return str(kind)

    def purified(self, fn: Callable[..., Tensor], operation: str) -> PureFunction:
        """The function without anything that it could carry along."""
        try:
            return purified(fn, operation)
        except Exception as error:
            self.give_up(error)
            raise

    def copied(self, table: object, operation: str) -> Tensor:
        """A copy of a public table of numbers."""
        try:
            return torch.as_tensor(table).detach().to("cpu", torch.float64, copy=True)
        except (TypeError, ValueError, RuntimeError) as error:
            what = f"takes a table of numbers, not {type(table).__name__}: {error}"
            self.refuse(UndeclaredOperation(f"round.{operation} {what}"))
            raise

    @property
    def failed(self) -> bool:
        """Whether an operation was refused, or failed."""
        return self._broken is not None

    def finished(self) -> tuple[Operation, ...]:
        """All operations, once the round is over.

        Raises:
            UnplannedOperation: the trace did more.
            UndeclaredOperation: an operation was refused, and the step went on.
        """
        if self._broken is not None:
            raise self._broken
        if self._planned is not None and len(self._entries) < len(self._planned):
            missing = self._planned[len(self._entries)]
            self.refuse(
                UnplannedOperation(
                    f"round {self._round} was stopped: it ended before {missing.operation}, which "
                    f"its trace did as operation {len(self._entries) + 1}; {_REMEDY}"
                )
            )
        self._broken = UndeclaredOperation(
            f"round {self._round} is over: a step uses the round and the values that it is given"
        )
        return tuple(self._entries)

    def _difference(self, at: int, found: Operation) -> str:
        """Where the round leaves its trace, in words."""
        planned_entries = self._planned or ()
        where = f"round {self._round} was stopped: its operation {at + 1}, {found.operation},"
        if at >= len(planned_entries):
            return f"{where} is one more than its trace has; {_REMEDY}"
        planned = planned_entries[at]
        if planned.operation != found.operation:
            return f"{where} is {planned.operation} in its trace; {_REMEDY}"
        before = dict(planned.given)
        for name, value in found.given:
            if name not in before or before[name] != value:
                return (
                    f"{where} has {name}={_shown(value)}, but its trace has "
                    f"{_shown(before.get(name))}; {_REMEDY}"
                )
        return f"{where} is given other arguments than in its trace; {_REMEDY}"


_REMEDY = "what a step does must depend on its arguments alone"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def frozen(value: Any, *, operation: str, name: str) -> Any:
    """A public argument as something that can be compared with the same of another round.

    Numbers, strings and names of members stay as they are; a tensor becomes its digest.

    Raises:
        UndeclaredOperation: it is nothing public, or no number.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value).__module__ == "numpy" and isinstance(value, np.number | np.bool_):
        return value.item()
    if type(value) in (Tensor, Parameter, np.ndarray):
        return digest(value, operation=operation, name=name)
    if isinstance(value, Batch):
        return ("batch", value.call)
    if isinstance(value, Cohort):
        if operation != "average":
            raise UndeclaredOperation(f"round.{operation} of a cohort: {UNSEEN_COHORT}")
        return ("cohort", value.call, value.rate, str(value.scheme))
    if isinstance(value, PureFunction):
        return ("function", value.fingerprint)
    if type(value) in (frozenset, set):
        return frozenset(frozen(one, operation=operation, name=name) for one in value)
    if type(value) in (tuple, list, range):
        return tuple(frozen(one, operation=operation, name=name) for one in value)
    raise UndeclaredOperation(
        f"round.{operation}: {name} is {type(value).__name__}, which is neither a value of this "
        "round nor a plain number, name, list or table; an object that stands for a number may be "
        "another one at each call"
    )


def digest(value: Tensor | np.ndarray, *, operation: str, name: str) -> _Digest:
    """A public tensor or array by value.

    Raises:
        UndeclaredOperation: an entry that is no number, or entries without a plain layout.
    """
    held = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
    if held.layout is not torch.strided or held.is_complex() or held.device.type == "meta":
        raise UndeclaredOperation(f"round.{operation}: {name} must be a dense table of numbers")
    host = (held if held.device.type == "cpu" else held.cpu()).contiguous()
    content = host.reshape(-1).view(torch.uint8).numpy() if host.numel() else np.zeros(0, np.uint8)
    if held.is_floating_point() and np.isnan(host.double().numpy()).any():
        raise UndeclaredOperation(f"round.{operation}: {name} has an entry that is no number")
    return _Digest(
        tuple(host.shape),
        str(host.dtype).removeprefix("torch."),
        hashlib.blake2b(content.data, digest_size=16).digest(),
    )


def check_memory(fresh: object, past: object, kind: type, row: tuple[float, ...]) -> None:
    """Refuse what is no round's noise, no history, or no row of a strategy over it.

    Args:
        past: noise of the rounds before.
        kind: what both hold.
        row: as `numbers_of` gives it.

    Raises:
        ValueError: a row that is empty, longer than the history allows, or not finite, or whose
            first number is not above 0.
        TypeError: a history that is no tuple of values, or noise of another holder.
    """
    if type(past) is not tuple or not all(isinstance(one, kind) for one in past):
        raise InputTypeError(
            "round.remembered needs past, a field of the state that is a tuple of Agents; begin it "
            "in init as (0.0 * x,) * length"
        )
    if not isinstance(fresh, kind):
        raise InputTypeError(
            f"round.remembered of {type(fresh).__name__}: noise is remembered by the agents, so "
            "fresh is round.noise of a value of Agents"
        )
    if not 1 <= len(row) <= len(past) + 1:
        raise InputError(
            f"row has {len(row)} numbers, and must have from 1 to {len(past) + 1}: the "
            f"diagonal and one for each of the {len(past)} rounds that past remembers"
        )
    if not all(map(math.isfinite, row)) or not row[0] > 0:
        raise InputError(
            f"row={row[:4]!r:.60} must be finite numbers that begin with one above 0, the "
            "diagonal of a lower triangular strategy"
        )


def remembered(fresh: Agents, past: Sequence[Agents], *, row: Sequence[float]) -> Agents:
    """The noise of a round."""
    noise = fresh
    for back, weight in enumerate(row[1:]):
        if weight != 0:
            noise = noise - weight * past[back]
    return noise / row[0]


def numbers_of(row: object) -> tuple[float, ...]:
    """A row of a public table as plain numbers.

    Raises:
        TypeError: it is none.
    """
    if isinstance(row, Tensor | np.ndarray):
        listed = row.tolist()
    elif isinstance(row, tuple | list):
        listed = list(row)
    else:
        raise InputTypeError(f"row of {type(row).__name__} must be a list of numbers, or a tensor")
    if not isinstance(listed, list) or any(
        isinstance(one, bool) or not isinstance(one, Real | np.number) for one in listed
    ):
        raise InputTypeError("row must be a list of numbers: one row of a strategy, not a table")
    return tuple(float(one) for one in listed)


# Functions of one agent, called for many agents at once by `torch.func.vmap`.
#
# A function sees one agent's rows there as in a call of its own: what vmap cannot do so, such as a
# branch on a number or a write from one argument into a constant, it refuses, and the agents are
# taken one by one. Whether what it can do comes out the same is found on rows of no agent, once for
# each function and shape: three that are positive and three of either sign, each of another size,
# one by one and together. The answer rests on nothing that a run holds, so all ranks have the same.
#
# Results are equal to rounding and not by their bits, so this is for devices, where a call costs
# its launch. On a CPU it gains 20 of 240 ms in a round of a thousand small models, and loses six
# times the loop where rows have 60,000 coordinates.

_PROBES = 3
_DIGITS = {torch.float64: 1e-9, torch.float32: 1e-4}  # that the two ways may differ by, relative
_MOST_KEPT = 256
_found: dict[tuple[object, ...], bool] = {}


def runs_batched(fn: PureFunction, like: Sequence[Tensor]) -> bool:
    """Whether a function gives for many agents at once what it gives for each.

    Args:
        like: its arguments for many agents, (G, *shape) each; shapes, types and device count.
    """
    if fn.one_by_one:
        return False
    signature = tuple((*one.shape[1:], one.dtype, one.device) for one in like)
    key = (fn.fingerprint, fn.name, *signature)
    if key not in _found:
        if len(_found) >= _MOST_KEPT:
            _found.clear()
        _found[key] = all(_agree(fn, like, positive=sign) for sign in (True, False))
    return _found[key]


def _agree(fn: Callable[..., Tensor], like: Sequence[Tensor], *, positive: bool) -> bool:
    """Whether both ways give the same; of positive rows something that can be compared."""
    probes = _probes(like, positive=positive)
    try:
        alone = [fn(*(probe[i].clone() for probe in probes)) for i in range(_PROBES)]
        together = torch.func.vmap(fn)(*(probe.clone() for probe in probes))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever it raises, the loop raises it again or does not
        return False
    if not all(isinstance(one, Tensor) for one in (*alone, together)):
        return False
    shapes = {(one.shape, one.dtype, one.device) for one in alone}
    if shapes != {(together.shape[1:], together.dtype, together.device)}:
        return False
    expected = torch.stack(alone)
    if not expected.is_floating_point():
        return False
    finite = expected.isfinite()
    if not torch.equal(finite, together.isfinite()) or (positive and not bool(finite.all())):
        return False
    expected, together = expected.where(finite, 0.0), together.where(finite, 0.0)
    size = torch.linalg.vector_norm(expected.flatten(1), dim=1)
    off = torch.linalg.vector_norm((together - expected).flatten(1), dim=1)
    return bool((off <= _DIGITS.get(expected.dtype, 0.0) * size).all())


def _probes(like: Sequence[Tensor], *, positive: bool) -> list[Tensor]:
    """Rows (3, *shape) of each argument: about .1, 1 and 10 long an entry."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for one in like:
        shape = (_PROBES, *one.shape[1:])
        drawn = torch.rand(shape, generator=draw, dtype=torch.float64) + 0.5
        if not positive:
            drawn = drawn * (torch.randint(2, shape, generator=draw) * 2 - 1)
        scale = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
        drawn = drawn * scale.view(-1, *[1] * (len(shape) - 1))
        found.append(drawn.to(one.device, one.dtype))
    return found


# The projection of a run's task, which `round.project` calls.


def projection(project: Callable[[Tensor], Tensor]) -> PureFunction:
    """The projection of a task, which is the run's own: it sees values that count as seen.

    It may use what its task holds, so it is no copy, and its fingerprint is the name of its task.
    The first value is projected twice. On a device the host does not wait for the answer: a
    result that differs is not a number, which is an error when the round ends.

    Raises:
        UndeclaredOperation: when it runs, if the same value is projected to another one.
    """
    task = getattr(project, "__self__", None)
    named = type(task) if callable(getattr(type(task), "project", None)) else project
    name = f"{named.__module__}.{getattr(named, '__qualname__', type(named).__name__)}"
    looked_at = False

    def run(value: Tensor) -> Tensor:
        nonlocal looked_at
        first = None if looked_at else project(value.clone())
        looked_at = True
        found = project(value)
        if first is None:
            return found
        if found.device.type != "cpu" and found.shape == first.shape:
            return _where_same(first, found)
        if not same_bits(first, found):
            raise UndeclaredOperation(
                f"the projection of {name} gives another result for the same value: what it "
                "computes must depend on the value alone"
            )
        return found

    print_ = hashlib.sha256(f"projection {name}".encode()).hexdigest()
    return PureFunction(name=f"project of {name}", fingerprint=print_, run=run, one_by_one=True)


def _where_same(one: Tensor, other: Tensor) -> Tensor:
    """The other, which is not a number where the two differ."""
    same = (one == other) & (one.signbit() == other.signbit()) | one.isnan() & other.isnan()
    return torch.where(same.all(), other, torch.nan)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit; a NaN is equal to itself, 0 is not -0."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    bits = [tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)


def no_projection(value: Tensor) -> NoReturn:
    """What `round.project` does in a run without a task."""
    raise UndeclaredOperation(
        f"round.project of a block of {len(value)} coordinates: the run has no task that says what "
        "is feasible; give the setting a task, or use round.postprocess"
    )
