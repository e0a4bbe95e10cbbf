"""The command `overhear compare`: runs side by side."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import NO_RUN, IsThere, TrustCode, trust


class ComparisonFormat(enum.StrEnum):
    """How a comparison is given."""

    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of runs."), IsThere(NO_RUN)
    ],
    *,
    format: Annotated[
        ComparisonFormat, typer.Option("--format", help="Format of the table.")
    ] = ComparisonFormat.MARKDOWN,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write there instead of printing.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Compare runs: epsilon, accuracy, attacks and audits.

    Every figure is computed anew from its run. Epsilons at different deltas, units or adjacencies
    stand in one table, and a line below says that they cannot be compared.
    """
    from ..privacy.errors import InputError
    from ..privacy.plain_text import plain

    # A comparison changes no run.
    if out is not None:
        for folder in folders:
            if out.resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"--out {plain(out)} lies in the folder of a run, which a comparison leaves as "
                    "it is; choose another folder"
                )
    from .terminal.progress import waiting
    from .terminal.terminal import make_console, write

    trust(trust_code)
    with waiting(make_console(stderr=True), "compare", "computing the figures anew from the runs"):
        from ..reports.compare import compare_runs

        comparison = compare_runs(folders)
    if format is ComparisonFormat.JSON:
        text = comparison.to_json()
    elif format is ComparisonFormat.HTML:
        from ..reports.compare import comparison_html

        text = comparison_html(comparison)
    else:
        from ..reports.compare import comparison_markdown

        text = comparison_markdown(comparison)
    if out is None:
        write(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    write(out)
