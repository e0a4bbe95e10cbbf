"""How figures are written: an upper bound is never rounded down, nor a lower bound up.

A figure of a report is a float, or the string "inf" that JSON needs.

Objects of a run folder: built, passed on, written as JSON and read back as one type each.

What a file holds of a number or a word is said in `privacy.formats.codec`, for dataclasses and for
the models that are made here. A key that was not set is not written, so that an object reads as it
was written, whatever version wrote it: one that knew a key less, or one that knew a key more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, JsonValue

from ..privacy.bounded import read_bounded
from ..privacy.durable import write_durably
from ..privacy.formats.codec import CONFIG, as_text, load

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
    # Of the digits that it was given with, not of the binary number just below them.
    floor = Context(prec=digits, rounding=ROUND_FLOOR).plus(Decimal(repr(number)))
    return figure(float(floor), digits)


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


LARGEST_OBJECT = 32 << 20  # bytes of a JSON file


class Described(BaseModel):
    """An object that may hold more than is described here.

    >>> from overhear.privacy.formats.codec import NotNegative
    >>> class Spent(Described):
    ...     epsilon: NotNegative
    >>> spent = Spent(epsilon=float("inf"))
    >>> spent.dump()
    {'epsilon': 'inf'}
    >>> Spent.parse('{"epsilon": "inf", "later": 1}', refusal="{} {}".format).epsilon
    inf
    """

    model_config = {**CONFIG, "frozen": True}

    @classmethod
    def from_object(cls, source: object, **others: Any) -> Self:
        """The object whose fields are the attributes of these names, but for those that are given.

        >>> from types import SimpleNamespace
        >>> class Look(Described):
        ...     epsilon: float
        ...     canaries: int
        >>> Look.from_object(SimpleNamespace(epsilon=1.5, of="anything"), canaries=20).dump()
        {'epsilon': 1.5, 'canaries': 20}
        """
        names = [name for name in cls.model_fields if hasattr(source, name)]
        return cls(**({name: getattr(source, name) for name in names} | others))

    @classmethod
    def parse(cls, text: str | bytes, *, refusal: Callable[[str, str], str]) -> Self:
        """The object of a JSON text.

        Args:
            text: of the file or line.
            refusal: the sentence for a text that is none, of the place in it and what is wrong.

        Raises:
            ValueError: it is none, in the sentence of `refusal`.
        """
        return load(cls, text, refusal=refusal)

    @classmethod
    def read(cls, path: Path, *, refusal: Callable[[str, str], str]) -> Self:
        """The object of a JSON file; arguments and refusals of `parse`.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it cannot be read, or is larger than any that is written.
        """
        return cls.parse(read_bounded(path, LARGEST_OBJECT), refusal=refusal)

    @classmethod
    def read_if_there(cls, path: Path, *, remedy: str) -> Self | None:
        """The same, None where there is no file; the sentence of a refusal ends in the remedy."""
        if not path.exists():
            return None
        return cls.read(
            path, refusal=lambda at, what: f"{path} cannot be read at {at}: {what}; {remedy}"
        )

    def dump(self) -> dict[str, JsonValue]:
        """The object of JSON: what was set, under the names of the file."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def write(self, path: Path, *, mode: int | None = None) -> None:
        """Write the object as a JSON file, all at once.

        Args:
            mode: as for `write_durably`.

        Raises:
            OSError: the system refuses; the error names the file.
        """
        write_durably(path, as_text(self.dump()).encode(), mode=mode)
