"""A sweep as a table: a line for each combination of settings, means over seeds beside epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...privacy.errors import InputError
from ...privacy.formats.codec import as_text, finite
from ...privacy.guarantee import Guarantee, Status
from ...privacy.plain_text import csv_text, in_columns, markdown_text, plain
from ...runs.numbers import bound
from ...runs.sweep.results import PointResult, read_results, read_tuned
from ...runs.sweep.sweep_file import kept_sweep, points_of
from ...training.models.metrics import Metrics
from . import cells as sweep_cells


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """What a table is about.

    Attributes:
        head: in words, with its unit.
        scale: that figures are multiplied by.
        more: whether more is better; None where neither is.
        of_mean: of the mean model.
        of_agents: of each agent's model; None where there is no such figure.
        constant: of the best answer that is the same for every record.
    """

    head: str
    scale: float = 1.0
    more: bool | None
    of_mean: Callable[[Metrics], float | None] | None = None
    of_agents: Callable[[Metrics], Sequence[float] | None] | None = None
    constant: Callable[[Metrics], float | None] = lambda _: None
    attack: str = ""

    def figure(self, metrics: Metrics, *, agents: bool) -> float | None:
        """Of the mean model, or the mean over the agents' models; None of no such figure."""
        each = self.of_agents(metrics) if agents and self.of_agents else None
        if agents:
            return self.scale * sum(each) / len(each) if each else None
        found = self.of_mean(metrics) if self.of_mean else None
        return None if found is None else self.scale * found


VALUES: Mapping[str, Value] = {
    "accuracy": Value(
        head="accuracy, %", scale=100.0, more=True, of_mean=lambda m: m.consensus_accuracy,
        of_agents=lambda m: m.accuracy, constant=lambda m: m.constant_accuracy,
    ),
    "loss": Value(
        head="loss", more=False, of_mean=lambda m: m.consensus_loss,
        of_agents=lambda m: m.loss, constant=lambda m: m.constant_loss,
    ),
    "auroc": Value(
        head="AUROC", more=True, of_mean=lambda m: m.consensus_auroc,
        of_agents=lambda m: m.auroc, constant=lambda _: 0.5,
    ),
    "rmse": Value(
        head="RMSE", more=False, of_mean=lambda m: m.consensus_rmse,
        of_agents=lambda m: m.rmse, constant=lambda m: m.constant_rmse,
    ),
    "r2": Value(
        head="R2", more=True, of_mean=lambda m: m.consensus_r2,
        of_agents=lambda m: m.r2, constant=lambda _: 0.0,
    ),
    "consensus_distance": Value(
        head="consensus distance", more=None, of_mean=lambda m: m.consensus_distance
    ),
    "optimum_distance": Value(
        head="distance from the optimum", more=False,
        of_mean=lambda m: m.consensus_optimum_distance, of_agents=lambda m: m.optimum_distance,
    ),
    "gradient_norm": Value(
        head="norm of the training records' gradient", more=False,
        of_mean=lambda m: m.consensus_gradient_norm,
    ),
    "mse": Value(head="MSE of the defended attack", more=None, attack="mse"),
    "psnr": Value(head="PSNR of the defended attack, dB", more=None, attack="psnr"),
    "ssim": Value(head="SSIM of the defended attack", more=None, attack="ssim"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A line of the table.

    Attributes:
        row: settings that name it, by key.
        column: settings of its column, by key.
        mean: of the mean model, or of the attack.
        agents: of the mean over agents; None where there is no such figure.
        above: the paired difference to the line above in its column; None of the first.
        best: whether it is the best of its column, or cannot be told from the best, and is told
            from the constant answer.
        constant: of the constant answer; None where it is not known.
        spent: of each adversary the largest epsilon of the runs, and the weakest status.
        tuned: what was chosen for it on validation records.
        failed: how many runs failed.
        contradicted: how many runs measured more than is proven.
        attacked: by name of a score what the attack rebuilt, over images; empty of no attack.
    """

    row: Mapping[str, str]
    column: Mapping[str, str]
    mean: sweep_cells.Mean
    agents: sweep_cells.Mean | None
    above: sweep_cells.Difference | None
    best: bool
    spent: Sequence[Guarantee]
    tuned: Mapping[str, str] = field(default_factory=dict)
    failed: int = 0
    contradicted: int = 0
    attacked: Mapping[str, sweep_cells.OverImages] = field(default_factory=dict)
    constant: sweep_cells.Mean | None = None

    def status(self, spent: Guarantee) -> str:
        """Of a figure, in a word; what a run measured may contradict it."""
        return "contradicted" if self.contradicted else spent.status


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepTable:
    """A table of a sweep.

    Attributes:
        value: its name in `VALUES`.
        cells: its lines; column by column, row by row.
        caption: what the figures are, with n.
    """

    value: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: list[Cell]
    caption: str

    def __str__(self) -> str:
        """The table as Markdown, which notebooks show."""
        return table_text(self)

    _repr_markdown_ = __str__


def results_of(out: Path) -> list[PointResult]:
    """The runs of a sweep that ended and are reported, in the order of its file.

    Raises:
        FileNotFoundError: the folder holds no sweep.
    """
    found = {
        point_result.name: point_result
        for point_result in read_results(out)
        if not point_result.tuning
    }
    order = [point.name for point in points_of(kept_sweep(out), {})]
    return [found[name] for name in order if name in found]


def sweep_table(
    out: Path, *, value: str = "accuracy", rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> SweepTable:
    """The table of a sweep, of the runs that ended.

    Args:
        value: a name in `VALUES`.
        rows: swept keys that name a line; by default all that are no columns.
        columns: swept keys whose values are compared apart.

    Raises:
        FileNotFoundError: the folder holds no sweep.
        ValueError: a key that was not swept, a value that no run has, or keys that leave several
            settings in one line.
    """
    # Keys that were swept name a row or a column each.
    if value not in VALUES:
        raise InputError(f"value={value!r} must be one of {', '.join(VALUES)}")
    results = results_of(out)
    if not results:
        raise InputError(f"no run of the sweep in {out} has ended; run it before its table")
    keys = list(results[0].settings)
    rows = tuple(rows) or tuple(key for key in keys if key not in columns)
    columns = tuple(columns)
    check_keys(keys, [*rows, *columns], keys, remedy="rows or columns")
    # Figures by row and column, seed by seed.
    groups: dict[_Place, list[PointResult]] = {}
    for result in results:  # in the order of the sweep
        named = [tuple(result.settings[key] for key in names) for names in (columns, rows)]
        groups.setdefault((named[0], named[1]), []).append(result)
    figures = {place: figures_of(out, of, value) for place, of in groups.items()}
    if not any(found for found, _ in figures.values()):
        raise InputError(f"no run of the sweep in {out} has {value}; {_instead(out, results)}")
    tuned = {tuple(row.values()): chosen for row, chosen in read_tuned(out)}
    cells = []
    # Differences and the best are within a column alone.
    for at in dict.fromkeys(column for column, _ in groups):
        of_column = [group for group in groups if group[0] == at]
        best = _best_of({p: figures[p][0] for p in of_column}, VALUES[value])
        before: Mapping[int, float] | None = None
        for place in of_column:
            own, agents = figures[place]
            of = groups[place]
            constant = _constants(of, VALUES[value])
            cells.append(
                Cell(
                    row=dict(zip(rows, place[1], strict=True)),
                    column=dict(zip(columns, at, strict=True)),
                    mean=sweep_cells.mean_of(list(own.values())),
                    agents=sweep_cells.mean_of(list(agents.values())) if agents else None,
                    above=None if before is None else sweep_cells.difference_of(own, before),
                    best=place in best and _beats(own, constant, VALUES[value]),
                    constant=sweep_cells.mean_of(list(constant.values())) if constant else None,
                    spent=_spent(of),
                    tuned=tuned.get(tuple(of[0].settings.values()), {}),
                    failed=sum(one.state == "failed" for one in of),
                    contradicted=sum(bool(one.contradictions) for one in of),
                    attacked=sweep_cells.over_images(out, of),
                )
            )
            before = own
    return SweepTable(
        value=value, rows=rows, columns=columns, cells=cells, caption=_caption(cells, value)
    )


_Place = tuple[tuple[str, ...], tuple[str, ...]]


def check_keys(
    keys: Sequence[str], given: Sequence[str], mixed: Sequence[str], *, remedy: str
) -> None:
    """Refuse keys that were not swept or are given twice, and those that are left over."""
    for key in given:
        if key not in keys:
            raise InputError(f"{key!r} was not swept; choose among {', '.join(keys)}")
        if given.count(key) > 1:
            raise InputError(f"{key!r} is given twice; give it once")
    if left := [key for key in mixed if key not in given]:
        raise InputError(f"{', '.join(left)} would be mixed within a line; name it for {remedy}")


def figures_of(
    out: Path, results: Sequence[PointResult], value: str
) -> tuple[dict[int, float], dict[int, float]]:
    """By seed the figure of the mean model (or of the attack), and that over the agents."""
    asked = VALUES[value]
    own: dict[int, float] = {}
    agents: dict[int, float] = {}
    for result in results:
        if result.state != "done" or result.metrics is None:
            continue
        found = asked.figure(result.metrics, agents=False)
        if asked.attack:
            found = sweep_cells.mean_score(out, result, asked.attack)
        if (each := asked.figure(result.metrics, agents=True)) is not None:
            agents[result.seed] = each
        if found is not None:
            own[result.seed] = found
    return own, agents


def _constants(results: Sequence[PointResult], asked: Value) -> dict[int, float]:
    """By seed the figure of the best answer that is the same for every record."""
    found = ((of.seed, asked.constant(of.metrics)) for of in results if of.metrics is not None)
    return {seed: asked.scale * value for seed, value in found if value is not None}


def _beats(own: Mapping[int, float], constant: Mapping[int, float], asked: Value) -> bool:
    """Whether a line is better than the constant answer, by the interval of its table."""
    over = sweep_cells.difference_of(own, constant)
    if over is None:
        return True
    better = over.mean > 0 if asked.more else over.mean < 0
    return better and (over.is_told or over.count == 1)


def _instead(out: Path, results: Sequence[PointResult]) -> str:
    held = [
        name for name in VALUES if any(figures_of(out, [result], name)[0] for result in results)
    ]
    return f"choose one of {', '.join(held)}" if held else "its runs failed"


def _best_of(figures: Mapping[_Place, Mapping[int, float]], asked: Value) -> set[_Place]:
    """The best line, and those that cannot be told from it."""
    sign = {True: 1.0, False: -1.0, None: 0.0}[asked.more]
    means = {
        place: sign * sweep_cells.mean_of(list(of.values())).value
        for place, of in figures.items()
        if of and not any(math.isnan(v) for v in of.values())
    }
    if not sign or len(means) < 2:
        return set()
    best = max(means, key=lambda place: means[place])
    tied = {best}
    for mean in means:
        over = sweep_cells.difference_of(figures[best], figures[mean])
        if over is None or not over.is_told:
            tied.add(mean)
    return tied


def _spent(results: Sequence[PointResult]) -> list[Guarantee]:
    """The largest epsilon of each adversary over the runs; the weakest of their statuses.

    An adversary that a run says nothing of is left out.
    """
    found: dict[str, Guarantee] = {}
    for row in (row for result in results for row in result.adversaries):
        held = found.get(row.adversary, row)
        if any(getattr(row, of) != getattr(held, of) for of in ("delta", "unit", "adjacency")):
            raise InputError(
                f"runs of one line say epsilon of {row.adversary} of other deltas or neighbours; "
                "remove the result that is wrong, and the sweep makes it again"
            )
        least = Status.PROVEN if row.proven else Status.HEURISTIC
        epsilon, status = max(row.epsilon, held.epsilon), max(row.status, held.status, key=_WEAKEST)
        status = max(status, least, key=_WEAKEST)
        found[row.adversary] = replace(row, epsilon=epsilon, status=status, group=None)
    ended = [{row.adversary for row in of.adversaries} for of in results if of.state == "done"]
    return [row for name, row in found.items() if all(name in names for names in ended)]


_WEAKEST = (Status.PROVEN, Status.HEURISTIC, Status.CANNOT_BE_EXPRESSED, Status.NO_PROTECTION).index


def _caption(cells: Sequence[Cell], value: str) -> str:
    # Seeds and models that the figures are over.
    words = [f"{VALUES[value].head}: {sweep_cells.over_seeds(cell.mean.count for cell in cells)}"]
    if any(cell.agents is not None for cell in cells):
        words.append("of the mean model, and of the mean over the agents' own models")
    text = ", ".join(words) + "."
    if any(cell.above is not None for cell in cells):
        text += " Difference: to the line above, seed by seed, with a 95 % interval (Student's t)."
    if attacked := [of for cell in cells for of in cell.attacked.values()]:
        images = sorted({of.count for of in attacked})
        few = f"{images[0]}" if len(images) == 1 else f"{images[0]} to {images[-1]}"
        names = [
            name.upper()
            for name in sweep_cells.SCORES
            if any(name in cell.attacked for cell in cells)
        ]
        text += (
            f" {', '.join(names)} of the attack on the runs' own messages: mean over n = {few} "
            "images of all seeds, each averaged over scenarios, with a 95 % bootstrap interval."
        )
    # Marks, and what they mean.
    best = [cell for cell in cells if cell.best]
    constant = any(cell.constant is not None for cell in cells)
    if constant:
        text += " Constant answer: the best one that is the same for every test record"
        answers = {"accuracy": ", the most frequent class", "rmse": ", the mean"}
        beaten = "." if best else "; no line is shown to be better, so none is bold."
        text += answers.get(value, "") + beaten
    if best:
        text += (
            " Bold: the best of its column, and what the same interval does not tell from it"
            + (", if it tells that from the constant answer." if constant else ".")
        )
    deltas = sorted({spent.delta for cell in cells for spent in cell.spent})
    if deltas:
        at = ", ".join(f"{delta:g}" for delta in deltas)
        text += f" Epsilon at delta {at}, of what was planned or, if that is more, released."
    if any(cell.tuned for cell in cells):
        keys = ", ".join(dict.fromkeys(key for cell in cells for key in cell.tuned))
        text += (
            f" {keys} chosen for each line on validation records that its other runs train on; no "
            "epsilon counts that choice."
        )
    if against := sum(cell.contradicted for cell in cells):
        runs = "1 run" if against == 1 else f"{against} runs"
        text += (
            f" An attack or an audit of {runs} measured more than is proven: no epsilon of a line "
            "that is marked contradicted holds."
        )
    if failed := sum(cell.failed for cell in cells):
        text += f" {failed} runs failed and are left out."
    return text


# A table of a sweep as Markdown, LaTeX, CSV and JSON.

FORMATS = ("markdown", "latex", "csv", "json")


def lines_of(table: SweepTable) -> list[dict[str, str]]:
    """The lines as text, head by head; bold cells are between two stars."""
    asked, found = VALUES[table.value], []
    adversaries = dict.fromkeys(s.adversary for cell in table.cells for s in cell.spent)
    for cell in table.cells:
        line = {**cell.column, **cell.row}
        star = "**" if cell.best else ""
        own = "mean model" if asked.of_agents else asked.head
        line[own] = f"{star}{_mean(cell.mean)}{star}"
        if asked.of_agents:
            line["agents"] = "" if cell.agents is None else _mean(cell.agents)
        if cell.constant is not None:
            line["constant answer"] = _digits(cell.constant.value)
        line["difference"] = _difference(cell.above)
        line |= {f"ε {name}": _epsilon(cell, name) for name in adversaries}
        for name, of in cell.attacked.items():
            line[f"attack {sweep_cells.SCORES[name]}"] = _over_images(of)
        for key, chosen in cell.tuned.items():
            line[key] = chosen
        line["n"] = str(cell.mean.count) + (f" ({cell.failed} failed)" if cell.failed else "")
        found.append(line)
    return found


def _mean(mean: sweep_cells.Mean) -> str:
    if not mean.count or math.isnan(mean.value):
        return "–" if not mean.count else "diverged"
    error = "" if math.isnan(mean.error) else f" ± {_digits(mean.error)}"
    return f"{_digits(mean.value)}{error}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= _SMALL else f"{value:.3g}"


_SMALL = 0.1  # below it two places behind the point say too little


def _difference(found: sweep_cells.Difference | None) -> str:
    if found is None:
        return ""
    if found.count == 1:
        return f"{_signed(found.mean)} (n = 1)"
    return f"{_signed(found.mean)} [{_signed(found.low)}, {_signed(found.high)}]"


def _signed(value: float) -> str:
    return f"{value:+.3g}" if 0 < abs(value) < _SMALL else f"{value:+.2f}"


def _over_images(found: sweep_cells.OverImages) -> str:
    if math.isnan(found.low):
        return f"{_figures(found.mean)} (n = 1)"
    return f"{_figures(found.mean)} [{_figures(found.low)}, {_figures(found.high)}]"


def _figures(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.3g}"


def _epsilon(cell: Cell, adversary: str) -> str:
    for spent in cell.spent:
        if spent.adversary == adversary:
            figure = "∞" if math.isinf(spent.epsilon) else bound(spent.epsilon)
            return f"{figure}, {cell.status(spent)}"
    return ""


def table_text(table: SweepTable, *, format: str = "markdown") -> str:
    """A table as text.

    Args:
        format: one of `FORMATS`.

    Raises:
        ValueError: another one.
    """
    heads, cells = in_columns(lines_of(table))
    if format == "json":
        return as_text(finite(_json(table), undefined=None))
    if format == "csv":
        bare = ([c.removeprefix("**").removesuffix("**") for c in row] for row in cells)
        return csv_text([heads, *bare])
    if format == "latex":
        return _latex(heads, cells, table.caption)
    if format != "markdown":
        raise InputError(f"format={format!r} must be one of {', '.join(FORMATS)}")
    rows = [heads, ["---"] * len(heads), *([_bold(cell) for cell in row] for row in cells)]
    body = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{body}\n{table.caption}\n"


def _bold(cell: str) -> str:
    plain_cell = cell.removeprefix("**").removesuffix("**")
    escaped = markdown_text(plain_cell)
    return f"**{escaped}**" if plain_cell != cell else escaped


_SPECIAL = {"\\": r"\textbackslash{}", "∞": r"$\infty$", "ε": r"$\varepsilon$", "±": r"$\pm$"}
_SPECIAL |= {"–": "--", **{mark: f"\\{mark}" for mark in "&%$#_{}"}}
_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _latex(heads: Sequence[str], cells: Sequence[Sequence[str]], caption: str) -> str:
    def safe(text: str) -> str:
        return "".join(_SPECIAL.get(mark, mark) for mark in plain(text, most=None))

    def cell(text: str) -> str:
        inner = text.removeprefix("**").removesuffix("**")
        return safe(inner) if inner == text else f"\\textbf{{{safe(inner)}}}"

    rows = [" & ".join(map(safe, heads)), *(" & ".join(map(cell, row)) for row in cells)]
    body = " \\\\\n".join((rows[0] + " \\\\\n\\midrule", *rows[1:])).replace(
        "\\midrule \\\\", "\\midrule"
    )
    return (
        f"\\begin{{table}}\n\\centering\n\\begin{{tabular}}{{{'l' * len(heads)}}}\n\\toprule\n"
        f"{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
        f"\\caption{{{safe(caption)}}}\n\\end{{table}}\n"
    )


def _json(table: SweepTable) -> dict[str, object]:
    def mean(of: sweep_cells.Mean | None) -> object:
        return of and {"mean": of.value, "standard_error": of.error, "n": of.count}

    def over(of: sweep_cells.Difference | None) -> object:
        return of and {"mean": of.mean, "interval": [of.low, of.high], "n": of.count}

    return {
        "value": table.value,
        "caption": table.caption,
        "lines": [
            {
                "row": dict(cell.row),
                "column": dict(cell.column),
                "mean_model": mean(cell.mean),
                "agents": mean(cell.agents),
                "difference_to_line_above": over(cell.above),
                "best": cell.best,
                "constant_answer": mean(cell.constant),
                "epsilon": {
                    s.adversary: {"epsilon": s.epsilon, "delta": s.delta, "status": cell.status(s)}
                    for s in cell.spent
                },
                "tuned": dict(cell.tuned),
                "failed": cell.failed,
                "contradicted": cell.contradicted,
                "attack": {
                    name: {"mean": of.mean, "interval": [of.low, of.high], "images": of.count}
                    for name, of in cell.attacked.items()
                },
            }
            for cell in table.cells
        ],
    }
