"""The projection of a run's task, which `round.project` calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from ...privacy.errors import UndeclaredOperation
from .purity import PureFunction

__all__ = ["no_projection", "projection", "same_bits"]


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
    """Whether two tensors are equal bit for bit; a NaN is equal to itself, 0 is not -0.

    >>> same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    True
    >>> same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    False
    """
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
