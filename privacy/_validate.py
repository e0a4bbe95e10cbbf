"""What callers may give: a real number within bounds, no truth value and no text; and progress."""

import math
import operator
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple

from .errors import InputError, InputTypeError

Progress = Callable[[int, int, str], None]
"""f(done, total, words), called after each step of some work; words may be empty."""


def check_real(name: str, value: object) -> None:
    """Refuse what compares like a number and is none: True would count as 1.

    Raises:
        TypeError: the value is not a real number.
        ValueError: it is larger than any float.

    >>> check_real("epsilon", True)
    Traceback (most recent call last):
    overhear...InputTypeError: epsilon=True must be a number, such as 1.0, and not a bool
    """
    _check_kind(name, value)
    try:
        float(value)  # type: ignore[arg-type] # a real number
    except OverflowError:
        given = _said(value)
        raise InputError(f"{name}={given} must be at most 1e308, the largest number") from None


def _check_kind(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise InputTypeError(f"{name}={value!r} must be a number, such as 1.0, and not a {kind}")


def within(name: str, value: float, bound: str, remedy: str = "") -> float:
    """The float that a value is; refuse what is no real number, or lies outside of an interval.

    Args:
        bound: the interval as it is written: "[0, 1)" holds 0 and not 1, "[1, inf)" what is finite
            and at least 1, "(0, inf]" infinity too.
        remedy: what else is said, after a semicolon, or after the comma or colon that it begins
            with.

    Raises:
        TypeError: the value is not a real number.
        ValueError: it lies outside, or is not a number.
    """
    _check_kind(name, value)
    _check_interval(name, value, bound, remedy)
    check_real(name, value)
    return float(value)


def _check_interval(name: str, value: float, bound: str, remedy: str) -> None:
    interval = _interval(bound)
    if not interval.holds(value):
        joint = "" if remedy[:1] in ",:" else "; "
        raise InputError(f"{name}={_said(value)} must {interval.words(value)}{joint}{remedy}")


def whole(name: str, value: object, bound: str, remedy: str = "") -> int:
    """The integer that a value is, refused as by `within`.

    >>> whole("rounds", 2.0, "[1, inf)")
    Traceback (most recent call last):
    overhear...InputTypeError: rounds=2.0 must be an integer, such as 2
    """
    given: Any = None if isinstance(value, bool) else value
    try:
        number = operator.index(given)
    except TypeError:
        raise InputTypeError(f"{name}={value!r:.40} must be an integer, such as 2") from None
    _check_interval(name, number, bound, remedy)
    return number


class _Interval(NamedTuple):
    low: float
    high: float
    with_low: bool
    with_high: bool

    def holds(self, value: float) -> bool:
        above = value >= self.low if self.with_low else value > self.low
        return above and (value <= self.high if self.with_high else value < self.high)

    def words(self, value: float) -> str:
        """What a value that lies outside must do."""
        least, most = map(_shown, (self.low, self.high))
        if -math.inf < self.low and self.high < math.inf:
            if not (self.with_low or self.with_high):
                return f"lie strictly between {least} and {most}"
            return f"lie in {'(['[self.with_low]}{least}, {most}{')]'[self.with_high]}"
        words = []
        if self.low > -math.inf:
            words.append(f"{'at least' if self.with_low else 'above'} {least}")
        elif self.high < math.inf:
            words.append(f"{'at most' if self.with_high else 'below'} {most}")
        if not (-math.inf < value < math.inf or self.holds(math.inf) or self.holds(-math.inf)):
            words.append("finite")
        return f"be {' and '.join(words)}"


@lru_cache
def _interval(bound: str) -> _Interval:
    low, high = bound[1:-1].split(", ")
    return _Interval(_number(low), _number(high), bound[0] == "[", bound[-1] == "]")


def _said(value: object) -> object:
    is_long = isinstance(value, int) and value.bit_length() > 10_000  # Python prints 4,300 digits
    return "an integer too long to print" if is_long else value


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _shown(end: float) -> str:
    return f"{end:g}" if isinstance(end, float) and float(f"{end:g}") == end else str(end)
