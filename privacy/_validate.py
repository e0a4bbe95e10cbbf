"""What callers may give for a number: a real one, no truth value and no text."""

from numbers import Real

from .errors import InputTypeError

__all__ = ["check_real"]


def check_real(name: str, value: object) -> None:
    """Refuse what compares like a number and is none: True would count as 1.

    Args:
        name: what the value is called.
        value: anything.

    Raises:
        TypeError: the value is not a real number.

    >>> check_real("epsilon", True)
    Traceback (most recent call last):
    overhear...InputTypeError: epsilon=True must be a number, such as 1.0, and not a bool
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise InputTypeError(f"{name}={value!r} must be a number, such as 1.0, and not a {kind}")
