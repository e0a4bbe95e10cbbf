"""The command `overhear person`: what several runs cost one person, from the person's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import NO_RUN, Format, IsThere, TableOrJson, TrustCode, trust
from .terminal.terminal import make_console, print_json, say
from .total import Delta


def person(
    ledgers: Annotated[list[Path], typer.Argument(metavar="LEDGER", help="Ledgers of one person.")],
    *,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="First add the run in this folder to the ledger; may be repeated."
        ),
    ] = None,
    adversary: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Adversary who sees all runs; by default the one that run files name.",
        ),
    ] = None,
    delta: Delta = None,
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Add up what several runs cost one person.

    Each person has a ledger, with a line for each run. A line holds the rounds of the run as every
    adversary saw them, so the run folders are not needed again. All rounds are composed by privacy
    loss distribution; epsilons are not added up.
    """
    if not add and not trust_code:
        begin = "begin one with overhear person {} --add DIR"
        IsThere(f"no ledger of a person at {{}}; {begin}").look(ledgers)
    elif add and len(ledgers) == 1:
        IsThere(NO_RUN).look(add)
    from ..privacy.errors import InputError
    from ..privacy.plain_text import plain
    from ..reports.total.total import add_runs, person_sentences, person_total

    if add:
        if len(ledgers) > 1:
            raise InputError(
                f"--add appends to one ledger, and {len(ledgers)} are named; name the one"
            )
        trust(trust_code)
        add_runs(ledgers[0], add)
        for folder in add:
            say(make_console(stderr=True), f"{plain(folder)} was added to {plain(ledgers[0])}.")
    elif trust_code:
        raise InputError("--trust-code is for the runs of --add; leave it out")
    found = person_total(ledgers, adversary=adversary, delta=delta)
    if format is TableOrJson.JSON:
        print_json(found.dump())
        return
    from .terminal.tables import person_rows, rows_table

    console = make_console()
    console.print(rows_table(person_rows(found), title="What was released about one person"))
    for sentence in person_sentences(found):
        say(console, sentence)
