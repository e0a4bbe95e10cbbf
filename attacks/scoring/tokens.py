"""How many tokens of a batch were rebuilt, beside a guess that does not look at the gradient.

Three shares count, from the most that can be known to the least: tokens that are right at their
place, tokens of the batch that are right wherever they stand (as a multiset), and different tokens
of the batch that are known to be in it. Records are matched so that most tokens stand at their
place.

Shape letters: B records, L positions, N public records, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """What is right of a batch of tokens.

    Attributes:
        placed: share of the B L tokens that are right at their place.
        multiset: share of them that are right, wherever they stand.
        whole: number of records in which every token is right at its place.
        present: share of the different tokens of the batch that are known to be in it.
        false: number of tokens that are said to be in the batch and are not.
    """

    placed: float
    multiset: float
    whole: int
    present: float
    false: int


def score_tokens(
    truth: Tensor, tokens: Tensor, *, found: Collection[int] = (), ordered: bool = True
) -> TokenScores:
    """Hold what was rebuilt against the true batch.

    Args:
        truth: (B, L) true tokens.
        tokens: (B, L) rebuilt ones, -1 where one is not known.
        found: tokens that are known to be in the batch, beside those.
        ordered: whether the rebuilt tokens stand at places; else none is right at its place.
    """
    equal = (truth[:, None] == tokens[None]).sum(dim=2)  # (B, B)
    rows, columns = linear_sum_assignment(-equal.numpy())
    best = equal[rows, columns]
    known = Counter(tokens[tokens >= 0].tolist())
    for token in found:
        known[token] = max(known[token], 1)
    true = Counter(truth.flatten().tolist())
    size = truth.numel()
    return TokenScores(
        placed=float(best.sum()) / size if ordered else 0.0,
        multiset=sum((known & true).values()) / size,
        whole=int((best == truth.shape[1]).sum()) if ordered else 0,
        present=len(set(known) & set(true)) / len(true),
        false=len(set(known) - set(true)),
    )


def guess_placed(public: Tensor) -> Tensor:
    """(L,) the most frequent token of public records (N, L) at each position."""
    return torch.mode(public, dim=0).values


def guess_multiset(public: Tensor, records: int) -> Tensor:
    """(B, L) tokens in the proportions of public records (N, L), in no order.

    >>> guess_multiset(torch.tensor([[1, 1, 1, 4], [1, 1, 4, 7]]), 1).tolist()
    [[1, 1, 1, 4]]
    """
    tokens, counts = public.unique(return_counts=True)
    size = records * public.shape[1]
    exact = counts.double() * size / public.numel()
    number = exact.floor().long()
    rest = (exact - number).argsort(descending=True, stable=True)[: size - int(number.sum())]
    number[rest] += 1
    return tokens.repeat_interleave(number).reshape(records, -1)
