"""The command `overhear report`: the page that is read and signed, or its figures."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import NO_RUN, IsThere, TrustCode, trust
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, write


class FormatName(enum.StrEnum):
    """How a report is given."""

    HTML = "html"
    JSON = "json"
    MARKDOWN = "markdown"


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a run, or that invert wrote."),
        IsThere(NO_RUN),
    ],
    show_records: Annotated[
        bool, typer.Option("--show-records", help="Show training records, not only public ones.")
    ] = False,
    format: Annotated[
        FormatName,
        typer.Option("--format", help="html writes files; the others print and write nothing."),
    ] = FormatName.HTML,
    total: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Another run on the same records, to be added; may be repeated."
        ),
    ] = None,
    recipients: Annotated[
        int | None,
        typer.Option(
            metavar="AGENT",
            help="Add what final models and agents far away tell of a record of this agent.",
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the report of a run: report.html and privacy.json.

    Other formats print the same figures. A folder with logs of releases gets the same page, on
    which what is proven of a run is declared; one of overhear invert a page of what was rebuilt.
    The exit code is 4 if another library puts an epsilon above the one that is stated.
    """
    from ..privacy.errors import InputError
    from ..privacy.releases.log import holds_logs
    from ..reports.document.found import found_folder

    other = folder if holds_logs(folder) else found_folder(folder)
    if other is not None:
        if show_records or total or recipients is not None:
            raise InputError(
                f"{folder} holds no run: --show-records, --total and "
                "--recipients have no effect on it; leave them out"
            )
        _report_of_no_run(other, format)
        return
    trust(trust_code)
    # Files are written in one go, which a signal does not cut in two.
    if format is FormatName.HTML:
        from .terminal.progress import waiting

        stop = stop_of_command()
        words = "computing the figures anew from the files of the run"
        with stop.held(), waiting(make_console(stderr=True), "report", words):
            from ..reports.document.collect import report_run

            stop.note(f"what is in {folder} may be of two reports; make the report again")
            page = report_run(
                folder, show_records=show_records, others=total or (), recipients=recipients
            )
            stop.note(f"the report is {page}")
        write(page)
        return
    if show_records:
        raise InputError(
            "--show-records belongs to --format html; the other formats show no records"
        )
    from ..reports.document.collect import collect

    found = collect(folder, others=total or (), recipients=recipients)
    if format is FormatName.JSON:
        print_json(found.dump())
    else:
        from ..reports.document.markdown import report_markdown

        write(report_markdown(found), end="")
    from ..runs.errors import ContradictedProof
    from ..runs.plan.opinions import contradiction

    if said := contradiction(found.second_opinion):
        raise ContradictedProof(said)


def _report_of_no_run(folder: Path, format: FormatName) -> None:
    from ..interface.shown import report_of_folder

    found = report_of_folder(folder, "md" if format is FormatName.MARKDOWN else format.value)
    write(found.path or found.text.removesuffix("\n"))
