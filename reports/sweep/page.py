"""A sweep's own page: its tables, its plots and its failures, complete in itself."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...privacy.errors import InputError
from ...privacy.plain_text import plain
from ..template import template
from .plot import figure_of
from .table import VALUES, SweepTable, figures_of, lines_of, results_of, sweep_table

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
