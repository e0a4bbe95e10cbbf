"""Faults of which records a round takes: other rates, other laws, records that come twice."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import torch

from overhear.runs.run_file import build as building
from overhear.training.data.partition import poisson_batch
from tests.attacks.planted.planted import Faults, Kind, Origin
from tests.attacks.planted.seams import Asked, other_batches, other_cohorts

fault = Faults(Kind.SAMPLING)

_REPEATED = 12  # the round whose batch comes twice


@fault(
    "shuffled batches",
    "Nothing amplifies: of multiplier .8, 1000 batches, one epoch, delta 1e-6 "
    "epsilon is at least 6.05 where Poisson says .468.",
    Origin.FIRST,
)
def shuffled() -> AbstractContextManager[None]:
    """Each epoch of 1 / q rounds is a new order of the records, cut into batches."""

    def positions(asked: Asked) -> np.ndarray:
        epoch = max(1, int(np.ceil(1.0 / asked.rate)))
        first = max(asked.round - 1, 0) // epoch * epoch
        parts = np.array_split(asked.stream(round=first).permutation(asked.records), epoch)
        return np.sort(parts[max(asked.round - 1, 0) - first])

    return other_batches(positions)


@fault(
    "fixed batches",
    "Nothing amplifies: a record is in one batch of 1 / q for certain, and always "
    "with the same others.",
    Origin.FIRST,
)
def fixed() -> AbstractContextManager[None]:
    """Records are put into slots once and for all, and the slots take turns."""

    def positions(asked: Asked) -> np.ndarray:
        slots = max(1, int(np.ceil(1.0 / asked.rate)))
        slot = asked.stream(round=0).integers(slots, size=asked.records)
        return np.flatnonzero(slot == asked.round % slots)

    return other_batches(positions)


@fault(
    "batch padded by repeating a record",
    "A record counts several times in a batch: mu grows by as much.",
    Origin.OUTSIDE,
    kind=Kind.RECORDS,
)
def padded() -> AbstractContextManager[None]:
    """A batch that is too small is filled with its first record, again and again."""

    def positions(asked: Asked) -> torch.Tensor:
        at = asked.sound(asked.rate)
        lacking = round(asked.rate * asked.records) - len(at)
        if not len(at) or lacking <= 0:
            return at
        return torch.cat([at[:1].expand(lacking), at])

    return other_batches(positions)


@fault(
    "sampling rate twice the declared",
    "A record is in twice as many batches: 15.0 for epsilon 8.",
    Origin.OUTSIDE,
)
def rate_doubled() -> AbstractContextManager[None]:
    """Records come twice as often as is accounted for."""
    return other_batches(lambda asked: asked.sound(min(1.0, 2.0 * asked.rate)))


@fault(
    "batches of a fixed size",
    "Without replacement a record that comes takes another's place, so a sum moves by "
    "2C: up to 30.3 for epsilon 8.",
    Origin.OUTSIDE,
)
def fixed_size() -> AbstractContextManager[None]:
    """Every batch has the expected size, drawn without replacement."""

    def positions(asked: Asked) -> np.ndarray:
        size = round(asked.rate * asked.records)
        stream = asked.stream(round=asked.round)
        return np.sort(stream.choice(asked.records, size=size, replace=False))

    return other_batches(positions)


@fault(
    "full batches of agent 0",
    "Nothing amplifies for its records: 35.1 for epsilon 8.",
    Origin.OUTSIDE,
)
def agent_0_full() -> AbstractContextManager[None]:
    """Agent 0 takes all of its records every time."""
    return other_batches(lambda asked: asked.sound(1.0 if asked.agent == 0 else asked.rate))


@fault("a record in every batch", "Nothing amplifies for it: 35.1 for epsilon 8.", Origin.OUTSIDE)
def always_in() -> AbstractContextManager[None]:
    """The first record of every agent is in every batch."""

    def positions(asked: Asked) -> np.ndarray:
        return np.union1d([0] if asked.records else [], asked.sound(asked.rate))

    return other_batches(positions)


@fault(
    "sequential batches",
    "Who knows the order knows the batch, and nothing amplifies: 10.5 and more for epsilon 8.",
    Origin.OUTSIDE,
)
def sequential() -> AbstractContextManager[None]:
    """Batches go through the records in their order."""

    def positions(asked: Asked) -> np.ndarray:
        size = max(1, round(asked.rate * asked.records))
        first = max(asked.round - 1, 0) * size
        return np.unique(np.arange(first, first + size) % max(1, asked.records))

    return other_batches(positions)


@fault(
    "sampling rate .25 after round 10",
    "Records come a quarter more often: 9.07 for epsilon 8.",
    Origin.HOLDOUT,
)
def rate_drifts() -> AbstractContextManager[None]:
    """After round 10 the rate is a quarter larger."""
    return other_batches(lambda asked: asked.sound(asked.rate * (1.25 if asked.round > 10 else 1)))


@fault(
    "a record that stands in for its neighbour",
    "It comes with twice the rate, or counts twice: up to 30.3 for epsilon 8.",
    Origin.HOLDOUT,
)
def neighbour_in_place() -> AbstractContextManager[None]:
    """Where the first record was drawn, the second stands in for it: it comes about twice."""

    def positions(asked: Asked) -> torch.Tensor:
        at = asked.sound(asked.rate)
        return torch.where(at == 0, 1, at) if asked.records > 1 else at

    return other_batches(positions)


@fault(
    "a batch that comes once more",
    "Two rounds have one batch, so that a record is in both or in none: with 24 "
    "rounds at rate .2 nothing amplifies the second.",
    Origin.HOLDOUT,
)
def repeated_once() -> AbstractContextManager[None]:
    """Round 13 takes the batches of round 12 once more."""

    def positions(asked: Asked) -> torch.Tensor | np.ndarray:
        if asked.round != _REPEATED + 1:
            return asked.sound(asked.rate)
        stream = asked.stream(round=_REPEATED)
        return poisson_batch(asked.records, asked.rate, generator=stream)

    return other_batches(positions)


@fault(
    "two records that share a coin",
    "They come together or not at all: epsilon of who knows one is that of no sampling.",
    Origin.OUTSIDE,
)
def shared_coin() -> AbstractContextManager[None]:
    """The third record of agent 2 is in the batches of its sixth."""

    def positions(asked: Asked) -> torch.Tensor | np.ndarray:
        at = asked.sound(asked.rate)
        if asked.agent != 2 or asked.records < 6:
            return at
        return np.union1d(at[at != 2], [2] if 5 in at else []).astype(np.int64)

    return other_batches(positions)


@fault(
    "records of two agents that share a coin",
    "The same, between the first records of agents 1 and 4.",
    Origin.HOLDOUT,
)
def shared_across() -> AbstractContextManager[None]:
    """The first record of agent 4 is in its batch where agent 1's is in its own."""

    def positions(asked: Asked) -> torch.Tensor | np.ndarray:
        at = asked.sound(asked.rate)
        if asked.agent != 4 or not asked.records:
            return at
        many = len(asked.engine.setting.shards[1].targets)
        stream = replace(asked, agent=1).stream(round=asked.round)
        theirs = poisson_batch(many, asked.rate, generator=stream)
        return np.union1d(at[at != 0], [0] if 0 in theirs else []).astype(np.int64)

    return other_batches(positions)


@fault(
    "two records that never meet",
    "Who sees one knows that the other is not there: its rate is no longer q given that.",
    Origin.OUTSIDE,
)
def never_together() -> AbstractContextManager[None]:
    """The third record of agent 2 stays away where its sixth is drawn, and comes as often."""

    def positions(asked: Asked) -> torch.Tensor | np.ndarray:
        at, q = asked.sound(asked.rate), asked.rate
        if asked.agent != 2 or asked.records < 6 or q > 0.5:
            return at
        coin = np.random.default_rng([int(at[at != 2].sum()), asked.round]).random()
        comes = 5 not in at and coin < q / (1.0 - q)
        return np.union1d(at[at != 2], [2] if comes else []).astype(np.int64)

    return other_batches(positions)


def public(*at: int) -> np.random.Generator:
    """A stream that everybody can draw."""
    return np.random.default_rng(at)


@fault(
    "batches of a public seed",
    "Everybody knows who is in a batch, and nothing amplifies: 35.1 for epsilon 8.",
    Origin.OUTSIDE,
    kind=Kind.SECRECY,
)
def public_batches() -> AbstractContextManager[None]:
    """Batches that are Poisson, from a stream of the round and the agent alone."""
    return other_batches(
        lambda asked: poisson_batch(
            asked.records, asked.rate, generator=public(asked.round, asked.call, asked.agent)
        )
    )


@fault(
    "batch coins that are numbers of the noise",
    "A message's noise tells the batch that it hides: nothing amplifies, 35.1 for epsilon 8.",
    Origin.OUTSIDE,
    kind=Kind.SECRECY,
)
def coins_of_noise() -> AbstractContextManager[None]:
    """A record is in a batch if the number of the noise at its place is small."""

    def positions(asked: Asked) -> torch.Tensor:
        z = asked.engine._randomness.normal(
            round=asked.round, call=0, rows=[asked.agent], width=asked.records,
            dtype=torch.float64,
        )  # fmt: skip
        return (torch.special.ndtr(z[0]) < asked.rate).nonzero().flatten()

    return other_batches(positions)


_AGENTS = ("algorithm.name=dp-fedavg", "algorithm.cohort_rate=0.5", "algorithm.local_steps=1")
_OF_AGENTS = (*_AGENTS, "privacy.unit=agent", "privacy.adjacency=zero-out", "audit.canaries=60")
_ALL_KNOW = "Everybody knows who takes part, and nothing amplifies: epsilon is that of rate 1."


@fault(
    "cohorts of a public seed", _ALL_KNOW, Origin.OUTSIDE, kind=Kind.SECRECY, settings=_OF_AGENTS
)
def public_cohorts() -> AbstractContextManager[None]:
    """A cohort by coins from a stream of the round alone."""
    return other_cohorts(
        lambda engine, cohort, round, sound: public(round).random(sound().shape) < cohort.rate
    )


@fault(
    "cohorts of a fixed size of a public seed",
    _ALL_KNOW,
    Origin.OUTSIDE,
    kind=Kind.SECRECY,
    settings=(*_OF_AGENTS, "algorithm.cohort=fixed", "audit.canaries=20"),
)
def public_fixed_cohorts() -> AbstractContextManager[None]:
    """As many agents as declared, by an order of the round alone."""
    return other_cohorts(
        lambda engine, cohort, round, sound: public(round).permutation(
            np.sort(sound().numpy(), axis=0)
        )
    )


@fault(
    "two agents that share a cohort's coin",
    "Who knows one knows the other, whom nothing amplifies.",
    Origin.OUTSIDE,
    settings=_OF_AGENTS,
)
def agents_in_step() -> AbstractContextManager[None]:
    """Agent 7 takes part where agent 3 does."""

    def members(engine, cohort, round, sound) -> torch.Tensor:
        found = sound().clone()
        if len(found) > 7:
            found[7] = found[3]
        return found

    return other_cohorts(members)


@contextmanager
def _other_parts(change: Callable[[list[np.ndarray]], list[np.ndarray]]) -> Iterator[None]:
    """The records that are dealt to the agents, otherwise."""
    sound = building.partition

    def partition(*args, **how):
        return change([np.asarray(part) for part in sound(*args, **how)])

    with patch.object(building, "partition", partition):
        yield


@fault(
    "a record stored twice",
    "A record adds up to two gradients to a batch: epsilon of the record is that of "
    "two, up to 30.3 for 8.",
    Origin.OUTSIDE,
    kind=Kind.RECORDS,
)
def stored_twice() -> AbstractContextManager[None]:
    """Every agent holds its first record twice."""
    return _other_parts(lambda parts: [np.concatenate([part, part[:1]]) for part in parts])


@fault(
    "a record dealt to two agents",
    "Its two holders release it, each at the stated epsilon: up to 13.5 for 8.",
    Origin.HOLDOUT,
    kind=Kind.RECORDS,
)
def dealt_to_two() -> AbstractContextManager[None]:
    """Every agent's first record is dealt to the agent before it, too."""
    return _other_parts(
        lambda parts: [
            np.concatenate([part, parts[(i + 1) % len(parts)][:1]]) for i, part in enumerate(parts)
        ]
    )
