"""Figures cited from a report: what the reader sees, and where in the data it stands.

A page never holds a number of its own. Each one is looked up by its place in the report, and the
markup keeps that place (a JSON pointer) and the exact value, so that a test can compare.

What is known of a figure of a run: its status after what was released, its sign, its text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from ..privacy.errors import InputError
from ..privacy.guarantee import Status
from ..privacy.plain_text import plain_lines
from ..runs.numbers import bound, figure, is_infinite, lower_bound, percent, score, small

Key = str | int


def _whole(value: float | str) -> str:
    return f"{int(value):,}".replace(",", "\u202f")


KINDS: Mapping[str, Callable[[float | str], str]] = {
    "bound": bound,
    "precise": lambda value: bound(value, 4),
    "exact": lambda value: figure(value) if is_infinite(value) else repr(float(value)),
    "lower": lambda value: lower_bound(value, 4),
    "figure": figure,
    "score": score,
    "given": lambda value: figure(value) if is_infinite(value) else f"{float(value):.6g}",
    "sensitivity": lambda value: figure(value, 4),
    "small": small,
    "percent": percent,
    "whole": _whole,
}


class References:
    """The figures of one report, by their place."""

    def __init__(self, report: Mapping[str, object]) -> None:
        self._report = report

    def __call__(self, kind: str, *path: Key) -> Markup:
        """The figure at a place, for running text.

        Raises:
            ValueError: the report has nothing there.
        """
        text = KINDS[kind](look_up(self._report, path))
        return Markup('<data {} value="{}">{}</data>').format(
            self._place(kind, path), look_up(self._report, path), text
        )

    def svg(self, kind: str, *path: Key) -> Markup:
        """The same inside the text of a drawing."""
        text = KINDS[kind](look_up(self._report, path))
        return Markup('<tspan {} data-value="{}">{}</tspan>').format(
            self._place(kind, path), look_up(self._report, path), text
        )

    def _place(self, kind: str, path: tuple[Key, ...]) -> Markup:
        pointer = "".join("/" + str(k).replace("~", "~0").replace("/", "~1") for k in path)
        return Markup('data-path="{}" data-kind="{}"').format(pointer, kind)


def look_up(report: Mapping[str, object], path: tuple[Key, ...]) -> Any:
    """What stands at a place.

    Raises:
        ValueError: the report has nothing there.
    """
    at: Any = report
    for key in path:
        try:
            at = at[key]
        except (KeyError, IndexError, TypeError) as error:
            place = "/".join(map(str, path))
            raise InputError(
                f"the report has nothing at {place}; attack, audit or report the run again"
            ) from error
    return at


HEURISTIC = "heuristic: at least this bad, no upper bound known"
STATUSES: Mapping[Status, str] = {
    Status.PROVEN: "proven",
    Status.DECLARED: "declared: an upper bound, if the list of releases is true",
    Status.CHECKED: "declared, checked: as declared, and what was kept of the releases agrees",
    Status.HEURISTIC: HEURISTIC,
    Status.NO_PROTECTION: "no protection: something is shown that no noise hides",
    Status.CANNOT_BE_EXPRESSED: "cannot be expressed: no finite bound is known here, one may exist",
}


def sign_of(epsilon: float | str, *, upper: bool) -> str:
    """How an epsilon stands to the truth: "≤" an upper bound, "≥" heuristic, "=" infinite."""
    if is_infinite(epsilon):
        return "="
    return "≤" if upper else "≥"


def kind_of(*, upper: bool) -> str:
    """How an epsilon is written, one of `cited.KINDS`: only an upper bound is rounded up."""
    return "bound" if upper else "figure"


def epsilon_text(epsilon: float | str, *, upper: bool) -> str:
    """An epsilon with its sign, rounded to the side on which it is true.

    >>> epsilon_text(2.0714, upper=True), epsilon_text(2.0714, upper=False)
    ('≤ 2.08', '≥ 2.07')
    """
    if is_infinite(epsilon):
        return "∞"
    shown = bound(epsilon) if upper else figure(epsilon)
    return f"{sign_of(epsilon, upper=upper)} {shown}"


# Templates of pages: what is put into one is escaped, for HTML and for whoever looks at it.


@functools.cache
def template(package: str, name: str) -> Template:
    """A template that lies in a package, beside those that it includes."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        loader=FunctionLoader(
            lambda of: resources.files(package).joinpath(of).read_text(encoding="utf-8")
        ),
    )
    return environment.get_template(name)


def _shown(value: object) -> object:
    """What stands in the place of a value: no text that moves others, or that is not seen."""
    if isinstance(value, Markup):  # a drawing of ours, with names in it that are not
        return Markup(plain_lines(str(value)))  # noqa: S704 # it was markup before
    return plain_lines(value) if isinstance(value, str) else value
