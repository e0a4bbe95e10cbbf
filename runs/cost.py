"""What work will take, said before it is well begun where that is long."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

LONG_S = 30.0
"""Seconds; what takes longer is told of beforehand."""


class Cost(NamedTuple):
    """What work will take, from a part of it that was timed.

    Attributes:
        seconds: of this machine, as busy as it is.
        steps: of its progress, that this covers.
        of: what takes so long.
    """

    seconds: float
    steps: int
    of: str

    @property
    def words(self) -> str | None:
        """As a part of a sentence; None where it is short.

        >>> Cost(250.0, 12, "12 searches").words
        'about 4 minutes for 12 searches'
        >>> Cost(29.0, 12, "12 searches").words is None
        True
        """
        if self.seconds <= LONG_S:
            return None
        return f"about {duration(self.seconds)} for {self.of}"


Expect = Callable[[Cost], None]
"""Called with what work will take, as soon as that is known."""


def duration(seconds: float) -> str:
    """A span of time, as roughly as a forecast knows it.

    >>> duration(43.0), duration(80.0), duration(250.0), duration(1432.0)
    ('40 seconds', '80 seconds', '4 minutes', '24 minutes')
    >>> duration(7000.0), duration(8900.0), duration(300_000.0)
    ('2 hours', '2.5 hours', '3.5 days')
    """
    if seconds < 95:
        return f"{max(1, round(seconds / 10)) * 10} seconds"
    if seconds < 95 * 60:
        return f"{round(seconds / 60)} minutes"
    if seconds < 48 * 3600:
        return f"{_halves(seconds / 3600)} hours"
    return f"{_halves(seconds / 86400)} days"


def _halves(number: float) -> str:
    return f"{round(2 * number) / 2:g}" if number < 10 else f"{number:.0f}"
