"""Where the examples of a batch lie in a tensor.

A dimension of outer * B * inner entries holds example (i // inner) % B at entry i: most often the
first one with outer = inner = 1, inside of an attention B * heads, or positions * B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The dimension of a tensor along which its examples lie."""

    dim: int
    outer: int = 1
    inner: int = 1

    def labels(self, shape: Sequence[int]) -> Tensor:
        """The example (*shape) that each entry belongs to."""
        count = shape[self.dim] // (self.outer * self.inner)
        along = torch.arange(count).repeat_interleave(self.inner).repeat(self.outer)
        return along.view(-1, *[1] * (len(shape) - self.dim - 1)).expand(*shape)

    def moved(self, dim: int) -> Place:
        """The same along another dimension."""
        return Place(dim=dim, outer=self.outer, inner=self.inner)

    def examples_first(self, values: Tensor) -> Tensor:
        """Values (B, *rest) with the other parts of the dimension in its place."""
        if self == FIRST:
            return values
        parts = (self.outer, values.shape[self.dim] // (self.outer * self.inner), self.inner)
        return values.unflatten(self.dim, parts).movedim(self.dim + 1, 0)

    def back(self, values: Tensor) -> Tensor:
        """The inverse of `examples_first`."""
        if self == FIRST:
            return values
        return values.movedim(0, self.dim + 1).flatten(self.dim, self.dim + 2)


FIRST = Place(dim=0)


def place_of(labels: Tensor, examples: int) -> Place | None:
    """Where the examples of a tensor lie, by the label of each entry; None where they are mixed.

    Args:
        labels: Of B examples from 0 on.
        examples: B.

    >>> place_of(torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]]), 2)
    Place(dim=1, outer=1, inner=2)
    >>> place_of(torch.tensor([1, 0]), 2) is None  # in another order
    True
    """
    for dim in range(labels.ndim):
        along = labels.movedim(dim, 0).reshape(labels.shape[dim], -1)[:, 0]
        inner = int((along == 0).long().cumprod(0).sum())
        if inner == 0 or len(along) % (examples * inner):
            continue
        found = Place(dim=dim, outer=len(along) // (examples * inner), inner=inner)
        if torch.equal(found.labels(labels.shape), labels):
            return found
    return None
