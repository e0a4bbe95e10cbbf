"""Sentences that keep their figures: a terminal prints them, and the page cites them."""

from __future__ import annotations

import string
from typing import NamedTuple

from ...privacy.plain_text import plain
from ..cited import KINDS, Key

__all__ = ["Figure", "Quote", "Sentence", "Value", "fill", "text_of"]


class Figure(NamedTuple):
    """A number in a sentence.

    `kind` says how it is written, one of `cited.KINDS`; `path` where it stands in privacy.json,
    empty if it does not stand there.
    """

    kind: str
    value: float | str
    path: tuple[Key, ...] = ()

    @property
    def text(self) -> str:
        """As a reader sees it."""
        return KINDS[self.kind](self.value)


class Quote(NamedTuple):
    """Words that somebody else chose: a name of a run file, a sentence of an audit."""

    text: str


Piece = str | Figure | Quote  # a string is our own; backticks in it stand around code
Sentence = tuple[Piece, ...]
Value = Figure | Sentence | str | int


def fill(template: str, **values: Value) -> Sentence:
    """A template with its fields filled in; whatever is a string or an integer is quoted.

    Raises:
        KeyError: the template has a field that is not given.

    >>> text_of(fill("Epsilon {figure} is over {limit}.", figure=Figure("bound", 2.0714), limit=2))
    'Epsilon 2.08 is over 2.'
    """
    found: list[Piece] = []
    for literal, field, _, _ in string.Formatter().parse(template):
        if literal:
            found.append(literal)
        if field is not None:
            value = values[field]
            if isinstance(value, Figure):
                found.append(value)
            elif isinstance(value, str | int):
                found.append(Quote(str(value)))
            else:
                found += value
    return tuple(found)


def text_of(*sentences: Sentence) -> str:
    """Sentences as one harmless line, with a space between them."""
    return " ".join(
        "".join(one if isinstance(one, str) else plain(one.text, most=None) for one in sentence)
        for sentence in sentences
    )
