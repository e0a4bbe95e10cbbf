"""A table as it is printed, read from CSV: settings and figures, line by line.

A column of figures is known by its name or by cells such as 83.5 ± 1.3; one of spreads belongs to
the figures left of it. Other columns are settings. In long form `metric` names what `value` holds.
Whatever of a cell is not shown stands as its escape.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from ...privacy.errors import InputError, did_you_mean
from ...privacy.formats.toml_text import CsvRows, check_names
from ...privacy.plain_text import plain

_MOST_BYTES, _MOST_LINES, _MOST_CELLS = 4 << 20, 2000, 20_000
SHARES = ("accuracy", "acc", "auroc", "auc", "ssim", "f1", "precision", "recall")
"""Kinds of figures between 0 and 1, or 0 and 100 %."""
_KINDS = (*SHARES, "mse", "psnr", "rmse", "loss")
_CHANGES = {"drop", "gain", "difference", "diff", "delta", "δ", "∆", "change", "gap", "ratio"}
_CHANGES |= {"improvement", "relative"}  # of a figure, which have no range
_SPREADS = {"spread", "std", "sd", "stdev", "stddev", "deviation", "se", "sem", "stderr", "error"}
_SPREADS |= {"ci", "±", "+-", "+/-"}
_PERCENT = {"%", "percent", "pct"}
# Heads of `overhear table` that are neither a setting nor a figure of the line alone.
_LEFT_OUT = re.compile("difference|n|constant answer|ε .*")
MISSING = {"", "-", "–", "—", "diverged", "n/a", "N/A", "NA"}
_NUMBER = r"(?:[+-]?(?=\.?\d)\d{0,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,2})?|inf|∞)"
_SPREAD = rf"(?:±|\+-|\+/-|\\pm) ?({_NUMBER}) ?%?|(\[{_NUMBER}, ?{_NUMBER}\]|\(n = \d+\))"
_COMMA = re.compile(r"[+-]?\d+,\d")
_CELL = re.compile(rf"({_NUMBER}) ?%? ?(?:{_SPREAD})?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Printed:
    """A figure to the digits that are printed, with its spread and interval where there are any."""

    value: Decimal
    spread: Decimal | None = None
    bracket: str = ""
    is_percent: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread}"
        return f"{self.value}{spread}{' ' * bool(self.bracket)}{self.bracket}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What a table says of one setting.

    Attributes:
        number: of the line in its file, from 1; the first where several are of one setting.
        settings: by column; the name of the file is one of them.
        figures: by column, or by metric.
    """

    number: int
    settings: Mapping[str, str]
    figures: Mapping[str, Printed]


def words_of(head: str) -> set[str]:
    """The words and signs in the name of a column, in small letters."""
    return set(re.findall(r"[a-z]+\d*|[%±δ∆]|\+/?-", head.lower().replace("ε", "epsilon")))


def kind_of(name: str) -> str:
    """What a figure is by its name, such as "accuracy"; nothing where it is a change, or not known.

    >>> kind_of("accuracy_percent"), kind_of("attack PSNR, dB"), kind_of("accuracy drop")
    ('accuracy', 'psnr', '')
    """
    words = words_of(name)
    is_change = words & _CHANGES or ("loss" in words and words & {*SHARES})
    return next((kind for kind in _KINDS if kind in words and not is_change), "")


def read_tables(paths: Sequence[Path], *, figures: Sequence[str] = ()) -> list[Line]:
    """The lines of one or several tables.

    Args:
        figures: columns that hold figures; () goes by names and cells.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is given twice, is too large or no table, has no figures or two lines of
            one setting, or a figure is no number.
    """
    if len({os.path.realpath(path) for path in paths}) < len(paths):  # of links in a circle, too
        raise InputError("a table is given twice; give each once")
    same_names = len({path.name for path in paths}) < len(paths)
    found = [
        line
        for path in paths
        for line in _read(path, plain(path if same_names else path.name, most=None), figures)
    ]
    if len(found) > _MOST_LINES:
        raise InputError(f"{len(found)} lines are more than {_MOST_LINES}; give fewer tables")
    return found


def long_form(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines of a table, where names of columns such as "acc ring 10" have settings in them."""
    names = dict.fromkeys(name for line in lines for name in line.figures)
    each = ((name, re.findall(r"[^\s,_/()=:]+", name)) for name in names)
    of = {name: tuple(w for w in words if w.lower() != kind_of(name)) for name, words in each}
    if len({*map(len, of.values())}) != 1 or len(names) * len(lines) > _MOST_LINES:
        return lines
    found = []
    for line, words in itertools.product(lines, dict.fromkeys(of.values())):
        figures = {kind_of(name): at for name, at in line.figures.items() if of[name] == words}
        settings = {f"column {at}": word for at, word in enumerate(words, 1)}
        if figures:
            found.append(replace(line, settings={**line.settings, **settings}, figures=figures))
    return found


def _read(path: Path, file: str, asked: Sequence[str]) -> list[Line]:
    numbers, columns = _columns(path)
    known = f"; name one of {', '.join(columns)} by --figure"
    for head in asked:
        if head not in columns:
            close = did_you_mean(head, columns, form=repr) or known
            raise InputError(f"{path} has no column {head!r:.80}{close}")
    metric = "metric" if not asked and {"metric", "value"} <= columns.keys() else ""
    holds = ["value"] if metric else [h for h in columns if _holds_figures(h, columns[h])]
    # Each column of figures or spreads, with the figures that it belongs to.
    owner: dict[str, str] = {}
    for head in columns:
        if head in (asked or holds):
            owner[head] = head
        elif owner and _holds_spreads(head):
            last = list(owner.values())[-1]
            owner[head] = head if _is_rest(columns[head], columns[last]) else last
    if not owner and not {"epsilon", "delta"} <= columns.keys():
        cells = (cell for column in columns.values() for cell in column)
        comma = next((f"; {of!r:.80} needs a point" for of in cells if _COMMA.match(of)), known)
        raise InputError(f"{path} has no column that is known to hold figures{comma}")
    units = [head for head in columns if words_of(head) & {"unit", "units"}]
    names = [
        head
        for head in columns
        if head not in (*owner, metric)
        and not _LEFT_OUT.fullmatch(head)
        and not (metric and _follows(columns[head], columns[metric]))
    ]
    found: dict[tuple[str, ...], Line] = {}
    for at, number in enumerate(numbers):
        figures: dict[str, Printed] = {}
        for head, of in owner.items():
            name, cell = columns[metric][at] if metric else of, columns[head][at]
            if cell in MISSING or (head != of and name not in figures):
                continue
            if head == of:
                said = " ".join([head, name, cell, *(columns[unit][at] for unit in units)])
                is_percent = bool(words_of(said) & _PERCENT)
                figures[name] = replace(_printed(path, number, head, cell), is_percent=is_percent)
            elif "ci" in words_of(head) or cell.startswith("["):
                held = f"{figures[name].bracket} {cell}".lstrip()
                figures[name] = replace(figures[name], bracket=held)
            else:
                spread = _printed(path, number, head, cell).value
                figures[name] = replace(figures[name], spread=spread)
        settings = {"file": file, **{head: columns[head][at] for head in names}}
        before = found.get(key := tuple(settings.values()))
        if before is not None and (not metric or figures.keys() & before.figures.keys()):
            raise InputError(
                f"{path} lines {before.number} and {number} have the same settings; add the column "
                "that tells them apart, or take one out"
            )
        if before is not None:
            figures, number = {**before.figures, **figures}, before.number
        found[key] = Line(number=number, settings=settings, figures=figures)
    return list(found.values())


def _columns(path: Path) -> tuple[list[int], dict[str, list[str]]]:
    """The number of each line, and the cells by the name of their column."""
    rows = CsvRows.of_file(path, _MOST_BYTES)
    heads = [plain(head.strip(), most=None) for head in next(rows, [])]
    check_names(path, heads)
    table = [(rows.line, row) for row in rows if any(row)]
    ends = [name for sign, name in ((";", "';'"), ("\\t", "a tab")) if sign in "".join(heads[:1])]
    other = f"; write a comma for {ends[0]}, and numbers with a point" if ends else ""
    if len(heads) < 2 or not 0 < len(table) <= min(_MOST_LINES, _MOST_CELLS // len(heads)):
        raise InputError(
            f"{path} has {len(heads)} columns and {len(table)} lines below their names; a table "
            f"has 2 columns and a line at least, and at most {_MOST_LINES} lines and "
            f"{_MOST_CELLS} cells are read{other}"
        )
    for number, row in table:
        if len(row) != len(heads):
            raise InputError(
                f"{path} line {number} has {len(row)} cells for {len(heads)} columns; write one "
                "for each, and numbers with a point"
            )
    cells = zip(*(row for _, row in table), strict=True)
    return [number for number, _ in table], {
        head: [plain(cell.strip(), most=None) for cell in column]
        for head, column in zip(heads, cells, strict=True)
    }


def _holds_figures(head: str, cells: Sequence[str]) -> bool:
    held = [_match(cell) for cell in cells if cell not in MISSING]
    numbers = [one for one in held if one]
    wide = any(one[2] or one[3] for one in numbers)
    known = words_of(head) & {*_KINDS} or head == "mean model" or wide
    is_other = _LEFT_OUT.fullmatch(head) or (_holds_spreads(head) and not wide)
    return bool(known and not is_other and 2 * len(numbers) > len(held))


def _holds_spreads(head: str) -> bool:
    """Whether a head is one of spreads; an error of something else, as of a test, is not."""
    words = words_of(head)
    ours = _SPREADS | _PERCENT | {*_KINDS, "standard", "of", "the", "mean"}
    return bool(words & _SPREADS) and ("error" not in words or words <= ours)


def _is_rest(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a column is what is left to 1 or 100 %, as an error beside an accuracy."""
    pairs = [(_match(one), _match(two)) for one, two in zip(cells, others, strict=True)]
    sums = {Decimal(one[1]) + Decimal(two[1]) for one, two in pairs if one and two}
    return sums <= {Decimal(1), Decimal(100)} and len(sums) == 1


def _follows(cells: Sequence[str], metrics: Sequence[str]) -> bool:
    """Whether a column says no more than the metric, such as its unit."""
    return len(set(cells)) > 1 and len({*zip(metrics, cells, strict=True)}) == len(set(metrics))


def _match(cell: str) -> re.Match[str] | None:
    return _CELL.fullmatch(re.sub(r"[$*]|\\(?=%)", "", cell).replace("−", "-").strip())


def _printed(path: Path, number: int, head: str, cell: str) -> Printed:
    if (found := _match(cell)) is None:
        comma = " and a point, as in 83.5," * bool(_COMMA.match(cell))
        raise InputError(
            f"{path} line {number}: {head}={cell!r:.80} must be a number{comma} or one with its "
            "spread such as 83.5 ± 1.3; leave the cell empty where there is none"
        )
    value, *spread = (Decimal(one.replace("∞", "inf")) for one in found.group(1, 2) if one)
    return Printed(value, spread[0] if spread else None, found[3] or "")
