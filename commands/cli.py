"""The command line.

Exit codes: 0 ok; 1 crash, with a traceback; 2 bad input, one sentence on standard error; 3 over a
limit of a policy, or not proven where `plan --strict` asks for it; 4 more was measured than is
proven; 5 evidence that a policy asks for is missing; 129, 130, 143 stopped by SIGHUP, SIGINT,
SIGTERM, with a sentence on standard error; 141 nobody reads what is printed any more.
With OVERHEAR_DEBUG=1 bad input shows its traceback too. Everything that a command needs is imported
inside the command, so that help costs nothing.
"""

from __future__ import annotations

if __name__ == "__main__":  # for torchrun: the program, which hears signals before all this loads
    import runpy

    runpy.run_module("overhear.commands", run_name="__main__")

import contextvars
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from ..runs.stop import Interrupted, tell
from .account import account, budget
from .attack import attack, attack_sweep, invert, membership, membership_training
from .audit import audit, audit_last_model, audit_log, audit_scores
from .demo import demo
from .new import new, schema
from .plan import check_account, design, plan
from .report import check, compare, person, report, sign, total
from .sweep import plot, reproduce, review, sweep, table
from .terminal.anywhere import AnywhereCommand, LogFile, Quiet
from .terminal.completion import words_of_bash
from .terminal.log import Log, current_log, logging
from .terminal.options import IsThere, with_requests
from .terminal.signals import until_stopped
from .terminal.terminal import write
from .train import train

__all__ = ["app", "main"]

BAD_INPUT, CRASH, CONTRADICTED, UNREAD = 2, 1, 4, 141

_EXIT_CODES = (
    "Exit codes: 0 done, 1 crash, 2 bad input, 3 over a limit, 4 a proof is contradicted, 5 "
    "evidence is missing; 130, 143, 129 stopped by SIGINT, SIGTERM, SIGHUP; "
    "141 no one reads the output."
)

_ABOUT = "Say what each adversary can learn about a record from what a decentralized run sends."

app = typer.Typer(
    name="overhear",
    help=_ABOUT,
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # "[privacy]" in a help text is a table, not markup
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True, help=_ABOUT)
def overhear(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
) -> None:
    if version:
        from .. import __version__

        write(f"overhear {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        from ..privacy.errors import InputError

        raise InputError("give a command; `overhear --help` lists them")
    current_log().begin(f"overhear {context.invoked_subcommand}", quiet=quiet, path=log_file)


def _without_exits(command: Callable[..., None]) -> Callable[..., None]:
    """The command, where code that exits on its own account ends in a crash.

    A command ends by returning or by typer.Exit. Any other exit comes from code that it runs, such
    as a model of the user's, and an exit code of 0 would read as a policy that is met. It runs in a
    context of its own, so that what its options trust is trusted no longer than it runs.
    """
    parameters = inspect.signature(command).parameters.values()
    looks = [
        (parameter.name, one.look)
        for parameter in parameters
        for one in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(one, IsThere)
    ]

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        for name, look in looks:
            look(options[name])
        try:
            contextvars.copy_context().run(command, *arguments, **options)
            sys.stdout.flush()
        except SystemExit as leave:
            if isinstance(leave.__context__, BrokenPipeError):  # nobody reads, as after `| head`
                raise typer.Exit(UNREAD) from None
            raise RuntimeError(f"the command was left by {leave!r} before its end") from leave

    return run


for command in (
    *(new, budget, plan, design, check_account, account),
    *(train, attack, attack_sweep, invert),
    *(audit, audit_last_model, audit_log, audit_scores, membership, membership_training, sweep),
    *(report, sign, check, compare, total, person, schema),
    *(table, plot, reproduce, review),
    demo,
):
    summary = (command.__doc__ or "").partition("\n")[0].rstrip(".")
    app.command(cls=AnywhereCommand, short_help=summary)(_without_exits(with_requests(command)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: without the program's name; by default those of the process.
    """
    with words_of_bash(os.environ), logging() as log:
        code = until_stopped(lambda: _logged(arguments, log))
        log.outline(f"ended with exit code {code}")
        return code


def _logged(arguments: Sequence[str] | None, log: Log) -> int:
    try:
        return _run(arguments)
    except Interrupted as stopped:
        log.line(str(stopped))
        raise


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit code, unless it is stopped."""
    try:
        app(arguments, prog_name="overhear")
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):
            return UNREAD
        return leave.code if isinstance(leave.code, int) else CRASH
    except Exception as error:  # noqa: BLE001 - the last resort decides what is told, and how
        if (stopped := _stopped_before(error)) is not None:
            raise stopped from None
        return _told(error)
    return 0


def _stopped_before(error: BaseException) -> Interrupted | None:
    """The stop on the way out of which an error came, such as a bar on a terminal that is gone."""
    before = error.__context__
    while before is not None and not isinstance(before, Interrupted):
        before = before.__context__
    return before


def _told(error: Exception) -> int:
    """Tell an error on standard error, and give its exit code."""
    from ..runs.errors import STATED, ContradictedProof, as_stated, sentence

    error = as_stated(error)
    current_log().line(f"error: {sentence(error)}")
    if isinstance(error, ContradictedProof):
        tell(f"error: {sentence(error)}")
        return CONTRADICTED
    bad_input = isinstance(error, STATED)
    if not bad_input or os.environ.get("OVERHEAR_DEBUG") == "1":
        tell("".join(traceback.format_exception(error)).rstrip())
    if bad_input:
        tell(f"error: {sentence(error)}")
    return BAD_INPUT if bad_input else CRASH
