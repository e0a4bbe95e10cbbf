"""Sweeps, their tables and plots, and what is made of the tables and figures of papers."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..runs.requests import PlotRequest, ReproduceRequest
from .terminal import terminal
from .terminal.signals import stop_of_command
from .terminal.terminal import print_json

if TYPE_CHECKING:
    from ..reports.reproduced.paper_result import Entry, ScaleName


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="The sweep file.")],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder of the sweep, which goes on where it stopped."),
    ],
    engine: terminal.EngineRequest,
    retry: terminal.Retry = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Train every combination of a grid, each with several seeds.

    Settings may be tuned on validation records. Runs that ended are never run again; one that was
    cut off goes on from its checkpoint. Exit code 0; 2: bad input, or no run could be trained.
    """
    from ..privacy.errors import InputError
    from ..runs.errors import ContradictedProof
    from ..runs.sweep.sweep_file import read_sweep_file, settings_words

    # The sweep file is refused before torch is there.
    found, base = read_sweep_file(file)
    from .terminal.progress import sweep_progress

    with sweep_progress(terminal.make_console(stderr=True)) as progress:
        from ..runs.sweep.sweep import run_sweep  # torch takes a while

        swept = run_sweep(
            found,
            base,
            out,
            engine=engine.engine(),
            retry=retry,
            progress=progress,
            stop=stop_of_command(),
        )
    # What was done, and what failed with its reason.
    if format is terminal.TableOrJson.JSON:
        print_json([result.dump() for result in swept.results])
    else:
        console = terminal.make_console()
        done = len(swept.results) - len(swept.failed)
        terminal.say(console, f"{done} runs are done in {out}, {swept.ran} of them ended now.")
        for one in swept.failed:
            words = settings_words(one.settings)
            terminal.say(console, f"Failed: {words}, seed {one.seed}: {one.error}")
        if swept.failed:
            terminal.say(console, "Add --retry to try these again.")
    # A sweep of failures alone is bad input; contradictions are told last.
    if swept.failed and len(swept.failed) == len(swept.results):
        raise InputError(
            f"none of the {len(swept.failed)} runs could be trained; the first of them says: "
            f"{swept.failed[0].error}"
        )
    if told := [
        f"{result.name}: {text}" for result in swept.results for text in result.contradictions
    ]:
        raise ContradictedProof("; ".join(told))


Sweep = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder of a sweep."),
    terminal.IsThere("{} holds no sweep; `overhear sweep SWEEP.toml --out {}` makes one"),
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
        terminal.write(text, end="")
        return
    from ..privacy.plain_text import plain_lines

    out.write_text(plain_lines(text), encoding="utf-8")
    terminal.write(out)


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
    terminal.write(out)


def _keys(text: str | None) -> list[str]:
    return [] if text is None else [key.strip() for key in text.split(",") if key.strip()]


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
    engine: terminal.EngineRequest,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="Print what there is, or the time that NAME takes, by timed rounds."
        ),
    ] = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Run a table or figure of a paper again, and judge it.

    Our figures stand beside the paper's, with a verdict and its reason. Nothing is downloaded. The
    runs are a sweep in DIR, which `overhear table` and `overhear plot` read, and which cells and
    seeds of later calls fill up.
    """
    from ..privacy.errors import InputError
    from ..reports.reproduced.paper_result import entry_named
    from ..reports.reproduced.work_estimates import scale_named, stored_price

    at = scale_named(scale)
    entry = None if name is None else entry_named(name)
    # What there is, without running any of it.
    if list_:
        part = ReproduceRequest(cell=request.cell, seeds=request.seeds)
        if out or request != part or engine != terminal.EngineRequest():
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
        terminal.say(
            terminal.make_console(stderr=True), f"{price.runs} runs, about {price.words()}."
        )
    from ..reports.reproduced.reproduce import as_data, as_markdown
    from ..reports.reproduced.reproduce import reproduce as run
    from .terminal.progress import sweep_progress

    with sweep_progress(terminal.make_console(stderr=True)) as progress:
        outcome = run(
            entry,
            at,
            out,
            request,
            engine=engine.engine(),
            progress=progress,
            stop=stop_of_command(),
        )
    if format is terminal.TableOrJson.JSON:
        print_json(as_data(outcome))
        return
    terminal.write(as_markdown(outcome), end="")


def _list(
    entry: Entry | None, scale: ScaleName, part: ReproduceRequest, *, format: terminal.TableOrJson
) -> None:
    """What there is, with stored prices; or one entry, with a price that is measured now."""
    from ..privacy.errors import InputError
    from ..reports.reproduced.paper_result import ENTRIES
    from ..reports.reproduced.work_estimates import part_of, price_of
    from .terminal.progress import sweep_progress

    if entry is None:
        if part != ReproduceRequest():
            raise InputError("give the NAME of the table that has these cells or seeds")
        rows = [_row(one) for one in ENTRIES.values()]
        if format is terminal.TableOrJson.JSON:
            print_json(rows)
            return
        heads = list(rows[0])
        for line in (heads, ["---"] * len(heads), *(list(row.values()) for row in rows)):
            terminal.write(f"| {' | '.join(line)} |")
        terminal.write(
            "\nRuns, and time of one core or of a GPU, by runs of which the parts were timed once; "
            "`--list NAME --scale SCALE` times them here and now."
        )
        return
    only = part_of(entry, scale, part.cell, part.seeds)
    if entry.closed is not None:
        terminal.write(f"{entry.name} is a closed form, and takes seconds.")
        return
    with sweep_progress(terminal.make_console(stderr=True)) as progress:
        price = price_of(entry, scale, only=only, timed=progress)
    if format is terminal.TableOrJson.JSON:
        print_json({"name": entry.name, "scale": scale, "runs": price.runs, "hours": price.hours,
                    "device": price.device})  # fmt: skip
        return
    terminal.write(
        f"{entry.name} at scale {scale}: {price.runs} runs, about {price.words()} and files."
    )


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


_FOUND = 3


def review(
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="TABLE.csv", help="CSV files, each a table."),
        terminal.IsThere("no table at {}"),
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
    format: terminal.Format = terminal.TableOrJson.TABLE,
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
    if format is terminal.TableOrJson.JSON:
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
            terminal.write(f"{head}: {len(part) or nothing}")
            for one in part:
                terminal.write(f"  {one.kind}: {one.words}")
    if strict and found:
        raise typer.Exit(_FOUND)
