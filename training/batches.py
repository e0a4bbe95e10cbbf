"""Draws batches of fixed size, of shuffled or of one order, and Poisson batches that are cut.

    fixed       b positions of n, uniform, from the secret stream of its round and agent
    truncated   a Poisson batch; of more than B positions a uniform B
    shuffled    positions i b to (i + 1) b of an order of its agent and epoch
    cyclic      the same of 0, 1, ..., n - 1

The order of an epoch follows from a public seed, the agent and the epoch alone. It counts as public
in every figure, so a run that goes on, on whatever ranks, goes on with the batches that it would
have drawn, and a round that is released again holds the same records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..privacy.batches.patterns import Pattern, PatternKind, counts_words, drawn_words
from ..privacy.batches.sampling import Drawing, Per, Scheme, size_of_cohort
from ..privacy.errors import InputError
from .data.partition import poisson_batch
from .data.store import Store, digests_of
from .step.script import Operation
from .step.values import Cohort

# Batches of whole users, and whose the records of a batch are.
#
# Each user of an agent has a coin of its own, whatever the number of its records, and all of them
# are in the batch where it falls that way. Who has records is secret, and so is how many users
# there are: nothing here is sent.

NO_USERS = (
    "the step draws or clips by user, and nothing says whose a record is: name a column by [data] "
    "user, or give a data set or a setting its users"
)


def drawn_users(users: Tensor, rate: float, *, generator: np.random.Generator) -> NDArray[np.int64]:
    """(B,) ascending positions of the records of a Poisson batch of users.

    Args:
        users: (n,) the number of the user of each record of an agent.
        rate: probability of a user to be in the batch.
        generator: secret, of this batch alone.

    >>> of = torch.tensor([5, 7, 5, 9, 7])
    >>> drawn_users(of, 0.5, generator=np.random.default_rng(1)).tolist()
    [3]
    """
    names, number = np.unique(users.numpy(), return_inverse=True)
    chosen = poisson_batch(len(names), rate, generator=generator)
    return np.flatnonzero(np.isin(number, chosen)).astype(np.int64)


def check_users_of(users: Sequence[Tensor], held: Sequence[int]) -> None:
    """Refuse users that are not one for each record of each agent.

    Args:
        users: by agent the number of the user of each of its records.
        held: by agent how many records it holds.

    Raises:
        ValueError: another number of agents, or of records of one.
    """
    if len(users) != len(held):
        raise InputError(f"users are of {len(users)} agents, and there are {len(held)}")
    for agent, (of, records) in enumerate(zip(users, held, strict=True)):
        if of.dtype != torch.int64 or tuple(of.shape) != (records,):
            raise InputError(
                f"users of agent {agent} must be {records} int64 numbers, one a record, not "
                f"{tuple(of.shape)} {of.dtype}"
            )


def needs_users(script: Sequence[Operation]) -> bool:
    """Whether a round draws or clips by user.

    >>> needs_users([Operation("draw", (("sampling_rate", None), ("per", "user")))])
    True
    """
    return any(("per", Per.USER.value) in entry.given for entry in script)


# Keeps every record to the rounds that its pattern allows.
#
# The turn of a record follows from the record itself and a public seed: from the SHA-256 of what it
# holds, never from where it stands. So a record more or less changes nobody else's turn, a run that
# goes on keeps to the turns that it began with, and whoever holds the records can look them up.
# Equal records have equal turns. Within its turn a record is drawn by a secret coin of its own.
#
#     cycle b     round t is the turn of group (t - 1) mod b, of b groups
#     apart b     windows of 2 b - 1 rounds, each record's from another round on; in each of them
#     one
#                 of the first b rounds
#     most k      k stretches of the run, as long as each other but for one round; one round of each
#     rounds      those of the list
#
# `Kept` is what an engine holds against it: it sees the batches alone, and stops a round whose
# batch breaks the promise, however it was drawn.

Keys = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Participation:
    """Whose turn it is, in every round of a run.

    Attributes:
        pattern: what is promised of a record's rounds.
        rounds: T, of the run.
        coin: the rate at which a record is drawn in its turn.
        keys: of each agent a number for each record, which follows from the record and the seed.
        seed: public.
    """

    pattern: Pattern
    rounds: int
    coin: float
    keys: tuple[Keys, ...]
    seed: int = 0

    def allowed(self, agent: int, round: int) -> Bools:
        """(n,) whether it is the turn of each of an agent's records."""
        keys, b = self.keys[agent], self.pattern.number
        if not 1 <= round <= self.rounds:
            return np.zeros(len(keys), dtype=np.bool_)
        match self.pattern.kind:
            case PatternKind.CYCLE:
                return np.asarray(_below(_mixed(keys, 0), b) == (round - 1) % b)
            case PatternKind.APART:
                long = 2 * b - 1
                local = round - 1 + _below(_mixed(keys, 0), long)
                window, place = local // long, local % long
                return np.asarray(_below(_mixed(keys, window + 1), b) == place)
            case PatternKind.MOST:
                k = min(b, self.rounds)
                stretch = (round * k - 1) // self.rounds  # of k, each of T / k rounds
                start, end = stretch * self.rounds // k, (stretch + 1) * self.rounds // k
                return np.asarray(_below(_mixed(keys, stretch), end - start) == round - 1 - start)
            case PatternKind.ROUNDS:
                return np.full(len(keys), round in self.pattern.rounds)
            case _:
                return np.ones(len(keys), dtype=np.bool_)

    def draw(self, *, agent: int, round: int, generator: np.random.Generator) -> Indices:
        """(B,) ascending positions of a batch: of the records whose turn it is, by coins."""
        turn = self.allowed(agent, round)
        # A coin for everybody, so that whose turn it is moves nobody else's.
        chosen = poisson_batch(len(turn), self.coin, generator=generator)
        return np.asarray(chosen[turn[chosen]], dtype=np.int64)

    @property
    def digest(self) -> str:
        """Of the pattern, its numbers and every record's turns; to be compared in memory alone.

        One who knows all records but one could tell by it which the last one is.
        """
        told = hashlib.sha256(repr((self.pattern, self.rounds, self.coin, self.seed)).encode())
        for of in self.keys:
            told.update(len(of).to_bytes(8, "little") + of.astype("<u8").tobytes())
        return told.hexdigest()

    def check_goes_on(self, digest: str | None) -> None:
        """Refuse a run that is to go on with other turns than it began with, or with unknown ones.

        Raises:
            ValueError: the digest is none, or that of others.
        """
        if digest != self.digest:
            what = "is missing" if digest is None else "is that of other turns"
            raise InputError(
                f"turns {what}: records that are others today would be in rounds of two patterns; "
                "give turns=setting.turns_digest of the engine whose snapshot this is"
            )

    def fitting(self, held: Sequence[int]) -> Participation:
        """The same turns for agents that hold more records behind those that have one."""
        keys = (np.resize(of, n) for of, n in zip(self.keys, held, strict=True))
        return replace(self, keys=tuple(keys))

    def check(self, held: Sequence[int], *, sampling_rate: float, alone: bool) -> None:
        """Refuse turns that are not of a run's records, or at another rate than the run's.

        Args:
            held: by agent how many records it holds.
            alone: whether each record is drawn on its own.
        """
        if not alone or list(held) != [len(keys) for keys in self.keys]:
            raise InputError(
                "turns are of the records that the agents hold, each of which is drawn on its own "
                "in its turn; make them of the run's shards, without a sampler"
            )
        coin = self.pattern.coin(sampling_rate, self.rounds)
        if self.coin != coin:
            raise InputError(
                f"coin={self.coin:g} of turns is not that of sampling_rate={sampling_rate:g}, "
                f"{coin:g}; make them by turns_of"
            )

    def check_draw(self, *, round: int, rate: float | None) -> None:
        """Refuse a batch that has no turn: one of the start, or at a rate of its own."""
        if round < 1 or rate is not None:
            what = "a batch of the start" if round < 1 else f"a batch at rate={rate}"
            raise InputError(
                f"{what} has no turn in participation {self.pattern.entry}; draw batches in rounds "
                'alone, by round.draw() without a rate, or use participation = "every"'
            )


def turns_of(
    pattern: Pattern, shards: Sequence[Store], *, rounds: int, sampling_rate: float, seed: int
) -> Participation | None:
    """The turns of the records that agents hold; None where every round may be anybody's.

    Args:
        shards: of each agent.
        rounds: T.
        sampling_rate: of plain Poisson batches of the same mean size.
        seed: public, in [0, 2^64).

    Raises:
        ValueError: turns so rare that batches of that size cannot be drawn.
    """
    if pattern.is_every:
        return None
    coin = pattern.checked(rounds).coin(sampling_rate, rounds)
    keys = tuple(_keys(shard, seed) for shard in shards)
    return Participation(pattern=pattern, rounds=rounds, coin=coin, keys=keys, seed=seed)


def _keys(records: Store, seed: int) -> Keys:
    """(n,) the first words of the records' digests, mixed with the seed."""
    digests = digests_of(records)
    words = np.frombuffer(digests.tobytes(), dtype="<u8").reshape(len(digests), -1)[:, 0]
    return _mixed(words.astype(np.uint64), np.uint64(seed))


def _mixed(keys: Keys, number: int | np.uint64 | NDArray[np.integer]) -> Keys:
    """Other numbers for each key, by SplitMix64; `number` tells them apart."""
    with np.errstate(over="ignore"):
        odd = np.asarray(number).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = keys + odd + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def _below(keys: Keys, bound: int) -> Indices:
    return (keys % np.uint64(bound)).astype(np.int64)


class ParticipationCheck:
    """The batches of a run so far, and whether each record kept to its pattern.

    Args:
        records: by agent how many it holds.
    """

    def __init__(self, pattern: Pattern, *, records: Sequence[int]) -> None:
        self._pattern, self._latest = pattern, 0
        self._first = [np.zeros(n, dtype=np.int64) for n in records]
        self._last = [np.zeros(n, dtype=np.int64) for n in records]
        self._count = [np.zeros(n, dtype=np.int64) for n in records]

    def note(self, drawn: Mapping[int, Indices], *, round: int) -> None:
        """Take batches in before anything is computed of them.

        Args:
            drawn: positions of the batch by agent.
            round: its number. A round before the latest is one that is watched once more.

        Raises:
            ValueError: a record is in one of them out of its turn.
        """
        if self._pattern.is_every or round < self._latest:
            return
        self._latest = round
        for agent, positions in drawn.items():
            self._note(agent, round=round, positions=positions)

    def _note(self, agent: int, *, round: int, positions: Indices) -> None:
        at = np.unique(positions)
        first, last, count = self._first[agent], self._last[agent], self._count[agent]
        again = last[at] == round  # another batch of this round
        b, used = self._pattern.number, (first[at] > 0) & ~again
        match self._pattern.kind:
            case PatternKind.CYCLE:
                broken = used & ((round - first[at]) % b != 0)
            case PatternKind.APART:
                broken = used & (round - last[at] < b)
            case PatternKind.MOST:
                broken = ~again & (count[at] >= b)
            case PatternKind.ROUNDS:
                broken = np.full(len(at), round not in self._pattern.rounds)
            case _:
                broken = np.zeros(len(at), dtype=bool)
        if broken.any():
            raise InputError(
                f"round {round} was stopped: its batch of agent {agent} holds a record that was "
                "in other rounds than it may be by participation "
                f"{self._pattern.entry}; nothing of the round was sent"
            )
        first[at] = np.where(first[at] > 0, first[at], round)
        count[at] += ~again
        last[at] = round


_ORDERS = 0x6F72646572  # beside the seed in the key, so that no other stream is met


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """How all agents draw.

    Attributes:
        drawn: of each agent.
        order_seed: of the orders of shuffled epochs, in [0, 2^64).
    """

    drawn: tuple[Drawing, ...]
    order_seed: int

    @property
    def scheme(self) -> Scheme:
        """How batches are drawn, on every agent alike."""
        return self.drawn[0].scheme

    def words(self, sampling_rate: float) -> str:
        """How batches are drawn, and what counts as public, in sentences."""
        return f"{drawn_words(self.drawn, sampling_rate)}. {counts_words(self.drawn)}."

    def draw(
        self, *, agent: int, round: int, call: int, rate: float, generator: np.random.Generator
    ) -> Indices:
        """Positions of one batch in the agent's records.

        Args:
            call: of `draw` in the round.
            generator: secret, of this round, call and agent alone.

        Returns:
            (B,) ascending.

        Raises:
            ValueError: a batch that no epoch has room for.
        """
        of = self.drawn[agent]
        if of.scheme is Scheme.TRUNCATED:
            chosen = poisson_batch(of.records, rate, generator=generator)
            if chosen.size > of.size:
                chosen = np.sort(generator.choice(chosen, of.size, replace=False))
            return chosen
        if of.scheme is Scheme.FIXED:
            taken = generator.choice(of.records, of.size, replace=False, shuffle=False)
            return np.sort(taken).astype(np.int64)
        if round < 1 or call:
            raise InputError(
                f"batch {call} of round {round} has no place in an epoch of "
                f"batches='{of.scheme}', which has one for each round from 1 on"
            )
        epoch, place = divmod(round - 1, of.epoch)
        order = self.order(agent, epoch)
        return np.sort(order[place * of.size : (place + 1) * of.size])

    def order(self, agent: int, epoch: int) -> Indices:
        """(n,) the order of an agent's records in an epoch, counted from 0.

        >>> of = Sampler(drawn=(Drawing(Scheme.SHUFFLED, 5, 2, 5),), order_seed=0)
        >>> of.order(0, 0).tolist(), of.order(0, 1).tolist()
        ([3, 4, 2, 1, 0], [2, 0, 4, 1, 3])
        """
        of = self.drawn[agent]
        if of.scheme is Scheme.CYCLIC:
            return np.arange(of.records, dtype=np.int64)
        return public_order(of.records, seed=self.order_seed, of=_ORDERS, at=(agent, epoch))


def public_order(count: int, *, seed: int, of: int, at: tuple[int, int]) -> Indices:
    """(count,) an order of 0, 1, ..., count - 1 that follows from public numbers alone.

    Args:
        count: of what is put in order.
        seed: in [0, 2^64).
        of: what is put in order; one of two kinds has nothing to do with the other.
        at: who does it, and in which epoch.

    >>> public_order(4, seed=0, of=1, at=(0, 0)).tolist()
    [3, 2, 1, 0]
    """
    key = np.array([seed, of], dtype=np.uint64)
    counter = np.array([0, *at, 0], dtype=np.uint64)
    # Sorted by raw words, which no version of the library draws otherwise.
    words = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def check_records(sampler: Sampler | None, held: Sequence[int]) -> None:
    """Refuse agents that hold another number of records than batches are drawn of.

    Args:
        sampler: of the run; none is refused without one.

    Raises:
        ValueError: with the first that does.
    """
    drawn = list(held) if sampler is None else [one.records for one in sampler.drawn]
    if list(held) == drawn:
        return
    if len(held) != len(drawn):
        raise InputError(f"the sampler is of {len(drawn)} agents, and there are {len(held)}")
    agent = next(i for i, (a, b) in enumerate(zip(held, drawn, strict=True)) if a != b)
    raise InputError(
        f"agent {agent} holds {held[agent]} records, and its batches are drawn of "
        f"{drawn[agent]}: by that number they are accounted for; make a sampler of the records "
        "that are held"
    )


class Place(NamedTuple):
    """Which batch is drawn.

    Attributes:
        round, call, agent: the number of the round, of `draw` within it, and whose records.
        rate: that the step gives; None is the run's.
    """

    round: int
    call: int
    agent: int
    rate: float | None


def drawn_positions(
    sampler: Sampler | None,
    *,
    records: int,
    sampling_rate: float,
    at: Place,
    generator: np.random.Generator,
    users: Tensor | None = None,
    turns: Participation | None = None,
) -> Indices:
    """Positions of one batch, each record on its own where there is no sampler.

    Args:
        sampler: of the run.
        records: of the agent.
        sampling_rate: of the run.
        users: (n,) whose each record is, where all records of a user are drawn together.
        turns: of the run; None where every round may be anybody's.

    Raises:
        ValueError: a rate of its own of a batch that is not Poisson, or has a turn; or users in it.

    >>> where = Place(round=1, call=0, agent=0, rate=None)
    >>> secret = np.random.default_rng(0)
    >>> drawn_positions(None, records=9, sampling_rate=0.5, at=where, generator=secret).tolist()
    [1, 2, 3]
    """
    rate = sampling_rate if at.rate is None else at.rate
    if turns is not None:
        own = None if rate == sampling_rate and users is None else rate
        turns.check_draw(round=at.round, rate=own)
        return turns.draw(agent=at.agent, round=at.round, generator=generator)
    if sampler is None and users is not None:
        return drawn_users(users, rate, generator=generator)
    if sampler is None:
        return poisson_batch(records, rate, generator=generator)
    if users is not None:
        raise InputError(f"whole users cannot be drawn with batches='{sampler.scheme}'")
    if rate != sampling_rate:
        raise InputError(
            f"rate={rate} of a batch is not that of batches='{sampler.scheme}'; use round.draw() "
            "without a rate"
        )
    return sampler.draw(
        agent=at.agent, round=at.round, call=at.call, rate=rate, generator=generator
    )


# Draws who takes part in a round, on every rank alike, where it is not by a coin of each agent.
#
#     fixed       m of A agents, uniform, from the secret stream of its round and call
#     shuffled    places i m to (i + 1) m of an order of the epoch, which follows from a public seed
#     cyclic      the same of 0, 1, ..., A - 1
#
# Orders count as public in every figure, so a run that goes on draws the cohorts that it would have
# drawn; one that releases a round again does so of the same agents.

_AGENTS = 0x6167656E7473  # in the key of orders of agents, which are none of records


def taking_part(
    cohort: Cohort, *, agents: int, round: int, order_seed: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """(A,) whether each agent is in a cohort that is not Poisson.

    Args:
        agents: A, of the run.
        round: its number, from 1 where cohorts are of epochs.
        order_seed: of the orders of shuffled epochs, in [0, 2^64); public.
        generator: secret, of this round and call alone.
    """
    size = size_of_cohort(cohort.rate, agents, scheme=cohort.scheme)
    if cohort.scheme is Scheme.FIXED:
        members = generator.choice(agents, size, replace=False, shuffle=False)
    else:
        epoch, place = divmod(round - 1, agents // size)
        order: Indices = np.arange(agents, dtype=np.int64)
        if cohort.scheme is Scheme.SHUFFLED:
            order = public_order(agents, seed=order_seed, of=_AGENTS, at=(0, epoch))
        members = order[place * size : (place + 1) * size]
    mask = np.zeros(agents, dtype=np.bool_)
    mask[members] = True
    return mask
