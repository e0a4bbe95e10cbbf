"""Records improved by the gradient itself, where no layer tests a single record.

One token is replaced or two are exchanged at a time, what is left of the gradient under the labels
as they are decides, and the labels are read anew after each round. It costs a gradient for every
try, and it ends at a batch that no single change improves: it finds what is almost right already.

Shape letters: B records, L positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .candidates import Candidates
from .explained import Batch, Explainer

_GRADIENTS = 3000  # of records at most
_ROUNDS = 6
_BETTER = 1 - 1e-6


def refined(
    explainer: Explainer,
    candidates: Candidates,
    start: Batch | None,
    *,
    generator: torch.Generator,
    allowed: float,
    gradients: int = _GRADIENTS,
) -> Batch | None:
    """A batch that explains the gradient at least as well.

    Args:
        candidates: which tokens may stand where.
        start: from where; random tokens where None.
        generator: of these, and of the order of tries.
        allowed: residual at which the search ends.
        gradients: of records that are computed at most.

    Returns:
        The best batch; None where labels cannot be tried.
    """
    best = start if start is not None else _drawn(explainer, candidates, generator)
    if best is None:
        return None
    spent = 0
    for _ in range(_ROUNDS):
        before = best.residual
        changes = _changes(best.tokens, candidates)
        for index in torch.randperm(len(changes), generator=generator).tolist():
            if spent >= gradients or best.residual <= allowed:
                return best
            tokens = _changed(best.tokens, changes[index])
            if torch.equal(tokens, best.tokens):
                continue
            spent += int((tokens != best.tokens).any(dim=1).sum())
            left = explainer.residual(tokens, best.labels)
            if left < best.residual * _BETTER:
                best = Batch(tokens=tokens, labels=best.labels, residual=left)
        again = explainer.labelled(_different(best.tokens))
        if again is not None and again.residual < best.residual:
            best = again
        if not best.residual < before * _BETTER:
            break
    return best


_Change = tuple[tuple[int, int, int], ...]  # records, places and their new tokens, or -1 - record


def _changes(tokens: Tensor, candidates: Candidates) -> list[_Change]:
    """Single changes: another token at a place, or two records' tokens of a place exchanged."""
    records, length = tokens.shape
    found: list[_Change] = []
    for place in range(length):
        options = candidates.tokens[candidates.allowed[:, place]].tolist()
        for one in range(records):
            found += [((one, place, token),) for token in options]
            found += [((one, place, -1 - two), (two, place, -1 - one)) for two in range(one)]
    return found


def _changed(tokens: Tensor, change: _Change) -> Tensor:
    other = tokens.clone()
    for record, place, token in change:
        other[record, place] = token if token >= 0 else tokens[-1 - token, place]
    return other


def _different(tokens: Tensor) -> list[Tensor]:
    return list(torch.unique(tokens, dim=0))


def _drawn(
    explainer: Explainer, candidates: Candidates, generator: torch.Generator
) -> Batch | None:
    """Random tokens that may stand where they do."""
    records, length = explainer.observation.records, candidates.allowed.shape[1]
    rows = []
    for _ in range(records):
        row = torch.empty(length, dtype=torch.int64)
        for place in range(length):
            options = candidates.tokens[candidates.allowed[:, place]]
            row[place] = options[torch.randint(len(options), (1,), generator=generator)]
        rows.append(row)
    return explainer.labelled(rows)
