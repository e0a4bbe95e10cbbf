"""Functions of one agent, called for many agents at once by `torch.func.vmap`.

A function sees one agent's rows there as in a call of its own: what vmap cannot do so, such as a
branch on a number or a write from one argument into a constant, it refuses, and the agents are
taken one by one. Whether what it can do comes out the same is found on rows of no agent, once for
each function and shape: three that are positive and three of either sign, each of another size, one
by one and together. The answer rests on nothing that a run holds, so all ranks have the same.

Results are equal to rounding and not by their bits, so this is for devices, where a call costs its
launch. On a CPU it gains 20 of 240 ms in a round of a thousand small models, and loses six times
the loop where rows have 60,000 coordinates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from ...privacy.errors import UndeclaredOperation
from .purity import PureFunction

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
