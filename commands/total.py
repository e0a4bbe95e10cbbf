"""The command `overhear total`: several runs on the same records together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import NO_RUN, Format, IsThere, TableOrJson, TrustCode, trust
from .terminal.terminal import make_console, print_json, say

Delta = Annotated[
    float | None,
    typer.Option(metavar="DELTA", help="Delta of the total; by default the smallest of the runs'."),
]


def total(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of runs."), IsThere(NO_RUN)
    ],
    *,
    delta: Delta = None,
    assume_same_records: Annotated[
        bool,
        typer.Option(
            "--assume-same-records", help="Count runs on different records as on the same."
        ),
    ] = False,
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Add up what several runs on the same records cost.

    An adversary is taken to look on at all of the runs. What their ledgers name is composed by
    privacy loss distribution, as the rounds of one run are; epsilons are not added up.
    """
    from ..reports.total.total import total_of_runs

    trust(trust_code)
    found = total_of_runs(folders, delta=delta, assume_same_records=assume_same_records)
    if format is TableOrJson.JSON:
        print_json(found.dump())
        return
    from ..reports.total.total import sentences
    from .terminal.tables import rows_table, total_rows

    console = make_console()
    console.print(rows_table(total_rows(found), title="Who could learn what about one record"))
    for sentence in sentences(found):
        say(console, sentence)
