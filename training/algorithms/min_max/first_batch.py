"""The large batch from which recursive estimates start: its rate and its public normaliser."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....privacy.errors import InputError

__all__ = ["FirstBatch", "check_initial_batch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstBatch:
    """A Poisson batch that is drawn once, before the first round.

    Attributes:
        size: public normaliser: its expected size on an average agent.
        sampling_rate: probability that a record is in it.
    """

    size: float
    sampling_rate: float

    @classmethod
    def of(cls, initial_batch: float, *, records: float) -> FirstBatch:
        """The batch of an expected size, or of all records where an agent has fewer.

        Args:
            initial_batch: expected size.
            records: public number of records of an average agent.

        Raises:
            ValueError: a number that is not positive.

        >>> FirstBatch.of(2000, records=20_000)
        FirstBatch(size=2000.0, sampling_rate=0.1)
        >>> FirstBatch.of(2000, records=140)
        FirstBatch(size=140.0, sampling_rate=1.0)
        """
        check_initial_batch(initial_batch)
        if not 0 < records < math.inf:
            raise InputError(f"records={records} must be a finite number > 0")
        size = float(min(initial_batch, records))
        return cls(size=size, sampling_rate=size / records)


def check_initial_batch(initial_batch: float) -> None:
    """Refuse a size that is not a positive number.

    Raises:
        ValueError: with name, value and bound.

    >>> check_initial_batch(2000.0)
    """
    if not 0 < initial_batch < math.inf:
        raise InputError(f"initial_batch={initial_batch} must be a finite number of records > 0")
