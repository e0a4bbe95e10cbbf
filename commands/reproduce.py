"""The command `overhear reproduce`: tables and figures of papers, run again and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..reports.requests import ReproduceRequest
from .terminal.options import EngineRequest, Format, TableOrJson
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, say, write

if TYPE_CHECKING:
    from ..reports.reproduced.paper_result import Entry, ScaleName


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of a table or figure, as --list prints it."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of its runs, which goes on where it stopped."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="smoke|small|medium|paper", help="How much of the paper's setting is run."
        ),
    ] = "small",
    *,
    request: ReproduceRequest,
    engine: EngineRequest,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="Print what there is, or the time that NAME takes, by timed rounds."
        ),
    ] = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Run a table or figure of a paper again, and judge it.

    Our figures stand beside the paper's, with a verdict and its reason. Nothing is downloaded. The
    runs are a sweep in DIR, which `overhear table` and `overhear plot` read, and which cells and
    seeds of later calls fill up.
    """
    from ..privacy.errors import InputError
    from ..reports.reproduced.registry import entry_named
    from ..reports.reproduced.work_estimates import scale_named, stored_price

    at = scale_named(scale)
    entry = None if name is None else entry_named(name)
    # What there is, without running any of it.
    if list_:
        part = ReproduceRequest(cell=request.cell, seeds=request.seeds)
        if out or request != part or engine != EngineRequest():
            raise InputError(
                "--list runs nothing, so it takes no other option than --scale, --cell and --seeds"
            )
        _list(entry, at, part, format=format)
        return
    if entry is None:
        raise InputError("give a NAME, or --list, which names every table and figure")
    # A folder for the runs, and their price where they take long.
    if out is None:
        raise InputError(f"give a folder for {name}, such as --out {name}-{at}")
    whole = not request.cell and request.seeds is None
    if at == "paper" and whole and (price := stored_price(entry, at)) is not None:
        say(make_console(stderr=True), f"{price.runs} runs, about {price.words()}.")
    from ..reports.reproduced.reproduce import as_data, as_markdown
    from ..reports.reproduced.reproduce import reproduce as run
    from .terminal.progress import sweep_progress

    with sweep_progress(make_console(stderr=True)) as progress:
        outcome = run(
            entry,
            at,
            out,
            request,
            engine=engine.engine(),
            progress=progress,
            stop=stop_of_command(),
        )
    if format is TableOrJson.JSON:
        print_json(as_data(outcome))
        return
    write(as_markdown(outcome), end="")


def _list(
    entry: Entry | None, scale: ScaleName, part: ReproduceRequest, *, format: TableOrJson
) -> None:
    """What there is, with stored prices; or one entry, with a price that is measured now."""
    from ..privacy.errors import InputError
    from ..reports.reproduced.registry import ENTRIES
    from ..reports.reproduced.work_estimates import part_of, price_of
    from .terminal.progress import sweep_progress

    if entry is None:
        if part != ReproduceRequest():
            raise InputError("give the NAME of the table that has these cells or seeds")
        rows = [_row(one) for one in ENTRIES.values()]
        if format is TableOrJson.JSON:
            print_json(rows)
            return
        heads = list(rows[0])
        for line in (heads, ["---"] * len(heads), *(list(row.values()) for row in rows)):
            write(f"| {' | '.join(line)} |")
        write(
            "\nRuns, and time of one core or of a GPU, by runs of which the parts were timed once; "
            "`--list NAME --scale SCALE` times them here and now."
        )
        return
    only = part_of(entry, scale, part.cell, part.seeds)
    if entry.closed is not None:
        write(f"{entry.name} is a closed form, and takes seconds.")
        return
    with sweep_progress(make_console(stderr=True)) as progress:
        price = price_of(entry, scale, only=only, timed=progress)
    if format is TableOrJson.JSON:
        print_json({"name": entry.name, "scale": scale, "runs": price.runs, "hours": price.hours,
                    "device": price.device})  # fmt: skip
        return
    write(f"{entry.name} at scale {scale}: {price.runs} runs, about {price.words()} and files.")


def _row(entry: Entry) -> dict[str, str]:
    from ..reports.reproduced.paper_result import SCALES
    from ..reports.reproduced.work_estimates import runs_of, stored_price

    row = {"name": entry.name, "what": f"{entry.paper.name}, {entry.title}"}
    for scale in SCALES:
        if entry.closed is not None:
            row[scale] = "closed form, seconds"
        else:
            price = stored_price(entry, scale)
            words = "not priced yet" if price is None else price.words()
            row[scale] = f"{runs_of(entry, scale)} runs, {words}"
    return row
