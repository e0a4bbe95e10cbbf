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
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..runs.stop import Interrupted, tell
from .account import account, budget
from .attack import attack, attack_sweep, invert, membership, membership_training
from .audit import audit, audit_last_model, audit_log, audit_scores
from .plan import check_account, design, plan
from .report import check, compare, person, report, sign, total
from .sweep import plot, reproduce, review, sweep, table
from .terminal import terminal
from .terminal.signals import until_stopped
from .train import demo, new, schema, train

__all__ = ["app", "main"]

# Options that stand anywhere on the command line.


BECAME: Mapping[str, Mapping[str, str]] = {
    "audit": {
        "--scores": "audit-scores",
        "--oracle": "audit-log",
        "--membership": "membership",
        "--last-model": "audit-last-model",
    },
    "attack": {
        "--train": "membership-training",
        "--sweep": "attack-sweep",
        "--markdown": "attack-sweep",
        "--out": "attack-sweep",
    },
}
"""Options of a command that are no more, each with the command that does what it did."""

_SHORT_FORMATS: Mapping[str, str] = {
    "--json": "--format=json",
    "--markdown": "--format=markdown",
    "--format=md": "--format=markdown",
}
"""Other spellings of a format, which scripts may hold; help shows one."""

Quiet = Annotated[
    bool, typer.Option("--quiet", help="Show no progress; results and errors are still printed.")
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        metavar="FILE",
        help="Write lines of progress with time stamps at the end of FILE.",
    ),
]


def _declared(*, quiet: Quiet = False, log_file: LogFile = None) -> None:
    log = terminal.current_log()
    log.begin(log.title, quiet=quiet, path=log_file)


_APP = typer.Typer(add_completion=False)
_APP.command()(_declared)


class AnywhereCommand(TyperCommand):
    """A command that takes `--quiet` and `--log-file` among its own options, too."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._anywhere = typer.main.get_command(_APP)
        self.params.extend(self._anywhere.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; one that became a command is refused with what to type."""
        became = {} if ctx.resilient_parsing else BECAME.get(self.name or "", {})
        for place, word in enumerate(args):
            option, given, value = word.partition("=")
            if option == "--":
                break
            if (name := became.get(option)) is None:
                continue
            others = [*args]
            if option not in _options(ctx, name):
                others[place : place + 1] = [value] if given else []
                others = [other for other in others if other != option]  # given twice
            raise _input_error(
                f"{self.name} with {option} is a command of its own now; "
                f"{_what_to_type(ctx, name, others)}"
            )
        try:
            return super().parse_args(ctx, self._in_full(args))
        except Exception as error:  # of typer, which keeps click's errors to itself
            option = getattr(error, "option_name", "")
            if where := [
                name for name in dict.fromkeys(became.values()) if option in _options(ctx, name)
            ]:
                raise _input_error(
                    f"{option} is no option of {self.name}, but of {' and '.join(where)}; "
                    f"`overhear {where[0]} --help` shows it"
                ) from None
            raise

    def _in_full(self, args: list[str]) -> list[str]:
        """The words with other spellings of a format as `--format`, where there is one."""
        if not any("--format" in param.opts for param in self.params):
            return args
        end = args.index("--") if "--" in args else len(args)
        words = [_SHORT_FORMATS.get(word, word) for word in args[:end]]
        for place, word in enumerate(words[:-1]):
            if word == "--format" and words[place + 1] == "md":
                words[place + 1] = "markdown"
        return [*words, *args[end:]]

    def invoke(self, ctx: Any) -> Any:
        """Take what these options say, and run the command with its own."""
        names = [param.name for param in self._anywhere.params]
        of_program = {name: ctx.params.pop(name) for name in names}
        _declared(**of_program)
        return super().invoke(ctx)


def _what_to_type(ctx: Any, name: str, words: list[str]) -> str:
    """The line of another command of the program, or why it does not take these words."""
    if "--trust-code" not in _options(ctx, name):  # an old spelling took it for nothing
        words = [word for word in words if word != "--trust-code"]
    line = shlex.join(["overhear", name, *words])
    command = getattr(ctx.parent and ctx.parent.command, "commands", {}).get(name)
    try:
        if command is not None and "--help" not in words:
            command.make_context(name, words, parent=ctx.parent)
    except Exception as error:  # noqa: BLE001 - of typer, or of an argument
        why = getattr(error, "format_message", error.__str__)().rstrip(".")
        return f"`{line}` is refused, too: {why}; `overhear {name} --help` shows what it takes"
    return f"type `{line}`"


def _input_error(sentence: str) -> Exception:
    from ..privacy.errors import InputError  # takes numpy, without which help is shown

    return InputError(sentence)


def _options(ctx: Any, command: str) -> set[str]:
    """The options of another command of the program."""
    commands = getattr(ctx.parent and ctx.parent.command, "commands", {})
    held = commands[command].params if command in commands else []
    return {option for one in held for option in one.opts}


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

        terminal.write(f"overhear {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        from ..privacy.errors import InputError

        raise InputError("give a command; `overhear --help` lists them")
    terminal.current_log().begin(
        f"overhear {context.invoked_subcommand}", quiet=quiet, path=log_file
    )


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
        if isinstance(one, terminal.IsThere)
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
    app.command(cls=AnywhereCommand, short_help=summary)(
        _without_exits(terminal.with_requests(command))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: without the program's name; by default those of the process.
    """
    with terminal.words_of_bash(os.environ), terminal.logging() as log:
        code = until_stopped(lambda: _logged(arguments, log))
        log.outline(f"ended with exit code {code}")
        return code


def _logged(arguments: Sequence[str] | None, log: terminal.Log) -> int:
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
    terminal.current_log().line(f"error: {sentence(error)}")
    if isinstance(error, ContradictedProof):
        tell(f"error: {sentence(error)}")
        return CONTRADICTED
    bad_input = isinstance(error, STATED)
    if not bad_input or os.environ.get("OVERHEAR_DEBUG") == "1":
        tell("".join(traceback.format_exception(error)).rstrip())
    if bad_input:
        tell(f"error: {sentence(error)}")
    return BAD_INPUT if bad_input else CRASH
