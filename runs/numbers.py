"""How figures are written: an upper bound is never rounded down, nor a lower bound up.

A figure of a report is a float, or the string "inf" that JSON needs. What work will take is below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

# A calibrated epsilon of 4 - 1e-12 is a 4: only what a reader could notice is rounded up.
_NOISE = 1e-9


def is_infinite(value: float | str) -> bool:
    """Whether a figure is infinite, as a float or as the string "inf"."""
    return math.isinf(float(value))


def bound(value: float | str, digits: int = 3) -> str:
    """An upper bound with `digits` significant digits, rounded up.

    >>> bound(2.0714), bound(4.0), bound("inf")
    ('2.08', '4.00', '∞')
    """
    number = float(value)
    if not math.isfinite(number) or number == 0:
        return figure(number, digits)
    nearest = Decimal(f"{number:.{digits - 1}e}")
    if float(nearest) < number * (1 - _NOISE):
        step = Decimal(1).scaleb(nearest.adjusted() - digits + 1)
        nearest = Decimal(number).quantize(step, rounding=ROUND_CEILING)
    return figure(float(nearest), digits)


def lower_bound(value: float | str, digits: int = 3) -> str:
    """A lower bound with `digits` significant digits, rounded down.

    >>> lower_bound(7.4199), lower_bound(7.6), lower_bound(0.0), lower_bound("inf")
    ('7.41', '7.60', '0', '∞')
    """
    number = float(value)
    if is_infinite(number) or not number > 0:
        return figure(number, digits)
    return figure(rounded_down(number, digits), digits)


def rounded_down(number: float, digits: int = 3) -> float:
    """A finite number with `digits` significant digits, rounded down."""
    # Of the digits that it was given with, not of the binary number just below them.
    return float(Context(prec=digits, rounding=ROUND_FLOOR).plus(Decimal(repr(number))))


def figure(value: float | str, digits: int = 3) -> str:
    """A figure with `digits` significant digits, to the nearest.

    >>> figure(2.5134), figure(-0.0213), figure(12345.6), figure("inf")
    ('2.51', '−0.0213', '12346', '∞')
    """
    number = float(value)
    if math.isnan(number):
        return "undefined"
    sign = "−" if number < 0 else ""
    number = abs(number)
    if math.isinf(number):
        return f"{sign}∞"
    if number == 0:
        return "0"
    if not 1e-4 <= number < 1e6:
        return sign + small(float(f"{number:.{digits - 1}e}"))
    before = math.floor(math.log10(float(f"{number:.{digits - 1}e}"))) + 1
    return f"{sign}{number:.{max(digits - before, 0)}f}"


def percent(share: float | str, digits: int = 1) -> str:
    """A share in percent.

    >>> percent(0.1234), percent(0.5, 0), percent("inf")
    ('12.3 %', '50 %', '∞')
    """
    number = float(share)
    return f"{number:.{digits}%}".replace("%", " %") if math.isfinite(number) else figure(number)


def score(value: float | str) -> str:
    """A score with two decimals, such as SSIM.

    >>> score(1.0), score(-0.0213)
    ('1.00', '−0.02')
    """
    return f"{float(value):.2f}".replace("-", "−")


def small(value: float | str) -> str:
    """A number such as delta, with as many digits as it was given.

    >>> small(1e-5), small(0.05), small(2.5e-7)
    ('1e-5', '0.05', '2.5e-7')
    """
    number = float(value)
    if 1e-3 <= number < 1e4:
        return f"{number:.12g}"
    head, _, exponent = f"{number:.12e}".partition("e")
    return f"{head.rstrip('0').rstrip('.')}e{int(exponent)}"


# What work will take, said before it is well begun where that is long.

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
