"""The command `overhear review`: what of printed tables can be checked by the tables alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import Format, IsThere, TableOrJson
from .terminal.terminal import print_json, write

_FOUND = 3


def review(
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="TABLE.csv", help="CSV files, each a table."),
        IsThere("no table at {}"),
    ],
    *,
    figure: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of figures; by default known by names."),
    ] = None,
    runs: Annotated[
        int, typer.Option(metavar="N", min=2, help="How many runs a spread is of.")
    ] = 20,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with exit code 3 if there are findings.")
    ] = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Review printed tables: rows that are the same, scores below blind guesses, bounds.

    It tells what the tables alone show, as facts: rows that are the same to the last digit, in one
    table or in two; MSE and PSNR that do not fit; scores that a black picture has; claims outside
    of a bound's range; who is first in how many cells.
    """
    from ..reports.reproduced.review import review as reviewed

    remarks = reviewed(tables, figures=figure or (), runs=runs)
    found = [one for one in remarks if one.is_finding]
    facts = [one for one in remarks if not one.is_finding]
    if format is TableOrJson.JSON:
        print_json({
            "tables": [str(table) for table in tables],
            **{
                name: [{"kind": o.kind, "words": o.words, **o.figures} for o in part]
                for name, part in (("findings", found), ("facts", facts))
            },
        })  # fmt: skip
    else:
        pairs = any(o.kind == "compared" and o.figures["pairs"] != 0 for o in facts)
        nothing = "none" if pairs else "none, and no rows could be compared"
        for head, part in (("Findings", found), ("Facts", facts)):
            write(f"{head}: {len(part) or nothing}")
            for one in part:
                write(f"  {one.kind}: {one.words}")
    if strict and found:
        raise typer.Exit(_FOUND)
