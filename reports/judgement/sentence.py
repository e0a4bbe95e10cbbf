"""Sentences that keep their figures: a terminal prints them, and the page cites them.

Their phrases are those of phrases.toml, once for every place that prints them.
"""

from __future__ import annotations

import enum
import string
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from ...privacy.adversary import ALL_OTHERS
from ...privacy.plain_text import plain
from ..references import KINDS as WRITTEN
from ..references import Key

_TEXT = resources.files("overhear.reports.judgement").joinpath("phrases.toml").read_text("utf-8")
_TABLES: Mapping[str, Mapping[str, str]] = tomllib.loads(_TEXT)
HEADLINES, WITHOUT_TARGET = _TABLES["headlines"], _TABLES["without_target"]
AS_DECLARED = _TABLES["as_declared"]
KINDS, ACTIONS, NOTES = _TABLES["findings"], _TABLES["actions"], _TABLES["notes"]
STATEMENTS, NAMES, PARTS = _TABLES["statements"], _TABLES["names"], _TABLES["parts"]


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
        return WRITTEN[self.kind](self.value)


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


class Note(enum.StrEnum):
    """What a reader of a judgement must know beside it."""

    MORE = "learns more"
    STOPPED = "stopped by its budget"
    UNFINISHED = "unfinished"
    RESUMED = "resumed"
    REPEATED = "repeated"
    TORN = "torn ledger"
    SEEDED = "seeded noise"
    DECLARED = "declared"
    DUPLICATES = "duplicates"
    ALONE = "records alone"
    SUSPICIOUS = "suspicious"
    ENCRYPTED = "encrypted links"
    COUNTED = "public number of records"


def adversary_words(adversary: str, worst: str | None) -> str:
    """The adversary that was asked for, and which one it is where the worst was searched.

    >>> adversary_words("neighbour", "neighbour:1")
    'neighbour:1 (worst)'
    """
    return adversary if worst is None or adversary == ALL_OTHERS else f"{worst} (worst)"
