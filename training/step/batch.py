"""Batch: a token of secret records, which only the round that drew it can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from .values import UndeclaredOperation

_EXPECTED_SIZE = (
    "its records and their number are secret; divide a sum by batch_size, the public expected size"
)


class HiddenRecords(UndeclaredOperation, AttributeError):
    """A step asked a batch for what it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One secret Poisson batch per agent, as a token: its records stay with the round.

    `call` tells the draws of a round apart.
    """

    call: int
    sampling_rate: float | None

    def _refuse(self, *_: object) -> NoReturn:
        raise HiddenRecords(f"a step may not read, count or iterate over a batch: {_EXPECTED_SIZE}")

    __len__ = __iter__ = __getitem__ = __contains__ = __float__ = __int__ = __index__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        raise HiddenRecords(f"a batch does not show {name!r}: {_EXPECTED_SIZE}")


def check_drawn(batch: Batch, drawn: Sequence[Batch]) -> None:
    """Refuse a batch that another round drew: it would be accounted as a fresh sample.

    Raises:
        UndeclaredOperation: the batch is not one of `drawn`.
    """
    if not any(batch is mine for mine in drawn):
        raise UndeclaredOperation(
            "a batch of another round: its records would be used again, but accounted as a fresh "
            "sample; call round.draw() in every round"
        )
