"""What a rule for a kind of layer gives: norms and sums of its per-example gradients.

A rule sees what a layer read in one pass and the gradient of the loss by what it returned, examples
first. It never sees the parameters, so examples may belong to different owners' models.

| letter | meaning                                                   |
|--------|-----------------------------------------------------------|
| B      | examples of the pass                                      |
| C, L   | cells, and examples of the longest cell; one cell one row |
| D      | parameters of the whole network, one flat row             |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer with parameters, and where they lie in the flat vector."""

    name: str
    module: nn.Module
    weight: int
    bias: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """Examples by the output row that they belong to.

    ``index`` (C * L,) counts the pass's examples, and is None where they lie in the cells' order
    with none left out. ``weights`` (C, L) are the factors of the examples, all one for None. A cell
    shorter than L repeats its own last example with the weight zero: what is not finite there is so
    in the same row without it.
    """

    shape: tuple[int, int]
    index: Tensor | None
    weights: Tensor | None

    def take(self, values: Tensor) -> Tensor:
        """Values (B, *rest) of the examples in the cells, (C, L, *rest)."""
        chosen = values if self.index is None else values.index_select(0, self.index)
        return chosen.reshape(*self.shape, *values.shape[1:])

    def total(self, values: Tensor) -> Tensor:
        """Weighted sums over each cell of flat per-example values (B, n), shape (C, n)."""
        chosen = self.take(values)
        if self.weights is None:
            return chosen.sum(1)
        return (self.weights[:, None] @ chosen)[:, 0]


Part = tuple[int, Tensor]  # the place of a parameter in the flat row, and its sums (C, n)


class Factors(Protocol):
    """One layer's per-example gradients in one pass, in whatever form its rule keeps them."""

    def elements(self) -> int:
        """Elements that are held."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared norms (B,) of the per-example gradients, bias included."""
        ...

    def kept(self, squares: Tensor) -> Factors:
        """The same with zero gradients where an example's squared norm (B,) is not finite."""
        ...

    def add_sum(self, row: Tensor, *, weights: Tensor | None, examples: slice) -> None:
        """Add the gradients of some examples, each times its weight (B,), to a flat row (D,)."""
        ...

    def sums(self, cells: Cells) -> list[Part]:
        """The weighted sums of each cell, by parameter."""
        ...
