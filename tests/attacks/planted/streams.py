"""Faults of where noise comes from: one seed for two releases, rounds, agents or runs."""

import os
import secrets
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from unittest.mock import patch

import torch

from overhear.training.engine.randomness import SecretRandomness
from tests.attacks.planted.planted import Faults, Kind, Origin
from tests.attacks.planted.seams import other_roots, other_streams

fault = Faults(Kind.STREAMS)
_NO_NOISE_LEFT = "epsilon is infinite for a record that is in one batch alone."

_PERIOD = 20
_ROOT = 20_240_501  # of somebody who wanted to have runs repeatable
_LAG, _FROM, _TO = 5, 4, 11  # rounds between, and rows of two agents on a ring
_SHARED = 0.3  # correlation


@fault(
    "seed reused for two releases",
    "The difference of two messages has no noise: epsilon is infinite unless the "
    "two gradients are equal.",
    Origin.FIRST,
)
def two_releases() -> AbstractContextManager[None]:
    """Sources 2k and 2k + 1 of a call have one seed."""
    return other_streams(lambda round, call, row: (round, call, row - row % 2))


@fault(
    "seed reused for two calls",
    "The same between two releases of a round of any kind.",
    Origin.FIRST,
    settings=("algorithm.name=dp-netfleet", "audit.canaries=200"),
)
def two_calls() -> AbstractContextManager[None]:
    """All calls of noise in a round have the seeds of the first."""
    return other_streams(lambda round, _, row: (round, 0, row))


@fault(
    "seed reused for two rounds",
    f"The difference of two rounds has no noise: {_NO_NOISE_LEFT}",
    Origin.FIRST,
)
def two_rounds() -> AbstractContextManager[None]:
    """Rounds 2k - 1 and 2k have one seed."""
    return other_streams(
        lambda round, call, row: (round - (round + 1) % 2 * (round > 0), call, row)
    )


@fault(
    "generator reseeded every 20 rounds",
    f"The difference of rounds 1 and 21 has no noise: {_NO_NOISE_LEFT}",
    Origin.OUTSIDE,
)
def reseeded() -> AbstractContextManager[None]:
    """The generator starts again after every 20 rounds."""
    return other_streams(
        lambda round, call, row: ((round - 1) % _PERIOD + 1 if round else 0, call, row)
    )


@fault(
    "one seed for all agents",
    "The difference of two agents' messages has no noise: epsilon is infinite.",
    Origin.OUTSIDE,
)
def one_seed_for_all() -> AbstractContextManager[None]:
    """Every source of a call has the seed of the first."""
    return other_streams(lambda round, call, row: (round, call, 0))


@fault(
    "seed shared by two agents five rounds apart",
    f"The difference of two messages has no noise: {_NO_NOISE_LEFT}",
    Origin.HOLDOUT,
)
def agents_five_rounds_apart() -> AbstractContextManager[None]:
    """A row of one agent has the noise that a row of another had five rounds before."""

    def of(round: int, call: int, row: int) -> tuple[int, int, int]:
        return (round - _LAG, call, _FROM) if row == _TO and round > _LAG else (round, call, row)

    return other_streams(of)


@fault(
    "antithetic noise in the next round",
    f"The sum of two rounds has no noise: {_NO_NOISE_LEFT}",
    Origin.HOLDOUT,
)
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


@fault(
    "two agents' noise with correlation .3",
    "Who knows one sum takes .3 of its noise off the other: mu is 1.05 times what is stated.",
    Origin.HOLDOUT,
)
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


for name, sentence, origin, root in (
    (
        "one root in every run",
        "The difference of two runs has no noise, and who has the code has the noise: "
        "epsilon is infinite.",
        Origin.OUTSIDE,
        lambda: _ROOT,
    ),
    (
        "root of the second that it is",
        "Runs that begin in one second share their noise, and all others' is found by "
        "trying 31 million roots a year: epsilon is infinite.",
        Origin.HOLDOUT,
        lambda: int(time.time()),
    ),
    (
        "root of the nanosecond that it is",
        "All noise is found by trying the moments of a day: epsilon is infinite.",
        Origin.OUTSIDE,
        lambda: time.time_ns() % 2**128,
    ),
    (
        "root of the process and the host",
        "All noise is found by trying 4 million processes: epsilon is infinite.",
        Origin.OUTSIDE,
        lambda: os.getpid() ^ zlib.crc32(socket.gethostname().encode()) << 32,
    ),
    (
        "root of 32 bits",
        "All noise is found by trying 4 billion roots: epsilon is infinite.",
        Origin.HOLDOUT,
        lambda: secrets.randbits(128) & 0xFFFFFFFF,
    ),
    (
        "root of a clock that nobody can hold",
        "As the root of the nanosecond.",
        Origin.HOLDOUT,
        lambda: int(datetime.now(UTC).timestamp() * 1e6),
    ),
):
    fault(name, sentence, origin, kind=Kind.SECRECY)(partial(other_roots, root))
