"""A referee for printed tables: what of them can be checked by the table alone, as facts.

Rows. The columns of a printed table are the levels of the setting that changes most from line to
line, and a row is what stands over all of them; a line of three figures, spreads counted, is a row
itself. Rows that are the same to the last digit are a finding where chance explains at most 1 in
100 of them. Independent runs of the same true values print one mean of n runs with spreads s and s'
with probability about h / sqrt(2 pi (s^2 + s'^2) / n), and one spread with
h / sqrt(pi (s^2 + s'^2) / (n - 1)), for a unit h of the last digit; s is taken as a deviation, and
half a unit smaller, which makes both larger. The product over a row is the chance of a pair. The
j equal pairs of least chance are a finding where at most j / 100 are expected, which is the sum of
all chances that are at most theirs; pairs that chi-square at 99 % tells apart have none. A Poisson
process of rate 1 has j points before j / 100, for any j, with probability 1 in 100. Without spreads
the pairs are those of the same algorithms that differ in the same settings, and a figure is printed
the same with probability e / n, where e of n such pairs agree in it, or (e + 1) / (n + 2) where a
pair is equal; so many pairs are a finding where their probability is at most 1 in 100.

Rows that state no setting of which the other states another value may be of one run, so that their
being the same is a fact and no finding.

MSE and PSNR. L = sqrt(MSE 10^(PSNR / 10)) is the data range of PSNR. A mean of PSNRs is at least
the PSNR of the mean MSE, so L is at least the range of the pixels.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import whole
from ...privacy.published.whisper import whisper_constraint_10
from ...runs.numbers import bound, figure
from .printed_table import MISSING, SHARES, Line, Printed, kind_of, long_form, read_tables, words_of

_RARE = 0.01
_LEAST = 3  # figures of a row
_MOST_OTHERS = 20  # that count among rows that are all the same
_ALGORITHM = ("algorithm", "algo", "method", "approach", "scheme", "name")
_WHO = (*_ALGORITHM, "scenario", "attack", "defence", "defense", "model")
_PLACE, _VARIED = {"file", "table"}, {"varied", "varies", "parameter"}  # no settings of a run
_RANGES = {1.0: "[0, 1]", 2.0: "[-1, 1]", 255.0: "[0, 255]"}
_STANDARDISED = (3.5, 4.3)  # CIFAR-10's channels are 3.8 to 4.1 wide
_GUESSED = "These scores are of the first 300 training images, not of the records of the table."
_WORSE = (1.25, 1.0)  # than a guess: times its MSE, and dB below its PSNR

Array = NDArray[np.float64]
Settings = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something that a table shows.

    Attributes:
        kind: what it is about.
        words: one sentence or two.
        is_finding: whether something does not fit; else it is a fact to know the table by.
        figures: the same as numbers and texts.
    """

    kind: str
    words: str
    is_finding: bool
    figures: Mapping[str, object]


def _finding(kind: str, words: str, **figures: object) -> Remark:
    return Remark(kind=kind, words=words, is_finding=True, figures=figures)


def _fact(kind: str, words: str, **figures: object) -> Remark:
    return Remark(kind=kind, words=words, is_finding=False, figures=figures)


def review(paths: Sequence[Path], *, figures: Sequence[str] = (), runs: int = 20) -> list[Remark]:
    """What one or several tables show, findings first.

    Args:
        paths: CSV files, of whose rows those of different files are compared, too.
        figures: columns that hold figures; () goes by names.
        runs: n behind each spread, from 2; more of them make equal rows more likely.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is no table.
    """
    whole("runs", runs, "[2, inf)", "one run has no spread")
    lines = read_tables(paths, figures=figures)
    remarks, tables = [], []
    for file, group in itertools.groupby(lines, key=lambda line: line.settings["file"]):
        held = list(group)
        if of := _counters(held):
            words = f"{', '.join(of)} of {file} differ in every line, and are left out of rows."
            remarks.append(_fact("left out", words, file=file, columns=of))
        settings = [{k: v for k, v in line.settings.items() if k not in of} for line in held]
        tables.append([replace(a, settings=b) for a, b in zip(held, settings, strict=True)])
    parts = (
        _impossible(lines),
        _claims(lines),
        *map(_pixels, map(long_form, tables)),
        *map(_orders, tables),
    )
    remarks += itertools.chain(_copies(tables, runs), *parts)
    return sorted(remarks, key=lambda one: not one.is_finding)


def _counters(lines: Sequence[Line]) -> list[str]:
    """The columns that differ in every line, such as an index, where the rest tells lines apart."""
    settings = [line.settings for line in lines]
    each = [key for key in settings[0] if len({of[key] for of in settings}) == len(lines) >= _LEAST]
    is_told = len(_groups(lines, *each)) == len(lines) and _who(settings[0]) not in each
    return each if is_told else []


def _who(settings: Iterable[str], kinds: Sequence[str] = _WHO) -> str:
    """The column that says what is compared, such as the algorithm."""
    heads = [(kind, head) for kind in kinds for head in settings if kind in words_of(head)]
    return next((head for kind, head in heads if kind != "name" or words_of(head) == {kind}), "")


def _where(settings: Settings) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _groups(lines: Iterable[Line], *without: str) -> list[list[Line]]:
    """The lines that differ in some settings alone, in a group each."""
    found: dict[tuple[tuple[str, str], ...], list[Line]] = {}
    for line in lines:
        key = tuple((k, v) for k, v in line.settings.items() if k not in without)
        found.setdefault(key, []).append(line)
    return list(found.values())


# Rows that are the same.


@dataclass(frozen=True, slots=True)
class _Row:
    """Lines over the levels of one setting, or of all that make no difference to `who`."""

    lines: Sequence[Line]
    settings: Settings
    who: str
    is_constant: bool
    figures: Mapping[tuple[str, str], Printed]


def _copies(tables: Sequence[Sequence[Line]], runs: int) -> Iterator[Remark]:
    """Rows over the setting that changes most and, where that shows no copy, over each other."""
    long = [long_form(held) for held in tables]
    steady: list[tuple[dict[str, list[str]], str]] = []
    for held in long:
        file, who = held[0].settings["file"], _who(held[0].settings)
        steady.append((constants := _constants(held, who), who))
        for name, keys in constants.items():
            words = (
                f"{name or 'Every line'} has the same figures at all levels of {', '.join(keys)} "
                f"in {file}; they can be of one run only where that does not enter it."
            )
            yield _fact("the same at all levels", words, file=file, of=name, settings=keys)
    others = dict.fromkeys(key for held in long for key in held[0].settings if key != "file")
    for over in ("", *others):
        views = zip(long if over else tables, steady, strict=True)
        rows = [row for held, of in views for row in _rows_of(held, *of, over)]
        shapes: dict[frozenset[tuple[object, bool]], list[_Row]] = {}
        for row in rows:
            shape = frozenset((key, of.spread is None) for key, of in row.figures.items())
            shapes.setdefault(shape, []).append(row)
        compared = [alike for alike in shapes.values() if _size(alike[0].figures) >= _LEAST]
        rare = _RARE / (1 + len(others)) if over else _RARE
        found = [one for alike in compared for one in _same_rows(alike, runs, rare)]
        is_copied = any(one.is_finding for one in found)
        if is_copied or not over:
            yield from found
        if not over:
            yield from _odd_constants([row for row in rows if row.is_constant])
            pairs = sum(math.comb(len(alike), 2) for alike in compared)
            words = f"{pairs} pair{'s' * (pairs != 1)} of rows could be compared."
            more = f" A row has {_LEAST} figures or more; --figure COLUMN names what holds figures."
            words += more * (not pairs)
            yield _fact("compared", words, pairs=pairs)
        if is_copied:
            return


def _size(figures: Mapping[str, Printed] | Mapping[tuple[str, str], Printed]) -> int:
    """How many figures there are, spreads counted."""
    return sum(1 + (of.spread is not None) for of in figures.values())


def _constants(lines: Sequence[Line], who: str) -> dict[str, list[str]]:
    """By algorithm the settings at all of whose levels it has the same figures."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(line.settings.get(who, "") for line in lines):
        own = [line for line in lines if line.settings.get(who, "") == name]
        for key in [key for key in lines[0].settings if key not in ("file", who)]:
            if sum(_size(line.figures) for line in own) >= _LEAST and all(
                len(same) > 1 and all(line.figures == same[0].figures != {} for line in same)
                for same in _groups(own, key)
            ):
                found.setdefault(name, []).append(key)
    return found


def _rows_of(
    lines: Sequence[Line], constants: Mapping[str, list[str]], who: str, over: str
) -> list[_Row]:
    """The rows of a file over a setting, or that which changes most; one where none matters."""
    least = min(_size(line.figures) for line in lines)
    changes = {
        key: sum(a.settings[key] != b.settings[key] for a, b in itertools.pairwise(lines))
        for key in lines[0].settings
        if key not in ("file", who)
    }
    if not over and least < _LEAST:
        over = max(changes, key=changes.__getitem__, default="")
    found: dict[tuple[str, ...], _Row] = {}
    for group in _groups(lines, over):
        name = group[0].settings.get(who, "")
        steady = constants.get(name, [])
        settings = {k: v for k, v in group[0].settings.items() if k not in (over, *steady)}
        figures = {
            (line.settings.get(over, ""), of): printed
            for line in group
            for of, printed in line.figures.items()
            if printed.value.is_finite() and (printed.spread or Decimal(0)).is_finite()
        }
        row = _Row(group, settings, name, bool(steady), figures)
        found.setdefault(tuple(settings.values()), row)
    return list(found.values())


def _odd_constants(rows: Sequence[_Row]) -> Iterator[Remark]:
    """The one figure in which rows differ that are one algorithm's and else the same."""
    for one, two in itertools.combinations(rows, 2):
        if one.figures.keys() != two.figures.keys() or len(one.figures) < _LEAST:
            continue
        other = [key for key, of in one.figures.items() if of != two.figures[key]]
        if len(other) == 1 and _may_be_one(one, two):
            places = _apart([one, two])[1]
            values = [str(row.figures[other[0]]) for row in (one, two)]
            at = " ".join(filter(None, other[0]))
            words = (
                f"{one.who} has the same figures at {' and at '.join(map(_where, places))} but "
                f"for {at}: {values[0]} and {values[1]}."
            )
            yield _finding("one figure differs", words, of=one.who, at=at, values=values)


def _apart(rows: Sequence[_Row]) -> tuple[Settings, list[Settings]]:
    """The settings that all rows have, and those of each in which they differ."""
    every = [row.settings for row in rows]
    shared = {k: v for k, v in every[0].items() if all(one.get(k) == v for one in every)}
    return shared, [{k: v for k, v in one.items() if k not in shared} for one in every]


def _may_be_one(one: _Row, two: _Row) -> bool:
    """Whether two rows may be of one run: no setting is stated of both and differs."""
    differ = [
        words_of(key)
        for key in one.settings.keys() & two.settings.keys()
        if one.settings[key] != two.settings[key]
        and not MISSING & {one.settings[key], two.settings[key]}
    ]
    loose = _PLACE | _VARIED
    if any(words & _VARIED for words in differ):
        loose |= {"level", "value"}
    return all(words & loose for words in differ)


def _same_rows(rows: Sequence[_Row], runs: int, rare: float) -> Iterator[Remark]:
    """Rows of one shape that are the same, and whether chance explains so many."""
    keys = list(rows[0].figures)
    classes: dict[tuple[Printed, ...], list[int]] = {}
    for at, row in enumerate(rows):
        classes.setdefault(tuple(row.figures[key] for key in keys), []).append(at)
    same: list[tuple[list[int], int]] = []  # and how many of them repeat what is another run's
    for found in classes.values():
        others: list[_Row] = []
        for row in (rows[at] for at in found):
            if len(others) < _MOST_OTHERS and not any(_may_be_one(row, of) for of in others):
                others.append(row)
        if found[1:]:
            same.append((found, len(others) - 1))
    bare = any(of.spread is None for of in rows[0].figures.values())
    if not same or (bare and rare < _RARE):  # means alike over one setting make rows alike
        return
    from scipy.stats import poisson

    table = np.array([[_floats(row.figures[key]) for key in keys] for row in rows])
    values, spreads = table[..., 0], table[..., 1]
    held = [[row.figures[key] for row in rows] for key in keys]
    units = np.array([[_unit(o.value for o in of), _unit(o.spread for o in of)] for of in held]).T
    if bare:
        pairs, own, how = _by_digits(rows, values, units[0])
    else:
        pairs, own, how = _by_spreads(values, spreads, units, runs)
    # By the largest chance of a finding: how many repeat others, how many are expected to, and the
    # share of these or, where single rows have no chance of their own, the probability of so many.
    told: dict[float, tuple[int, float, float]] = {}
    ranked, sums = np.sort(pairs), np.append(np.cumsum(np.sort(pairs)), 0.0)  # the last is of none
    for most in {float(own[found[0]]) for found, times in same if times}:
        count = sum(times for found, times in same if own[found[0]] <= most)
        expected = float(sums[np.searchsorted(ranked, most * (1 + 1e-9), side="right") - 1])
        odds = float(poisson.sf(count - 1, expected)) if bare else expected / count
        told[most] = (count, expected, odds)
    most = max((at for at, (_, _, odds) in told.items() if odds <= rare), default=-1.0)
    common = _apart(rows)[0]
    for found, times in same:
        shared, differ = _apart([rows[at] for at in found])
        of = _where({key: value for key, value in shared.items() if key not in common})
        printed = [str(rows[found[0]].figures[key]) for key in keys]
        words = (
            f"{' and '.join(map(_where, differ))} are the same in all {_size(rows[0].figures)} "
            f"figures{' of ' * bool(of)}{of}: {', '.join(printed)}."
        )
        if not times:
            words += " No setting differs that both state, so that they may be of one run."
        elif not bare:
            p = figure(own[found[0]], 2)
            words += f" Independent runs of equal true values do so with probability about {p}."
        numbers = [[line.number for line in rows[at].lines] for at in found]
        make = _finding if times and own[found[0]] <= most else _fact
        yield make(
            "rows that are the same", words, of=shared, rows=differ, lines=numbers, figures=printed
        )
    if told:
        count, expected, odds = told[max(told) if most < 0 else most]
        words = (
            f"{count} of {len(rows)} rows {'repeats another' if count == 1 else 'repeat others'}; "
            f"{figure(expected, 2)} are expected by chance of independent runs, {how}."
        )
        words += f" So many have probability {figure(odds, 2)}." * bare
        yield _fact("chance", words, count=count, expected=expected)


def _floats(printed: Printed) -> tuple[float, float]:
    return float(printed.value), math.nan if printed.spread is None else float(printed.spread)


def _unit(numbers: Iterable[Decimal | None]) -> float:
    """The unit of the last digit that any of some numbers has."""
    exponents = [one.as_tuple().exponent for one in numbers if one is not None and one.is_finite()]
    return 10.0 ** min(map(int, exponents), default=0)


def _by_digits(rows: Sequence[_Row], values: Array, units: Array) -> tuple[Array, Array, str]:
    """The chances of pairs and of rows to be the same, and by what; one of all without spreads."""
    one, two = np.triu_indices(len(rows), 1)
    keys = dict.fromkeys(key for row in rows for key in row.settings)
    codes = np.array([[hash(row.settings.get(key)) for key in keys] for row in rows])
    names = np.array([hash(row.who) for row in rows])
    # The kind of a pair, as one number: the settings that differ, and the two algorithms.
    differ = (codes[one] != codes[two]) @ np.random.default_rng(0).integers(1 << 40, size=len(keys))
    _, kinds = np.unique(differ + names[one] * names[two], return_inverse=True)
    agree = np.abs(values[one] - values[two]) <= units / 2
    count = np.bincount(kinds)[:, None]
    more = np.bincount(kinds, agree.all(axis=1))[:, None] > 0
    each = np.column_stack([np.bincount(kinds, column) for column in agree.T])
    expected = float((count[:, 0] * ((each + more) / (count + 2 * more)).prod(axis=1)).sum())
    chance = np.full(len(one), expected / len(one))
    how = "by how often single figures agree in pairs of the same kind"
    return chance, np.full(len(rows), chance[0]), how


def _by_spreads(values: Array, spreads: Array, units: Array, runs: int) -> tuple[Array, Array, str]:
    """The same where each of (R, k) figures has a spread of so many runs; both have units."""
    unit, own_unit = units

    def chance(first: Array, second: Array) -> Array:
        wide = np.maximum(first - own_unit / 2, 0) ** 2 + np.maximum(second - own_unit / 2, 0) ** 2
        with np.errstate(divide="ignore"):
            means = np.minimum(unit / np.sqrt(2 * np.pi * wide / runs), 1)
            own = np.minimum(own_unit / np.sqrt(np.pi * wide / (runs - 1)), 1)
        return (means * own).prod(axis=-1)

    from scipy.stats import chi2

    one, two = np.triu_indices(len(values), 1)
    wide = (spreads[one] + own_unit / 2) ** 2 + (spreads[two] + own_unit / 2) ** 2
    each = ((values, unit), (spreads, own_unit))
    means, own = (np.maximum(np.abs(of[one] - of[two]) - at, 0) ** 2 for of, at in each)
    told = ((means * runs + own * 2 * (runs - 1)) / wide).sum(axis=1)
    near = told <= chi2.isf(_RARE, 2 * values.shape[1])
    how = f"by spreads of {runs} runs, which do not tell {near.sum()} of {len(near)} pairs apart"
    return chance(spreads[one], spreads[two]) * near, chance(spreads, spreads), how


# Who is first, and figures that cannot be.


def _orders(lines: Sequence[Line]) -> Iterator[Remark]:
    """Which algorithms of a table have the largest share in how many cells."""
    file, who = lines[0].settings["file"], _who(lines[0].settings)
    for name in dict.fromkeys(name for line in lines for name in line.figures):
        if kind_of(name) not in SHARES or kind_of(name) == "ssim" or not who:
            continue
        leads: dict[tuple[str, ...], list[Decimal]] = {}
        held = [of for of in lines if name in of.figures and of.figures[name].value.is_finite()]
        cells = [of for of in _groups(held, who) if of[1:]]
        for cell in cells:
            most = max(line.figures[name].value for line in cell)
            first = tuple(one.settings[who] for one in cell if one.figures[name].value == most)
            rest = (of.figures[name].value for of in cell if of.figures[name].value < most)
            leads.setdefault(first, []).append(most - max(rest, default=most))
        said = "; ".join(
            f"{' and '.join(one)} {'are first together' if one[1:] else 'is first'} in {len(of)} "
            f"of {len(cells)} cells" + f", by {min(of)} to {max(of)}" * (not one[1:])
            for one, of in sorted(leads.items(), key=lambda item: -len(item[1]))
        )
        if leads:
            first_in = {" and ".join(one): len(of) for one, of in leads.items()}
            words = f"{file} {name}: {said}."
            yield _fact("order", words, file=file, cells=len(cells), first=first_in)


def _impossible(lines: Sequence[Line]) -> Iterator[Remark]:
    """Figures outside of their range, spreads that no values in it have, and spreads of 0."""
    columns: dict[tuple[str, str], list[tuple[Line, Printed]]] = {}
    for line in lines:
        for name, of in line.figures.items():
            columns.setdefault((line.settings["file"], name), []).append((line, of))
    for (file, name), held in columns.items():
        kind, low, top = kind_of(name), -math.inf, math.inf
        if kind in SHARES:
            middle = float(np.median([float(of.value) for _, of in held]))
            top = 100.0 if middle > 1.5 or any(of.is_percent for _, of in held) else 1.0
            low = -top if kind == "ssim" else 0.0
        elif kind in ("mse", "rmse"):
            low = 0.0
        for line, of in held:
            (value, spread), half, most, why = _floats(of), _unit([of.value]) / 2, math.inf, ""
            if top < math.inf:  # of two runs, which deviate most
                most = math.sqrt(max(2 * (value - low + half) * (top - value + half), 0))
            if not low <= value <= top:
                why = f"does not lie in [{low:g}, {top:g}]"
            elif spread < 0 or spread > most + half:
                why = f"has a spread that is not in [0, {most:.3g}], where values in range have it"
            if why:
                words = f"{file} line {line.number}: {name}={of} {why}."
                yield _finding("impossible figure", words, line=line.number, value=str(of))
        spreads = [of.spread for _, of in held if of.spread is not None]
        if zeros := sum(one == 0 for one in spreads):
            words = f"{file} {name}: {zeros} of {len(spreads)} spreads are printed as 0."
            yield _fact("spreads of 0", words, count=zeros, of=len(spreads))


# MSE, PSNR and what a guess scores.


@cache
def stored_blind_scores() -> Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]:
    """(MSE, PSNR in dB, SSIM) by data set, by data range, by guess; see benchmarks/blind_scores."""
    place = resources.files("overhear.reports.reproduced").joinpath("blind_scores.toml")
    return tomllib.loads(place.read_text("utf-8"))


def _pixels(lines: Sequence[Line]) -> Iterator[Remark]:
    """The range that MSE and PSNR imply, cells in which they do not fit, and blind guesses."""
    tables: dict[tuple[str, str], list[tuple[Line, Printed, Printed]]] = {}
    for line in lines:
        scores = {kind_of(name): of for name, of in line.figures.items()}
        names = [v for k, v in line.settings.items() if words_of(k) & {"data", "dataset"}]
        if {"mse", "psnr"} <= scores.keys():
            place = (line.settings["file"], "".join(names[:1]))
            tables.setdefault(place, []).append((line, scores["mse"], scores["psnr"]))
    for (file, data), held in tables.items():
        implied = [_implied(error, ratio) for _, error, ratio in held]
        if not (ranges := [at for at, _ in implied if at < math.inf]):
            continue
        least, middle, most = min(ranges), float(np.median(ranges)), max(ranges)
        near = [one for at, of in implied for one in _RANGES if abs(at / one - 1) < 0.1 + of]
        usual = next((one for one in _RANGES if 2 * near.count(one) > len(ranges)), None)
        meant, key = "none of 1, 2, 255", ""
        if usual is not None:
            meant, key = f"pixels in {_RANGES[usual]}", f"{usual:g}"
        elif _STANDARDISED[0] <= middle <= _STANDARDISED[1]:
            meant, key = "about that of pixels standardised by channel", "standardised"
        words = (
            f"{file} {data}: MSE and PSNR of {len(held)} cells imply a data range of {least:.3g} "
            f"to {most:.3g}, median {middle:.3g}: {meant}."
        )
        yield _fact("data range", words, least=least, median=middle, largest=most)
        for (line, error, ratio), (at, slack) in zip(held, implied, strict=True):
            if at * (1 + slack) < (usual or 0.0):
                words = (
                    f"{_where(line.settings)}: MSE {error} and PSNR {ratio} imply a data range of "
                    f"{at:.3g}, below {usual:.3g}; of the same pictures and range, a mean of PSNRs "
                    "is at least the PSNR of the mean MSE."
                )
                yield _finding("MSE and PSNR", words, line=line.number, range=at)
        stored = stored_blind_scores().get(re.sub(r"[-_]|[ ,(].*", "", data.lower()), {})
        if key in stored:
            yield from _below_guesses(held, stored[key])


def _implied(error: Printed, ratio: Printed) -> tuple[float, float]:
    """The data range of a cell, and by which share of it rounding may have lowered it."""
    mse, psnr = float(error.value), float(ratio.value)
    if not (0 < mse < math.inf and abs(psnr) < 1000):
        return math.inf, 0.0
    slack = _unit([error.value]) / mse / 4 + _unit([ratio.value]) * math.log(10) / 40
    return math.sqrt(mse * 10 ** (psnr / 10)), 1.1 * slack


def _below_guesses(
    held: Sequence[tuple[Line, Printed, Printed]], guesses: Mapping[str, Sequence[float]]
) -> Iterator[Remark]:
    """By what was attacked, the guesses that no cell reaches."""
    file, who = held[0][0].settings["file"], _who(held[0][0].settings)
    for of in dict.fromkeys(line.settings.get(who, "the attack") for line, _, _ in held):
        own = [cell for cell in held if cell[0].settings.get(who, "the attack") == of]
        least = min(float(error.value) for _, error, _ in own)
        most = max(float(ratio.value) for _, _, ratio in own)
        below = {
            name: f"{name} ({psnr:g} dB, {mse:.3g})"
            for name, (mse, psnr, _) in guesses.items()
            if least > _WORSE[0] * mse and most < psnr - _WORSE[1]
        }
        start, level, _ = guesses["random start"]
        is_start = least > start / _WORSE[0] and most < level + _WORSE[1]
        does = "does as well" if start <= least and level >= most else "is within 1 dB"
        words = (
            f"{file} {of}: of {len(own)} cells none has over {most:g} dB or an MSE below {least:g}."
        )
        if below:
            words += f" Guesses without any message do better: {', '.join(below.values())}."
        if is_start and "random start" not in below:
            words += f" A random start {does} ({level:g} dB, {start:.3g})."
        words += f" {_GUESSED}"
        if below or is_start:
            yield _finding(
                "below a blind guess", words, of=of, psnr=most, mse=least, below=[*below],
                random_start=is_start,
            )  # fmt: skip


# What a table claims of privacy.


def _claims(lines: Sequence[Line]) -> Iterator[Remark]:
    """Claims by Whisper's constraint (10), outside of its range or below what it gives."""
    told = set()
    for line in lines:
        by = {word: value for head, value in line.settings.items() for word in words_of(head)}
        names = words_of(line.settings.get(_who(line.settings, _ALGORITHM), ""))
        try:
            text = f"{by['epsilon']} {by.get('delta') or by['δ']}".replace("−", "-")
            epsilon, delta = map(float, re.sub("[{}$]", "", text.replace("10^", "1e")).split())
        except (KeyError, ValueError):
            continue
        if not (
            ("whisper" in names or {"corn", "dsgd"} <= names)
            and 0 < epsilon <= 1e6
            and 0 < delta < 1
        ):
            continue
        given = whisper_constraint_10(epsilon=epsilon, delta=delta, rounds=1).proven_epsilon
        holds = epsilon < math.log(1 / delta)
        if given is None or (epsilon, delta) in told or (holds and given <= epsilon):
            continue
        told.add((epsilon, delta))
        words = (
            f"Whisper's constraint (10), the right way round, gives {bound(given, 4)} against an "
            f"eavesdropper at epsilon {epsilon:g} and delta {delta:g}, and no bound against an "
            "agent, who has the common seed"
        )
        if not holds:
            words += f"; its range ends below log(1/delta) = {math.log(1 / delta):.4g}"
        yield _finding(
            "bound" if holds else "bound outside of its range", f"{words}.", line=line.number,
            epsilon=epsilon, delta=delta, gives=given,
        )  # fmt: skip
