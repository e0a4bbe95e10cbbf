"""Records with the codes of canaries beside their targets, whatever the targets are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...training.batches.sampler import Sampler
from ...training.data.dataset import Examples
from ...training.data.store import Held, followed_by
from .canaries import coded

_LOOKED_AT = 300  # rounds, of which it is counted how often a record is in them
_NONE = torch.zeros(0, dtype=torch.int64)


class _Coded:
    """What an agent holds, its targets coded.

    Args:
        held: records and canaries, as they are.
        codes: (n,) of all of them, 0 of those that are no canaries.
    """

    def __init__(self, held: Held, codes: Tensor) -> None:
        self._held, self._codes = held, codes

    @property
    def size(self) -> int:
        """How many records, canaries among them."""
        return self._held.size

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self._held.record_shape

    @property
    def targets(self) -> Tensor:
        """All targets, coded."""
        return coded(self._held.targets, self._codes)

    @property
    def inputs(self) -> Tensor:
        """All inputs."""
        return self._held.inputs

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`."""
        found = self._held.take(positions)
        return Examples(found.inputs, coded(found.targets, self._codes[positions]))


def codes_of(
    coin: NDArray[np.bool_],
    own: NDArray[np.int64],
    short: NDArray[np.int64],
    *,
    replaced: bool,
    together: int | None = 1,
) -> Tensor:
    """(k,) the codes of a host's canaries, those that are guessed first.

    Args:
        coin: (n,) whether each is there, or which way it is turned.
        own: (n,) directions of those that are guessed.
        short: directions of the others, which are all there.
        replaced: whether one that is not there is there with the opposite sign.
        together: records of each; None where one that is not there leaves a blank record.

    >>> ways = np.array([0, 1]), np.array([2])
    >>> coin = np.array([True, False])
    >>> [codes_of(coin, *ways, replaced=False, together=k).tolist() for k in (1, None)]
    [[1, 5], [1, -2, 5]]
    """
    codes = np.where(coin, 1 + 2 * own, 2 + 2 * own if replaced else -1 - own)
    if together is not None:
        codes = np.repeat(codes[codes > 0], together)
    return torch.from_numpy(np.concatenate([codes, 1 + 2 * short]).astype(np.int64))


def with_codes_behind(shards: Sequence[Held], codes: Mapping[int, Tensor]) -> list[Held]:
    """Every agent's records, and some agents' canaries behind them.

    Nothing of a canary counts but its code. It has the inputs and the target of a record, at which
    the run's loss is finite.

    Args:
        shards: the records of each agent.
        codes: by agent (n,) of its canaries, none of which is 0.

    >>> from overhear.training.data.dataset import Examples
    >>> one = Examples(torch.ones(1, 2), torch.tensor([0.5]))
    >>> with_codes_behind([one], {0: torch.tensor([3])})[0].targets.tolist()
    [[0.5, 0.0], [0.5, 3.0]]
    """
    return [_behind(held, codes.get(agent, _NONE)) for agent, held in enumerate(shards)]


def with_codes_in_place(
    shards: Sequence[Held],
    codes: Mapping[int, Tensor],
    *,
    sampler: Sampler,
    rounds: int,
    generator: np.random.Generator,
) -> list[Held]:
    """Every agent's records, some of some agents' canaries, or blank, in place of what they are.

    Where an order is public, canaries stand where a record takes part in most of the rounds;
    elsewhere, and among those, by chance.

    Args:
        shards: the records of each agent.
        codes: by agent (n,) of its canaries and blank records, of no more than it has records.
        sampler: of the run.
        rounds: of the run.
        generator: of the places.

    >>> from overhear.training.data.dataset import Examples
    >>> from overhear.privacy.batches.drawing import Drawing, Scheme
    >>> three = Examples(torch.ones(3, 1), torch.full((3,), 0.5))
    >>> cyclic = Sampler(drawn=(Drawing(Scheme.CYCLIC, 3, 1, 3),), order_seed=0)
    >>> secret = np.random.default_rng(0)
    >>> with_codes_in_place(
    ...     [three], {0: torch.tensor([-1])}, sampler=cyclic, rounds=1, generator=secret
    ... )[0].targets.tolist()  # in the first batch, the only one of one round
    [[0.5, -1.0], [0.5, 0.0], [0.5, 0.0]]
    """
    found = []
    for agent, held in enumerate(shards):
        every = torch.zeros(held.size, dtype=torch.int64)
        own = codes.get(agent, _NONE)
        if len(own):
            often = _participations(sampler, agent, rounds=rounds) + generator.random(held.size)
            at = np.argsort(-often)[: len(own)]
            every[torch.from_numpy(at.copy())] = own
        found.append(_coded(held, every))
    return found


def _participations(sampler: Sampler, agent: int, *, rounds: int) -> NDArray[np.float64]:
    """(n,) in how many of the first rounds each record is drawn, as far as that is public."""
    counts = np.zeros(sampler.drawn[agent].records)
    if sampler.scheme.in_epochs:
        none = np.random.default_rng(0)  # of an order that is public nothing is drawn in secret
        for number in range(1, min(rounds, _LOOKED_AT) + 1):
            counts[sampler.draw(agent=agent, round=number, call=0, rate=1.0, generator=none)] += 1.0
    return counts


def _behind(held: Held, codes: Tensor) -> Held:
    if held.size:
        like = held.take(torch.zeros(len(codes), dtype=torch.int64))
    else:
        none = held.take(torch.zeros(0, dtype=torch.int64))
        like = Examples(*(part.new_zeros(len(codes), *part.shape[1:]) for part in none))
    before = torch.zeros(held.size, dtype=torch.int64)
    return _coded(followed_by(held, like), torch.cat([before, codes]))


def _coded(held: Held, codes: Tensor) -> Held:
    every = _Coded(held, codes)
    return Examples(every.inputs, every.targets) if isinstance(held, Examples) else every
