"""Options of the whole program that may stand anywhere, and those that became commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .log import current_log

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
    log = current_log()
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
    from ...privacy.errors import InputError  # takes numpy, without which help is shown

    return InputError(sentence)


def _options(ctx: Any, command: str) -> set[str]:
    """The options of another command of the program."""
    commands = getattr(ctx.parent and ctx.parent.command, "commands", {})
    held = commands[command].params if command in commands else []
    return {option for one in held for option in one.opts}
