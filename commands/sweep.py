"""The command `overhear sweep`: a grid of runs with seeds, from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import EngineRequest, Format, Retry, TableOrJson
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, say


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="The sweep file.")],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder of the sweep, which goes on where it stopped."),
    ],
    engine: EngineRequest,
    retry: Retry = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Train every combination of a grid, each with several seeds.

    Settings may be tuned on validation records. Runs that ended are never run again; one that was
    cut off goes on from its checkpoint. Exit code 0; 2: bad input, or no run could be trained.
    """
    from ..privacy.errors import InputError
    from ..runs.errors import ContradictedProof
    from ..runs.sweep.sweep_file import read_sweep_file

    # The sweep file is refused before torch is there.
    found, base = read_sweep_file(file)
    from .terminal.progress import sweep_progress

    with sweep_progress(make_console(stderr=True)) as progress:
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
    if format is TableOrJson.JSON:
        print_json([result.dump() for result in swept.results])
    else:
        console = make_console()
        done = len(swept.results) - len(swept.failed)
        say(console, f"{done} runs are done in {out}, {swept.ran} of them ended now.")
        for one in swept.failed:
            words = ", ".join(f"{key}={value}" for key, value in one.settings.items())
            say(console, f"Failed: {words}, seed {one.seed}: {one.error}")
        if swept.failed:
            say(console, "Add --retry to try these again.")
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
