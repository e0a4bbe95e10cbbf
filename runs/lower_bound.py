"""How a measured lower bound is written: never rounded up."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal

from .numbers import figure, is_infinite

__all__ = ["lower_bound"]


def lower_bound(value: float | str, digits: int = 3) -> str:
    """A lower bound with `digits` significant digits, rounded down.

    >>> lower_bound(7.4199), lower_bound(7.6), lower_bound(0.0), lower_bound("inf")
    ('7.41', '7.60', '0', '∞')
    """
    number = float(value)
    if is_infinite(number) or not number > 0:
        return figure(number, digits)
    # Of the digits that it was given with, not of the binary number just below them.
    floor = Context(prec=digits, rounding=ROUND_FLOOR).plus(Decimal(repr(number)))
    return figure(float(floor), digits)
