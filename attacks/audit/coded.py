"""Records with the codes of canaries beside their targets, whatever the targets are."""

from __future__ import annotations

import torch
from torch import Tensor

from ...training.data.dataset import Examples
from ...training.data.store import Held, followed_by
from .canaries import coded

__all__ = ["with_codes"]


class _Coded:
    """What an agent holds, its targets coded; the last records are canaries.

    Args:
        held: records and canaries, as they are.
        codes: (n,) of the last n.
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
        return coded(self._held.targets, self._codes_of(torch.arange(self.size)))

    @property
    def inputs(self) -> Tensor:
        """All inputs."""
        return self._held.inputs

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`."""
        found = self._held.take(positions)
        return Examples(found.inputs, coded(found.targets, self._codes_of(positions)))

    def _codes_of(self, positions: Tensor) -> Tensor:
        place = positions - (self.size - len(self._codes))
        codes = torch.zeros_like(positions)
        planted = place >= 0
        codes[planted] = self._codes[place[planted]]
        return codes


def with_codes(held: Held, codes: Tensor) -> Held:
    """An agent's records, and canaries behind them.

    Nothing of a canary counts but its code. It has the inputs and the target of a record, at which
    the run's loss is finite.

    Args:
        held: its records.
        codes: (n,) of the canaries, none of which is 0.

    >>> from overhear.training.data.dataset import Examples
    >>> one = Examples(torch.ones(1, 2), torch.tensor([0.5]))
    >>> with_codes(one, torch.tensor([3])).targets.tolist()
    [[0.5, 0.0], [0.5, 3.0]]
    """
    if held.size:
        like = held.take(torch.zeros(len(codes), dtype=torch.int64))
    else:
        none = held.take(torch.zeros(0, dtype=torch.int64))
        like = Examples(*(part.new_zeros(len(codes), *part.shape[1:]) for part in none))
    every = _Coded(followed_by(held, like), codes)
    return Examples(every.inputs, every.targets) if isinstance(held, Examples) else every
