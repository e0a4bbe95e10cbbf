"""Plots of a sweep by matplotlib: curves over rounds, figures against epsilon, bars, galleries.

A sweep's own page: its tables, its plots and its failures, complete in itself.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ...privacy.errors import InputError, needs
from ...privacy.files import opened_picture
from ...privacy.plain_text import in_columns, plain
from ...runs.attack.scenario import shown_pictures
from ...runs.requests import PlotRequest
from ...runs.sweep.results import POINTS, PointResult
from ...runs.sweep.sweep_file import SEED, Point, flat, kept_sweep, points_of
from ..references import template
from .cells import ROWS, Cells, Mean, attack_name, mean_of, over_seeds, own_attack
from .table import VALUES, SweepTable, check_keys, figures_of, lines_of, results_of, sweep_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Run = TypeVar("_Run", PointResult, Point)
FORMATS = (".svg", ".pdf", ".png")
_ROUND, _EPSILON = "round", "epsilon"
# Keys along which a line over epsilon may run; others would make a zigzag of two settings.
_SPENDING = tuple(f"privacy.{key}" for key in ("epsilon", "noise_multiplier", "advantage"))
_SPENDING += tuple(f"training.{key}" for key in ("rounds", "sampling_rate", "batch_size"))
# Okabe and Ito's colours, which people with any colour vision tell apart; marks and dashes besides.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKS, _DASHES = ("o", "s", "^", "D", "v", "P", "X"), ("-", "--", "-.", ":")
_MOST_LINES, _MOST_PANELS, _MOST_PICTURES = 28, 36, 12
_ACROSS = 4  # panels of one key, before they wrap
_BLIND = "blind guess"
_OF_PICTURES = f"PSNR of pixels in [0, 1]; the {_BLIND} takes no message"
_COLUMN, _PAGE = 3.5, 7.16  # inches of a column and of a page of a paper
_WIDE, _HIGH = 1.8, 1.9  # inches of a panel, at least
_TILE, _GAP, _LINE, _LABEL = 0.62, 0.06, 0.15, 1.1  # inches in a gallery
_WORDS, _SMALL, _LETTERS = 8, 7, 16  # points, and letters in an inch


def plot_sweep(folder: Path, out: Path, asked: PlotRequest) -> None:
    """Draw a sweep into a file; see `figure_of`.

    Raises:
        ValueError: the file's ending is none of `FORMATS`.
    """
    if out.suffix not in FORMATS:
        raise InputError(f"{out} must end in one of {', '.join(FORMATS)}")
    figure = figure_of(folder, asked)
    # Text stays text, and a file of the same figures is the same file.
    metadata = {"Date": None} if out.suffix == ".svg" else None
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "overhear"}):
        figure.savefig(out, metadata=metadata, dpi=300)


class _Panels(NamedTuple):
    """Titles of panels with their runs, row by row; the values of lines and of a swept axis."""

    asked: PlotRequest  # with whole keys and the adversary's name
    each: list[tuple[str, list[PointResult]]]
    columns: int
    line: str | None
    lines: list[str]
    values: list[str]
    note: str


def figure_of(folder: Path, asked: PlotRequest) -> Figure:
    """A figure of a sweep: means over seeds, with bands or bars of one standard error; a gallery.

    Raises:
        ImportError: matplotlib is not installed.
        FileNotFoundError: the folder holds no sweep.
        ValueError: a key that was not swept, a figure that no run has, or keys that are left over.
    """
    if asked.y not in VALUES:
        raise InputError(f"y={asked.y!r} must be one of {', '.join(VALUES)}")
    value = VALUES[asked.y]
    if value.attack and asked.x == _ROUND:
        raise InputError(f"y={asked.y!r} is of the whole run and has no rounds; choose another x")
    if asked.agents and value.of_agents is None:
        raise InputError(f"y={asked.y!r} is no figure of each agent's model; leave --agents out")
    found = _panels(folder, asked)
    asked = found.asked
    results = [one for _, of in found.each for one in of]
    if not asked.gallery and not figures_of(folder, results, asked.y)[asked.agents]:
        raise InputError(f"no run of the sweep in {folder} has {asked.y}; choose another y")
    columns, rows = found.columns, -(-len(found.each) // found.columns)
    if asked.gallery:
        every = [_pictures_of(folder, *panel, columns) for panel in found.each]
        lines = [every[columns * row : columns * (row + 1)] for row in range(rows)]
        return drawn_pictures(lines, note=found.note)
    # All panels share the axis of values, and a line has one style in each.
    width = _COLUMN if columns == 1 else max(_PAGE, _WIDE * columns)
    figure = _figure(width, _HIGH * rows + 0.8, layout="constrained")
    every_axes = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    legend = dict[str, Any]()
    for axes, (title, of) in zip(every_axes, found.each, strict=False):
        for number, name in enumerate(found.lines):
            if held := _split(of, found.line).get(name):
                style = (number, len(found.lines))
                legend[name] = _draw(axes, folder, held, asked, found.values, style=style)
        if not of:
            axes.text(0.5, 0.5, "no run has ended", transform=axes.transAxes, ha="center")
        if asked.x == _ROUND:
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=_SMALL)
        axes.set_axisbelow(True)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(_text(title, width / columns), fontsize=_WORDS)
    for axes in every_axes[len(found.each) :]:
        axes.set_axis_off()
    of_whom = ", mean over agents" if asked.agents else ""
    figure.supylabel(f"{value.head}{of_whom}", fontsize=_WORDS)
    figure.supxlabel(f"{_x_words(asked, results)}\n{_text(found.note, width)}", fontsize=_WORDS)
    # Crowded names take no room from the panels.
    ticks = [one.get_text().count("\n") + 1 for one in every_axes[0].get_xticklabels()]
    more = max(ticks, default=1) - 1
    if found.line is not None:
        names = {_text(name, width): legend[name] for name in found.lines if name in legend}
        longest = max(len(line) for name in names for line in name.split("\n"))
        across = int(width * _LETTERS / (longest + 6))
        look: dict[str, Any] = {"frameon": False, "fontsize": _SMALL, "title_fontsize": _SMALL}
        look |= {"loc": "outside upper center", "ncols": max(1, min(len(names), across))}
        figure.legend(names.values(), names.keys(), title=_short(found.line), **look)
        more += sum(name.count("\n") for name in names) + (len(names) - 1) // look["ncols"]
    figure.set_figheight(figure.get_figheight() + _LINE * more)
    return figure


def _figure(width: float, height: float, **settings: Any) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise needs("plot", "matplotlib") from error
    return Figure(figsize=(width, height), **settings)


def _panels(folder: Path, asked: PlotRequest) -> _Panels:
    """The runs that are meant, by panel; none of the keys that were swept is mixed within one."""
    ended = [one for one in results_of(folder) if one.state == "done"]
    sweep = kept_sweep(folder)
    points, keys = list(points_of(sweep, {})), list(sweep.grid)
    swept, fixed = {"": {**sweep.grid, SEED: sweep.seed_list()}}, {"": flat(sweep.base, "base")}
    names = Cells(name=str(folder), scale="", swept=swept, fixed=fixed)
    cells = names.chosen(asked.cell, None)

    def is_meant(one: PointResult | Point) -> bool:
        of = {**one.settings, SEED: str(one.seed)}
        return not cells or any(all(of[k] in v for k, v in cell.items()) for cell in cells)

    results = [one for one in ended if is_meant(one)]
    if not results:
        raise InputError(
            f"no run of the sweep in {folder} has ended, or none of --cell; run it first"
        )
    if asked.gallery:
        results = _with_pictures(folder, results)
    # One adversary's epsilon stands on the axis, whichever a run names first.
    axis = replace(names, swept={"": {_ROUND: (), _EPSILON: (), **swept[""]}})
    asked = replace(asked, x=axis.key(asked.x))
    if asked.x == _EPSILON and asked.adversary is None and (first := results[0].adversaries):
        asked = replace(asked, adversary=first[0].adversary)
    # Every key that has several values is that of lines, of panels or of the axis, and once.
    x = [] if asked.x in (_ROUND, _EPSILON) else [asked.x]
    several = [key for key in keys if len(_split(results, key)) > 1]
    panel = [names.key(word) for word in asked.panel]
    named = names.key(asked.line) if asked.line else None
    spending = (k for k in several if k in _SPENDING and k not in (*panel, named))
    along = [key for key in spending if asked.x == _EPSILON][:1]
    left = [key for key in several if key not in (*x, *panel, *along)]
    panel = panel or left[: 2 * asked.gallery]
    line = None if asked.gallery else named or line_key(left)
    given = [*x, *panel, *([] if line is None or line in x else [line])]
    known = keys if {*x} <= {*keys} else [_ROUND, _EPSILON, *keys]
    mixed = [key for key in several if key not in along]
    check_keys(known, given, mixed, remedy="--panel, or choose one of its values by --cell")

    def values(key: str | None) -> list[str]:
        held = _split(results, key)
        return [value for value in _split(points, key) if value in held]

    lines = values(line)
    # One key wraps; of two the first is that of rows.
    found = [
        (", ".join(f"{_short(k)} = {v}" for k, v in place), [
            one for one in results if all(one.settings[k] == v for k, v in place)
        ])
        for place in itertools.product(*([(key, v) for v in values(key)] for key in panel))
    ]  # fmt: skip
    for what, many, most in (
        ("panels", len(found), _MOST_PANELS),
        ("lines", len(lines), _MOST_LINES),
    ):
        if many > most:
            raise InputError(f"{many} {what} must be at most {most}; choose some by --cell")
    columns = len(values(panel[-1])) if panel else 1
    columns = -(-columns // -(-columns // _ACROSS)) if len(panel) == 1 else columns
    # What holds for all that is drawn, and what is missing in it.
    words = [f"{_short(k)} = {results[0].settings[k]}" for k in keys if k not in (*several, *given)]
    words.append(_OF_PICTURES if asked.gallery else over_seeds(map(len, _split_all(results))))
    meant = sum(map(is_meant, points))
    if not asked.gallery and meant > len(results):
        words.append(f"{meant - len(results)} of {meant} runs failed or have not ended")
    on_axis = values(asked.x) if x else []
    return _Panels(asked, found, columns, line, lines, on_axis, "; ".join(words))


def line_key(keys: Sequence[str]) -> str | None:
    """The key of lines where none is named: the algorithm, or the first."""
    return next((k for k in keys if k.startswith("algorithm.")), keys[0] if keys else None)


def _short(key: str) -> str:
    """The last part of a key, or its table where that says it.

    >>> _short("algorithm.name"), _short("data.agents")
    ('algorithm', 'agents')
    """
    return key.removesuffix(".name").rpartition(".")[2]


def _text(text: str, inches: float | None = None) -> str:
    """Words as they are, in no formula of matplotlib's, in lines that fit a width."""
    words = plain(text).replace("$", r"\$")
    words = f" {words}" if words.startswith("_") else words  # which would be in no legend
    across = len(words) + 1 if inches is None else max(15, int(0.85 * _LETTERS * inches))
    return fill(words, across, break_on_hyphens=False)


def _split(results: Sequence[_Run], key: str | None) -> dict[str, list[_Run]]:
    found: dict[str, list[_Run]] = {}
    for result in results:
        found.setdefault("" if key is None else result.settings[key], []).append(result)
    return found


def _draw(
    axes: Axes,
    folder: Path,
    results: Sequence[PointResult],
    asked: PlotRequest,
    values: Sequence[str],
    *,
    style: tuple[int, int],
) -> Any:
    """Draw a line, or its bars over `values`; what a legend shows of it."""
    number, lines = style
    colour = _COLOURS[number % len(_COLOURS)]

    def mean(of: Sequence[PointResult]) -> Mean:
        return mean_of(list(figures_of(folder, of, asked.y)[asked.agents].values()))

    # Over rounds a band, over epsilon and numbers a line, over words bars.
    numbers = [_number(value) for value in values]
    bars = None in numbers
    if asked.x == _ROUND:
        points = [*_by_round(folder, results, asked).items()]
    elif asked.x == _EPSILON:
        spent = [
            (max(_epsilon_of(one, asked.adversary) for one in of), of) for of in _split_all(results)
        ]
        points = [(epsilon, mean(of)) for epsilon, of in spent if math.isfinite(epsilon)]
    else:
        wide = 0.8 / lines
        places = [
            i - 0.4 + wide * (number + 0.5) if bars else n or 0.0 for i, n in enumerate(numbers)
        ]
        by = _split(results, asked.x)
        points = [(at, mean(by[v])) for at, v in zip(places, values, strict=True) if v in by]
    points.sort(key=operator.itemgetter(0))
    at = [place for place, _ in points]
    figures = np.array([one.value for _, one in points])
    errors = np.array([one.error for _, one in points])  # NaN of one seed, which has no bar
    if bars:
        axes.set_xticks(range(len(values)), [_text(value, 1.2) for value in values])
        if len(values) > 5 or sum(map(len, values)) > _LETTERS:
            for label in axes.get_xticklabels():
                label.set(rotation=45, ha="right", rotation_mode="anchor")
        return axes.bar(at, figures, wide * 0.92, yerr=errors, color=colour, capsize=2)
    look: dict[str, Any] = {
        "color": colour,
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 1.2,
    }
    mark: dict[str, Any] = {"marker": _MARKS[number % len(_MARKS)], "markersize": 4}
    if asked.x == _ROUND:
        axes.fill_between(at, figures - errors, figures + errors, color=colour, alpha=0.18, lw=0)
        return axes.plot(at, figures, **look, **(mark if len(at) == 1 else {}))[0]
    return axes.errorbar(at, figures, yerr=errors, capsize=2, **look, **mark)


def _by_round(
    folder: Path, results: Sequence[PointResult], asked: PlotRequest
) -> dict[float, Mean]:
    """The mean over seeds of each round that all of them evaluated."""
    curves = [{line.round: line for line in result.curve(folder)} for result in results]
    rounds = sorted(set.intersection(*map(set, curves)))
    if not rounds:
        short = min(zip(results, curves, strict=True), key=lambda pair: len(pair[1]))[0].name
        raise InputError(
            f"the runs of a line in {folder} have no round in common: of {short} "
            f"{min(map(len, curves))} evaluations can be read; plot the runs of other rounds apart"
        )
    found = dict[float, Mean]()
    for at in rounds:
        held = [VALUES[asked.y].figure(curve[at], agents=asked.agents) for curve in curves]
        if known := [one for one in held if one is not None]:
            found[at] = mean_of(known)
    return found


def _split_all(results: Sequence[PointResult]) -> list[list[PointResult]]:
    """The runs of one setting each, which differ in their seed alone."""
    found: dict[tuple[str, ...], list[PointResult]] = {}
    for result in results:
        found.setdefault(tuple(result.settings.values()), []).append(result)
    return list(found.values())


def _epsilon_of(one: PointResult, adversary: str | None) -> float:
    """Of that adversary alone: another one's figure is no stand-in."""
    known = {row.adversary: row.epsilon for row in one.adversaries}
    if not known:
        raise InputError("these runs have no epsilon; choose another x")
    if one.contradictions:
        raise InputError(
            f"{one.name} measured more than is proven, so its epsilon does not hold: "
            f"{one.contradictions[0]}; choose another x"
        )
    if adversary is None or adversary not in known:
        raise InputError(
            f"adversary={adversary!r} must be one of {', '.join(known)}, which {one.name} has; "
            "name one that all runs have by --adversary, or choose runs by --cell"
        )
    return known[adversary]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _x_words(asked: PlotRequest, results: Sequence[PointResult]) -> str:
    if asked.x != _EPSILON:
        return _text(asked.x)
    name = asked.adversary
    deltas = sorted(
        {r.delta for result in results for r in result.adversaries if r.adversary == name}
    )
    words = f"epsilon of {name} at delta {', '.join(f'{delta:g}' for delta in deltas)}"
    settings = _split_all(results)
    if endless := sum(any(math.isinf(_epsilon_of(r, name)) for r in of) for of in settings):
        words += f"\n(of {endless} of {len(settings)} settings infinite, and not shown)"
    return words


# Galleries: the truth on top, below it what each scenario rebuilt of it, in columns of rounds.


class Pictures(NamedTuple):
    """Rows of pictures, each with words below it, or None; a title, and heads over columns."""

    rows: Sequence[tuple[str, Sequence[tuple[Path, str] | None]]]
    title: str = ""
    heads: Sequence[str] = ()


def drawn_pictures(blocks: Sequence[Sequence[Pictures]], *, note: str = "") -> Figure:
    """Blocks of pictures in lines, none of them smoothed, and a note below them.

    Raises:
        ImportError: matplotlib is not installed.
    """
    every = list(itertools.chain(*blocks))
    wide = _LABEL + (_TILE + _GAP) * max(len(row) for block in every for _, row in block.rows)
    top = 3 * _LINE if any(block.title or block.heads for block in every) else 0
    high = top + (_TILE + _LINE) * max(len(block.rows) for block in every)
    width, height = wide * len(blocks[0]), high * len(blocks) + 2 * _LINE * bool(note)
    figure = _figure(width, height)
    for number, block in enumerate(every):
        # Everything is placed in inches from the left and from the top.
        line, column = divmod(number, len(blocks[0]))
        box = (wide * column / width, 1 - high * (line + 1) / height, wide / width, high / height)
        axes = figure.add_axes(box, xlim=(0, wide), ylim=(high, 0))
        axes.set_axis_off()
        words: dict[str, Any] = {"fontsize": _SMALL, "ha": "center", "va": "center"}
        axes.text(wide / 2, _LINE, _text(block.title, wide), **words)
        across = (wide - _LABEL) / max(len(block.heads), 1)
        for place, head in enumerate(block.heads):
            axes.text(_LABEL + across * (place + 0.5), 2.4 * _LINE, _text(head), **words)
        for row, (name, pictures) in enumerate(block.rows):
            y = top + (_TILE + _LINE) * row
            axes.text(_LABEL - _GAP, y + _TILE / 2, _text(name, _LABEL), **words | {"ha": "right"})
            for place, one in enumerate(pictures):
                x = _LABEL + (_TILE + _GAP) * place
                axes.text(x + _TILE / 2, y + _TILE + _LINE / 2, one[1] if one else "–", **words)
                if one is not None:
                    with opened_picture(one[0]) as image:
                        pixels = np.asarray(image.convert("RGB"))
                    extent = (x, x + _TILE, y + _TILE, y)
                    axes.imshow(pixels, extent=extent, aspect="auto", interpolation="nearest")
    figure.text(0.5, _LINE / height, _text(note, width), **words)
    return figure


def _with_pictures(folder: Path, results: Sequence[PointResult]) -> list[PointResult]:
    """The runs of which an attack rebuilt pictures."""
    attacked = {one.name: own_attack(folder, one) for one in results}
    found = [one for one in results if any(of.originals for of in attacked[one.name])]
    if not any(attacked.values()):
        raise InputError(
            f"no run of the sweep in {folder} was attacked, or none of --cell; set attack = true "
            "in [also] of its sweep file and run it again"
        )
    if not found:
        raise InputError(
            f"the records that attacks in {folder} rebuilt are rows of a table and no pictures; "
            "`overhear table` has their scores"
        )
    return found


def _pictures_of(
    folder: Path, title: str, results: Sequence[PointResult], columns: int
) -> Pictures:
    """What the attack on the first seed of a panel rebuilt."""
    if not results:
        return Pictures([("no run was attacked", [])], title)
    one, root = results[0], folder / POINTS / results[0].name
    own = [of for of in own_attack(folder, one) if of.originals]
    rounds = sorted({of.round for of in own})
    presets, victims = ({getattr(of, key) for of in own} for key in ("preset", "victim"))
    every = len(own[0].originals)
    count = min(every, max(1, _MOST_PICTURES // (columns * len(rounds))))
    # All scenarios without the defence, all with it, and what is guessed of no message.
    shown = shown_pictures(root, own)
    truth = [(shown[path], "") if path in shown else None for path in own[0].originals[:count]]
    blank: list[tuple[Path, str] | None] = [None for _ in range(count * len(rounds))]
    rows = {"truth": [*truth * len(rounds), *blank[:0]]}
    for kind, of in itertools.product((*ROWS, _BLIND), own):
        name = kind if kind == _BLIND else attack_name(kind, of.scenario, of.preset, [*presets])
        name += f", agent {of.victim}" if len(victims) > 1 else ""
        for row in (row for row in of.rows if row.name == kind):
            cells = rows.setdefault(name, [*blank])
            for place, path in enumerate(row.images[:count], count * rounds.index(of.round)):
                decibels = f"{row.psnr[place % count]:.1f} dB".replace("inf", "∞")
                cells[place] = (shown[path], decibels) if path in shown else None
    words = [title, f"seed {one.seed}", f"{count} of {every} records"]
    title = ", ".join(words[not title : 2 + (count < every)])
    return Pictures([*rows.items()], title, [f"round {number}" for number in rounds])


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


def _shown(out: Path, value: str) -> dict[str, object]:
    table = sweep_table(out, value=value)
    heads, cells = in_columns(lines_of(table))
    rows = [
        [(plain(c.removeprefix("**").removesuffix("**")), c.startswith("**")) for c in row]
        for row in cells
    ]
    shown: dict[str, object] = {
        "title": VALUES[value].head,
        "heads": heads,
        "rows": rows,
        "caption": table.caption,
    }
    return shown | _plot(out, table)


def _plot(out: Path, table: SweepTable) -> dict[str, str]:
    """Curves over rounds, a line for each algorithm, a panel for each value of two other keys."""
    if find_spec("matplotlib") is None or VALUES[table.value].attack:
        return {}
    keys = [key for key in table.rows if len({cell.row[key] for cell in table.cells}) > 1]
    line = line_key(keys)
    panel = [key for key in keys if key != line]
    try:
        figure = figure_of(out, PlotRequest(y=table.value, line=line, panel=panel))
    except InputError:  # a figure that no evaluation has, or more lines than are told apart
        return {}
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160)
    words = f"{VALUES[table.value].head} by round"
    words += f", a line for each {line}" if line else ""
    words += "".join(f", a panel for each {key}" for key in panel)
    text = base64.b64encode(drawn.getvalue()).decode()
    return {"plot": f"data:image/png;base64,{text}", "words": words}
