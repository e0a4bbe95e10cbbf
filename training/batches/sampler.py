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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.drawing import Drawing, Scheme
from ...privacy.batches.words import counts_words, drawn_words
from ...privacy.errors import InputError
from ..data.partition import poisson_batch
from .turns import Turns
from .users import drawn_users

__all__ = [
    "Indices",
    "Place",
    "Sampler",
    "check_records",
    "drawn_positions",
    "public_order",
]

Indices = NDArray[np.int64]
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

        >>> of = Sampler(drawn=(Drawing(Scheme.CYCLIC, 7, 3, 7),), order_seed=0)
        >>> secret = np.random.default_rng(0)
        >>> [of.draw(agent=0, round=t, call=0, rate=1.0, generator=secret).tolist()
        ...     for t in (1, 2, 3)]
        [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
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
        held: by agent how many records it holds.

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
    turns: Turns | None = None,
) -> Indices:
    """Positions of one batch, each record on its own where there is no sampler.

    Args:
        sampler: of the run.
        records: of the agent.
        sampling_rate: of the run.
        generator: secret, of this batch alone.
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
