"""Orders of a record's places under which a network's outputs stay the same.

A network may see a part backwards as it sees it forwards, or streams of places in any order: halves
that are read from both ends, the even and the odd places of a convolution with gaps, rows of a
grid. Such orders exchange many places at once, and no exchange of two shows them. What a text says
of one or two tokens among equal ones does:

    E[i, j] = outputs of a text of c, with a at place i and b at place j

An order p under which all outputs stay the same has E[p(i), p(j)] = E[i, j]: it is an automorphism
of the complete graph of the places whose edges have E for a colour. These are found by refinement
of colours (Weisfeiler and Leman 1968), and by trying where a place may go. What they are worth the
gradient says.

Shape letters: L positions, N texts, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .explainer import Batch, Explainer
from .layers import Table

_SAME = 1e-9  # of outputs, what rounding in float64 leaves
_DRAWS = 2  # of the tokens a, b and c
_MOST = 400  # refinements
_TEXTS = 20_000  # of which outputs are computed
_MIX = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio, as a signed number


def symmetric(
    explainer: Explainer, batch: Batch, table: Table, generator: torch.Generator
) -> list[Tensor]:
    """Batches with one record's places in another order that the network cannot tell apart.

    Where there are too many places to look for such orders, the batch itself.
    """
    tokens, found = batch.tokens, list[Tensor]()
    words = torch.tensor([v for v in range(table.vocabulary) if v != table.padding])
    if explainer.follows or bool((tokens < 0).any()) or len(words) < 2:
        return []
    ways = symmetries(explainer.at, words, tokens.shape[1], generator)
    if ways is None:
        return [tokens]
    for record, own in enumerate(tokens):
        for way in ways:
            if not torch.equal(own[way], own):
                found.append(tokens.clone())
                found[-1][record] = own[way]
    return found


def symmetries(
    outputs: Callable[[Tensor], Tensor], words: Tensor, length: int, generator: torch.Generator
) -> list[Tensor] | None:
    """Orders (L,) of the places under which outputs stay the same, one for each pair that may swap.

    Args:
        outputs: (N, C) of texts (N, L).
        words: tokens that texts hold, two or more.
        length: L.
        generator: of the tokens that are tried.

    Returns:
        Each takes some place to another one; empty where every place is seen by itself; None where
        it is not, and there are too many places to try.

    >>> words, seen = torch.arange(9), torch.tensor([[1.0, 0.3], [2.0, 0.7], [1.0, 0.3]])
    >>> ends = symmetries(lambda x: x.double() @ seen.double(), words, 3, torch.Generator())
    >>> [way.tolist() for way in ends]
    [[2, 1, 0]]
    """
    edges, eye = torch.zeros(length, length, dtype=torch.int64), torch.eye(length).bool()
    for _ in range(_DRAWS):
        a, c, *more = words[torch.randperm(len(words), generator=generator)[:3]].tolist()
        b = more[0] if more else a
        alone = torch.where(eye, a, c)
        edges = _finer(edges, torch.diag(_classes(outputs(alone))))
        if len(torch.diagonal(edges).unique()) == length:
            return []
        if length * (length - 1) > _TEXTS:
            return None
        both = alone[:, None].repeat(1, length, 1)
        both[:, range(length), range(length)] = torch.where(eye, a, b)
        edges = _finer(edges, _classes(outputs(both.flatten(0, 1))))
    search, found, own = _Search(edges), list[Tensor](), torch.diagonal(edges).repeat(2, 1)
    for one in range(length):
        for two in range(one + 1, length):
            if edges[one, one] == edges[two, two] and search.left > 0:
                way = search.mapped(own, one, two)
                found += [] if way is None else [way]
    return found if search.left > 0 else None


def _finer(edges: Tensor, by: Tensor) -> Tensor:
    """Colours (L, L) that differ where these do, or as many others."""
    return _classes(torch.stack([edges.flatten(), by.flatten()], dim=1)).reshape(edges.shape)


def _classes(rows: Tensor) -> Tensor:
    """(N,) which of (N, C) rows are alike, but for rounding, as numbers from 0."""
    if not rows.is_floating_point():
        return rows.unique(dim=0, return_inverse=True)[1]
    scale, found = float(rows.abs().max()), torch.zeros(len(rows), dtype=torch.int64)
    for column in rows.double().T:
        values, at = column.sort()
        step = torch.zeros_like(at)
        step[1:] = (values.diff() > _SAME * max(scale, 1e-300)).long().cumsum(0)
        found = torch.stack([found, torch.empty_like(step).scatter(0, at, step)], dim=1)
        found = found.unique(dim=0, return_inverse=True)[1]
    return found


class _Search:
    """Automorphisms of a graph whose edges (L, L) have colours."""

    def __init__(self, edges: Tensor) -> None:
        self.edges, self.left = edges, _MOST
        self.pairs = _mixed(edges * _MIX + edges.T)

    def mapped(self, colours: Tensor, one: int, two: int) -> Tensor | None:
        """(L,) an automorphism that takes a place to another; None where none was found.

        The colours (2, L) are of the places and of those that they go to.
        """
        if self.left <= 0:
            return None
        self.left -= 1
        colours = colours.clone()
        colours[0, one] = colours[1, two] = int(colours.max()) + 1
        count = 0
        while True:
            # A place's colour, and those of its edges with those at their other ends.
            around = _mixed(self.pairs + _mixed(colours)[:, None, :]).sum(dim=2)
            every = torch.stack([colours.flatten(), around.flatten()], dim=1)
            colours = every.unique(dim=0, return_inverse=True)[1].reshape(2, -1)
            if not torch.equal(*colours.sort(dim=1).values):
                return None
            if (now := len(colours[0].unique())) == count:
                break
            count = now
        at = [own.argsort() for own in colours]
        if count == len(colours[0]):
            way = torch.empty_like(at[0])
            way[at[0]] = at[1]
            kept = torch.equal(self.edges[way][:, way], self.edges)
            return way if kept and way.tolist() != list(range(len(way))) else None
        names, counts = colours[0].unique(return_counts=True)
        several = names[counts > 1][0]
        first = int((colours[0] == several).nonzero()[0, 0])
        options = (colours[1] == several).nonzero()[:, 0].tolist()
        for other in sorted(options, key=lambda place: place != first):
            if (found := self.mapped(colours, first, other)) is not None:
                return found
        return None


def _mixed(numbers: Tensor) -> Tensor:
    """Whole numbers whose sums differ where the numbers do, but by chance (SplitMix64)."""
    mixed = numbers * _MIX
    mixed = (mixed ^ (mixed >> 29)) * (0x5851F42D4C957F2D)
    return mixed ^ (mixed >> 32)
