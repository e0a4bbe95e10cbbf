"""A file of scores: `score,included[,canary]`, one row a canary, with a bound on its size.

score      a number, higher for canaries that are in
included   1 or 0, true or false, in or out: the canary's coin
canary     a name; no two rows have the same
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.bounded import read_bounded
from ...privacy.errors import InputError
from ...privacy.formats.csv_rows import CsvRows
from .scores_audit import MOST

_MOST_BYTES = 128 << 20
_COLUMNS = ("score", "included", "canary")
_COINS = {"1": True, "true": True, "in": True, "0": False, "false": False, "out": False}


class ScoreFile(NamedTuple):
    """(m,) each: scores and coins."""

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]


def read_scores(path: Path) -> ScoreFile:
    r"""Read a file of scores.

    Args:
        path: comma-separated text in UTF-8 with a line of names.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: too large, no text, a column that is missing, unknown or there twice, a value
            that is none, or a canary that is named twice.
    """
    try:
        text = read_bounded(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is no text in UTF-8; save the scores as comma-separated text"
        ) from None
    return _read(path, CsvRows(path, StringIO(text, newline="")))


def _read(path: Path, rows: CsvRows) -> ScoreFile:
    names = [name.strip().lower() for name in next(rows, [])]
    _check_names(path, names)
    scores, coins, seen = list[float](), list[bool](), set[str]()
    # One canary a line, each of them once.
    for row in rows:
        if not row:
            continue
        where = f"{path}, line {rows.line}"
        if len(row) != len(names):
            raise InputError(f"{where}: {len(row)} values for {len(names)} columns")
        if len(scores) == MOST:
            raise InputError(f"{path} has more than {MOST} canaries; give a part of them")
        of = dict(zip(names, (value.strip() for value in row), strict=True))
        scores.append(_score(where, of["score"]))
        coins.append(_coin(where, of["included"]))
        if "canary" in of:
            name = unicodedata.normalize("NFC", of["canary"])  # names that look alike are one
            if name in seen:
                raise InputError(f"{where}: canary {of['canary']!r:.40} was there; give each once")
            seen.add(name)
    return ScoreFile(
        scores=np.asarray(scores, dtype=np.float64),
        included=np.asarray(coins, dtype=np.bool_),
    )


def _check_names(path: Path, names: Sequence[str]) -> None:
    expected = f"{path} must begin with the line score,included or score,included,canary"
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{expected}; the column {name!r:.40} is there twice")
        if name not in _COLUMNS:
            raise InputError(f"{expected}; there is a column {name!r:.40}")
    for name in _COLUMNS[:2]:
        if name not in names:
            raise InputError(f"{expected}; the column {name!r} is missing")


def _score(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: score {text!r:.40} must be a number") from None
    if np.isnan(value):
        raise InputError(
            f"{where}: the score is not a number; correct the run, since a canary that is left out "
            "breaks the count"
        )
    return value


def _coin(where: str, text: str) -> bool:
    if text.lower() not in _COINS:
        raise InputError(f"{where}: included {text!r:.40} must be one of {', '.join(_COINS)}")
    return _COINS[text.lower()]
