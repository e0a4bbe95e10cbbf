"""Columns of a table, declared: how the cells of a row become the numbers of a record.

Whatever would be read off the data, a smallest value or a list of categories, would be a release of
it without noise. So the run file declares what is public::

    columns = {age = [0, 120], sex = ["f", "m"]}

=================  =======================================================  ======================
Declared           A cell becomes                                           A missing cell becomes
=================  =======================================================  ======================
``[low, high]``    (value - low) / (high - low), in [0, 1]                  1/2, the middle
``["date", a, b]`` the same of days from a to b, such as "2020-01-01"       1/2, the middle
``["f", "m"]``     1 at its place, 0 elsewhere: f, m, other, missing        1 at "missing"
=================  =======================================================  ======================

A value outside of its range is refused, or taken to the bound that it passes where ``outside`` is
"clamp". A category that is not declared counts as "other", and how many cells do is counted for the
operator. A cell is missing if it is empty, or as ``missing`` declares; "nan" is no number. Columns
that are not declared are not read.

The target is a column, too. Declared as categories it is a label, in the order of the declaration,
and any other value is refused; declared as a range it is scaled, and not declared it is a whole
number from 0, or with ``outputs = 1`` any number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError

Cells = Sequence[str | float | int | bool | None]
_SHOWN = 60  # characters of a cell that a refusal repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A column of numbers with public bounds.

    >>> age = Range(low=0.0, high=120.0)
    >>> age.encode(["30", ""], clamp=False)[:, 0].tolist()
    [0.25, 0.5]
    """

    low: float
    high: float

    @property
    def width(self) -> int:
        """Numbers of a record."""
        return 1

    def encode(self, cells: Cells, *, clamp: bool) -> NDArray[np.float32]:
        """(B, 1) of B cells.

        Raises:
            BadCell: one is no number, or outside.
        """
        if "" in cells or None in cells:
            middle = 0.5 * self.low + 0.5 * self.high
            cells = [middle if cell is None or cell == "" else cell for cell in cells]
        values = self.read(cells)
        if clamp:
            values = values.clip(self.low, self.high)
        outside = np.flatnonzero((values < self.low) | (values > self.high))
        if len(outside):
            at = int(outside[0])
            raise BadCell(
                at,
                f"{_shown(cells[at])} lies outside [{self.say(self.low)}, {self.say(self.high)}]; "
                "widen the range "
                'by what is public, or set outside = "clamp"',
            )
        scaled = (values - self.low) / (self.high - self.low)
        return np.asarray(scaled[:, None], dtype=np.float32)

    def read(self, cells: Cells) -> NDArray[np.float64]:
        """(B,) the values of cells.

        Raises:
            BadCell: one has none.
        """
        return _numbers(cells)

    def say(self, value: float) -> str:
        """A value as a cell has it."""
        return f"{value:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dates(Range):
    """A column of days with public bounds, in days since the year 1; a time is a part of a day.

    >>> dates = Dates(low=737425.0, high=737790.0)  # of 2020
    >>> dates.encode(["2020-12-31", "2020-01-01T12:00"], clamp=False)[:, 0].round(5).tolist()
    [1.0, 0.0013699999544769526]
    """

    def read(self, cells: Cells) -> NDArray[np.float64]:
        """See `Range.read`."""
        found = [cell if isinstance(cell, float) else _day(cell) for cell in cells]
        for place, day in enumerate(found):
            if day is None:
                why = "is no date such as 2020-12-31; leave the cell empty where it is missing"
                raise BadCell(place, f"{_shown(cells[place])} {why}, or name it in missing")
        return np.array(found, dtype=np.float64)

    def say(self, value: float) -> str:
        """See `Range.say`."""
        return date.fromordinal(round(value)).isoformat()


def _day(cell: object) -> float | None:
    """Days since the year 1 of an ISO date, with or without a time; None of anything else."""
    try:
        at = datetime.fromisoformat(cell) if isinstance(cell, str) else None
    except ValueError:
        return None
    if at is None or (isinstance(cell, str) and cell.isdecimal()):  # 20201231 may be any number
        return None
    return at.toordinal() + (at.hour * 3600 + at.minute * 60 + at.second) / 86400


@dataclass(frozen=True, kw_only=True, slots=True)
class Categories:
    """A column of public categories.

    >>> Categories(names=("f", "m")).encode(["m", "x", ""], clamp=False).tolist()
    [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """

    names: tuple[str, ...]

    @property
    def width(self) -> int:
        """Numbers of a record: the categories, "other" and "missing"."""
        return len(self.names) + 2

    def encode(self, cells: Cells, *, clamp: bool) -> NDArray[np.float32]:  # noqa: ARG002 - one interface
        """(B, width) of B cells."""
        places = {name: place for place, name in enumerate(self.names)}
        other, missing = len(self.names), len(self.names) + 1
        found = [
            missing if cell is None or cell == "" else places.get(_text(cell), other)
            for cell in cells
        ]
        coded = np.zeros((len(found), self.width), dtype=np.float32)
        coded[np.arange(len(found)), found] = 1.0
        return coded


Column = Range | Categories


class BadCell(Exception):
    """A cell that is refused: its place among those given, and why."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place, self.why = place, why


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The column that is predicted.

    Attributes:
        name: of the column.
        column: how it is declared, if it is.
        regression: whether it is a number.
    """

    name: str
    column: Column | None
    regression: bool

    def encode(self, cells: Cells, *, clamp: bool) -> NDArray[np.float32] | NDArray[np.int64]:
        """(B,) float32 numbers, or int64 labels.

        Raises:
            BadCell: one is missing, or is no such target.
        """
        for place, cell in enumerate(cells):
            if cell is None or cell == "":
                raise BadCell(place, "is empty; a record without a target cannot be trained on")
        # Declared labels are numbered in their order; a declared number is scaled as declared.
        if isinstance(self.column, Categories):
            places = {name: place for place, name in enumerate(self.column.names)}
            for place, cell in enumerate(cells):
                if _text(cell) not in places:
                    known = ", ".join(map(repr, self.column.names))
                    raise BadCell(place, f"{_shown(cell)} is none of the labels {known}")
            return np.array([places[_text(cell)] for cell in cells], dtype=np.int64)
        if self.column is not None:
            return self.column.encode(cells, clamp=clamp)[:, 0]
        # Undeclared targets are numbers as they are, or labels from 0.
        values = _numbers(cells)
        if self.regression:
            with np.errstate(over="ignore"):
                single = values.astype(np.float32)
            if not np.isfinite(single).all():
                at = int(np.flatnonzero(~np.isfinite(single))[0])
                raise BadCell(at, f"{_shown(cells[at])} is too large for float32")
            return single
        bad = np.flatnonzero((values < 0) | (values != np.floor(values)) | (values > 2**31))
        if len(bad):
            at = int(bad[0])
            raise BadCell(
                at,
                f"{_shown(cells[at])} is no label: labels are whole numbers from 0; declare "
                f"columns.{_key(self.name)} as a list of the labels, or set outputs = 1 to predict "
                "numbers",
            )
        return values.astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What a run file declares of a table.

    Attributes:
        columns: of the inputs, in their order.
        target: what is predicted.
        clamp: whether a value outside of its range is taken to its bound.
        missing: by column the texts of cells that are missing.
    """

    columns: Mapping[str, Column]
    target: Target
    clamp: bool = False
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def cells(self, name: str, cells: Cells) -> Cells:
        """The cells of a column, empty where they are missing."""
        absent = self.missing.get(name, ())
        return ["" if _plain(cell) in absent else cell for cell in cells] if absent else cells

    @property
    def width(self) -> int:
        """Numbers of a record."""
        return sum(column.width for column in self.columns.values())

    @property
    def classes(self) -> int | None:
        """How many labels are declared."""
        column = self.target.column
        return len(column.names) if isinstance(column, Categories) else None


def declared(
    columns: Mapping[str, Sequence[object]],
    *,
    target: str,
    outputs: int,
    clamp: bool,
    missing: Sequence[object] | Mapping[str, Sequence[object]] = (),
) -> Declared:
    """The columns of a run file, checked.

    Args:
        columns: by name [low, high] or a list of strings; with the target or without it.
        target: the name of the column that is predicted.
        outputs: 1 to predict a number, 0 a label.
        missing: cells that are missing, in every column or by its name.

    Raises:
        ValueError: a declaration is neither, or is empty, or no column is left for the inputs.

    >>> found = declared({"age": [0, 120], "sex": ["f", "m"]}, target="ill", outputs=0, clamp=False)
    >>> found.width
    5
    """
    found = {name: _column(name, value) for name, value in columns.items()}
    absent = _missing(missing, [*found, *([] if target in found else [target])])
    for name, texts in absent.items():
        held = found.get(name)
        if isinstance(held, Categories) and (both := sorted({*texts} & {*held.names})):
            raise InputError(f"columns.{_key(name)} declares {both[0]!r}, which missing names, too")
    of_target = found.pop(target, None)
    if not found:
        raise InputError(f"columns declares nothing but the target {target!r}; declare the inputs")
    if outputs > 1:
        raise InputError(f"outputs={outputs} must be 1: a table has one column for its target")
    if isinstance(of_target, Categories) and outputs:
        raise InputError(
            f"columns.{_key(target)} declares labels, and outputs=1 predicts a number; leave one "
            "of them out"
        )
    if isinstance(of_target, Categories) and len(of_target.names) < 2:
        raise InputError(f"columns.{_key(target)} declares one label; a class needs another one")
    if isinstance(of_target, Range) and not outputs:
        raise InputError(
            f"columns.{_key(target)} declares a range; set outputs = 1 to predict a number, or "
            "list the labels"
        )
    return Declared(
        columns=found,
        target=Target(name=target, column=of_target, regression=bool(outputs)),
        clamp=clamp,
        missing=absent,
    )


def _missing(
    asked: Sequence[object] | Mapping[str, Sequence[object]], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """By column what counts as missing."""
    by_name = asked if isinstance(asked, Mapping) else dict.fromkeys(names, asked)
    for name in by_name:
        if name not in names:
            raise InputError(f"missing names {name!r}, which columns does not declare")
    found = {
        name: tuple(sorted({_plain(one).strip() for one in by_name[name]})) for name in by_name
    }
    return {name: texts for name, texts in found.items() if texts}


def _column(name: str, value: Sequence[object]) -> Column:
    what = f"columns.{_key(name)}"
    if value and value[0] == _DATE and len(value) == 3:
        first, last = map(_day, value[1:])
        if first is None or last is None or not first < last:
            raise InputError(f"{what}={list(value)} must be {_DATES}, the first day and the last")
        return Dates(low=first, high=last)
    if value and all(isinstance(one, str) for one in value):
        if _LIST in value:
            raise InputError(
                f"{what}={list(value)}: put its public categories in place of {_LIST!r}"
            )
        names = tuple(str(one).strip() for one in value)
        if len(set(names)) < len(names) or "" in names:
            raise InputError(
                f"{what}={list(value)} must name each category once, none of them empty"
            )
        return Categories(names=names)
    bounds = [float(one) for one in value if isinstance(one, (int, float)) and one is not True]
    if len(value) != 2 or len(bounds) != 2 or not all(map(math.isfinite, bounds)):
        raise InputError(
            f"{what}={list(value)} must be a range, such as [0, 120], {_DATES}, or a list of "
            'categories, such as ["f", "m"]'
        )
    if not 0 < bounds[1] - bounds[0] < math.inf:
        raise InputError(f"{what}={list(value)} must be a range from a smaller number to a larger")
    return Range(low=bounds[0], high=bounds[1])


_DATE, _LIST = "date", "..."
_DATES = 'days, such as ["date", "2000-01-01", "2029-12-31"]'
_TO_PASTE = {"number": "[0, 1]", "date": _DATES.partition("such as ")[2], "text": f'["{_LIST}"]'}


def skeleton(header: Sequence[str], *, target: str | None, kinds: Mapping[str, str]) -> str:
    """A declaration to paste, of the names of the columns and of what kind their cells are.

    >>> skeleton(["age", "sex", "ill"], target="ill", kinds={"sex": "text"})
    'columns = {age = [0, 1], sex = ["..."]}  # put public ranges and categories in their places'
    """
    shown = {name: kinds.get(name, "number") for name in header}
    columns = (
        f"{_key(name)} = {_TO_PASTE[kind]}"
        for name, kind in shown.items()
        if name != target or kind == "text"
    )
    return f"columns = {{{', '.join(columns)}}}  # put public ranges and categories in their places"


def kind_of(cells: Cells) -> str:
    """Whether most cells that are not empty are numbers, dates or text.

    >>> kind_of(["1", "", "NA", "2"]), kind_of(["2020-12-31"]), kind_of(["a", "1"]), kind_of([])
    ('number', 'date', 'text', 'number')
    """
    held = [cell for cell in cells if cell is not None and cell != ""]
    for kind, read in (("number", _is_number), ("date", _day)):
        if 2 * sum(read(cell) not in (None, False) for cell in held) > len(held) or not held:
            return kind
    return "text"


def _plain(cell: object) -> str:
    return f"{cell:.15g}" if isinstance(cell, float) else _text(cell)


def _is_number(cell: object) -> bool:
    try:
        return math.isfinite(float(cell))  # type: ignore[arg-type]  # a cell that is none raises
    except (TypeError, ValueError, OverflowError):
        return False


def _key(name: str) -> str:
    """A name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _text(cell: object) -> str:
    return cell if isinstance(cell, str) else str(cell)


def _shown(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _numbers(cells: Cells) -> NDArray[np.float64]:
    """Cells as finite numbers."""
    values, plain = np.zeros(0), False
    try:
        values = np.array(list(map(float, cells)), dtype=np.float64)  # type: ignore[arg-type]  # a cell that is none raises
        # Python reads 1_000 as a number, nobody else does.
        plain = not any("_" in cell for cell in cells if isinstance(cell, str))
    except (TypeError, ValueError, OverflowError):
        pass
    if plain and np.isfinite(values).all():
        return values
    for place, cell in enumerate(cells):
        try:
            fine = math.isfinite(float(cell)) and "_" not in _text(cell)  # type: ignore[arg-type]  # as above
        except (TypeError, ValueError, OverflowError):
            fine = False
        if not fine:
            remedy = "leave the cell empty where it is missing, or name it in missing"
            if isinstance(cell, str) and re.fullmatch(r"[+-]?\d+,\d+", cell):
                remedy = "write numbers with a decimal point"
            raise BadCell(place, f"{_shown(cell)} is no finite number; {remedy}")
    raise AssertionError("a cell was refused, and none is bad")
