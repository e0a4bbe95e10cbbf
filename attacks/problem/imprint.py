"""A crafted model as the one who made it reads it: which parts of a gradient hold single records.

The gradient of a linear layer's row i is sum_b d_ib [f_b, 1] over the records b of a batch, f_b the
layer's input. Rows are made so that one, less the next of its direction, holds the records of one
*bin* alone; a bin with one record gives away its f_b, as the quotient of the weight's part and the
bias's. Fowl et al., "Robbing the Fed", ICLR 2022, arXiv 2110.13057.

Shape letters: F features, S slots (one a row of the layer), D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Imprint:
    """A crafted model, and how a gradient on it is read.

    Attributes:
        parameters: (D,) the model, in `named_parameters` order.
        weight, bias: where the layer that is read lies in it.
        follows: for each row of the layer the one that is subtracted from it; -1 for none.
        inputs_of: (F,) features to the record (*shape), in normalised units.
        reference: whether its slots are subtracted from those of the other models of a batch.
        places: of a model that shows pieces of one record, for each slot and feature (S, F) the
            pixel that it holds, counted over the record; -1 for none. None where slots hold whole
            records.
    """

    parameters: Tensor
    weight: slice
    bias: slice
    follows: tuple[int, ...]
    inputs_of: Callable[[Tensor], Tensor]
    reference: bool = False
    places: Tensor | None = None

    def slots(self, gradient: Tensor) -> Tensor:
        """(S, F + 1) what every bin holds of a gradient (D,): weights, then the bias.

        >>> read = Imprint(
        ...     parameters=torch.zeros(4), weight=slice(0, 2), bias=slice(2, 4),
        ...     follows=(1, -1), inputs_of=lambda f: f,
        ... )
        >>> read.slots(torch.tensor([3.0, 1.0, 2.0, 1.0])).tolist()
        [[2.0, 1.0], [1.0, 1.0]]
        """
        rows = torch.cat(
            [gradient[self.weight].reshape(len(self.follows), -1), gradient[self.bias][:, None]],
            dim=1,
        )
        after = torch.tensor(self.follows, device=rows.device)
        return rows - torch.where(after[:, None] >= 0, rows[after.clamp_min(0)], 0.0)

    def is_at(self, point: Tensor) -> bool:
        """Whether gradients were taken on this model, (P, D') in any precision."""
        mine = self.parameters.to(point)
        return len(point) == 1 and point.shape[1] == len(mine) and torch.equal(point[0], mine)

    def to(self, *, dtype: torch.dtype) -> Imprint:
        """The same with the model as it is sent in a floating-point type."""
        return replace(self, parameters=self.parameters.to(dtype))


def slots_of(imprints: Sequence[Imprint], gradients: Tensor) -> list[Tensor]:
    """What every bin of every model holds, less what the reference holds.

    Args:
        imprints: K crafted models, at most one of them a reference.
        gradients: (K, D) of one batch, one on each.

    Returns:
        For each model (S, F + 1).
    """
    held = [one.slots(g) for one, g in zip(imprints, gradients, strict=True)]
    base = next((of for one, of in zip(imprints, held, strict=True) if one.reference), None)
    if base is None:
        return held
    return [of if one.reference else of - base for one, of in zip(imprints, held, strict=True)]
