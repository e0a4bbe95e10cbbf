"""Which tokens stand at a position, by the rows of learned positions: of batches of any size.

With g_bp the derivative of the embedding of record b at position p, the gradients have the rows

    positions: sum_b g_bp at p,    embedding: sum of g_bp over the places of a token

so that the rows of B tokens that occur once each sum to the row of the position at which they all
stand. This needs no room in the space of a layer: of B L tokens in d < B L features the span test
says nothing. B = 2 is a search over pairs, B = 3 and 4 one over pairs of partial sums.

Shape letters: B records, L positions, S tokens.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

_SAME = 1e-4  # distance of a sum from a row, over the norm of what is summed
_MOST = 4  # records
_SUMS = 20_000  # partial sums at most


def by_sums(
    of_tokens: Tensor, of_places: Tensor, *, records: int, rounding: float
) -> Tensor | None:
    """(S, L) where tokens may stand.

    Args:
        of_tokens: (S, d) rows of the embedding's gradient.
        of_places: (L, d) rows of the positions' gradient, in the same unit.
        records: number B of records.
        rounding: of a number of the gradient, relative.

    Returns:
        At a position that is told, its B tokens alone; the others keep what no position took. None
        where no position is told.

    >>> rows = torch.eye(5, dtype=torch.float64)
    >>> by_sums(rows, torch.stack([rows[0] + rows[3], rows[1] + rows[4]]), records=2,
    ...         rounding=1e-16).int().T.tolist()
    [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]
    """
    count, half = len(of_tokens), (records + 1) // 2
    if not 1 < records <= _MOST or count < records:
        return None
    chosen = [list(itertools.combinations(range(count), size)) for size in (half, records - half)]
    if max(len(sets) for sets in chosen) > _SUMS:
        return None
    left, right = (torch.tensor(sets) for sets in chosen)  # (N, half), (M, B - half)
    # One number a sum, along a fixed direction, finds the few pairs whose vectors are compared.
    generator = torch.Generator().manual_seed(0)
    width = of_tokens.shape[1]
    along = torch.randn(width, generator=generator, dtype=torch.float64)
    scale = of_tokens.norm(dim=1).mean()
    slack = max(_SAME, 30 * rounding) * float(scale)
    one, two = of_tokens[left].sum(dim=1), of_tokens[right].sum(dim=1)
    order = (two @ along).argsort()
    sorted_ = (two @ along)[order]
    reach = slack * float(along.norm())
    told: dict[int, list[int]] = {}
    for place, row in enumerate(of_places):
        wanted = float(row @ along) - one @ along
        low = torch.searchsorted(sorted_, wanted - reach)
        high = torch.searchsorted(sorted_, wanted + reach)
        span = int((high - low).max())
        found = set()
        for step in range(span):
            at = low + step
            near = (at < high).nonzero().flatten()
            partner = order[at[near]]
            apart = (one[near] + two[partner] - row).norm(dim=1)
            for index in (apart <= slack).nonzero().flatten().tolist():
                tokens = {*left[near[index]].tolist(), *right[partner[index]].tolist()}
                if len(tokens) == records:
                    found.add(frozenset(tokens))
        if len(found) == 1:
            told[place] = sorted(next(iter(found)))
    if not told:
        return None
    taken = {token for tokens in told.values() for token in tokens}
    free = torch.tensor([token not in taken for token in range(count)])
    allowed = free[:, None].expand(-1, len(of_places)).clone()
    for place, held in told.items():
        allowed[:, place] = False
        allowed[held, place] = True
    return allowed
