"""A table of a sweep as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from ...privacy.errors import InputError
from ...privacy.plain_text import csv_text, markdown_text, plain
from ...runs.numbers import bound
from .attacked import SCORES, OverImages
from .statistics import Difference, Mean
from .table import VALUES, Cell, SweepTable

__all__ = ["FORMATS", "lines_of", "table_text", "without_nan"]

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
        line["difference"] = _difference(cell.above)
        line |= {f"ε {name}": _epsilon(cell, name) for name in adversaries}
        for name, of in cell.attacked.items():
            line[f"attack {SCORES[name]}"] = _over_images(of)
        for key, chosen in cell.tuned.items():
            line[key] = chosen
        line["n"] = str(cell.mean.count) + (f" ({cell.failed} failed)" if cell.failed else "")
        found.append(line)
    return found


def _mean(mean: Mean) -> str:
    if not mean.count or math.isnan(mean.value):
        return "–" if not mean.count else "diverged"
    error = "" if math.isnan(mean.error) else f" ± {_digits(mean.error)}"
    return f"{_digits(mean.value)}{error}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= _SMALL else f"{value:.3g}"


_SMALL = 0.1  # below it two places behind the point say too little


def _difference(found: Difference | None) -> str:
    if found is None:
        return ""
    if found.count == 1:
        return f"{_signed(found.mean)} (n = 1)"
    return f"{_signed(found.mean)} [{_signed(found.low)}, {_signed(found.high)}]"


def _signed(value: float) -> str:
    return f"{value:+.3g}" if 0 < abs(value) < _SMALL else f"{value:+.2f}"


def _over_images(found: OverImages) -> str:
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
    lines = lines_of(table)
    heads = list(dict.fromkeys(head for line in lines for head in line))
    cells = [[line.get(head, "") for head in heads] for line in lines]
    if format == "json":
        return json.dumps(without_nan(_json(table)), indent=2, allow_nan=False) + "\n"
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
    def mean(of: Mean | None) -> object:
        return of and {"mean": of.value, "standard_error": of.error, "n": of.count}

    def over(of: Difference | None) -> object:
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


def without_nan(value: object) -> object:
    """The value as JSON holds it: what is infinite is a word, what is undefined null."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
