"""The records whose membership is at stake, and the training sets that coins make of them.

As many records of the training set as there are held-out ones are put to the test, beside these.
All other training records are in every training set, so that sets are as large in the mean as that
of the run. Every record has one agent who holds it if it is in: its own, and of a held-out record
an agent drawn among the holders of its class.

| symbol | meaning |
|---|---|
| C | records at stake, half of them of the training set |
| K | reference runs |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...training.data.load import Dataset
from ...training.data.store import Examples, Held, Shard, followed_by

LEAST_RECORDS = 10  # of either kind; fewer measure nothing
Coins = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pool:
    """Records at stake, and those that are always in.

    Attributes:
        records: (C) inputs and targets, those of the training set first.
        owners: (C,) the agent that holds a record if it is in.
        trained: (C,) whether the run itself was trained on it.
        indices: (C,) place in the training part of the data set, or in its held-out part.
        always: by agent what it holds in every training set.
    """

    records: Examples
    owners: Indices
    trained: Coins
    indices: Indices
    always: Sequence[Held]

    def shards(self, included: Coins) -> list[Held]:
        """What every agent holds where those (C,) records at stake are in."""
        held = []
        for agent, kept in enumerate(self.always):
            mine = torch.from_numpy(np.flatnonzero(included & (self.owners == agent)))
            held.append(followed_by(kept, self.records.take(mine)))
        return held


def make_pool(
    data: Dataset, parts: Sequence[Indices], *, most: int, generator: np.random.Generator
) -> Pool:
    """Choose the records at stake.

    Args:
        data: the data set of a run.
        parts: by agent the indices of its records in the training part.
        most: of either kind; a random choice of more.
        generator: chooses records, and agents for held-out ones.

    Raises:
        ValueError: fewer than `LEAST_RECORDS` of a kind.
    """
    held_out = len(data.test_targets)
    each = min(len(data.targets), held_out, most)
    if each < LEAST_RECORDS:
        raise InputError(
            f"{data.name!r} holds {len(data.targets)} training and {held_out} held-out records, "
            f"and at most {most} of each are taken: membership needs at least {LEAST_RECORDS} of "
            "each, so that members can be distinguished from others"
        )
    # As many held-out records as members, with agents given to them as members have theirs.
    owners = np.empty(len(data.targets), dtype=np.int64)
    for agent, part in enumerate(parts):
        owners[part] = agent
    inside = np.sort(generator.choice(len(data.targets), size=each, replace=False))
    outside = np.sort(generator.choice(held_out, size=each, replace=False))
    given = _owners_like(
        data.targets.numpy(), owners, data.test_targets.numpy()[outside], generator=generator
    )
    # Records at stake leave the parts that every training holds.
    at_stake = np.zeros(len(data.targets), dtype=np.bool_)
    at_stake[inside] = True
    kept = [torch.from_numpy(part[~at_stake[part]]) for part in parts]
    rows, others = torch.from_numpy(inside), torch.from_numpy(outside)
    return Pool(
        records=Examples(
            torch.cat([data.train.take(rows).inputs, data.test_inputs[others]]),
            torch.cat([data.targets[rows], data.test_targets[others]]),
        ),
        owners=np.concatenate([owners[inside], given]),
        trained=np.arange(2 * each) < each,
        indices=np.concatenate([inside, outside]),
        always=[Shard(data.train, part) for part in kept],
    )


def _owners_like(
    targets: NDArray[np.int64],
    owners: Indices,
    others: NDArray[np.int64],
    *,
    generator: np.random.Generator,
) -> Indices:
    """An agent for each held-out record: that of a random training record of the same class."""
    given = generator.choice(owners, size=len(others))  # of a class that nobody holds, anybody
    for label in np.unique(others):
        holders = owners[targets == label]
        if holders.size:
            here = others == label
            given[here] = generator.choice(holders, size=int(here.sum()))
    return given


def balanced_coins(references: int, records: int, *, generator: np.random.Generator) -> Coins:
    """Training sets of references: every record is in half of them, rounded down.

    Args:
        references: K, at least 2.
        records: C.
        generator: decides in which.

    Returns:
        (K, C).

    Raises:
        ValueError: fewer than 2 references, so that a record would be in none or in all.

    >>> int(balanced_coins(5, 100, generator=np.random.default_rng(0)).sum(axis=0).max())
    2
    """
    if references < 2:
        raise InputError(
            f"references={references} must be at least 2: a record must be in one and out of "
            "another; 16 is usual"
        )
    order = generator.random((references, records)).argsort(axis=0)
    return np.asarray(order < references // 2)


def fair_coins(games: int, records: int, *, generator: np.random.Generator) -> Coins:
    """Training sets of games: every record is in or out by a fair coin of its own; (G, C)."""
    return generator.random((games, records)) < 0.5
