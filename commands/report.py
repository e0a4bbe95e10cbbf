"""What is said of finished runs: a page, a gate, a signature, a comparison, and totals."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import terminal
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, write

if TYPE_CHECKING:
    from ..reports.judgement.gate import Decision
    from ..reports.judgement.policy import Policy


class FormatName(enum.StrEnum):
    """How a report is given."""

    HTML = "html"
    JSON = "json"
    MARKDOWN = "markdown"


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a run, or that invert wrote."),
        terminal.IsThere(terminal.NO_RUN),
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
    trust_code: terminal.TrustCode = False,
) -> None:
    """Write the report of a run: report.html and privacy.json.

    Other formats print the same figures. A folder with logs of releases gets the same page, on
    which what is proven of a run is declared; one of overhear invert a page of what was rebuilt.
    The exit code is 4 if another library puts an epsilon above the one that is stated.
    """
    from ..privacy.errors import InputError
    from ..privacy.releases.log import holds_logs
    from ..reports.document.html import found_folder

    other = folder if holds_logs(folder) else found_folder(folder)
    if other is not None:
        if show_records or total or recipients is not None:
            raise InputError(
                f"{folder} holds no run: --show-records, --total and "
                "--recipients have no effect on it; leave them out"
            )
        _report_of_no_run(other, format)
        return
    terminal.trust(trust_code)
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
        terminal.print_json(found.dump())
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


def check(
    folder: terminal.Folder,
    *,
    policy: Annotated[Path, typer.Option(metavar="POLICY.toml", help="What the run must satisfy.")],
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outcome as JUnit XML too.")
    ] = None,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Check a run against a policy; the exit code is the gate.

    A policy limits epsilon for adversaries and asks for evidence. The figures are computed anew
    from the run, and only proven ones pass. The exit code is 0 within the policy, 3 over a limit, 4
    if a measurement contradicts a proof, 5 if evidence is missing, and 2 on bad input, such as a
    run that was changed. The worst of 4, 3 and 5 counts.
    """
    from ..privacy.errors import InputError
    from ..privacy.plain_text import plain
    from ..reports.judgement.policy import load_policy

    if junit is not None:  # first, so that an earlier result cannot pass for this one
        if junit.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"--junit {plain(junit)} lies in the folder of the run, which a check leaves as it "
                "is; choose another folder"
            )
        from ..reports.document.markdown import unfinished

        unfinished(junit, suite=str(folder))
    # The policy says which code of the run is trusted, before the run is opened.
    wanted = load_policy(policy)
    terminal.trust(trust_code, pins=wanted.code.allow, calls=wanted.code.calls)
    decision = _decided(folder, wanted)
    if junit is not None:
        from ..reports.document.markdown import write_junit

        write_junit(decision, junit, suite=str(folder))
    if format is terminal.TableOrJson.JSON:
        of, notes = {"run": plain(folder), "policy": plain(policy)}, list(decision.notes)
        terminal.print_json({**of, **decision.dump(), "notes": notes})
    else:
        _show_decision(decision, folder, policy)
    raise typer.Exit(decision.exit_code)


def _decided(folder: Path, wanted: Policy) -> Decision:
    """The decision on a run, or on logs of releases."""
    from ..privacy.releases.log import holds_logs

    if holds_logs(folder):
        from ..reports.document.declared import check_declared

        return check_declared(folder, wanted)
    from .terminal.progress import waiting

    with waiting(make_console(stderr=True), "check", "computing the figures anew from the run"):
        from ..reports.document.collect import check_run

        return check_run(folder, wanted)


_WORDS = {
    0: "Within the policy",
    3: "Not within the policy: over a limit",
    4: "Not within the policy: a proof is contradicted",
    5: "Not within the policy: evidence is missing",
}


def _unread(path: str) -> str:
    """A path without what a pipeline reads as its command, where a wrapped line begins with it."""
    return path.replace("::", ":\\x3a")


def _show_decision(decision: Decision, folder: Path, policy: Path) -> None:
    from ..privacy.plain_text import plain

    console = make_console()
    for requirement in decision.requirements:
        terminal.say(console, f"{requirement.outcome.value.upper()}  {requirement.name}")
        terminal.say_indented(console, _unread(requirement.sentence), by=4)
    for note in decision.notes:
        terminal.say(console, f"Note: {note}")
    passed = sum(requirement.outcome.value == "passed" for requirement in decision.requirements)
    terminal.say(
        console,
        f"{_WORDS[decision.exit_code]} ({passed} of {len(decision.requirements)} requirements of "
        f"{_unread(plain(policy))} passed, for {_unread(plain(folder))}).",
    )


class ComparisonFormat(enum.StrEnum):
    """How a comparison is given."""

    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of runs."),
        terminal.IsThere(terminal.NO_RUN),
    ],
    *,
    format: Annotated[
        ComparisonFormat, typer.Option("--format", help="Format of the table.")
    ] = ComparisonFormat.MARKDOWN,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write there instead of printing.")
    ] = None,
    trust_code: terminal.TrustCode = False,
) -> None:
    """Compare runs: epsilon, accuracy, attacks and audits.

    Every figure is computed anew from its run. Epsilons at different deltas, units or adjacencies
    stand in one table, and a line below says that they cannot be compared.
    """
    from ..privacy.errors import InputError
    from ..privacy.plain_text import plain

    # A comparison changes no run.
    if out is not None:
        for folder in folders:
            if out.resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"--out {plain(out)} lies in the folder of a run, which a comparison leaves as "
                    "it is; choose another folder"
                )
    from .terminal.progress import waiting
    from .terminal.terminal import make_console, write

    terminal.trust(trust_code)
    with waiting(make_console(stderr=True), "compare", "computing the figures anew from the runs"):
        from ..reports.compare import compare_runs

        comparison = compare_runs(folders)
    if format is ComparisonFormat.JSON:
        text = comparison.to_json()
    elif format is ComparisonFormat.HTML:
        from ..reports.compare import comparison_html

        text = comparison_html(comparison)
    else:
        from ..reports.compare import comparison_markdown

        text = comparison_markdown(comparison)
    if out is None:
        write(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    write(out)


def sign(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a run, or of logs of releases."),
        terminal.IsThere("{} does not exist; name the folder of a run, or of logs"),
    ],
    *,
    key: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Private key of OpenSSH, or a secret of 64 hexadecimal digits; readable by you "
            "alone.",
        ),
    ],
) -> None:
    """Sign a folder with a team's key.

    The signature binds every file of DIR: a policy with signed_by refuses one that was changed,
    added or taken away. Sign last, after attack, audit and report.
    """
    from ..runs.folder.signature import sign as sign_folder
    from .terminal.terminal import write

    count = sign_folder(folder, key)
    write(f"Signed {folder}: {count} files.")


Delta = Annotated[
    float | None,
    typer.Option(metavar="DELTA", help="Delta of the total; by default the smallest of the runs'."),
]


def total(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of runs."),
        terminal.IsThere(terminal.NO_RUN),
    ],
    *,
    delta: Delta = None,
    assume_same_records: Annotated[
        bool,
        typer.Option(
            "--assume-same-records", help="Count runs on different records as on the same."
        ),
    ] = False,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Add up what several runs on the same records cost.

    An adversary is taken to look on at all of the runs. What their ledgers name is composed by
    privacy loss distribution, as the rounds of one run are; epsilons are not added up.
    """
    from ..reports.total.total import total_of_runs

    terminal.trust(trust_code)
    found = total_of_runs(folders, delta=delta, assume_same_records=assume_same_records)
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
        return
    from ..reports.total.total import sentences
    from .terminal.tables import rows_table, total_rows

    console = make_console()
    console.print(rows_table(total_rows(found), title="Who could learn what about one record"))
    for sentence in sentences(found):
        terminal.say(console, sentence)


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
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Add up what several runs cost one person.

    Each person has a ledger, with a line for each run. A line holds the rounds of the run as every
    adversary saw them, so the run folders are not needed again. All rounds are composed by privacy
    loss distribution; epsilons are not added up.
    """
    if not add and not trust_code:
        begin = "begin one with overhear person {} --add DIR"
        terminal.IsThere(f"no ledger of a person at {{}}; {begin}").look(ledgers)
    elif add and len(ledgers) == 1:
        terminal.IsThere(terminal.NO_RUN).look(add)
    from ..privacy.errors import InputError
    from ..privacy.plain_text import plain
    from ..reports.total.total import add_runs, person_sentences, person_total

    if add:
        if len(ledgers) > 1:
            raise InputError(
                f"--add appends to one ledger, and {len(ledgers)} are named; name the one"
            )
        terminal.trust(trust_code)
        add_runs(ledgers[0], add)
        for folder in add:
            terminal.say(
                make_console(stderr=True), f"{plain(folder)} was added to {plain(ledgers[0])}."
            )
    elif trust_code:
        raise InputError("--trust-code is for the runs of --add; leave it out")
    found = person_total(ledgers, adversary=adversary, delta=delta)
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
        return
    from .terminal.tables import person_rows, rows_table

    console = make_console()
    console.print(rows_table(person_rows(found), title="What was released about one person"))
    for sentence in person_sentences(found):
        terminal.say(console, sentence)
