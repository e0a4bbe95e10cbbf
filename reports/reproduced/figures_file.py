"""A paper's figures from a CSV file of the user, in place of those that are not at hand.

    graph,algorithm,figure
    ring,DP-CGA,88.3

A column for each key that tells lines apart, as `--cell` names keys and values, and `figure`; or
`low` and `high` of a range. Papers' tables as they are extracted have names of their own for these.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ...privacy.bounded import read_bounded
from ...privacy.errors import InputError
from ...privacy.formats.csv_rows import CsvRows, check_names
from ..sweep.cells import Cells
from .paper_result import Entry, Figure, Place

METRIC = "metric"
"""The key of a figure that says which score it is of, where that is not the entry's."""
_FIGURE, _RANGE, _UNIT = "figure", ("low", "high"), "unit_inferred"
_KNOWN_AS = dict.fromkeys(("accuracy_percent", "auroc", "value"), _FIGURE)
_SPREAD = "spread_percent"
_BESIDE = ("table", _UNIT, "varied_inferred", _SPREAD)  # tell no lines apart
_JOINED = ("noise_level_order", "clipped")
_MOST_BYTES = 1 << 20


def printed_figures(cells: Cells, entry: Entry) -> tuple[Figure, ...]:
    """The figures that the paper of an entry prints, of the lines that it has at a scale."""
    if (printed := entry.printed) is None:
        return ()
    path = Path(__file__).parent / "figures" / f"{printed.file}.csv"
    found, _ = read_figures(path, cells, value=entry.value, of=printed.of)
    return tuple(replace(one, source=printed.source) for one in found)


def read_figures(
    path: Path, cells: Cells, *, value: str = "", of: Place | None = None
) -> tuple[tuple[Figure, ...], str]:
    """The figures of a file.

    Args:
        cells: what the entry has.
        value: of the entry, which a column `metric` may name.
        of: settings of the lines that figures are of which do not name them.

    Returns:
        Those of lines that the entry has at this scale, and a sentence on those that are left out;
        empty where none is.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a column or a value that the entry has nowhere, no number, or two figures of a
            line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file of figures at {path}")
    held = io.BytesIO(read_bounded(path, _MOST_BYTES))
    rows = CsvRows(path, io.TextIOWrapper(held, encoding="utf-8-sig", newline=""))
    names = [_KNOWN_AS.get(name, name) for name in next(rows, [])]
    check_names(path, names)
    if _FIGURE not in names and not set(_RANGE) <= set(names):
        raise InputError(f"{path} has no column 'figure'; give it, or 'low' and 'high'")
    words = [n for n in names if n not in (_FIGURE, METRIC, *_RANGE, *_BESIDE, *_JOINED)]
    try:
        for word in words:
            cells.key(word)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    found, count, lost = dict[tuple[tuple[str, str], ...], Figure](), 0, 0
    for row in filter(None, rows):
        where, count = f"{path}, line {rows.line}", count + 1
        if len(row) != len(names):
            raise InputError(f"{where}: {len(row)} values for {len(names)} columns")
        told = _joined(dict(zip(names, row, strict=True)))
        settings = dict(of or {}) | {word: told[word] for word in words if told[word]}
        figures = list(_figures(told, settings, cells, where=where))
        if not figures:
            lost += 1
            continue
        if (score := told.get(METRIC, value).lower()) != value:
            share = 0.01 if told.get(_UNIT) == "percent" else 1.0
            figures = [_of_score(one, score, share) for one in figures]
        for one in figures:
            other = found.setdefault(tuple(sorted(one.place.items())), one)
            if (one.low, one.high) != (other.low, other.high):
                raise InputError(
                    f"{where}: a line of the table has another figure in {other.source}"
                )
    left = f"{lost} of {count} figures of {path} are of another scale, and are left out."
    return tuple(found.values()), left if lost else ""


def _joined(row: dict[str, str]) -> dict[str, str]:
    """With the columns that tell an algorithm's rows apart in its name, as the table shows it."""
    noise, clipped = (row.get(name, "") for name in _JOINED)
    more = f", noise {noise}" if noise not in ("", "0") else ""
    more += ", clipped" if clipped not in ("", "no") else ""
    return {**row, "algorithm": row["algorithm"] + more} if more else row


def _of_score(figure: Figure, score: str, share: float) -> Figure:
    """A figure of another score than the entry's."""
    place = {**figure.place, METRIC: score}
    return replace(figure, place=place, low=share * figure.low, high=share * figure.high)


def _figures(
    row: Mapping[str, str], settings: Place, cells: Cells, *, where: str
) -> Iterator[Figure]:
    """A figure for each line that a row is of."""
    low = _number(row.get("low") or row.get(_FIGURE), where=where)
    high = _number(row.get("high") or row.get(_FIGURE), where=where)
    if low > high:
        raise InputError(f"{where}: low={low:g} lies above high={high:g}; exchange them")
    spread = _number(text, where=where) if (text := row.get(_SPREAD)) else None
    try:
        each = [cells.places(word, text, of_paper=True) for word, text in settings.items()]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for places in itertools.product(*each):
        place = {key: value for one in places for key, value in one.items()}
        yield Figure(place=place, low=low, high=high, source=where, spread=spread)


def _number(text: str | None, *, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: figure={text!r} must be a finite number")
    return number
