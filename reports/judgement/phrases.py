"""The phrases of a judgement, once for every place that prints them, as phrases.toml holds them."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from importlib import resources

from ...privacy.adversary import ALL_OTHERS

_TEXT = resources.files("overhear.reports.judgement").joinpath("phrases.toml").read_text("utf-8")
_TABLES: Mapping[str, Mapping[str, str]] = tomllib.loads(_TEXT)
HEADLINES, WITHOUT_TARGET = _TABLES["headlines"], _TABLES["without_target"]
KINDS, ACTIONS, NOTES = _TABLES["findings"], _TABLES["actions"], _TABLES["notes"]
STATEMENTS, NAMES, PARTS = _TABLES["statements"], _TABLES["names"], _TABLES["parts"]


class Note(enum.StrEnum):
    """What a reader of a judgement must know beside it."""

    MORE = "learns more"
    STOPPED = "stopped by its budget"
    UNFINISHED = "unfinished"
    RESUMED = "resumed"
    REPEATED = "repeated"
    TORN = "torn ledger"
    SEEDED = "seeded noise"
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
