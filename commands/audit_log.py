"""The command `overhear audit-log`: a recorded system, compared with its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal.options import Format, IsThere, TableOrJson
from .terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ..runs.recorder.outcome import Conformance


_LONGEST = 30


def audit_log(
    log: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="A log of releases, or the folder of a system's logs."),
        IsThere("{} does not exist; name a log of releases"),
    ],
    *,
    oracle: Annotated[
        str,
        typer.Option(
            metavar="module:NAME", help="A function (point, positions) of gradients, unclipped."
        ),
    ],
    points: Annotated[
        str | None,
        typer.Option(
            metavar="module:NAME", help="A function from (round, agent, released) to a point."
        ),
    ] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(metavar="module:NAME", help="A vector that all know; may be repeated."),
    ] = None,
    numbers: Annotated[
        str | None,
        typer.Option(
            metavar="module:NAME",
            help="A function from (round, agent, released) to numbers by name, or None at the end.",
        ),
    ] = None,
    draw: Annotated[
        int | None, typer.Option(metavar="N", help="Look at N of the kept rounds, drawn at random.")
    ] = None,
    holds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT:N",
            help="How many records an agent draws batches of its own from; may be repeated.",
        ),
    ] = None,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Check what a recorded system kept against the lines of its log.

    A recorder keeps transcripts of some rounds. They are computed again by the oracle, a function
    of yours that makes the gradients. The exit code is 4 if what was kept is not what the log says.
    """
    from ..privacy.errors import InputError
    from ..runs.recorder.conformance import conformance
    from ..runs.recorder.outcome import dump, write_held
    from ..training.own.names import own_object

    gradients: Any = own_object(oracle, key="--oracle")
    given: dict[str, Any] = {}
    for key, name in (("points", points), ("numbers", numbers)):
        given[key] = None if name is None else own_object(name, key=f"--{key}")
        if name is not None and not callable(given[key]):
            raise InputError(f"--{key}={name!r} must be a function (round, agent, released)")
    found = conformance(
        log,
        gradients=gradients,
        **given,
        public=[own_object(name, key="--public") for name in public or ()],
        rounds=draw,
        records=_records(holds or ()),
    )
    write_held(found)
    if format is TableOrJson.JSON:
        print_json(dump(found))
    else:
        _show(found)
    if found.failed:
        raise typer.Exit(4)


def _records(holds: Sequence[str]) -> dict[int, int]:
    """By agent how many records it holds."""
    from ..privacy.errors import InputError

    found: dict[int, int] = {}
    for text in holds:
        agent, _, count = text.partition(":")
        if not (agent.isdecimal() and count.isdecimal() and int(count)) or len(text) > _LONGEST:
            raise InputError(
                f"--holds {text!r:.60} must be AGENT:N, an agent and how many records it holds, "
                "such as 0:1000"
            )
        if int(agent) in found:
            raise InputError(f"--holds names agent {agent} twice; say once how many it holds")
        found[int(agent)] = int(count)
    return found


def _show(found: Conformance) -> None:
    from .terminal.tables import rows_table

    console = make_console()
    rows = [
        {"check": outcome.name, "result": str(outcome.verdict), "what was found": outcome.words}
        for outcome in found.outcomes
    ]
    console.print(rows_table(rows, title=found.log.header.system))
    say(console, "Assumed all the same:")
    for sentence in found.assumed:
        say(console, f"- {sentence}")
    say(console, f"Verdict: {found.said}.")
