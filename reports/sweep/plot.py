"""Plots of a sweep by matplotlib: curves over rounds, figures against epsilon, bars.

A sweep's own page: its tables, its plots and its failures, complete in itself.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...privacy.errors import InputError, needs
from ...privacy.plain_text import plain
from ...runs.sweep.results import PointResult
from ...training.models.evaluation import Metrics
from ..template import template
from .statistics import Mean, mean_of
from .table import VALUES, SweepTable, figures_of, lines_of, results_of, sweep_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".pdf", ".png")
_ROUND, _EPSILON = "round", "epsilon"
# Okabe and Ito's colours, which people with any colour vision tell apart; marks and dashes besides.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKS, _DASHES = ("o", "s", "^", "D", "v", "P", "X"), ("-", "--", "-.", ":")
_MOST_LINES = 28
_WIDTH, _HEIGHT = 4.6, 3.4  # inches of a panel


def plot_sweep(
    folder: Path,
    out: Path,
    *,
    x: str = _ROUND,
    y: str = "accuracy",
    line: str | None = None,
    panel: str | None = None,
    adversary: str | None = None,
) -> None:
    """Draw a sweep into a file; see `figure_of`.

    Raises:
        ValueError: the file's ending is none of `FORMATS`.
    """
    if out.suffix not in FORMATS:
        raise InputError(f"{out} must end in one of {', '.join(FORMATS)}")
    figure = figure_of(folder, x=x, y=y, line=line, panel=panel, adversary=adversary)
    # Text stays text, and a file of the same figures is the same file.
    metadata = {"Date": None} if out.suffix == ".svg" else None
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "overhear"}):
        figure.savefig(out, metadata=metadata, dpi=160)


def figure_of(
    folder: Path,
    *,
    x: str = _ROUND,
    y: str = "accuracy",
    line: str | None = None,
    panel: str | None = None,
    adversary: str | None = None,
) -> Figure:
    """A figure of a sweep: means over seeds, with bands or bars of one standard error.

    Args:
        x: "round", "epsilon", or a swept key: numbers give lines, words bars.
        y: a name in `overhear.reports.sweep.table.VALUES`.
        line: swept key with a line for each value; by default the first that is left.
        panel: swept key with a panel for each value.
        adversary: whose epsilon stands at x="epsilon"; the first by default.

    Raises:
        ImportError: matplotlib is not installed.
        FileNotFoundError: the folder holds no sweep.
        ValueError: a key that was not swept, a figure that no run has, or keys that are left over.
    """
    # Keys that were swept, none of which is mixed within a line.
    if y not in VALUES:
        raise InputError(f"y={y!r} must be one of {', '.join(VALUES)}")
    results = [point_result for point_result in results_of(folder) if point_result.state == "done"]
    if not results:
        raise InputError(f"no run of the sweep in {folder} has ended; run it before its plot")
    keys = list(results[0].settings)
    for key in (line, panel, None if x in (_ROUND, _EPSILON) else x):
        if key is not None and key not in keys:
            others = ", ".join((_ROUND, _EPSILON, *keys) if key == x else keys)
            raise InputError(f"{key!r} was not swept; choose among {others}")
    left = [key for key in keys if key not in (x, panel)]
    line = line or (left[0] if left else None)
    if over := [key for key in left if key != line and x != _EPSILON]:
        raise InputError(f"{', '.join(over)} would be mixed within a line; name it for --panel")
    if VALUES[y].attack and x == _ROUND:
        raise InputError(f"y={y!r} is of the whole run and has no rounds; choose another x")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise needs("plot", "matplotlib") from error
    panels = _split(results, panel)
    lines = list(_split(results, line))
    if len(lines) > _MOST_LINES:
        raise InputError(
            f"{line} has {len(lines)} values, and at most {_MOST_LINES} lines are distinguishable; "
            "use --panel, or another key"
        )
    # All panels share the axis of values, and a line has one style in each.
    figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT), layout="constrained")
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, of) in zip(every, panels.items(), strict=True):
        for number, name in enumerate(lines):
            held = [one for one in of if line is None or one.settings[line] == name]
            if held:
                _draw(axes, folder, held, (x, y, adversary), style=(number, len(lines)), name=name)
        if x == _ROUND:
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel(_x_words(x, adversary, results))
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if panel is not None:
            axes.set_title(f"{panel} = {title}", fontsize=10)
    every[0].set_ylabel(VALUES[y].head)
    if line is not None:
        every[-1].legend(title=line, frameon=False, fontsize=8, title_fontsize=8)
    return figure


def _split(results: Sequence[PointResult], key: str | None) -> dict[str, list[PointResult]]:
    found: dict[str, list[PointResult]] = {}
    for result in results:
        found.setdefault("" if key is None else result.settings[key], []).append(result)
    return found


def _draw(
    axes: Axes,
    folder: Path,
    results: Sequence[PointResult],
    asked: tuple[str, str, str | None],
    *,
    style: tuple[int, int],
    name: str,
) -> None:
    # Colours first, then dashes, tell lines apart.
    x, y, adversary = asked
    number, lines = style
    colour = _COLOURS[number % len(_COLOURS)]
    mark, dash = _MARKS[number % len(_MARKS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
    # Over rounds a band, over epsilon a line, over words bars.
    if x == _ROUND:
        found = sorted(_by_round(folder, results, y).items())
        at = [number for number, _ in found]
        _band(axes, at, [mean for _, mean in found], colour=colour, dash=dash, name=name)
        return
    if x == _EPSILON:
        points = [
            (spent, mean_of(list(figures_of(folder, of, y)[0].values())))
            for of in _split_all(results)
            if math.isfinite(spent := max(_epsilon_of(one, adversary) for one in of))
        ]
        _line(axes, points, colour=colour, dash=dash, mark=mark, name=name)
        return
    by_value = {value: mean_of(list(figures_of(folder, of, y)[0].values()))
                for value, of in _split(results, x).items()}  # fmt: skip
    numbers = [_number(value) for value in by_value]
    if None not in numbers:
        points = [(n, m) for n, m in zip(numbers, by_value.values(), strict=True) if n is not None]
        _line(axes, points, colour=colour, dash=dash, mark=mark, name=name)
        return
    wide = 0.8 / lines
    places = [i - 0.4 + wide * (number + 0.5) for i in range(len(by_value))]
    errors = [0.0 if math.isnan(mean.error) else mean.error for mean in by_value.values()]
    axes.bar(
        places,
        [mean.value for mean in by_value.values()],
        wide * 0.92,
        yerr=errors,
        color=colour,
        label=name,
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axes.set_xticks(range(len(by_value)), list(by_value))


def _by_round(folder: Path, results: Sequence[PointResult], y: str) -> dict[int, Mean]:
    """The mean over seeds of each round that all of them evaluated."""
    value = VALUES[y]
    curves = [
        list({line.round: line for line in result.curve(folder)}.values()) for result in results
    ]
    rounds = set.intersection(*({line.round for line in curve} for curve in curves))
    if not rounds:
        short = min(zip(results, curves, strict=True), key=lambda pair: len(pair[1]))[0].name
        raise InputError(
            f"the runs of a line in {folder} have no round in common: of {short} "
            f"{min(map(len, curves))} evaluations can be read; plot the runs of other rounds apart"
        )
    found = {}
    for at in rounds:
        held = [_figure_of(line, y) for curve in curves for line in curve if line.round == at]
        known = [value.scale * one for one in held if one is not None]
        if known:
            found[at] = mean_of(known)
    if not found:
        raise InputError(f"no run of the sweep in {folder} has {y} by round")
    return found


def _figure_of(line: Metrics, y: str) -> float | None:
    of_mean = VALUES[y].of_mean
    return None if of_mean is None else of_mean(line)


def _split_all(results: Sequence[PointResult]) -> list[list[PointResult]]:
    """The runs of one setting each, which differ in their seed alone."""
    found: dict[tuple[str, ...], list[PointResult]] = {}
    for result in results:
        found.setdefault(tuple(result.settings.values()), []).append(result)
    return list(found.values())


def _epsilon_of(one: PointResult, adversary: str | None) -> float:
    known = {row.adversary: row.epsilon for row in one.adversaries}
    if not known:
        raise InputError("these runs have no epsilon; choose another x")
    if one.contradictions:
        raise InputError(
            f"{one.name} measured more than is proven, so its epsilon does not hold: "
            f"{one.contradictions[0]}; choose another x"
        )
    if adversary is None:
        return next(iter(known.values()))
    if adversary not in known:
        raise InputError(f"adversary={adversary!r} must be one of {', '.join(known)}")
    return known[adversary]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _x_words(x: str, adversary: str | None, results: Sequence[PointResult]) -> str:
    if x != _EPSILON:
        return x
    name = adversary or results[0].adversaries[0].adversary
    deltas = sorted(
        {r.delta for result in results for r in result.adversaries if r.adversary == name}
    )
    words = f"epsilon of {name} at delta {', '.join(f'{delta:g}' for delta in deltas)}"
    settings = _split_all(results)
    if endless := sum(any(math.isinf(_epsilon_of(r, name)) for r in of) for of in settings):
        words += f"\n(of {endless} of {len(settings)} settings infinite, and not shown)"
    return words


def _band(
    axes: Axes, at: Sequence[float], means: Sequence[Mean], *, colour: str, dash: str, name: str
) -> None:
    values = [mean.value for mean in means]
    errors = [0.0 if math.isnan(mean.error) else mean.error for mean in means]
    axes.plot(at, values, color=colour, linestyle=dash, linewidth=1.6, label=name)
    low = [value - error for value, error in zip(values, errors, strict=True)]
    high = [value + error for value, error in zip(values, errors, strict=True)]
    axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)


def _line(
    axes: Axes,
    points: Sequence[tuple[float, Mean]],
    *,
    colour: str,
    dash: str,
    mark: str,
    name: str,
) -> None:
    found = sorted(points, key=lambda point: point[0])
    errors = [0.0 if math.isnan(mean.error) else mean.error for _, mean in found]
    axes.errorbar(
        [x for x, _ in found],
        [mean.value for _, mean in found],
        yerr=errors,
        color=colour,
        linestyle=dash,
        marker=mark,
        markersize=4,
        capsize=2,
        label=name,
    )


_MOST_PANELS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plot:
    source: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    title: str
    heads: list[str]
    rows: list[list[tuple[str, bool]]]
    caption: str
    plots: list[_Plot]


def sweep_html(out: Path) -> str:
    """The page of a sweep, with a table for each figure that its runs have.

    Raises:
        FileNotFoundError: the folder holds no sweep.
        ValueError: no run has ended.
    """
    results = results_of(out)
    if not results:
        raise InputError(f"no run of the sweep in {out} has ended; run it before its page")
    failed = [
        plain(
            ", ".join(f"{key}={value}" for key, value in result.settings.items())
            + f", seed {result.seed}: {result.error}",
            most=None,
        )
        for result in results
        if result.state == "failed"
    ]
    done = [result for result in results if result.state == "done"]
    held = [name for name in VALUES if figures_of(out, done, name)[0]] if done else []
    return template("overhear.reports.sweep", "sweep.html").render(
        done=len(done), failed=failed, tables=[_shown(out, name) for name in held]
    )


def _shown(out: Path, value: str) -> _Shown:
    table = sweep_table(out, value=value)
    lines = lines_of(table)
    heads = list(dict.fromkeys(head for line in lines for head in line))
    rows = [
        [
            (plain(cell.removeprefix("**").removesuffix("**")), cell.startswith("**"))
            for cell in (line.get(head, "") for head in heads)
        ]
        for line in lines
    ]
    return _Shown(
        title=VALUES[value].head,
        heads=heads,
        rows=rows,
        caption=table.caption,
        plots=_plots(out, table),
    )


def _plots(out: Path, table: SweepTable) -> list[_Plot]:
    """Curves over rounds, a panel for each value of the last key of two; none of more keys."""
    if find_spec("matplotlib") is None or VALUES[table.value].attack:
        return []
    line, panel = (*table.rows, None, None)[:2] if len(table.rows) < 3 else (None, None)
    panels = {cell.row.get(panel or "") for cell in table.cells}
    if line is None or len(panels) > _MOST_PANELS:
        return []
    try:
        figure = figure_of(out, y=table.value, line=line, panel=panel)
    except InputError:  # a figure that no evaluation has, or more lines than are told apart
        return []
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    words = f"{VALUES[table.value].head} by round, a line for each {line}"
    words += f", a panel for each {panel}" if panel else ""
    text = base64.b64encode(drawn.getvalue()).decode()
    return [_Plot(source=f"data:image/png;base64,{text}", words=words)]
