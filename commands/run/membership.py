"""The option `--membership` of `overhear audit`: what is asked for, and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..terminal.signals import stop_of_command
from ..terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ...runs.audit.membership import Wanted
    from ...runs.evidence.membership import Membership

__all__ = ["run_membership"]


def run_membership(folder: Path, wanted: Wanted, *, json: bool) -> None:
    """Attack the final models of a run, and show what was found.

    Args:
        folder: of a finished run.
        wanted: how much.
        json: whether to print the object instead.

    Raises:
        ContradictedProof: right guesses that the proof does not allow.
    """
    from ...runs.errors import ContradictedProof
    from ...runs.evidence.membership import read_membership
    from ..terminal.progress import audit_progress

    contradicted: ContradictedProof | None = None
    with audit_progress(make_console(stderr=True)) as progress:
        from ...runs.audit.membership import audit_membership  # torch takes a while

        try:
            found = audit_membership(folder, wanted, progress=progress, stop=stop_of_command())
        except ContradictedProof as error:
            kept = read_membership(folder)
            if kept is None:
                raise
            contradicted, found = error, kept
    if json:
        print_json(found.dump())
    else:
        _show(found)
    if contradicted is not None:
        raise contradicted


def _show(found: Membership) -> None:
    from ..terminal.membership_tables import membership_table

    console = make_console()
    parts = (
        ("The run itself: records that it was trained on, against held-out ones", found.run),
        (f"{found.games} games with random assignment", found.played),
    )
    for title, part in parts:
        if part is not None:
            console.print(membership_table(part, title=title))
    say(
        console,
        f"{found.references} references; intervals at {100 * found.confidence:g} % as if records "
        "were independent. An attack that fails shows no leak; it does not show that there is "
        "none.",
    )
    for one in found.exposed:
        say(console, f"Record {one.record} of agent {one.agent}: score {one.score:.2f} nats.")
    say(console, f"{found.words}.")
    say(console, f"Verdict: {found.verdict}.")
