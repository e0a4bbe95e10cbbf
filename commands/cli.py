"""The command line.

Exit codes: 0 ok; 1 crash, with a traceback; 2 bad input, one sentence on standard error; 3 over a
limit of a policy; 4 more was measured than is proven; 5 evidence that a policy asks for is missing.
With OVERHEAR_DEBUG=1 bad input shows its traceback too. Everything that a command needs is imported
inside the command, so that help costs nothing.
"""

from __future__ import annotations

import enum
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..privacy.errors import InputError
from ..runs.errors import STATED, ContradictedProof, sentence
from .prepare.plan import plan
from .read.check import check
from .read.compare import compare
from .run.attack import attack
from .run.audit import audit
from .terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ..runs.folder.lead import Lead

__all__ = ["app", "main"]

BAD_INPUT, CRASH, CONTRADICTED = 2, 1, 4

app = typer.Typer(
    name="overhear",
    help="What each onlooker can learn about one record from what a decentralized run sends.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # "[privacy]" in a help text is a table, not markup
    pretty_exceptions_enable=False,
)


class AccountantName(enum.StrEnum):
    """How rounds are added up."""

    PLD = "pld"
    RDP = "rdp"
    PRV = "prv"
    GDP_CLT = "gdp-clt"


class AdjacencyName(enum.StrEnum):
    """How two neighbouring data sets differ."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


class SchemaName(enum.StrEnum):
    """What has a schema."""

    RUN = "run"
    POLICY = "policy"
    REPORT = "report"


class FormatName(enum.StrEnum):
    """How a report is given."""

    HTML = "html"
    JSON = "json"
    MD = "md"


RunPath = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="table.key=value", help="Override a key; may be repeated."),
]


@app.callback(invoke_without_command=True)
def overhear(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """What each onlooker can learn about one record from what a decentralized run sends."""
    if version:
        from importlib.metadata import version as version_of

        print(f"overhear {version_of('overhear')}")
        raise typer.Exit


@app.command()
def budget(
    *,
    delta: Annotated[float, typer.Option(help="Of the statement, in (0, 1).")],
    epsilon: Annotated[float | None, typer.Option(help="Privacy loss, in nats.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise on the sum / clip norm.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Of a record into a batch, in [0, 1].")
    ] = None,
    accountant: Annotated[
        AccountantName, typer.Option(help="How rounds are added up.")
    ] = AccountantName.PLD,
    adjacency: Annotated[
        AdjacencyName, typer.Option(help="How neighbouring data sets differ.")
    ] = AdjacencyName.ADD_OR_REMOVE_ONE,
    json: Json = False,
) -> None:
    """The plain question: of epsilon, noise, rounds and sampling rate, the one that is left out.

    Give three of the four: the least epsilon, the least noise, the most rounds or the largest
    sampling rate is the answer. One Gaussian release a round, of a sum of gradients clipped to the
    clip norm. For what the agents of a run really send, see `overhear plan`.
    """
    from ..privacy.accounting import accountant as accounting
    from ..privacy.accounting import limits

    answers = {
        "epsilon": accounting.epsilon,
        "noise_multiplier": accounting.noise_multiplier,
        "rounds": limits.max_rounds,
        "sampling_rate": limits.max_sampling_rate,
    }
    given: dict[str, Any] = {
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "sampling_rate": sampling_rate,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise InputError(
            "give --epsilon, --noise-multiplier, --rounds and --sampling-rate, all but one of "
            f"them: {len(missing)} are missing"
        )
    (asked,) = missing
    known = {name: value for name, value in given.items() if name != asked}
    how = {"delta": delta, "adjacency": adjacency.value, "accountant": accountant.value}
    given[asked] = answers[asked](**known, **how)  # type: ignore[operator] # by keyword
    kind = accounting.Accountant(accountant.value).kind
    if json:
        print_json({**given, **how, "computed": asked, "kind": kind})
        return
    said = {"adjacency": adjacency.value, "accountant": f"{accountant.value}: {kind}"}
    _show_budget({**given, "delta": delta}, asked, how=said)


app.command()(plan)


@app.command()
def train(
    run: RunPath,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the run; new, but with --resume.")
    ],
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the unfinished run in DIR.")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="R", min=1, help="Spread the agents over R processes."),
    ] = None,
    rank_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="Within which the processes must answer."),
    ] = 60.0,
    json: Json = False,
) -> None:
    """Train, keep the ledger, and record the intercepted rounds.

    As a rank of torchrun it trains its share of the agents.
    """
    from ..runs.folder.launch import Place, hold_on, launch

    place = Place.of_environment()
    if place is None and ranks is not None and ranks > 1:
        given = ["--out", str(out), *(f"--set={override}" for override in overrides or ())]
        given += ["--resume"] * resume + ["--json"] * json + [f"--rank-timeout={rank_timeout}"]
        code = launch(["train", *given, "--", str(run)], ranks=ranks, timeout=rank_timeout)
        raise typer.Exit(code)
    from ..training.engine.allocator import keep_freed_memory

    keep_freed_memory()
    if place is None or place.size == 1:
        _train(run, out, overrides or (), resume=resume, json=json)
        return
    place.check_size(ranks)
    hold_on()
    from ..runs.folder.follow import follow, plan_rank
    from ..runs.folder.lead import lead

    if place.rank > 0:
        follow(place, lambda: plan_rank(run, out, overrides or (), place), timeout=rank_timeout)
    with lead(place, timeout=rank_timeout) as found:
        _train(run, out, overrides or (), resume=resume, json=json, lead=found)


def _train(
    run: Path,
    out: Path,
    overrides: Sequence[str],
    *,
    resume: bool,
    json: bool,
    lead: Lead | None = None,
) -> None:
    from ..runs.folder.run import train_run
    from ..runs.run_file.run_file import load_run_file
    from .terminal.progress import train_progress

    config = load_run_file(run, overrides)
    if lead is not None:
        from ..runs.folder.ranks import take_device

        take_device(config.training.device, lead.place)
    privacy = config.privacy
    limit = None if privacy is None else privacy.epsilon
    delta = None if privacy is None else privacy.delta
    led: dict[str, Any] = {} if lead is None else {"lead": lead}
    with train_progress(make_console(stderr=True), limit=limit, delta=delta) as progress:
        if resume:
            from ..runs.folder.resume import resume_run

            told = make_console(stderr=json)
            summary = resume_run(
                config,
                out,
                progress=progress,
                notice=lambda text: told.print(text, markup=False, soft_wrap=True),
                **led,
            )
        else:
            summary = train_run(config, out, progress=progress, **led)
    if json:
        print_json(summary.dump())
        return
    from .terminal.tables import adversary_table

    console = make_console()
    console.print(adversary_table([row.dump() for row in summary.adversaries]))
    say(console, f"The run is in {out}.")


app.command()(attack)
app.command()(audit)


@app.command()
def report(
    folder: Folder,
    show_records: Annotated[
        bool, typer.Option("--show-records", help="Show training records, not only public ones.")
    ] = False,
    format: Annotated[
        FormatName,
        typer.Option("--format", help="html writes files; json and md print, and write nothing."),
    ] = FormatName.HTML,
) -> None:
    """Write privacy.json and report.html into the folder of a run, or print the same figures."""
    if format is FormatName.HTML:
        from ..reports.document.collect import report_run

        print(report_run(folder, show_records=show_records))
        return
    if show_records:
        raise InputError("--show-records belongs to --format html; json and md show no records")
    from ..reports.document.collect import collect

    if format is FormatName.JSON:
        print_json(collect(folder).dump())
        return
    from ..reports.document.markdown import report_markdown
    from ..reports.schema import as_json

    print(report_markdown(as_json(collect(folder))), end="")


app.command()(check)
app.command()(compare)


@app.command()
def schema(what: Annotated[SchemaName, typer.Argument(help="What to describe.")]) -> None:
    """Print the JSON schema of the run file, of a policy, or of privacy.json."""
    if what is SchemaName.RUN:
        from ..runs.run_file.run_file import run_file_schema

        print_json(run_file_schema())
    elif what is SchemaName.POLICY:
        from ..reports.judgement.policy import policy_schema

        print_json(policy_schema())
    else:
        from ..reports.schema import report_schema

        print_json(report_schema())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the run.")] = Path(
        "overhear-demo"
    ),
) -> None:
    """Plan, train, attack, audit and report on bundled digits, in about two minutes."""
    from .run.demo import run_demo

    run_demo(out, make_console())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: without the program's name; by default those of the process.
    """
    try:
        app(arguments, prog_name="overhear")
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else CRASH
    except ContradictedProof as error:
        print(f"error: {error}", file=sys.stderr)
        return CONTRADICTED
    except Exception as error:  # noqa: BLE001 - the last resort decides between 1 and 2
        bad_input = isinstance(error, STATED)
        if not bad_input or os.environ.get("OVERHEAR_DEBUG") == "1":
            traceback.print_exception(error)
        if bad_input:
            print(f"error: {sentence(error)}", file=sys.stderr)
        return BAD_INPUT if bad_input else CRASH
    return 0


def _show_budget(found: Mapping[str, Any], asked: str, *, how: Mapping[str, str]) -> None:
    from ..runs.numbers import bound, small

    rate = f"{found['sampling_rate']:g}"
    if asked == "sampling_rate":  # a largest one is never rounded up
        from decimal import ROUND_FLOOR, Context, Decimal

        rate = f"{float(Context(prec=6, rounding=ROUND_FLOOR).plus(Decimal(found[asked]))):g}"
    least = "the least" if asked in ("epsilon", "noise_multiplier") else "the largest"
    noise = bound(found["noise_multiplier"], 5)
    print(f"noise multiplier {noise}  (noise on the sum / clip norm)")
    at = f"at delta {small(found['delta'])}"
    print(f"epsilon          {bound(found['epsilon'], 4)} {at}, for one record")
    print(f"adjacency        {how['adjacency']}")
    print(f"rounds           {found['rounds']}, each a Poisson batch at rate {rate}")
    print(f"accountant       {how['accountant']}")
    print(f"computed         {asked.replace('_', ' ')}, {least} for the rest")


if __name__ == "__main__":  # for torchrun and for machines where scripts are not on the path
    sys.exit(main())
