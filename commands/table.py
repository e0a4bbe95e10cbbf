"""The commands `overhear table` and `overhear plot`: a sweep, to print and to look at."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ..reports.requests import PlotRequest
from .terminal.options import IsThere
from .terminal.terminal import write

Sweep = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder of a sweep."),
    IsThere("{} holds no sweep; `overhear sweep SWEEP.toml --out {}` makes one"),
]


class TableFormat(enum.StrEnum):
    """How a table is given."""

    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


def table(
    folder: Sweep,
    rows: Annotated[
        str | None, typer.Option(metavar="KEY,KEY", help="Swept keys that name a line.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="KEY,KEY", help="Swept keys whose values are compared apart."),
    ] = None,
    value: Annotated[
        str, typer.Option(metavar="NAME", help="accuracy, loss, auroc, rmse, psnr, ...")
    ] = "accuracy",
    format: Annotated[TableFormat, typer.Option("--format")] = TableFormat.MARKDOWN,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write there instead of printing.")
    ] = None,
) -> None:
    """Print the table of a sweep: means over its seeds.

    Standard errors, paired differences and epsilon stand beside the means. As HTML it is a page
    with the tables of every figure, their plots, and what failed.
    """
    from ..privacy.errors import InputError
    from ..reports.sweep.plot import sweep_html
    from ..reports.sweep.table import sweep_table, table_text

    if format is TableFormat.HTML:
        if rows or columns or value != "accuracy":
            raise InputError(
                "--rows, --columns and --value have no effect with --format html, a page with "
                "every figure of the sweep; leave them out"
            )
        text = sweep_html(folder)
    else:
        found = sweep_table(folder, value=value, rows=_keys(rows), columns=_keys(columns))
        text = table_text(found, format=format.value)
    if out is None:
        write(text, end="")
        return
    from ..privacy.plain_text import plain_lines

    out.write_text(plain_lines(text), encoding="utf-8")
    write(out)


def plot(
    folder: Sweep,
    out: Annotated[Path, typer.Option(metavar="FILE", help="An svg, pdf or png file.")],
    request: PlotRequest,
) -> None:
    """Draw the curves of a sweep, with bands over its seeds, or what its attacks rebuilt.

    It can also draw accuracy against epsilon, or bars over a swept key.
    """
    from ..reports.sweep.plot import plot_sweep

    plot_sweep(folder, out, request)
    write(out)


def _keys(text: str | None) -> list[str]:
    return [] if text is None else [key.strip() for key in text.split(",") if key.strip()]
