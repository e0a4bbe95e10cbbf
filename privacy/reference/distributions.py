"""dp-accounting's own privacy loss distributions of one round of each kind.

    ADDED       `from_gaussian_mechanism`
    of several  from above `from_mixture_gaussian_mechanism`, which is slow from below; there each
                move counts as the least one, which tells no more
    REPLACED    `from_gaussian_mechanism` of REPLACE_ONE
    WITHIN      from above the larger of its divergences at every loss, its dots connected;
                from below ADDED at twice the distance, a real pair of data sets
    BLANK       the same with the divergence below; from below ADDED
    lottery     `compute_mixture` of two of these

    BLANK, epsilon >= 0:   sup of  q N(2d) - (a - 1)(1 - q) N(0) - a q N(d)      a = e^epsilon
    above its root         x = (epsilon + log w) / d + 3 d / 2,   w^2 = w + c
                           c = (1 - 1/a)(1 - q) / (a q e^(d^2))

Of batches that are cut, `from_truncated_subsampled_gaussian_mechanism` takes a full one for
REPLACE_ONE at twice the clip norm: the unit 2 C from who is pushed out, and what replaces it 2 C
the other way. No two vectors of length C are 4 C apart, so that is no smaller than WITHIN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..participation import Event, ParticipationPattern, Reach, always, as_events

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


# Rounds as dp-accounting is asked about them, from `Event`s, and what it has no bound for.
#
#     adjacency            reach "sum"   reach "ball"          reach "place"
#     add or remove one    ADDED         ADDED, twice as far   ADDED, twice as far
#     zero out             ADDED         WITHIN                BLANK
#     replace one          REPLACED      WITHIN                WITHIN
#
# In full batches a ball's diameter is what replacing moves, and half of what ADDED doubles.

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
        coin: probability of each to take place, which everybody sees.
        otherwise: what takes place where it does not.
    """

    multiplier: float
    moves: ParticipationPattern
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


Array = NDArray[np.float64]


def distribution_of(
    kind: Kind, interval: float, *, tails: float, pessimistic: bool
) -> PrivacyLossDistribution:
    """The loss of one round on a grid.

    Args:
        kind: the round; its count plays no part.
        interval: of the grid, in nats.
        tails: log of the probability that may be cut off.
        pessimistic: losses rounded up, or else down.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = _of_side(kind, interval, tails=tails, pessimistic=pessimistic)
    if kind.coin == 1.0:
        return one
    if kind.otherwise is None:
        other = pld.identity(interval, pessimistic)
    else:
        other = _of_side(kind.otherwise, interval, tails=tails, pessimistic=pessimistic)
    return one.compute_mixture(other, kind.coin)


def _of_side(
    kind: Kind, interval: float, *, tails: float, pessimistic: bool
) -> PrivacyLossDistribution:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    if kind.law.is_within and pessimistic:
        return _within(kind, interval, tails=tails)
    multiplier, moves = kind.multiplier, kind.moves
    if kind.law is Law.WITHIN:
        multiplier /= 2.0
    how = {
        "pessimistic_estimate": pessimistic,
        "value_discretization_interval": interval,
        "log_mass_truncation_bound": tails,
        "use_connect_dots": pessimistic,
    }
    if kind.of_several and pessimistic:
        return pld.from_mixture_gaussian_mechanism(multiplier, *moves, **how)
    replaced = kind.law is Law.REPLACED
    relation = NeighboringRelation
    return pld.from_gaussian_mechanism(
        multiplier / min(m for m in moves.multiples if m > 0.0),
        sampling_prob=moves.rate,
        neighboring_relation=relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE,
        **how,
    )


def _within(kind: Kind, interval: float, *, tails: float) -> PrivacyLossDistribution:
    """From above: the larger divergence at every loss, which no one pair of data sets may have."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    # Both directions of the sampled Gaussian, at the distance of the law.
    blank, rate = kind.law is Law.BLANK, kind.moves.rate
    distance = (1.0 if blank else 2.0) / kind.multiplier
    remove, add = (
        GaussianPrivacyLoss(
            1.0,
            sensitivity=distance,
            log_mass_truncation_bound=tails,
            sampling_prob=rate,
            adjacency_type=way,
        )
        for way in (AdjacencyType.REMOVE, AdjacencyType.ADD)
    )
    # A replaced record: at each loss the direction whose divergence is larger there.
    if not blank:
        ends = remove.connect_dots_bounds().epsilon_upper, add.connect_dots_bounds().epsilon_lower
        grid = _grid(ends[1], ends[0], interval)
        low, high = grid[grid < 0], grid[grid >= 0]
        deltas = [add.get_delta_for_epsilon(low), remove.get_delta_for_epsilon(high)]
        return pld.PrivacyLossDistribution(_dots(grid, np.concatenate(deltas), interval))
    # A blanked record: the mixture at twice the distance, on a grid up to the largest loss.
    further = GaussianPrivacyLoss(
        1.0,
        sensitivity=2.0 * distance,
        log_mass_truncation_bound=tails,
        sampling_prob=rate,
        adjacency_type=AdjacencyType.REMOVE,
    )
    top = further.connect_dots_bounds().epsilon_upper  # the loss is less than without the blank one
    grid = _grid(add.connect_dots_bounds().epsilon_lower, top, interval)
    low, high = grid[grid < 0], grid[grid >= 0]
    ahead = [add.get_delta_for_epsilon(low), _blank(high, rate, distance)]
    # The way back at negative losses is its mirror: delta(e) = 1 - exp(e) + exp(e) delta'(-e).
    grids = grid, _grid(-top, remove.connect_dots_bounds().epsilon_upper, interval)
    low, high = grids[1][grids[1] < 0], grids[1][grids[1] >= 0]
    back = -np.expm1(low) + np.exp(low) * _blank(-low, rate, distance)
    behind = [back, remove.get_delta_for_epsilon(high)]
    found = (
        _dots(of, np.concatenate(deltas), interval)
        for of, deltas in zip(grids, (ahead, behind), strict=True)
    )
    return pld.PrivacyLossDistribution(*found)


def _grid(low: float, high: float, interval: float) -> Array:
    """Multiples of the interval around both ends, in nats."""
    steps = np.arange(math.floor(low / interval), math.ceil(high / interval) + 1)
    return np.asarray(interval * steps, dtype=np.float64)


def _dots(grid: Array, deltas: Array, interval: float) -> PLDPmf:
    from dp_accounting.pld import pld_pmf

    first = round(float(grid[0]) / interval)
    falling = np.maximum.accumulate(np.clip(deltas, 0.0, 1.0)[::-1])[::-1]  # but for rounding
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first, first + grid.size - 1, falling
    )


def _blank(epsilons: Array, rate: float, distance: float) -> Array:
    """Divergence of the mixture at twice the distance from that at the distance, from 0 nats on."""
    from scipy.special import log_ndtr, ndtr

    d, q = distance, rate
    inverse = np.exp(-epsilons)
    c = (1.0 - inverse) * (1.0 - q) / q * inverse * math.exp(-d * d)
    x = (epsilons + np.log(0.5 + np.sqrt(0.25 + c))) / d + 1.5 * d
    lost = (1.0 - q) * (1.0 - inverse) * np.exp(epsilons + log_ndtr(-x))
    lost += q * np.exp(epsilons + log_ndtr(d - x))
    return np.asarray(np.maximum(q * ndtr(2.0 * d - x) - lost, 0.0), dtype=np.float64)
