"""Faults of where noise comes from: one seed for two releases, rounds, agents or runs."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import torch

from overhear.training.engine.randomness import SecretRandomness
from tests.attacks.planted.planted import Kind, Origin, Planted
from tests.attacks.planted.seams import other_roots, other_streams

_PERIOD = 20
_ROOT = 20_240_501  # of somebody who wanted to have runs repeatable
_LAG, _FROM, _TO = 5, 4, 11  # rounds between, and rows of two agents on a ring
_SHARED = 0.3  # correlation


def two_releases() -> AbstractContextManager[None]:
    """Sources 2k and 2k + 1 of a call have one seed."""
    return other_streams(lambda round, call, row: (round, call, row - row % 2))


def two_calls() -> AbstractContextManager[None]:
    """All calls of noise in a round have the seeds of the first."""
    return other_streams(lambda round, _, row: (round, 0, row))


def two_rounds() -> AbstractContextManager[None]:
    """Rounds 2k - 1 and 2k have one seed."""
    return other_streams(
        lambda round, call, row: (round - (round + 1) % 2 * (round > 0), call, row)
    )


def reseeded() -> AbstractContextManager[None]:
    """The generator starts again after every 20 rounds."""
    return other_streams(
        lambda round, call, row: ((round - 1) % _PERIOD + 1 if round else 0, call, row)
    )


def one_seed_for_all() -> AbstractContextManager[None]:
    """Every source of a call has the seed of the first."""
    return other_streams(lambda round, call, row: (round, call, 0))


def agents_five_rounds_apart() -> AbstractContextManager[None]:
    """A row of one agent has the noise that a row of another had five rounds before."""

    def of(round: int, call: int, row: int) -> tuple[int, int, int]:
        return (round - _LAG, call, _FROM) if row == _TO and round > _LAG else (round, call, row)

    return other_streams(of)


@contextmanager
def antithetic() -> Iterator[None]:
    """Even rounds have the noise of the round before, its sign turned."""
    sound = SecretRandomness.normal

    def normal(self, *, round: int, **how) -> torch.Tensor:
        if round == 0 or round % 2:
            return sound(self, round=round, **how)
        return -sound(self, round=round - 1, **how)

    with patch.object(SecretRandomness, "normal", normal):
        yield


@contextmanager
def correlated() -> Iterator[None]:
    """A row of one agent shares .3 of its noise with a row of another, in every call."""
    sound = SecretRandomness.normal

    def normal(self, *, rows, **how) -> torch.Tensor:
        z = sound(self, rows=rows, **how)
        for at in (i for i, row in enumerate(rows) if row == _TO):
            z[at] = _SHARED * sound(self, rows=[_FROM], **how)[0] + (1 - _SHARED**2) ** 0.5 * z[at]
        return z

    with patch.object(SecretRandomness, "normal", normal):
        yield


_NO_NOISE_LEFT = "epsilon is infinite for a record that is in one batch alone."

FAULTS = (
    Planted(
        name="seed reused for two releases",
        sentence="The difference of two messages has no noise: epsilon is infinite unless the "
        "two gradients are equal.",
        plant=two_releases,
        kind=Kind.STREAMS,
        origin=Origin.FIRST,
    ),
    Planted(
        name="seed reused for two calls",
        sentence="The same between two releases of a round of any kind.",
        plant=two_calls,
        kind=Kind.STREAMS,
        origin=Origin.FIRST,
        settings=("algorithm.name=dp-netfleet", "audit.canaries=200"),
    ),
    Planted(
        name="seed reused for two rounds",
        sentence=f"The difference of two rounds has no noise: {_NO_NOISE_LEFT}",
        plant=two_rounds,
        kind=Kind.STREAMS,
        origin=Origin.FIRST,
    ),
    Planted(
        name="generator reseeded every 20 rounds",
        sentence=f"The difference of rounds 1 and 21 has no noise: {_NO_NOISE_LEFT}",
        plant=reseeded,
        kind=Kind.STREAMS,
        origin=Origin.OUTSIDE,
    ),
    Planted(
        name="one root in every run",
        sentence="The difference of two runs has no noise, and who has the code has the noise: "
        "epsilon is infinite.",
        plant=lambda: other_roots(lambda: _ROOT),
        kind=Kind.STREAMS,
        origin=Origin.OUTSIDE,
    ),
    Planted(
        name="one seed for all agents",
        sentence="The difference of two agents' messages has no noise: epsilon is infinite.",
        plant=one_seed_for_all,
        kind=Kind.STREAMS,
        origin=Origin.OUTSIDE,
    ),
    Planted(
        name="seed shared by two agents five rounds apart",
        sentence=f"The difference of two messages has no noise: {_NO_NOISE_LEFT}",
        plant=agents_five_rounds_apart,
        kind=Kind.STREAMS,
        origin=Origin.HOLDOUT,
    ),
    Planted(
        name="antithetic noise in the next round",
        sentence=f"The sum of two rounds has no noise: {_NO_NOISE_LEFT}",
        plant=antithetic,
        kind=Kind.STREAMS,
        origin=Origin.HOLDOUT,
    ),
    Planted(
        name="root of the second that it is",
        sentence="Runs that begin in one second share their noise, and all others' is found by "
        "trying 31 million roots a year: epsilon is infinite.",
        plant=lambda: other_roots(lambda: int(time.time())),
        kind=Kind.STREAMS,
        origin=Origin.HOLDOUT,
    ),
    Planted(
        name="two agents' noise with correlation .3",
        sentence="Who knows one sum takes .3 of its noise off the other: mu is 1.05 times what is "
        "stated.",
        plant=correlated,
        kind=Kind.STREAMS,
        origin=Origin.HOLDOUT,
    ),
)
