"""Rounds as dp-accounting is asked about them, from `Event`s, and what it has no bound for.

    adjacency            reach "sum"   reach "ball"          reach "place"
    add or remove one    ADDED         ADDED, twice as far   ADDED, twice as far
    zero out             ADDED         WITHIN                BLANK
    replace one          REPLACED      WITHIN                WITHIN

In full batches a ball's diameter is what replacing moves, and half of what ADDED doubles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..errors import InputError
from ..participation import Event, Moves, Reach, always, as_events

__all__ = ["Kind", "Law", "Unanswered", "ever_sampled", "kinds_of"]

_MOST_KINDS = 256  # of rounds that differ; each is convolved with all before it


class Unanswered(InputError):
    """dp-accounting cannot say: the reason, as a clause."""


class Law(StrEnum):
    """What one data set and the other do to the mean of a round.

    ADDED: a sum is moved or it is not.
    REPLACED: it is moved one way or the other.
    WITHIN: it lies in a ball, wherever either puts it.
    BLANK: likewise, and one of them puts it at the centre.
    """

    ADDED = "added"
    REPLACED = "replaced"
    WITHIN = "within"
    BLANK = "blank"

    @property
    def is_within(self) -> bool:
        """Whether a ball bounds it and no sum."""
        return self in (Law.WITHIN, Law.BLANK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """`count` equal rounds.

    Attributes:
        multiplier: noise std on the sum / clip norm; within a ball over its radius.
        moves: of the mean, in clip norms; within a ball by 0 or 1.
        law: of the two data sets.
        count: how many.
        coin: probability of each to take place, which everybody sees.
        otherwise: what takes place where it does not.
    """

    multiplier: float
    moves: Moves
    law: Law
    count: int = 1
    coin: float = 1.0
    otherwise: Kind | None = None

    @property
    def sides(self) -> tuple[Kind, ...]:
        """What may take place."""
        return (self,) if self.otherwise is None else (self, self.otherwise)

    @property
    def of_several(self) -> bool:
        """Whether the mean moves by one of several distances."""
        return not self.moves.is_poisson and len(self.moves.multiples) > 1

    @property
    def rate(self) -> float:
        """The probability that the unit is in one round."""
        other = 0.0 if self.otherwise is None else self.otherwise.rate
        return self.coin * self.moves.rate + (1.0 - self.coin) * other


def kinds_of(
    rounds: Mapping[tuple[float, float], int] | Mapping[Event, int], adjacency: str
) -> list[Kind]:
    """The rounds that cost anything; those with full batches are one Gaussian together.

    Raises:
        Unanswered: rounds that dp-accounting has no bound for.

    >>> from overhear.privacy.participation import poisson
    >>> [one] = kinds_of({Event(3.0, poisson(0.1), Reach.PLACE): 7}, "replace-one")
    >>> one.law, one.count
    (<Law.WITHIN: 'within'>, 7)
    """
    kinds, squares = [], 0.0
    for event, count in sorted(as_events(rounds).items(), key=lambda item: item[0][:4]):
        event = event.reduced
        if event.rate == 0.0 or event.noise_multiplier == math.inf or count == 0:
            continue
        if event.loudest == 0.0:
            raise Unanswered("a round has no noise")
        whole = event.coin == 1.0 and event.moves.rate == 1.0 and len(event.moves.multiples) == 1
        kind = _kind(event, adjacency, count)
        if whole:
            squares += count * (_distance(event, adjacency) / event.noise_multiplier) ** 2
        else:
            kinds.append(kind)
    if len(kinds) > _MOST_KINDS:
        raise Unanswered(
            f"{len(kinds)} different rounds take too long to compose; the bound is "
            f"{_MOST_KINDS} at most"
        )
    if squares > 0.0:
        law = Law.REPLACED if adjacency == "replace-one" else Law.ADDED
        kinds.append(Kind(multiplier=squares**-0.5, moves=always(), law=law))
    return kinds


def _distance(event: Event, adjacency: str) -> float:
    """How far a full batch is moved, in clip norms; half of it where the unit is replaced."""
    # Nobody is in a place instead of a record whose values become nothing.
    blank = event.reach is Reach.PLACE and adjacency == "zero-out"
    within = event.reach is not Reach.SUM and adjacency != "replace-one" and not blank
    return 2.0 if within else event.moves.largest


def _kind(event: Event, adjacency: str, count: int) -> Kind:
    multiplier, moves = event.noise_multiplier, event.moves
    if event.reach is Reach.SUM:
        law = Law.REPLACED if adjacency == "replace-one" else Law.ADDED
    elif adjacency == "add-or-remove-one":
        law, multiplier = Law.ADDED, multiplier / 2.0
    else:
        blank = event.reach is Reach.PLACE and adjacency == "zero-out"
        law = Law.BLANK if blank else Law.WITHIN
    if law is Law.REPLACED and not moves.is_poisson and len(moves.multiples) > 1:
        raise Unanswered("it has no bound for several records that are replaced together")
    return Kind(
        multiplier=multiplier,
        moves=moves if event.reach is Reach.SUM else moves.as_ball,
        law=law,
        count=count,
        coin=event.coin,
        otherwise=None if event.otherwise is None else _kind(event.otherwise, adjacency, 1),
    )


def ever_sampled(kinds: Sequence[Kind]) -> float:
    """No delta is larger than the probability that the record is in any batch."""
    if any(k.rate == 1.0 for k in kinds):
        return 1.0
    return -math.expm1(sum(k.count * math.log1p(-k.rate) for k in kinds))
