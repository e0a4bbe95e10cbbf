"""What a statement calls the way in which units come to take part."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ..errors import InputError
from ..participation import Draws, Event, ParticipationPattern, Reach, always, poisson

# How an agent draws its batches, and the rounds that an accountant sees of them.
#
#     scheme      a batch is                                   a unit is in it
#     poisson     each record by itself, at the rate q         with probability q
#     truncated   the same; of more than B a uniform B         nearly so; it may push another one
#     out
#     fixed       b of n records, every round anew             with probability b / n, for another
#     one
#     shuffled    the next b of an order, anew every epoch     once an epoch of floor(n / b) rounds
#     cyclic      the next b of one order                      in the same round of every epoch
#
#     Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018, arXiv:1807.01647.
#     Ganesh. Accounting for truncated Poisson batches. arXiv:2508.15089: the lottery.
#
# Shuffled and cyclic batches leave out the records of an order that fill no batch; an order counts
# as public. The proofs stand in docs/mathematics.md. n is a public number.

_NEARLY_1 = 1.0 - 2.0**-52  # a smaller probability to be full counts as so much
MOST_COUNTED = 10**12  # records of an agent, or of a batch; sizes beyond are told apart no more
MOST_STEPS = 10_000  # of one local update, each on a batch
RARE = 1e-8  # probability of a batch to overflow that "auto" aims at


class Per(StrEnum):
    """What is drawn, or clipped, as one: a record, or all records of a user."""

    RECORD = "record"
    USER = "user"

    @classmethod
    def _missing_(cls, value: object) -> Per:
        raise InputError(f"per={value!r:.40} must be 'record' or 'user'")


class Scheme(StrEnum):
    """How batches are drawn.

    >>> Scheme.CYCLIC.in_epochs, Scheme.FIXED.in_epochs
    (True, False)
    """

    POISSON = "poisson"
    TRUNCATED = "truncated"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"

    @property
    def in_epochs(self) -> bool:
        """Whether a record is in one batch of an epoch at most."""
        return self in (Scheme.SHUFFLED, Scheme.CYCLIC)


class Drawing(NamedTuple):
    """How one agent, or each of several, draws its batches.

    Attributes:
        scheme: any but Poisson, whose rate is all of it.
        records: n of the agent, or the least one of several.
        size: b; B of truncated batches.
        most: the largest n of several agents; n where there is one.
        of_agents: whether cohorts of agents are drawn so, and not batches of records.
    """

    scheme: Scheme
    records: int
    size: int
    most: int
    of_agents: bool = False

    @property
    def named(self) -> str:
        """What is drawn, and how.

        >>> Drawing(Scheme.FIXED, 500, 10, 500).named
        "batches='fixed'"
        """
        return f"cohorts '{self.scheme}'" if self.of_agents else f"batches='{self.scheme}'"

    @property
    def rate(self) -> float:
        """Of a record in one batch; truncated batches have a rate of their own.

        >>> Drawing(Scheme.FIXED, 500, 10, 500).rate
        0.02
        """
        return self.size / self.records

    @property
    def epoch(self) -> int:
        """Rounds of an epoch.

        >>> Drawing(Scheme.SHUFFLED, 25, 10, 25).epoch
        2
        """
        return self.records // self.size

    def together(self, other: Drawing) -> Drawing:
        """What bounds a record of either of two agents."""
        return self._replace(
            records=min(self.records, other.records), most=max(self.most, other.most)
        )

    def event(self, multiplier: float, reach: Reach, rate: float, *, added: bool) -> Event:
        """One round of fixed or truncated batches.

        Args:
            multiplier: noise std / joint sensitivity; of reach "ball" over the radius.
            reach: "sum", or "ball" for means that are clipped.
            rate: of Poisson batches that are truncated.
            added: whether a record is added or removed, so that n differs by one.
        """
        if self.scheme is Scheme.FIXED:
            of = poisson(self.rate)
            return Event(multiplier, of, Reach.PLACE if reach is Reach.SUM else reach)
        whole = Event(multiplier, poisson(rate), reach)
        if reach is Reach.BALL:
            return whole  # it stays in its ball whoever is pushed out, and is drawn less often
        # Whether the others alone fill the batch does not depend on the record: a public lottery.
        least, most = self.records, self.most + added
        full, pushed = overflow(most, rate, self.size)
        if least < most:  # drawn at the full rate, a record loses more, for every n between
            pushed = rate
        if full == 0.0:
            return whole
        there = Event(multiplier, poisson(pushed), Reach.PLACE)
        return whole._replace(coin=min(1.0 - full, _NEARLY_1), otherwise=there)


def overflow(records: int, rate: float, largest: int) -> tuple[float, float]:
    """Of Poisson batches cut at `largest`: how often the others fill one, and a record's rate then.

    Args:
        records: n, the record among them.
        rate: q.
        largest: B.

    Returns:
        P(Bin(n - 1, q) >= B), and P(Bin(n, q) > B) B / n over it, at most q.

    >>> full, rate = overflow(500, 0.02, 21)
    >>> round(full, 5), round(rate, 4)
    (0.00137, 0.0185)
    """
    from scipy.stats import binom

    full = float(binom.sf(largest - 1, records - 1, rate))
    over = float(binom.sf(largest, records, rate))
    if full < 1e-290:  # a quotient of such numbers has no digits
        return full, rate
    return full, min(over * largest / (records * full) * (1.0 + 1e-9), rate)


def largest_for(records: int, rate: float) -> int:
    """The least B that a Poisson batch exceeds with probability `RARE` at most.

    >>> largest_for(60_000, 0.01)
    742
    """
    from scipy.stats import binom

    found = max(int(binom.isf(RARE, records, rate)), 1)
    while float(binom.sf(found, records, rate)) > RARE:
        found += 1
    while found > 1 and float(binom.sf(found - 1, records, rate)) <= RARE:
        found -= 1
    return found


def drawings(
    batches: str,
    records: Sequence[int],
    *,
    batch_size: float | None,
    sampling_rate: float,
    largest_batch: int | str | None = None,
) -> tuple[Drawing, ...] | None:
    """How every agent draws its batches; None where each record is drawn on its own.

    Args:
        batches: "poisson", "fixed", "shuffled" or "cyclic".
        records: of each agent, which count as public.
        batch_size: b, where batches are not Poisson.
        sampling_rate: q of Poisson batches.
        largest_batch: B, at which Poisson batches are cut; "auto" where they exceed it with
            probability `RARE` at most.

    Raises:
        ValueError: an unknown scheme, a size that some agent cannot draw, or a key that is not its.

    >>> drawings("fixed", [500, 400], batch_size=10, sampling_rate=0.02)[1].rate
    0.025
    """
    known = [s for s in Scheme if s is not Scheme.TRUNCATED]
    if batches not in known:
        raise InputError(
            f"batches={batches!r} must be one of {', '.join(repr(str(s)) for s in known)}; no "
            "bound is known here for batches drawn otherwise, so draw each record on its own"
        )
    scheme = Scheme(batches)
    # Probabilities that depend on the number of records are counted up to a bound only.
    if max(records, default=0) > MOST_COUNTED and (
        scheme is not Scheme.POISSON or largest_batch is not None
    ):
        raise InputError(
            f"records={max(records)} of an agent must be at most {MOST_COUNTED:g} where batches "
            "depend on them; lower it, or use batches='poisson' without largest_batch"
        )
    # Batches of one size: the agent's number of records makes the rate.
    if scheme is not Scheme.POISSON:
        if largest_batch is not None:
            raise InputError(
                f"largest_batch={largest_batch!r} cuts Poisson batches; with batches={batches!r} "
                "every batch has batch_size records, so leave it out"
            )
        if batch_size is None or not records:
            raise InputError(
                f"batches={batches!r} needs batch_size and the public number of records of every "
                "agent; give both"
            )
        size = check_size(batch_size, records, scheme=scheme)
        return tuple(Drawing(scheme, n, size, n) for n in records)
    # Poisson batches that nothing cuts draw each record on its own.
    if largest_batch is None:
        return None
    if not records:
        raise InputError("largest_batch needs the public number of records of every agent")
    # Where Poisson batches are cut: one size for every agent, which "auto" fits to all of them.
    if largest_batch == "auto":
        largest = max(largest_for(n, sampling_rate) for n in set(records))
    elif isinstance(largest_batch, bool) or not isinstance(largest_batch, int):
        raise InputError(f"largest_batch={largest_batch!r} must be an integer, or 'auto'")
    elif not 1 <= largest_batch <= MOST_COUNTED:
        raise InputError(
            f"largest_batch={largest_batch} must lie in [1, {MOST_COUNTED:g}]; leave it out where "
            "batches are not cut"
        )
    else:
        largest = largest_batch
    return tuple(Drawing(Scheme.TRUNCATED, n, largest, n) for n in records)


class EpochRound(NamedTuple):
    """Equal rounds of epochs, one after another.

    Attributes:
        first: number of the first one, from 1.
        replays: how often any of them was released once more, with the same batches.
        moves: of the mean in the round of an epoch in which the unit may be.
    """

    multiplier: float
    reach: Reach
    first: int
    rounds: int
    replays: int = 0
    moves: ParticipationPattern = always()


def epoch_events(rounds: Sequence[EpochRound], epoch: int, *, replaced: bool) -> dict[Event, int]:
    """What a record costs that takes part once in `epoch` rounds: of each the dearest.

    Args:
        rounds: in order.
        epoch: rounds of an epoch; the last one may be cut off.
        replaced: whether another record is in its place, or else none of its values.

    Raises:
        ValueError: rounds that differ in how the unit takes part, of which none is the dearest.
    """
    found: dict[Event, int] = {}
    # Rounds that differ in how a record takes part have no dearest one among them.
    if len({(one.moves, one.reach) for one in rounds}) > 1 and any(
        one.moves != always() for one in rounds
    ):
        raise InputError(
            "rounds of one epoch in which records are drawn at different rates, or stay in a ball "
            "in some of them alone, have no bound; let all rounds do the same, or let each agent "
            "take part by a coin of its own"
        )

    def note(one: EpochRound, count: int) -> None:
        if count > 0 and one.multiplier < math.inf:
            event = Event(one.multiplier, one.moves, one.reach)
            found[event] = found.get(event, 0) + count

    def dearness(one: EpochRound) -> float:
        """How far a record moves the round, in noise stds."""
        twice = replaced or one.reach is Reach.BALL
        return (2.0 if twice else 1.0) / max(one.multiplier, 1e-300)

    # A record takes part once in each epoch, and counts in the dearest round of that epoch.
    dearest: dict[int, EpochRound] = {}  # of epochs that meet several kinds of rounds
    for one in rounds:
        note(one, one.replays)
        if one.rounds == 0:
            continue
        begins, ends = (one.first - 1) // epoch, (one.first + one.rounds - 2) // epoch
        for number in {begins, ends}:
            held = dearest.get(number)
            if held is None or dearness(one) > dearness(held):
                dearest[number] = one
        note(one, max(ends - begins - 1, 0))
    for one in dearest.values():
        note(one, 1)
    return found


def check_size(size: float, records: Sequence[int], *, scheme: Scheme) -> int:
    """The size of a batch that every agent can draw.

    Raises:
        ValueError: it is no integer, or more than the records of an agent.

    >>> check_size(10.0, [500, 20], scheme=Scheme.FIXED)
    10
    """
    if size != int(size) or size < 1:
        raise InputError(
            f"batch_size={size:g} must be an integer of at least 1 with batches='{scheme}': it is "
            "the size of every batch"
        )
    least = min(records)
    if size > least:
        raise InputError(
            f"batch_size={size:g} is more than the {least} records of agent "
            f"{list(records).index(least)}; with batches='{scheme}' every agent needs at least one "
            "batch, so lower it or use fewer agents"
        )
    return int(size)


class Sampling(enum.StrEnum):
    """How a batch is drawn, or whether an agent takes part."""

    POISSON = "poisson"
    FULL = "full batch"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"
    TRUNCATED = "truncated"
    ANY = "any: a record may be in every batch"
    TURNS = "in turns: a record may be in some rounds alone, and in all of these"
    POISSON_TURNS = "poisson, in turns"
    EVERY = "none: an agent takes part in every round"
    COHORT = "secret cohort"
    FIXED_COHORT = "secret cohort of fixed size"
    SHUFFLED_COHORT = "shuffled cohorts"
    CYCLIC_COHORT = "cohorts in one order"

    @classmethod
    def _missing_(cls, value: object) -> Sampling:
        raise InputError(
            f"sampling={value!r} must be 'poisson', 'full batch', 'fixed', 'shuffled', 'cyclic' or "
            "'truncated': no bound is known here for batches drawn otherwise, and amplification by "
            "Poisson sampling does not hold for them; draw each record on its own"
        )

    @staticmethod
    def of_cohort(scheme: Scheme) -> Sampling:
        """Who takes part in a round, by how a cohort is drawn.

        >>> Sampling.of_cohort(Scheme.SHUFFLED)
        <Sampling.SHUFFLED_COHORT: 'shuffled cohorts'>
        """
        return {
            Scheme.FIXED: Sampling.FIXED_COHORT,
            Scheme.SHUFFLED: Sampling.SHUFFLED_COHORT,
            Scheme.CYCLIC: Sampling.CYCLIC_COHORT,
        }.get(scheme, Sampling.COHORT)

    @property
    def is_secret_cohort(self) -> bool:
        """Whether it rests on nobody knowing who takes part.

        >>> [str(one) for one in Sampling if one.is_secret_cohort]
        ['secret cohort', 'secret cohort of fixed size']
        """
        return self in (Sampling.COHORT, Sampling.FIXED_COHORT)


# How a cohort of agents is drawn otherwise than by coins, and how an agent comes to be in it.
#
#     scheme      a cohort is                                    an agent is in it
#     fixed       m of A agents, every round anew                with probability m / A, for another
#     shuffled    the next m of an order, anew every epoch       once an epoch of floor(A / m)
#     rounds
#     cyclic      the next m of one order                        in the same round of every epoch
#
# An agent is to a cohort what a record is to a batch, so the figures are those of `drawing`. But an
# agent knows whether it takes part, as no record does. Of a fixed cohort that tells about the
# others: with a_S of the adversary's S agents in it, the other A - S fill m - a_S places. However
# they fall, an agent is in it with probability min(m, A - S) / (A - S) at most, and a rate that is
# larger costs no less: at rate 0 nothing is lost, and hockey-stick divergences are convex in the
# rate.

COHORTS = (Scheme.POISSON, Scheme.FIXED, Scheme.SHUFFLED, Scheme.CYCLIC)
_ROUNDING = 1e-9  # by which a rate times a number of agents may miss an integer


def scheme_of_cohort(scheme: object) -> Scheme:
    """The scheme by its name.

    Raises:
        ValueError: no cohort is drawn so.

    >>> scheme_of_cohort("fixed")
    <Scheme.FIXED: 'fixed'>
    """
    if not isinstance(scheme, str) or scheme not in COHORTS:
        known = ", ".join(repr(str(one)) for one in COHORTS)
        raise InputError(
            f"scheme={scheme!r:.40} must be one of {known}; no bound is known here for cohorts "
            "drawn otherwise, so let each agent take part by a coin of its own"
        )
    return Scheme(scheme)


def size_of_cohort(rate: float, agents: int, *, scheme: Scheme) -> int:
    """How many agents a cohort has that is not Poisson.

    Args:
        rate: share of the agents, in (0, 1].
        agents: A.

    Raises:
        ValueError: it is no whole number of agents.

    >>> size_of_cohort(0.01, 10_000, scheme=Scheme.FIXED)
    100
    """
    size = round(rate * agents)
    if size < 1 or abs(rate * agents - size) > _ROUNDING * size:
        near = max(size, 1)
        raise InputError(
            f"a cohort at rate {rate:.12g} of {agents} agents has {rate * agents:.12g} members; "
            f"with cohorts '{scheme}' it must be a whole number of them: use a rate such as "
            f"{near}/{agents} = {near / agents:.12g}, or cohorts 'poisson'"
        )
    return size


def drawing_of_cohort(draws: Draws, *, agents: int, known: int = 0) -> Drawing | None:
    """How an agent comes to be in a cohort, for an adversary of some agents; None if by a coin.

    Args:
        draws: of a contribution.
        agents: A, of the run.
        known: S, how many of them the adversary is.

    Raises:
        ValueError: a cohort of no whole number of agents.
    """
    if draws.scheme == Scheme.POISSON:
        return None
    scheme = scheme_of_cohort(draws.scheme)
    size = size_of_cohort(draws.cohort, agents, scheme=scheme)
    if scheme.in_epochs:  # their order counts as public
        return Drawing(scheme, agents, size, agents, of_agents=True)
    others = max(agents - known, 1)
    return Drawing(scheme, others, min(size, others), others, of_agents=True)


def cohort_words(draws: Draws) -> str:
    """How an agent comes to take part, after "in".

    >>> cohort_words(Draws((), 0.01)), cohort_words(Draws((), 0.01, "fixed"))[:29]
    ('a secret cohort with probability 0.01', 'a secret cohort of fixed size')
    """
    share = f"{draws.cohort:g}"
    match draws.scheme:
        case Scheme.FIXED:
            return f"a secret cohort of fixed size, {share} of the agents"
        case Scheme.SHUFFLED:
            return f"one cohort of every epoch, {share} of the agents, which are shuffled anew"
        case Scheme.CYCLIC:
            return f"one cohort of every epoch, {share} of the agents in one order"
        case _:
            return f"a secret cohort with probability {share}"
