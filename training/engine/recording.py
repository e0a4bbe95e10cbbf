"""What a round drew and computed, as checks and attacks need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from ..step.values import SERVER

__all__ = ["Sources", "Taken", "makers"]


class Taken(NamedTuple):
    """Where the contributions of one call were taken.

    Attributes:
        models: (P, M, D) the different points, their blocks side by side.
        owners: (rows,) for each contribution its position in M.
        holders: (rows,) for each contribution the agent whose batch it sums over.
        coefs: (P,) numbers, or (D,) tensors where blocks differ.
        batch: the call of `draw`.
        clip_norm: bound on an example's vector, or on the mean; None where nothing is clipped.
        mean_of: the divisor where a batch's mean is clipped; None where its records are.
    """

    models: Tensor
    owners: Tensor
    holders: Tensor
    coefs: tuple[float | Tensor, ...]
    batch: int
    clip_norm: float | None
    mean_of: float | None = None


@dataclass
class Sources:
    """What a round drew and computed, in the order of the trace's columns; for checks and attacks.

    `taken` has an entry for each of `contributions`, None for what `bounded` made. `makers` says
    of each source of each call of `noise` which agents must make it in a deployment: those that
    hold a row which it enters; nobody where the server does. `batches` has for each call of `draw`
    and each agent the positions drawn from its shard, None where a planted batch took their place.
    """

    contributions: list[Tensor] = field(default_factory=list)
    taken: list[Taken | None] = field(default_factory=list)
    noise: list[Tensor] = field(default_factory=list)
    makers: list[list[frozenset[int]]] = field(default_factory=list)
    batches: list[list[Tensor | None]] = field(default_factory=list)
    known: list[Tensor] = field(default_factory=list)


def makers(holders: Tensor, factor: Tensor | None) -> list[frozenset[int]]:
    """For each source of a noise call the agents that hold a row which it enters.

    Args:
        holders: (rows,) who holds each row; the server counts as nobody.
        factor: (rows, sources) how much of each source enters each row; None is one source a row.

    >>> import torch
    >>> makers(torch.tensor([0, 2]), torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.5, 2.0]]))
    [frozenset({0}), frozenset({0, 2}), frozenset({2})]
    """
    held = holders.tolist()
    if factor is None:
        rows = [[row] for row in range(len(held))]
    else:
        rows = [column.nonzero().flatten().tolist() for column in factor.T]
    return [frozenset(held[row] for row in of) - {SERVER} for of in rows]
