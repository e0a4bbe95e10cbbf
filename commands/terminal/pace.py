"""What equal steps will take, told from the first of them."""

from __future__ import annotations

import time

_SURE_S = 1.0  # after so many seconds the time of a step is known well enough
_SLOW_S = 10.0  # so long a step is known at once


class Pace:
    """The time of steps, of which the first warms the machine up and counts only where it is long.

    Some steps may be followed by a look at what they did, such as an evaluation, at equal
    distances; the time of such a step is told apart from that of others.

    Args:
        done: steps that are done when this begins.
        looks: whether there are such looks.

    Attributes:
        first: steps that were done when this began.
        last: steps that were done when it last heard.
    """

    def __init__(self, done: int, *, looks: bool = False) -> None:
        self.first = self.last = done
        self._looks = looks
        self._begun = self._at = time.monotonic()
        self._warm = False
        self._every = 0
        self._count = {False: 0, True: 0}
        self._took = {False: 0.0, True: 0.0}

    def seconds(self, done: int, total: int, *, look: bool = False) -> float | None:
        """What the steps take from the first to the last; None as long as it is unknown.

        Args:
            done: steps; more than when it last heard.
            total: steps.
            look: whether the last one was looked at.
        """
        now = time.monotonic()
        steps, took = done - self.last, now - self._at
        self.last, self._at = done, now
        if look and not self._every:
            self._every = done - self.first
        if not self._warm:
            self._warm = True
            if took < _SLOW_S * steps:
                return None
        self._count[look] += steps
        self._took[look] += took
        known = sum(self._took.values())
        if known < _SURE_S or (self._looks and not self._count[True] and known < _SLOW_S):
            return None
        left = total - done
        looks = left // self._every if self._every else 0
        each = {one: self._took[one] / n for one, n in self._count.items() if n}
        plain, looked = (each.get(one, each.get(not one, 0.0)) for one in (False, True))
        return now - self._begun + (left - looks) * plain + looks * looked
