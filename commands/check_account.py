"""The command `overhear check-account`: the figures of a plan, held against a second tracer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal.options import Format, IsThere, Overrides, TableOrJson, TrustCode, trust
from .terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ..runs.plan.plan import Plan
    from ..runs.run_file.run_file import RunFile
    from ..training.accounts.traced_twice import TracedTwice


_MISSING = 5


def check_account(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run file, or the folder of a run."),
        IsThere("no run file at {}"),
    ],
    overrides: Overrides = None,
    seconds: Annotated[
        float, typer.Option(help="How long the second tracer may take, above 0.")
    ] = 60.0,
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Check the figures of a run against a second tracer.

    The second tracer shares no code with the one that the figures are from. The exit code is 0
    where no adversary learns more than is stated, 4 where one is, and 5 where a figure could not
    be checked.
    """
    from ..privacy.errors import InputError

    trust(trust_code)
    if not seconds > 0:
        raise InputError(f"--seconds {seconds:g} must be a number above 0")
    from .terminal.progress import waiting

    with waiting(make_console(stderr=True), "check-account", "tracing the algorithm twice"):
        from ..runs.errors import ContradictedProof
        from ..runs.plan.opinions import contradicted_trace, second_traces
        from ..training.accounts.summary import Verdict

        config, plan = _planned(run, overrides or ())
        found = second_traces(config, plan, seconds=seconds)
    if format is TableOrJson.JSON:
        print_json({"schema": 1, "run": str(run), "figures": [_row(one) for one in found.values()]})
    else:
        _show(found)
    if said := contradicted_trace(found):
        raise ContradictedProof(said)
    if not found or any(one.verdict is Verdict.NOT_CHECKED for one in found.values()):
        raise typer.Exit(_MISSING)


def _planned(run: Path, overrides: list[str] | tuple[()]) -> tuple[RunFile, Plan]:
    """A run file with its plan, or those of a folder."""
    from ..privacy.errors import InputError
    from ..runs.folder.resume import read_run
    from ..runs.plan.plan import make_plan
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    if not run.is_dir():
        config = load_run_file(run, overrides, notice=tell)
        return config, make_plan(config, notice=tell)
    if overrides:
        raise InputError(f"--set changes a run file, and {run} is a run that was made; drop it")
    held = read_run(run)
    return held.config, held.plan


def _row(one: TracedTwice) -> dict[str, object]:
    return {
        "adversary": one.adversary,
        "worst_adversary": one.who,
        "victim": one.victim,
        "first": one.first,
        "second": one.second,
        "verdict": str(one.verdict),
        "because": one.because,
    }


def _show(found: dict[str, TracedTwice]) -> None:
    from ..runs.numbers import figure
    from .terminal.tables import rows_table

    console = make_console()
    rows: list[dict[str, str]] = [
        {
            "adversary": name if one.who == name else f"{name} ({one.who})",
            "victim": str(one.victim),
            "first": figure(one.first, 10),
            "second": "-" if one.second is None else figure(one.second, 10),
            "verdict": str(one.verdict),
        }
        for name, one in found.items()
    ]
    console.print(rows_table(rows, title="Joint sensitivity over all rounds, traced twice"))
    for name, one in found.items():
        if one.because:
            say(console, f"{name}: {one.because}")
