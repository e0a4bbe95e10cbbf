"""The commands `overhear table` and `overhear plot`: a sweep, to print and to look at."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["plot", "table"]

Sweep = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep.")]


class TableFormat(enum.StrEnum):
    """How a table is given."""

    MARKDOWN = "markdown"
    MD = "md"
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
        str | None, typer.Option(metavar="KEY,KEY", help="Swept keys that are compared apart.")
    ] = None,
    value: Annotated[
        str, typer.Option(metavar="NAME", help="accuracy, loss, auroc, rmse, psnr, ...")
    ] = "accuracy",
    format: Annotated[TableFormat, typer.Option("--format")] = TableFormat.MARKDOWN,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write there instead of printing.")
    ] = None,
) -> None:
    """Means over seeds with standard errors, paired differences, and epsilon beside them.

    As HTML a page with the tables of every figure, their plots, and what failed.
    """
    from ...privacy.errors import InputError
    from ...reports.sweep.page import sweep_html
    from ...reports.sweep.table import sweep_table
    from ...reports.sweep.table_text import table_text

    if format is TableFormat.HTML:
        if rows or columns or value != "accuracy":
            raise InputError(
                "--rows, --columns and --value have no effect with --format html, a page with "
                "every figure of the sweep; leave them out"
            )
        text = sweep_html(folder)
    else:
        found = sweep_table(folder, value=value, rows=_keys(rows), columns=_keys(columns))
        text = table_text(found, format="markdown" if format is TableFormat.MD else format.value)
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    print(out)


def plot(
    folder: Sweep,
    out: Annotated[Path, typer.Option(metavar="FILE", help="An svg, pdf or png file.")],
    x: Annotated[
        str, typer.Option(metavar="NAME", help="round, epsilon, or a swept key.")
    ] = "round",
    y: Annotated[
        str, typer.Option(metavar="NAME", help="accuracy, loss, auroc, rmse, psnr, ...")
    ] = "accuracy",
    line: Annotated[
        str | None, typer.Option(metavar="KEY", help="Swept key with a line for each value.")
    ] = None,
    panel: Annotated[
        str | None, typer.Option(metavar="KEY", help="Swept key with a panel for each value.")
    ] = None,
    adversary: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of --x epsilon; else the first.")
    ] = None,
) -> None:
    """Curves with bands over seeds, accuracy against epsilon, or bars over a swept key."""
    from ...reports.sweep.plot import plot_sweep

    plot_sweep(folder, out, x=x, y=y, line=line, panel=panel, adversary=adversary)
    print(out)


def _keys(text: str | None) -> list[str]:
    return [] if text is None else [key.strip() for key in text.split(",") if key.strip()]
