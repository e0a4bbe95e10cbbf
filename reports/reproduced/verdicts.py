"""Whether figures and claims of a paper are reproduced: what is compared with what, and the word.

A paper's figure is reproduced if ours lies within the entry's distance of it and twice our standard
error. A claim is held against differences seed by seed: of an order or a trend the 95 % interval
must lie above 0. Figures are those of the mean over agents where there is one, as papers report
them. Of fewer than `LEAST_SEEDS` seeds nothing is said.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...privacy.errors import InputError
from ..sweep.statistics import Difference, Mean, difference_of, mean_of
from .paper_result import LEAST_SEEDS, Claim, Close, Entry, Figure, Order, Scale, Trend

Word = Literal["reproduced", "not reproduced", "not comparable"]
_OTHER_SETTING = "the setting is another one, as stated above"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A word, and why."""

    word: Word
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeds:
    """A line's figures.

    Attributes:
        place: its settings, by swept key.
        compared: by seed the figure that is held against the paper.
        of_mean: by seed that of the mean model; the same where there is no other.
    """

    place: Mapping[str, str]
    compared: Mapping[int, float]
    of_mean: Mapping[int, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimLine:
    """A claim at one place.

    Attributes:
        words: the claim.
        where: the settings that both lines have.
        difference: by how much the better one is better, of the figures that are compared: mean,
            standard error of the paired differences, n.
        low, high: its 95 % interval.
        of_mean: the difference of the mean models.
        verdict: on the claim.
        source: where the claim was read.
    """

    words: str
    where: str
    difference: Mean
    low: float
    high: float
    of_mean: Mean
    verdict: Verdict
    source: str


def figure_of(figures: Sequence[Figure], place: Mapping[str, str]) -> Figure | None:
    """The paper's figure of a line: the one that names most of its settings, and no other ones."""
    held = [figure for figure in figures if figure.place.items() <= place.items()]
    return max(held, key=lambda one: len(one.place), default=None)


def figure_verdict(
    figure: Figure | None, ours: Mean, *, within: float, scale: Scale | None
) -> Verdict:
    """Whether a figure of the paper is reproduced.

    Args:
        figure: the paper's.
        ours: mean, standard error, n.
        within: largest distance, in the unit of the value.
        scale: what it was run at; None of a closed form.

    >>> from overhear.reports.sweep.statistics import mean_of
    >>> figure = Figure(place={}, low=87.0, high=88.0, source="Table 1")
    >>> figure_verdict(figure, mean_of([84.9] * 10), within=2.0, scale=None)
    Verdict(word='not reproduced', because='2.1 below, and 2 is allowed')
    """
    if figure is None:
        return Verdict(word="not comparable", because="the paper's figure is not at hand")
    if not ours.count or math.isnan(ours.value):
        return Verdict(word="not comparable", because="no run of it ended with a figure")
    if scale is not None and not scale.comparable:
        return Verdict(word="not comparable", because=_OTHER_SETTING)
    if ours.count < LEAST_SEEDS:
        return _few(ours.count)
    allowed = within + (0.0 if math.isnan(ours.error) else 2.0 * ours.error)
    below, above = figure.low - ours.value, ours.value - figure.high
    off = max(below, above)
    if off > allowed:
        way = "below" if below > above else "above"
        return Verdict(
            word="not reproduced", because=f"{off:.3g} {way}, and {allowed:.3g} is allowed"
        )
    near = "inside" if off <= 0 else f"{off:.3g} away, and {allowed:.3g} is allowed"
    return Verdict(word="reproduced", because=near)


def _few(count: int) -> Verdict:
    return Verdict(
        word="not comparable", because=f"n = {count}, and a verdict takes {LEAST_SEEDS} seeds"
    )


def claim_lines(entry: Entry, lines: Sequence[Seeds], *, more: bool) -> list[ClaimLine]:
    """Every claim of an entry, wherever both of its lines stand.

    Args:
        lines: its lines, in the order of the sweep.
        more: whether more is better.
    """
    return [line for claim in entry.claims for line in _lines_of(claim, lines, more=more)]


def _lines_of(claim: Claim, lines: Sequence[Seeds], *, more: bool) -> Iterator[ClaimLine]:
    if isinstance(claim, Trend):
        yield from _trend(claim, lines, more=more)
        return
    others = claim.others if isinstance(claim, Order) else (claim.other,)
    of = claim.of if isinstance(claim, Order) else {}
    for first in lines:
        if first.place.get(claim.key) != claim.first or not of.items() <= first.place.items():
            continue
        for other in lines:
            if other.place.get(claim.key) in others and _rest(first, claim.key) == _rest(
                other, claim.key
            ):
                yield _compared(claim, first, other, more=more, words=_words(claim, other))


def _words(claim: Order | Close, other: Seeds) -> str:
    name = other.place[claim.key]
    if isinstance(claim, Order):
        return f"{claim.first} {claim.verb} {name}"
    return f"{claim.first} is at most {claim.within:g} worse than {name}"


def _trend(claim: Trend, lines: Sequence[Seeds], *, more: bool) -> Iterator[ClaimLine]:
    """One line for each step from a value to the next one."""
    before: dict[tuple[tuple[str, str], ...], Seeds] = {}
    named = ", ".join(claim.of.values())
    for line in lines:
        if claim.key not in line.place or not claim.of.items() <= line.place.items():
            continue
        rest = tuple(sorted(_rest(line, claim.key).items()))
        if (last := before.get(rest)) is not None:
            words = (
                f"{named or claim.what} is better at {claim.key} {line.place[claim.key]} than at "
                f"{last.place[claim.key]}"
            )
            yield _compared(claim, line, last, more=more, words=words)
        before[rest] = line


def _rest(line: Seeds, key: str) -> dict[str, str]:
    return {name: value for name, value in line.place.items() if name != key}


def _compared(claim: Claim, first: Seeds, other: Seeds, *, more: bool, words: str) -> ClaimLine:
    sign = 1.0 if more else -1.0
    over = difference_of(_times(sign, first.compared), _times(sign, other.compared))
    known = {k: v for k, v in _rest(first, claim.key).items() if other.place.get(k) == v}
    own = {k: v for k, v in known.items() if not isinstance(claim, Trend) or k not in claim.of}
    return ClaimLine(
        words=words,
        where=", ".join(f"{key}={value}" for key, value in own.items()),
        difference=_paired(first.compared, other.compared, sign),
        low=math.nan if over is None else over.low,
        high=math.nan if over is None else over.high,
        of_mean=_paired(first.of_mean, other.of_mean, sign),
        verdict=_claim_verdict(claim, over),
        source=claim.source,
    )


def _times(sign: float, values: Mapping[int, float]) -> dict[int, float]:
    return {seed: sign * value for seed, value in values.items()}


def _paired(one: Mapping[int, float], other: Mapping[int, float], sign: float) -> Mean:
    return mean_of([sign * (one[seed] - other[seed]) for seed in one if seed in other])


def _claim_verdict(claim: Claim, over: Difference | None) -> Verdict:
    if over is None or math.isnan(over.mean):
        return Verdict(word="not comparable", because="the two have no seed in common")
    if over.count < LEAST_SEEDS:
        return _few(over.count)
    least = -claim.within if isinstance(claim, Close) else 0.0
    if over.low > least:
        return Verdict(word="reproduced", because="all of the interval says so")
    if over.high < least:
        return Verdict(word="not reproduced", because="all of the interval says the contrary")
    return Verdict(word="not reproduced", because="the interval reaches to both sides")


# Where the data of an entry are expected, and which of them are not there. Nothing downloads.

_ROOT = "OVERHEAR_DATA"
_PLACES = {
    "mnist": ("MNIST", "MNIST/raw with the four idx files"),
    "fashion-mnist": ("FashionMNIST", "FashionMNIST/raw with the four idx files"),
    "cifar10": ("cifar-10-batches-py", "cifar-10-batches-py with data_batch_1 to 5 and test_batch"),
}


def placed(scale: Scale) -> dict[str, object]:
    """The tables of the run file of a scale, with the roots of its data where they lie here."""
    base: dict[str, object] = {name: dict(table) for name, table in scale.base.items()}
    data = dict(scale.base["data"])
    if isinstance(root := data.get("root"), str):
        data["root"] = str(Path(os.environ.get(_ROOT, "")).expanduser() / root)
    base["data"] = data
    return base


def check_data(name: str, scale: Scale) -> None:
    """Refuse an entry whose data are not at hand.

    Args:
        scale: what is to be run.

    Raises:
        FileNotFoundError: data are missing; the sentence names each, and the folder for it.
    """
    wanted = dict(_wanted(scale))
    if not wanted:
        return
    root = os.environ.get(_ROOT)
    if not root:
        raise InputError(
            f"{name} needs data: {_told(wanted)}; let {_ROOT} name the folder that holds it "
            "(nothing is downloaded)"
        )
    folder = Path(root).expanduser()
    missing = {at: words for at, words in wanted.items() if not (folder / at).exists()}
    if missing:
        raise FileNotFoundError(
            f"{name} needs data that are not at hand: {_told(missing)}, expected in {folder}, "
            f"which {_ROOT} names; nothing is downloaded"
        )


def _told(wanted: Mapping[str, str]) -> str:
    return ", ".join(wanted.values())


def _wanted(scale: Scale) -> Iterator[tuple[str, str]]:
    """What every row reads: the place below the folder of data, and its words."""
    own = scale.base["data"]
    chosen = [str(own["name"])]
    for values in scale.grid.get("data.name", ()):
        chosen.append(str(values["data.name"]) if isinstance(values, Mapping) else str(values))
    if "data.name" in scale.grid:
        chosen = chosen[1:]
    for data in chosen:
        if data == "libsvm":
            root = str(own["root"])
            yield root, f"{root} (LIBSVM text)"
            yield f"{root}.t", f"{root}.t (LIBSVM text)"
        elif data in _PLACES:
            yield _PLACES[data]
