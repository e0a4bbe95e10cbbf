"""Whether a batch of tokens is the only one of its kind that explains a gradient.

A batch that explains a gradient is held against those that differ from it least: two tokens of a
record exchanged, two records' tokens at one position exchanged, a record backwards, and one token
replaced by another that is possible there. Where one of these explains the gradient as well, the
model does not tell them apart, and nothing could: what is then known is said to be less. That
neighbours are told apart does not say that all pairs are: a model may know the parity of a place
alone. Nor does an order say that every place is looked at.

Shape letters: B records, L positions, S tokens that are possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .candidates import Candidates
from .explained import Batch, Explainer

TOKENS, ROWS, PRIOR = "tokens", "token rows", "prior"  # the stages
UNKNOWN = -1

_APART = 10.0  # times what the batch leaves of the gradient: another one is told apart
_LEAST = 1e-12  # of the gradient: what float64 leaves
_TESTED = 200  # batches of a kind that are tried at most
_REPLACED = 1000  # places at which another token is tried at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What a batch that explains a gradient is certain in.

    Attributes:
        order: whether another order of a record's tokens leaves more of the gradient.
        membership: whether tokens of one position exchanged between records leave more.
        tokens: whether another token at any place leaves more; else how often a token is there is
            not known.
        runner_up: least relative residual of those batches that are told apart; None where none is.
        tested: number of batches that were tried.
    """

    order: bool
    membership: bool
    tokens: bool
    runner_up: float | None
    tested: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenReconstruction:
    """What a gradient says of a batch of tokens.

    Attributes:
        tokens: (B, L) tokens, -1 where one is not known.
        labels: (B,) classes, -1 where they are not known.
        found: tokens that the batch holds, ascending; under noise those that stand out.
        decided: "sequences" where every token is known at its place, "multisets" where the model
            does not see the order, so that how often a record holds a token is known alone, "batch"
            where the same is known of all records together, "set" where only which tokens the batch
            holds is, "nothing".
        stage: of each record: "tokens", "token rows" under noise, or "prior".
        residual: ||g - o|| / ||o|| of the batch; 1 where there is none.
        certificate: what was tried beside it; None where there is no batch.
        false_alarm: probability that any token of `found` is not in the batch; 0 without noise.
        power: share of the tokens of random batches that would be found under this noise.
        notes: what could not be decided, and why.
    """

    tokens: Tensor
    labels: Tensor
    found: tuple[int, ...]
    decided: str
    stage: tuple[str, ...]
    residual: float
    certificate: Certificate | None
    false_alarm: float
    power: float
    notes: tuple[str, ...]

    @property
    def supported(self) -> tuple[bool, ...]:
        """Of each record, whether the gradient speaks for it."""
        return tuple(stage != PRIOR for stage in self.stage)


def certified(
    explainer: Explainer, batch: Batch, *, held: Candidates, generator: torch.Generator
) -> Certificate:
    """Try the batches that differ least from one that explains a gradient.

    Args:
        held: tokens that are possible, by position.
        generator: chooses which are tried, where there are too many.
    """
    limit = _APART * max(batch.residual, _LEAST)
    kinds = (
        ("order", _reordered(batch.tokens), _TESTED),
        ("order", _transposed(batch.tokens, generator), _TESTED),
        ("members", _exchanged(batch.tokens, batch.labels), _TESTED),
        ("tokens", _replaced(batch.tokens, held, generator), _REPLACED),
    )
    left: dict[str, list[float]] = {"order": [], "members": [], "tokens": []}
    for name, others, most in kinds:
        at = torch.randperm(len(others), generator=generator)[:most].sort().values
        left[name] += [explainer.residual(others[int(i)], batch.labels) for i in at]
    every = [value for values in left.values() for value in values]
    apart = [value for value in every if value > limit]
    return Certificate(
        order=all(value > limit for value in left["order"]),
        membership=all(value > limit for value in left["members"]),
        tokens=all(value > limit for value in left["tokens"]),
        runner_up=min(apart, default=None),
        tested=len(every),
    )


def _reordered(tokens: Tensor) -> list[Tensor]:
    """Batches with two neighbours of one record exchanged, or a record backwards."""
    found = []
    for record, own in enumerate(tokens):
        for place in range(len(own) - 1):
            if own[place] != own[place + 1]:
                other = tokens.clone()
                other[record, place], other[record, place + 1] = own[place + 1], own[place]
                found.append(other)
        if not torch.equal(own, own.flip(0)):
            other = tokens.clone()
            other[record] = own.flip(0)
            found.append(other)
    return found


def _exchanged(tokens: Tensor, labels: Tensor) -> list[Tensor]:
    """Batches with the tokens of one position exchanged between two records.

    Two records that differ in one position alone, under one label, are only renamed by that.
    """
    found = []
    for one in range(len(tokens)):
        for two in range(one + 1, len(tokens)):
            differing = (tokens[one] != tokens[two]).nonzero().flatten().tolist()
            if labels[one] == labels[two] and len(differing) == 1:
                continue
            for place in differing:
                other = tokens.clone()
                other[one, place], other[two, place] = tokens[two, place], tokens[one, place]
                found.append(other)
    return found


def _transposed(tokens: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Batches with two tokens of one record exchanged that are no neighbours."""
    found = []
    length = tokens.shape[1]
    pairs = [(one, two) for one in range(length) for two in range(one + 2, length)]
    for record, own in enumerate(tokens):
        for index in torch.randperm(len(pairs), generator=generator)[:_TESTED].tolist():
            one, two = pairs[index]
            if own[one] != own[two]:
                other = tokens.clone()
                other[record, one], other[record, two] = own[two], own[one]
                found.append(other)
    return found


def _replaced(tokens: Tensor, held: Candidates, generator: torch.Generator) -> list[Tensor]:
    """Batches with another token at one place: one that is possible there, else any of the batch.

    A place at which no other token is possible, and which no token of the batch could take, has
    nothing to be mistaken for.
    """
    found = []
    for record, own in enumerate(tokens):
        for place, token in enumerate(own):
            possible = held.tokens[held.allowed[:, place] & (held.tokens != token)]
            if len(possible) == 0:
                possible = held.tokens[held.tokens != token]
            if len(possible) == 0:
                continue
            other = tokens.clone()
            at = int(torch.randint(len(possible), (1,), generator=generator))
            other[record, place] = possible[at]
            found.append(other)
    return found
