"""A paper's figures from a CSV file of the user, in place of those that are not at hand.

    graph.name,algorithm.name,figure
    ring,DP-CGA,88.3

A column for each swept key that tells lines apart, as the table shows its values, and `figure`; or
`low` and `high` of a range.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...privacy.bounded import read_text
from ...privacy.errors import InputError, did_you_mean
from ...privacy.formats.csv_rows import CsvRows
from .paper_result import Figure

_FIGURES = ("figure", "low", "high")


def read_figures(path: Path, places: Sequence[Mapping[str, str]]) -> tuple[Figure, ...]:
    """The figures of a file.

    Args:
        places: settings of the lines of the entry, by swept key.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a column or a line that fits none of the entry's, or no number.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file of figures at {path}")
    rows = CsvRows(path, io.StringIO(read_text(path), newline=""))
    keys = next(rows, [])
    known = list(dict.fromkeys(key for place in places for key in place))
    for key in keys:
        if key not in (*known, *_FIGURES):
            close = did_you_mean(key, [*known, *_FIGURES])
            raise InputError(
                f"{path}: column {key!r} is no swept key{close or '; choose among '}"
                f"{'' if close else ', '.join([*known, *_FIGURES])}"
            )
    if "figure" not in keys and not {"low", "high"} <= set(keys):
        raise InputError(f"{path} has no column 'figure'; give it, or 'low' and 'high'")
    found = []
    for row in filter(None, rows):
        where = f"{path}, line {rows.line}"
        if len(row) != len(keys):
            raise InputError(f"{where}: {len(row)} values for {len(keys)} columns")
        found.append(_figure(dict(zip(keys, row, strict=True)), places, where=where))
    return tuple(found)


def _figure(row: Mapping[str, str], places: Sequence[Mapping[str, str]], *, where: str) -> Figure:
    place = {key: str(value) for key, value in row.items() if key not in _FIGURES and value}
    if not any(place.items() <= one.items() for one in places):
        told = ", ".join(f"{key}={value}" for key, value in place.items())
        held = {key: dict.fromkeys(one[key] for one in places if key in one) for key in place}
        there = "; ".join(f"{key} has {', '.join(values)}" for key, values in held.items())
        raise InputError(f"{where}: no line has {told}; {there}")
    low = _number(row.get("low") or row.get("figure"), where=where)
    high = _number(row.get("high") or row.get("figure"), where=where)
    if low > high:
        raise InputError(f"{where}: low={low:g} lies above high={high:g}; exchange them")
    return Figure(place=place, low=low, high=high, source=where)


def _number(text: str | None, *, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: figure={text!r} must be a finite number")
    return number
