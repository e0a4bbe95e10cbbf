"""Which units take part in a round, and how far a unit that does can move what is released.

    Ganesh. Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians
        mechanisms. arXiv:2401.10294: several records of one unit as a mixture.

The mean of one round moves by a multiple of the joint sensitivity J. The multiple is random, secret
and independent of the data:

    a record, rate q                     0 with probability 1 - q, 1 with probability q
    k records of one person              j of them with probability Bin(k, q)
    a secret cohort of units, rate p     as a record of rate p, if each unit has its own coin
    K batches within a secret cohort     sqrt(j) with probability p Bin(K, q), for j >= 1

The last line bounds j steps of one round: their J add up in squares. What is added once to a sum
moves it by a vector of length J at most, whoever else is there (reach "sum"). A clipped mean lies
in a ball of that radius instead: any two values of it may differ by 2 J (reach "ball"). In a batch
of fixed size a unit takes the place of another one, whose addition has that length too (reach
"place").
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, SupportsIndex

from .errors import InputError, InputTypeError, check_real, whole, within

MOST_RECORDS = 1000  # of one person
_SUMS_TO = 1e-12  # what probabilities may miss 1 by, for rounding


class Reach(StrEnum):
    """How far apart two values of what a unit contributes to can lie.

    SUM: the unit adds a vector of bounded length to what would be there without it.
    BALL: every value lies in a ball of that radius around a public point; two differ by twice it.
    PLACE: as a sum, but where the unit is not drawn another one is in its place.
    """

    SUM = "sum"
    BALL = "ball"
    PLACE = "place"

    @classmethod
    def _missing_(cls, value: object) -> Reach:
        known = ", ".join(f"'{member}'" for member in cls)
        raise InputError(f"reach={value!r} must be one of {known}")


class ParticipationPattern(NamedTuple):
    """By which multiple of J the mean of a round moves, and with which probability.

    Attributes:
        multiples: rising, at least 0.
        probabilities: of each; they sum to 1.
    """

    multiples: tuple[float, ...]
    probabilities: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The probability that the mean moves at all.

        >>> round(group(3, 0.02).rate, 6)
        0.058808
        """
        moved = [p for m, p in zip(self.multiples, self.probabilities, strict=True) if m > 0.0]
        still = [p for m, p in zip(self.multiples, self.probabilities, strict=True) if m == 0.0]
        return min(math.fsum(moved), 1.0) if still and any(still) else 1.0 if moved else 0.0

    @property
    def largest(self) -> float:
        """The largest multiple that has a probability."""
        every = zip(self.multiples, self.probabilities, strict=True)
        return max((m for m, p in every if p > 0.0), default=0.0)

    @property
    def is_poisson(self) -> bool:
        """Whether the mean moves by J or not at all, as that of one sampled record does."""
        return set(self.multiples) <= {0.0, 1.0}

    @property
    def as_ball(self) -> ParticipationPattern:
        """The same where any number of parts moves the mean within the one ball."""
        return poisson(self.rate)

    def checked(self) -> ParticipationPattern:
        """The same, in the order of the multiples.

        Raises:
            ValueError: multiples that do not rise from 0, or probabilities that do not sum to 1.
            TypeError: what is no number.
        """
        if len(self.multiples) != len(self.probabilities) or not self.multiples:
            raise InputError(
                f"{len(self.multiples)} multiples have {len(self.probabilities)} probabilities; "
                "give one for each"
            )
        for name, values in (("multiple", self.multiples), ("probability", self.probabilities)):
            for value in values:
                within(name, value, "[0, inf)")
        if any(a >= b for a, b in zip(self.multiples, self.multiples[1:], strict=False)):
            raise InputError(f"multiples={self.multiples} must rise; name each of them once")
        if abs(math.fsum(self.probabilities) - 1.0) > _SUMS_TO:
            raise InputError(
                f"probabilities={self.probabilities} must sum to 1, not "
                f"{math.fsum(self.probabilities):.12g}"
            )
        return self


class Event(NamedTuple):
    """One round as an accountant sees it.

    Attributes:
        noise_multiplier: noise std on what is released / J, of reach "sum" J that of one addition,
            of reach "ball" the radius.
        moves: of the mean; of reach "ball" by 0 or 1, as those of `Moves.as_ball`.
        reach: of what the unit contributes to.
        coin: probability that the round takes place, which everybody sees.
        otherwise: what takes place instead, where the coin falls the other way; nothing by default.
    """

    noise_multiplier: float
    moves: ParticipationPattern
    reach: Reach = Reach.SUM
    coin: float = 1.0
    otherwise: Event | None = None

    @property
    def rate(self) -> float:
        """The probability that the unit is in the round.

        >>> Event(1.0, poisson(0.5), coin=0.5, otherwise=Event(1.0, always())).rate
        0.75
        """
        other = 0.0 if self.otherwise is None else self.otherwise.rate
        return self.coin * self.moves.rate + (1.0 - self.coin) * other

    def scaled(self, factor: float) -> Event:
        """The same with all of its noise multiplied."""
        other = None if self.otherwise is None else self.otherwise.scaled(factor)
        return self._replace(noise_multiplier=factor * self.noise_multiplier, otherwise=other)

    @property
    def loudest(self) -> float:
        """The least noise multiplier of either side of its lottery."""
        of_other = math.inf if self.otherwise is None else self.otherwise.loudest
        return min(self.noise_multiplier, of_other)

    @property
    def reduced(self) -> Event:
        """The same without a side of its lottery that tells nothing.

        >>> free = Event(math.inf, always())
        >>> Event(1.0, poisson(0.5), coin=0.5, otherwise=free).reduced.otherwise is None
        True
        """
        other = self.otherwise
        if other is None:
            return self._replace(coin=0.0) if self.noise_multiplier == math.inf else self
        if self.coin == 1.0 or other.rate == 0.0 or other.noise_multiplier == math.inf:
            return self._replace(otherwise=None).reduced
        if self.coin * self.moves.rate == 0.0 or self.noise_multiplier == math.inf:
            return other._replace(coin=(1.0 - self.coin) * other.coin)
        return self

    @property
    def is_plain(self) -> bool:
        """Whether noise multiplier, rate and reach are all of it."""
        return self.moves.is_poisson and self.coin == 1.0 and self.otherwise is None


Rounds = Sequence[tuple[float, float]] | Mapping[tuple[float, float], int] | Mapping[Event, int]


class Draws(NamedTuple):
    """How a record, or an agent, comes to take part in one contribution.

    Attributes:
        rates: of each batch that it may be in, each drawn on its own; None is the run's rate, and
            no batch at all is sure participation.
        cohort: probability that the agent itself takes part, which nobody sees.
        scheme: how such a cohort is drawn; by a coin of each agent, or as `batches.cohorts` has it.
        whole: whether all records of a user move it by one vector together; the rates are then
            those of what brings the user in.
    """

    rates: tuple[float | None, ...] = (None,)
    cohort: float = 1.0
    scheme: str = "poisson"
    whole: bool = False

    def rate(self, run: float) -> float:
        """The probability of a record to be in at least one batch, if its agent takes part.

        >>> round(Draws((None, 0.5)).rate(0.1), 6)
        0.55
        """
        if not self.rates:
            return 1.0
        rates = [run if own is None else own for own in self.rates]
        if len(rates) == 1:
            return rates[0]
        if max(rates) >= 1.0:
            return 1.0
        return -math.expm1(math.fsum(math.log1p(-rate) for rate in rates))


def poisson(rate: float) -> ParticipationPattern:
    """One record that is drawn with probability `rate`.

    >>> poisson(0.25)
    ParticipationPattern(multiples=(0.0, 1.0), probabilities=(0.75, 0.25))
    """
    within("sampling_rate", rate, "[0, 1]", "did you mean batch_size?")
    if rate == 1.0:
        return always()
    return (
        ParticipationPattern((0.0, 1.0), (1.0 - rate, float(rate)))
        if rate > 0.0
        else ParticipationPattern((0.0,), (1.0,))
    )


def always() -> ParticipationPattern:
    """The unit takes part in every round."""
    return ParticipationPattern((1.0,), (1.0,))


def group(records: SupportsIndex, rate: float, *, within: float = 1.0) -> ParticipationPattern:
    """Several records of one person, each of which is drawn with probability `rate`.

    Args:
        records: from 1 to `MOST_RECORDS`; all of them join or leave together.
        rate: in [0, 1].
        within: probability that any is drawn at all, by a coin that moves nothing else.

    >>> [round(p, 4) for p in group(2, 0.1).probabilities]
    [0.81, 0.18, 0.01]
    >>> [round(p, 4) for p in group(2, 0.1, within=0.5).probabilities]
    [0.905, 0.09, 0.005]
    """
    count, drawn = _count("records_per_person", records), poisson(within).rate
    if count == 1:
        return poisson(drawn * poisson(rate).rate)
    return _binomial(count, poisson(rate).rate, root=False, drawn=drawn)


def cohort(
    rate: float, draws: SupportsIndex = 1, sampling_rate: float = 1.0
) -> ParticipationPattern:
    """A unit of a secret cohort, which makes `draws` batches of its own where it is in it.

    The coin is the unit's alone: where it moves others as well, they show it, and it is a public
    one (`Event.coin`).

    Args:
        rate: probability of a unit to be in the cohort, in [0, 1].
        draws: batches of a round, each released with noise of its own, from 1 to `MOST_RECORDS`.
        sampling_rate: of a record in each of these batches, in [0, 1].

    >>> [round(m, 4) for m in cohort(0.5, 2, 0.1).multiples]
    [0.0, 1.0, 1.4142]
    """
    count = _count("draws", draws)
    return _binomial(count, poisson(sampling_rate).rate, root=True, drawn=poisson(rate).rate)


def _binomial(count: int, rate: float, *, root: bool, drawn: float) -> ParticipationPattern:
    """Multiples j, or their roots, with `drawn` Bin(count, rate), and 0 for the rest."""
    from scipy.stats import binom

    found: dict[float, float] = {}
    for j in range(count + 1):
        found[math.sqrt(j) if root else float(j)] = drawn * float(binom.pmf(j, count, rate))
    found[0.0] += 1.0 - drawn
    kept = sorted((m, p) for m, p in found.items() if p > 0.0)
    return ParticipationPattern(tuple(m for m, _ in kept), tuple(p for _, p in kept))


def _count(name: str, value: SupportsIndex) -> int:
    remedy = "a person with more is better protected by a unit that is clipped as a whole"
    return whole(name, value, f"[1, {MOST_RECORDS}]", remedy)


def as_events(rounds: Rounds) -> dict[Event, int]:
    """(noise_multiplier, sampling_rate) of sums as events; equal ones are counted together.

    >>> as_events({(2.0, 1.0): 3})[Event(2.0, always())]
    3
    """
    try:
        counts = rounds if isinstance(rounds, Mapping) else Counter(rounds)
        pairs = all(isinstance(k, tuple) and (len(k) == 2 or isinstance(k, Event)) for k in counts)
    except TypeError:  # nothing to go through, or nothing to count
        pairs = False
    if not pairs:
        raise InputTypeError(
            f"rounds of {type(rounds).__name__} must be pairs (noise_multiplier, sampling_rate), "
            "or how often each occurs"
        )
    found: dict[Event, int] = {}
    for key, count in counts.items():
        if isinstance(key, Event):
            event = key
        else:
            multiplier, rate = key
            check_real("noise_multiplier", multiplier)
            event = Event(float(multiplier), poisson(rate))
        found[event] = count if event not in found else operator.index(count) + found[event]
    return found
