"""Whether figures and claims of a paper are reproduced: what is compared with what, and the word.

A paper's figure is reproduced if ours lies within the entry's distance of it and twice our standard
error; the level is told with the 95 % interval of ours. A claim is held against differences seed by
seed: of an order or a trend the 95 % interval must lie above 0. Figures are those of the mean over
agents where there is one, as papers report them. Of fewer than `LEAST_SEEDS` seeds, or where
anything is not as in the paper, no verdict is given, and what holds here stands in its place.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...privacy.errors import InputError
from ...privacy.files import opened_picture
from ...runs.sweep.results import POINTS, PointResult
from ...training.device.later import torch
from ..sweep.cells import ROWS, Difference, Mean, attack_name, difference_of, mean_of, own_attack
from .paper_result import LEAST_SEEDS, Claim, Close, Entry, Figure, Order, Scale, Trend

if TYPE_CHECKING:
    from torch import Tensor

Word = Literal["reproduced", "not reproduced", "not comparable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A word, why, and where there is no verdict what holds here."""

    word: Word
    because: str
    here: str = ""


_OTHER = "the setting is another one"


def not_comparable(because: str, here: str = "") -> Verdict:
    """No verdict, and why there is none."""
    return Verdict(word="not comparable", because=because, here=here)


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
        where: by swept key the settings that both lines have.
        difference: by how much the better one is better, of the figures that are compared: mean,
            standard error of the paired differences, n.
        low, high: its 95 % interval.
        of_mean: the difference of the mean models.
        source: where the claim was read.
    """

    words: str
    where: Mapping[str, str]
    difference: Mean
    low: float
    high: float
    of_mean: Mean
    verdict: Verdict
    source: str


def figure_of(figures: Sequence[Figure], place: Mapping[str, str]) -> Figure | None:
    """The paper's figure of a line: a user's, then the one that names most of its settings."""
    held = [figure for figure in figures if figure.place.items() <= place.items()]
    return max(held, key=lambda one: (one.own, len(one.place)), default=None)


def figure_verdict(
    figure: Figure | None, ours: Mean, *, within: float, scale: Scale | None
) -> Verdict:
    """Whether a figure of the paper is reproduced.

    Args:
        within: largest distance, in the unit of the value.
        scale: what it was run at; None of a closed form.
    """
    other = scale is not None and scale.differs
    if figure is None:
        return not_comparable(_OTHER if other else "the paper prints no number for this setting")
    if not ours.count or math.isnan(ours.value):
        return not_comparable("no run of it ended with a figure")
    off = level_of(figure, ours)
    way = f"{abs(off.mean):.3g} {'below' if off.mean < 0 else 'above'}" if off.mean else "inside"
    known = f" ({off.low:+.3g} to {off.high:+.3g})" if off.mean and math.isfinite(off.low) else ""
    told = f"ours is {way}{known}"
    if other:
        return not_comparable(_OTHER, told)
    if ours.count < LEAST_SEEDS:
        return not_comparable(f"{_few(ours.count)}; so far {told}")
    allowed = within + (0.0 if math.isnan(ours.error) else 2.0 * ours.error)
    word: Word = "not reproduced" if abs(off.mean) > allowed else "reproduced"
    return Verdict(word=word, because=f"{told}, and {allowed:.3g} is allowed")


def level_of(figure: Figure, ours: Mean) -> Difference:
    """How far ours lies from a figure of the paper, with the 95 % interval of ours; 0 in a range.

    The interval is of our seeds alone: whether the paper's +- is a deviation or an error is not
    always said. None where no run ended with a figure.

    >>> from overhear.reports.sweep.cells import mean_of
    >>> figure = Figure(place={}, low=94.4, high=94.4, source="Table I")
    >>> found = level_of(figure, mean_of([89.0, 90.0, 88.0]))
    >>> round(found.mean, 2), round(found.low, 2), round(found.high, 2), found.count
    (-5.4, -7.88, -2.92, 3)
    """
    from scipy.stats import t

    off = ours.value - min(max(ours.value, figure.low), figure.high)
    half = math.inf if ours.count == 1 else float(t.ppf(0.975, ours.count - 1)) * ours.error
    return Difference(mean=off, low=off - half, high=off + half, count=ours.count)


def firsts_of(
    lines: Sequence[tuple[Mapping[str, str], float, Figure | None]], key: str, *, more: bool
) -> str:
    """Who is first by means in each cell with figures of both, in words; empty without a cell.

    Args:
        lines: settings, our figure, the paper's.
        key: the swept key that tells them apart within a cell.

    >>> def line(name, ours, paper):
    ...     printed = Figure(place={}, low=paper, high=paper, source="Table I")
    ...     return {"algorithm.name": name}, ours, printed
    >>> firsts_of([line("a", 1.0, 9.0), line("b", 2.0, 8.0)], "algorithm.name", more=True)
    'in the paper a 1; here b 1; the same in 0 of 1'
    """
    cells: dict[tuple[tuple[str, str], ...], list[tuple[str, float, float]]] = {}
    for place, ours, figure in lines:
        if figure is not None and key in place and not math.isnan(ours):
            rest = tuple(sorted((k, v) for k, v in place.items() if k != key))
            cells.setdefault(rest, []).append((place[key], ours, figure.low))
    held = [cell for cell in cells.values() if len({low for *_, low in cell}) > 1]
    paper, best, same = Counter[str](), Counter[str](), 0
    pick = max if more else min
    for cell in held:
        first = [name for name, _, low in cell if low == pick(low for *_, low in cell)]
        name = pick(cell, key=lambda one: one[1])[0]
        paper[" or ".join(first)] += 1
        best[name] += 1
        same += name in first
    theirs, own = (", ".join(f"{one} {n}" for one, n in of.items()) for of in (paper, best))
    told = f"in the paper {theirs}; here {own}; the same in {same} of {len(held)}"
    return told if held else ""


def _few(count: int) -> str:
    return f"n = {count}, and a verdict takes {LEAST_SEEDS} seeds"


def claim_lines(
    entry: Entry, lines: Sequence[Seeds], *, more: bool, scale: Scale | None = None
) -> list[ClaimLine]:
    """Every claim of an entry, wherever both of its lines stand."""
    if not more:
        lines = [
            replace(one, compared=_turned(one.compared), of_mean=_turned(one.of_mean))
            for one in lines
        ]
    found = [line for claim in entry.claims for line in _lines_of(claim, lines)]
    if scale is None or not scale.differs:
        return found
    return [replace(one, verdict=not_comparable(_OTHER, one.verdict.because)) for one in found]


def _turned(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: -value for seed, value in values.items()}


def _lines_of(claim: Claim, lines: Sequence[Seeds]) -> Iterator[ClaimLine]:
    if isinstance(claim, Trend):
        yield from _trend(claim, lines)
        return
    others, of = (claim.others, claim.of) if isinstance(claim, Order) else ((claim.other,), {})
    for first in lines:
        if first.place.get(claim.key) != claim.first or not of.items() <= first.place.items():
            continue
        for other in lines:
            if other.place.get(claim.key) in others and _rest(first, claim.key) == _rest(
                other, claim.key
            ):
                yield _compared(claim, first, other, words=_words(claim, other))


def _words(claim: Order | Close, other: Seeds) -> str:
    name = other.place[claim.key]
    if isinstance(claim, Order):
        return f"{claim.first} {claim.verb} {name}"
    return f"{claim.first} is at most {claim.within:g} worse than {name}"


def _trend(claim: Trend, lines: Sequence[Seeds]) -> Iterator[ClaimLine]:
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
            yield _compared(claim, line, last, words=words)
        before[rest] = line


def _rest(line: Seeds, key: str) -> dict[str, str]:
    return {name: value for name, value in line.place.items() if name != key}


def _compared(claim: Claim, first: Seeds, other: Seeds, *, words: str) -> ClaimLine:
    over = difference_of(first.compared, other.compared)
    named = claim.of if isinstance(claim, Trend) else {}
    return ClaimLine(
        words=words,
        where={k: v for k, v in _rest(first, claim.key).items() if k not in named},
        difference=_paired(first.compared, other.compared),
        low=math.nan if over is None else over.low,
        high=math.nan if over is None else over.high,
        of_mean=_paired(first.of_mean, other.of_mean),
        verdict=_claim_verdict(claim, over),
        source=claim.source,
    )


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> Mean:
    return mean_of([one[seed] - other[seed] for seed in one if seed in other])


def _claim_verdict(claim: Claim, over: Difference | None) -> Verdict:
    if over is None or math.isnan(over.mean):
        return not_comparable("the two have no seed in common")
    if over.count < LEAST_SEEDS:
        return not_comparable(_few(over.count))
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


def placed(scale: Scale) -> Scale:
    """A scale with the roots of its data, in the run file and in the grid, where they lie here."""
    base: dict[str, Mapping[str, object]] = {
        name: dict(table) for name, table in scale.base.items()
    }
    base["data"] = {k: _placed(v) if k == "root" else v for k, v in base.get("data", {}).items()}
    grid = {key: [_in_place(value) for value in values] for key, values in scale.grid.items()}
    return replace(scale, base=base, grid=grid)


def _in_place(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: _placed(one) if key == "data.root" else one for key, one in value.items()}


def _placed(root: object) -> str:
    return str(Path(os.environ.get(_ROOT, "")).expanduser() / str(root))


def check_data(name: str, scale: Scale) -> None:
    """Refuse an entry whose data are not at hand.

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
    swept = [
        value if isinstance(value, Mapping) else {"data.name": value}
        for value in scale.grid.get("data.name", ())
    ]
    own = {f"data.{key}": value for key, value in scale.base.get("data", {}).items()}
    for data in ({**own, **value} for value in swept or [{}]):
        name = str(data["data.name"])
        if name == "libsvm":
            root = str(data["data.root"])
            yield root, f"{root} (LIBSVM text)"
            yield f"{root}.t", f"{root}.t (LIBSVM text)"
        elif name in _PLACES:
            yield _PLACES[name]


# Lines of a sweep whose runs are attacked: each scenario, without a defence and as it was sent; and
# beside them scores of the same records that take no message.

_SCORES = ("mse", "psnr", "ssim")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackedLine:
    """What was attacked in one way.

    Attributes:
        name: "no defence" or "defended", the scenario, and of several presets which.
        scores: mse, psnr and ssim by seed, each the mean over images and attacked rounds.
    """

    name: str
    scores: Mapping[str, Mapping[int, float]]


def attacked_lines(
    out: Path, results: Sequence[PointResult], *, convention: str = ""
) -> list[AttackedLine]:
    """The lines of the runs of one setting."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    held = [(result, one) for result in results for one in own_attack(out, result)]
    presets = list(dict.fromkeys(scenario.preset for _, scenario in held))
    for result, scenario in held:
        for row in scenario.rows:
            if row.name not in ROWS:
                continue
            name = attack_name(row.name, scenario.scenario, scenario.preset, presets)
            scores = found.setdefault(name, {})
            means = row.conventions.get(convention, row.mean)
            for score in _SCORES:
                values = scores.setdefault(score, {}).setdefault(result.seed, [])
                values.append(getattr(means, score))
    return [
        AttackedLine(
            name=name,
            scores={
                score: {seed: sum(values) / len(values) for seed, values in by_seed.items()}
                for score, by_seed in scores.items()
            },
        )
        for name, scores in sorted(found.items(), key=lambda item: item[0].startswith(ROWS[1]))
    ]


def unattacked_scores(
    out: Path, results: Sequence[PointResult], *, convention: str = ""
) -> dict[str, dict[str, Mean]]:
    """Scores of the attacked records that take no attack: by guess and score, over seeds.

    Args:
        results: of the runs of one setting; those of another have the same records.
    """
    from ...attacks.scoring.metrics import ORDINARY, conventions_for, mse, psnr, ssim, unattacked

    found: dict[str, dict[str, list[float]]] = {}
    by_seed = {of.seed: (of, one) for of in results for one in own_attack(out, of)}
    for result, scenario in by_seed.values():
        if not scenario.originals:
            continue
        folder = out / POINTS / result.name
        truth = torch.stack([_pixels(folder / path) for path in scenario.originals])
        scale = conventions_for(truth.shape[1]).get(convention, ORDINARY)
        generator = torch.Generator().manual_seed(result.seed)
        blind = scenario.rows[0].conventions.get(convention, scenario.rows[0].mean)
        each = {"mean image": {score: getattr(blind, score) for score in _SCORES}}
        for name, guess in unattacked(truth, generator=generator).items():
            pairs = list(zip(truth, guess, strict=True))
            each[name] = {
                score.__name__: sum(score(a, b, convention=scale) for a, b in pairs) / len(pairs)
                for score in (mse, psnr, ssim)
            }
        for name, scores in each.items():
            for score, value in scores.items():
                found.setdefault(name, {}).setdefault(score, []).append(value)
    return {
        name: {score: mean_of(values) for score, values in scores.items()}
        for name, scores in found.items()
    }


def _pixels(path: Path) -> Tensor:
    """(channels, height, width) pixels of a picture, in [0, 1]."""
    with opened_picture(path) as picture:
        levels = torch.from_numpy(np.array(picture, dtype=np.float64) / 255.0)
    return levels[None] if levels.ndim == 2 else levels.permute(2, 0, 1)
