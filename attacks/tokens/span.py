"""Which rows a linear layer was fed, by the span of its weight's gradient.

The gradient of W is delta^T X, with a row of X for each token of the batch. Where these are fewer
than the layer's inputs and the derivatives delta are independent, its rows span the same space as
those of X: a row that was fed lies in that space, and another one does not, by chance, at all. This
is the test of Petrov et al. (2024), "DAGER: Exact Gradient Inversion for Large Language Models",
arXiv 2405.15586.

Where we differ from the paper: every layer that is fed the same rows shares in one space, each
gradient at norm 1; the rank is read from the singular values and what rounding leaves of them; and
the derivatives of the tokens that were found, delta = dW X^+, say which of them are of one record,
since all values of one attention get nearly the same.

Shape letters: O outputs, I inputs, S dimensions of a space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ABOVE = 10.0  # times rounding: a singular value that is one
_WEAK = 0.1  # greatest distance at which a row counts as one of a space, however weak that is
_MARGIN = 3.0  # times what rounding does to the weakest direction
_LEAST = 1e-6
_DRAWS = 400  # samples of rows that a few directions are sought in
_FILLED = 1000.0  # times rounding: what the rows inside hold in every direction
_APART = 10.0  # of the rows outside of a space, over those inside


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Space:
    """The space that the rows of a gradient span.

    Attributes:
        basis: (S, I) orthonormal rows.
        tolerance: relative distance up to which a row lies in it.
    """

    basis: Tensor
    tolerance: float

    def distances(self, rows: Tensor) -> Tensor:
        """(...,) distances of rows (..., I), over their norms; 1 for a row that is not finite."""
        left = rows - (rows @ self.basis.T) @ self.basis
        found = left.norm(dim=-1) / rows.norm(dim=-1).clamp_min(1e-300)
        return found.nan_to_num(nan=1.0)


def spanned(gradients: Sequence[Tensor], *, most: int, rounding: float) -> Space | None:
    """The space of gradients of layers that are fed the same rows.

    Args:
        gradients: (O, I) of each layer, without noise.
        most: number of rows that were fed.
        rounding: of a number, relative.

    Returns:
        The space; None where the gradients are 0 or span every direction.

    >>> fed = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]).double()
    >>> space = spanned([torch.randn(5, 2).double() @ fed], most=2, rounding=1e-16)
    >>> other = torch.tensor([0.0, 0.0, 1.0]).double()
    >>> [round(d.item(), 2) for d in space.distances(torch.stack([fed.sum(0), other]))]
    [0.0, 0.41]
    """
    parts = [g / g.norm() for g in gradients if bool(g.any())]
    if not parts:
        return None
    _, values, right = torch.linalg.svd(torch.cat(parts), full_matrices=False)
    rank = min(int((values > _ABOVE * rounding * values[0]).sum()), most)
    if rank >= right.shape[1]:
        return None
    weakest = float(values[rank - 1] / values[0])
    tolerance = min(max(_LEAST, _MARGIN * rounding / weakest), _WEAK)
    return Space(basis=right[:rank], tolerance=tolerance)


def derivatives(gradients: Sequence[Tensor], rows: Tensor) -> Tensor:
    """(M, sum O) derivatives of the outputs at rows (M, I) whose gradients are known.

    Those of least size, where rows are dependent.
    """
    joint = torch.cat([g / g.norm().clamp_min(1e-300) for g in gradients])
    return torch.linalg.lstsq(rows.T, joint.T, driver="gelsd").solution


def outside_few(
    rows: Tensor, *, directions: int, most: int, rounding: float, generator: torch.Generator
) -> Tensor:
    """The rows that do not lie in the space of a few directions that all others span.

    An output layer that shares the table adds sum_b (p_b - y_b) h_b^T to its gradient, of one
    direction a record, and the tokens of the batch add derivatives of their own to their rows. Rows
    are drawn until those drawn hold no token of the batch, and their space nearly all others.

    Args:
        rows: (V, d) gradient of a table.
        directions: how many the space has at most, fewer than d.
        most: rows that lie outside, at most.
        rounding: of a number, relative; of a softmax that is sure it leaves the rows of labels
            alone, which would be taken for tokens, so that nothing is told there.
        generator: of the draws.

    Returns:
        (S,) indices, ascending; none where no such space is told from the rows outside.

    >>> rows = torch.randn(50, 2).double() @ torch.randn(2, 6).double()
    >>> rows[[3, 7]] += torch.randn(2, 6).double()
    >>> made = torch.Generator().manual_seed(0)
    >>> outside_few(
    ...     rows, directions=2, most=4, rounding=1e-7, generator=made
    ... ).tolist()
    [3, 7]
    """
    none, inside = torch.zeros(0, dtype=torch.int64), len(rows) - most
    if directions >= rows.shape[1] or inside <= 2 * directions:
        return none
    sizes = rows.norm(dim=1)
    best, basis = float("inf"), rows[:0]
    for _ in range(_DRAWS):
        drawn = rows[torch.randperm(len(rows), generator=generator)[: 2 * directions]]
        right = torch.linalg.svd(drawn, full_matrices=False)[2][:directions]
        left = (rows - rows @ right.T @ right).norm(dim=1)
        worst = float(left.sort().values[inside - 1])
        if worst < best:
            best, basis = worst, right
    # Once more, by all rows that lie within.
    left = (rows - rows @ basis.T @ basis).norm(dim=1)
    within = left <= left.sort().values[inside - 1]
    _, values, right = torch.linalg.svd(rows[within], full_matrices=False)
    if float(values[directions - 1]) <= _FILLED * rounding * float(sizes.max()):
        return none
    basis = right[:directions]
    left = (rows - rows @ basis.T @ basis).norm(dim=1)
    order = left.sort()
    least = 1e-12 * float(sizes.max())
    steps = order.values[inside:] / order.values[inside - 1 : -1].clamp_min(least)
    first = int(steps.argmax())
    if float(steps[first]) < _APART:
        return none
    return order.indices[inside + first :].sort().values
