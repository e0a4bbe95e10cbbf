"""Errors by class: what the user gave and cannot be used, and the rest, which are faults of ours.

A command tells an `InputError` in one sentence and ends with exit code 2; so it does with an
`OSError`, by which the system refuses a file. Any other error shows its traceback.

A package that is not installed: what needs it, and the command that installs it.

The command names that package alone. No index has Overhear, so that a command with its name would
bring the code of whoever takes that name.

What code of the user raised, in words, and where.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from .. import package_of, requirement
from .plain_text import plain_sentence


class InputError(ValueError):
    """What the user gave cannot be used; it says which value, which bound, which remedy."""

    def __init__(self, *words: object) -> None:
        super().__init__(*(plain_sentence(of) if isinstance(of, str) else of for of in words))


class InputTypeError(InputError, TypeError):
    """The user gave a value of another type than is taken."""


class NotInstalled(InputError, ImportError):
    """A package that something needs is missing; the sentence has the command that installs it."""


class UndeclaredOperation(InputTypeError):
    """A step did something to a private value that no operation declares."""


class NotFiniteError(InputError, FloatingPointError):
    """What the user set makes numbers that are not finite, such as a gradient that overflows."""


class UnsupportedView(InputError):
    """A view for which no privacy statement can be proven."""


class InexpressibleView(UnsupportedView):
    """A view that may have a finite bound in truth, but none that this accounting can express."""


def all_problems(where: str, found: Sequence[str], *, more: int = 0) -> InputError:
    """What is wrong with a file, to be raised: a sentence, or a list of them.

    Args:
        more: problems that are not listed.

    >>> print(all_problems("run.toml", ["a", "b"], more=1))
    run.toml has 3 problems:
      a
      b
      and 1 more
    """
    if len(found) == 1 and not more:
        return InputError(f"{where}: {found[0]}")
    lines = "".join(f"\n  {line}" for line in (*found, *([f"and {more} more"] if more else [])))
    return InputError(f"{where} has {len(found) + more} problems:{lines}")


# What the field calls something by, without signs and capitals, and what it is called here.
_KNOWN_AS = {
    **dict.fromkeys(("dpsgd", "sgd", "psgd", "decentralizedsgd", "dsgd"), "dp-dpsgd"),
    **dict.fromkeys(("gossip", "gossipsgd", "noisygossip"), "muffliato"),
    **dict.fromkeys(("fedavg", "federatedaveraging"), "dp-fedavg"),
    **dict.fromkeys(("fedsgd", "cdp", "centraldp"), "cdp-dsgd"),
    **dict.fromkeys(("ldp", "localdp"), "ldp-dsgd"),
    **dict.fromkeys(("gda", "sgda"), "dp-sgda"),
    **dict.fromkeys(("corndsgd", "cornsgd", "whisperdsgd"), "whisper"),
}
# What is never suggested, since it adds no noise or bounds less, and what is in its place.
_INSTEAD = {
    "dsgd": "dp-dpsgd",
    "sgda": "dp-sgda",
    "dm-hsgd": "dpmixsgd",
    "published": "repaired",
    "single-message": "eavesdropper",
}
# Of values that are near one word, the first of these is suggested: it promises or withstands most.
_FIRST = (
    *("replace-one", "agent", "client", "user", "poisson", "fixed", "hardened", "clear", "checked"),
    *("all-others", "neighbour", "eavesdropper", "posterior", "matched"),
)


def did_you_mean(word: object, known: Iterable[str], *, form: Callable[[str], str] = str) -> str:
    """A remedy to put behind a sentence, or nothing where no known word is close.

    A word is never led to less protection than another one that may have been meant.
    """
    names, text = list(known), str(word)
    famous = _KNOWN_AS.get(re.sub("[^a-z0-9]", "", text.lower()))
    close = (
        [famous] if famous in names else difflib.get_close_matches(text, names, n=len(names) or 1)
    )
    near = [found for one in close if (found := _INSTEAD.get(one, one)) in names]
    rank = {one: place for place, one in enumerate(_FIRST)}
    meant = min(
        near, key=lambda one: rank.get(one, len(rank)), default=None
    )  # of equals the nearest
    return "" if meant is None else f"; did you mean {form(meant)}?"


def needs(what: str, module: str) -> NotInstalled:
    """What is to be raised of a package that is missing, with the versions that are taken.

    Args:
        module: as it is imported.

    Raises:
        LookupError: it is of no package that this program needs.

    >>> print(needs("plot", "matplotlib"))
    plot needs matplotlib, which is not installed: pip install "matplotlib>=3.8"
    """
    if (found := requirement(module)) is None:
        raise LookupError(module)
    return NotInstalled(
        f'{what} needs {package_of(module)}, which is not installed: pip install "{found}"'
    )


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Say of a package that is missing what needs it, as `needs` does."""
    try:
        yield
    except ModuleNotFoundError as error:
        if requirement(error.name or "") is None:
            raise
        raise needs(what, error.name or "") from None


_LONGEST = 300  # characters
_OURS = Path(__file__).resolve().parents[1] / "training"  # a checkout may be where users work


def describe(error: BaseException) -> str:
    """An error by its type and words.

    >>> describe(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    try:
        words = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - an error of the user that cannot say itself
        words = ""
    return " ".join(f"{type(error).__name__}: {words}".split()).rstrip(": ")[:_LONGEST]


def line_of(error: BaseException) -> str:
    """Where in code of the user an error arose, in words; nothing where that is not known."""
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno} of {Path(error.filename or '').name}"
    library = Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        installed = {"site-packages", "dist-packages"} & set(path.parts)
        ours = path.is_relative_to(_OURS) or path.is_relative_to(library)
        if path.is_file() and not installed and not ours:
            return f" in line {frame.lineno} of {path.name}"
    return ""


# What callers may give: a real number within bounds, no truth value and no text; and progress.

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
