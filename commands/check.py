"""The command `overhear check`: the gate in front of a release, for people and for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal.options import Folder, Format, TableOrJson, TrustCode, trust
from .terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ..reports.judgement.gate import Decision
    from ..reports.judgement.policy import Policy


def check(
    folder: Folder,
    *,
    policy: Annotated[Path, typer.Option(metavar="POLICY.toml", help="What the run must satisfy.")],
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outcome as JUnit XML too.")
    ] = None,
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
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
        from ..reports.document.junit import unfinished

        unfinished(junit, suite=str(folder))
    # The policy says which code of the run is trusted, before the run is opened.
    wanted = load_policy(policy)
    trust(trust_code, pins=wanted.code.allow, calls=wanted.code.calls)
    decision = _decided(folder, wanted)
    if junit is not None:
        from ..reports.document.junit import write_junit

        write_junit(decision, junit, suite=str(folder))
    if format is TableOrJson.JSON:
        print_json(_object(decision, folder, policy))
    else:
        _show(decision, folder, policy)
    raise typer.Exit(decision.exit_code)


def _decided(folder: Path, wanted: Policy) -> Decision:
    """The decision on a run, or on logs of releases."""
    from ..privacy.releases.log import holds_logs

    if holds_logs(folder):
        from ..reports.document.declared import check_declared

        return check_declared(folder, wanted)
    from .terminal.progress import waiting

    with waiting(make_console(stderr=True), "check", "computing the figures anew from the run"):
        from ..reports.document.checked_run import read_checked_run
        from ..reports.judgement.gate import decide
        from ..reports.judgement.remedies import limit_fixes, limit_risks

        run = read_checked_run(folder)
        return decide(
            wanted,
            run.facts_for(wanted),
            fixes=limit_fixes(run.config, run.spent),
            risks=limit_risks(run.config, run.spent),
        )


def _object(decision: Decision, folder: Path, policy: Path) -> dict[str, object]:
    from ..privacy.plain_text import plain

    return {
        "schema": 1,
        "run": plain(folder),
        "policy": plain(policy),
        **decision.dump(),
        "notes": list(decision.notes),
    }


_WORDS = {
    0: "Within the policy",
    3: "Not within the policy: over a limit",
    4: "Not within the policy: a proof is contradicted",
    5: "Not within the policy: evidence is missing",
}


def _unread(path: str) -> str:
    """A path without what a pipeline reads as its command, where a wrapped line begins with it."""
    return path.replace("::", ":\\x3a")


def _show(decision: Decision, folder: Path, policy: Path) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from ..privacy.plain_text import plain

    console = make_console()
    for requirement in decision.requirements:
        say(console, f"{requirement.outcome.value.upper()}  {requirement.name}")
        console.print(Padding(Text(_unread(requirement.sentence)), (0, 0, 0, 4), expand=False))
    for note in decision.notes:
        say(console, f"Note: {note}")
    passed = sum(requirement.outcome.value == "passed" for requirement in decision.requirements)
    say(
        console,
        f"{_WORDS[decision.exit_code]} ({passed} of {len(decision.requirements)} requirements of "
        f"{_unread(plain(policy))} passed, for {_unread(plain(folder))}).",
    )
