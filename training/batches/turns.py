"""Keeps every record to the rounds that its pattern allows.

The turn of a record follows from the record itself and a public seed: from the SHA-256 of what it
holds, never from where it stands. So a record more or less changes nobody else's turn, a run that
goes on keeps to the turns that it began with, and whoever holds the records can look them up. Equal
records have equal turns. Within its turn a record is drawn by a secret coin of its own.

    cycle b     round t is the turn of group (t - 1) mod b, of b groups
    apart b     windows of 2 b - 1 rounds, each record's from another round on; in each of them one
                of the first b rounds
    most k      k stretches of the run, as long as each other but for one round; one round of each
    rounds      those of the list

`Kept` is what an engine holds against it: it sees the batches alone, and stops a round whose batch
breaks the promise, however it was drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...privacy.batches.patterns import Pattern, PatternKind
from ...privacy.errors import InputError
from ..data.digests import digests_of
from ..data.partition import poisson_batch
from ..data.store import Store

__all__ = ["Kept", "Turns", "turns_of"]

Keys = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
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
        """(n,) whether it is the turn of each of an agent's records.

        >>> of = Turns(pattern=Pattern(PatternKind.CYCLE, 2), rounds=9, coin=1.0,
        ...     keys=(np.arange(4, dtype=np.uint64),))
        >>> [of.allowed(0, t).astype(int).tolist() for t in (1, 2, 3)]
        [[0, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]]
        """
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
        """(B,) ascending positions of a batch: of the records whose turn it is, by coins.

        Args:
            generator: secret, of this batch alone.
        """
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

    def fitting(self, held: Sequence[int]) -> Turns:
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
) -> Turns | None:
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
    return Turns(pattern=pattern, rounds=rounds, coin=coin, keys=keys, seed=seed)


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


class Kept:
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

        >>> kept = Kept(Pattern(PatternKind.APART, 3), records=[2])
        >>> kept.note({0: np.array([0])}, round=1)
        >>> kept.note({0: np.array([0])}, round=3)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        overhear...InputError: round 3 was stopped: its batch of agent 0 holds a record that was ...
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
