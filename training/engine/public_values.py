"""Public values of a round, compared with its floor before noise that is too small for them leaves.

Looked at are models that earlier rounds released, the initial one, and results of functions of what
was released, by the largest norm of a row. Ranks look at the largest of all ranks, so that all of
them stop or none. A round whose trace asks for nothing looks at nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.noise.floor import MOST_LOST
from ..step.floor import UNIT, Floor
from .exchange import gather
from .ranks import Ranks

__all__ = ["NoiseBelowRounding", "PublicValues"]


class NoiseBelowRounding(InputError):
    """Float rounding beside large public values would be seen through the noise of a round."""


class PublicValues:
    """The public values of one round so far.

    Args:
        floor: of the round.
        round: its number; 0 is the start.
        tensors: the names of the parameter tensors, each with its number of values.
        ranks: this process among the others, if there are some.
    """

    def __init__(
        self,
        floor: Floor,
        *,
        round: int,
        tensors: Sequence[tuple[str, int]] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self._floor, self._round, self._tensors, self._ranks = floor, round, tensors, ranks
        self._names, self._norms = floor.names, dict[str, float]()

    def note(self, what: str, rows: Tensor) -> None:
        """Look at values of a name, before anything is made of them.

        Raises:
            NoiseBelowRounding: they are too large for the noise of the round.
        """
        if what not in self._names:
            return
        largest = self._of_all_ranks(torch.linalg.vector_norm(rows.detach(), dim=1).max()[None])
        norms, eps = self._norms, torch.finfo(rows.dtype).eps
        norms[what] = max(norms.get(what, 0.0), float(largest.max()))
        norms[UNIT] = max(norms.get(UNIT, 0.0), math.sqrt(rows.shape[1]))
        if not (lost := self._floor.mu_lost(norms, eps=eps)) <= MOST_LOST:
            raise NoiseBelowRounding(self._sentence(what, rows.detach(), lost))

    def _of_all_ranks(self, numbers: Tensor) -> Tensor:
        """(ranks, n) the numbers (n,) of each rank, on every rank."""
        if self._ranks is None:
            return numbers[None]
        shares = [range(rank, rank + 1) for rank in range(self._ranks.size)]
        return gather(numbers[None], shares=shares, ranks=self._ranks)

    def _sentence(self, what: str, rows: Tensor, lost: float) -> str:
        """What is too large for which noise, and what helps."""
        eps, kind = torch.finfo(rows.dtype).eps, str(rows.dtype).removeprefix("torch.")
        worst = self._floor.worst(self._norms, eps=eps)
        # The largest number of all ranks, which all of them say.
        mine = rows.abs().flatten()
        at = mine.argmax()
        found = self._of_all_ranks(torch.stack([mine[at].double(), at.double()])).tolist()
        value, place = max(found)
        tensor = self._tensor(int(place) % rows.shape[1], rows)
        step = eps * 2.0 ** math.floor(math.log2(value)) if 0 < value < math.inf else math.inf
        hidden = (
            f"noise of deviation {worst.deviation:.3g} a coordinate"
            if worst.deviation
            else "noise that others know or share, and none of the row's own,"
        )
        return (
            f"round {self._round} was stopped before its noise left: {hidden} comes in after data "
            f"were added to {what}, whose largest number is {value:g} ({tensor}), "
            f"where {kind} has steps of {step:.3g}; over all coordinates this rounding adds "
            f"{lost:.2g} to mu, and {MOST_LOST:.2g} is the most: add the noise to the clipped sum "
            "first, before any other term, or centre the target, so that the model is small"
        )

    def _tensor(self, at: int, rows: Tensor) -> str:
        """Where a coordinate is."""
        if sum(size for _, size in self._tensors) == rows.shape[1]:
            for name, size in self._tensors:
                if at < size:
                    return f"{name!r}"
                at -= size
        return f"coordinate {at}"
