"""Options of the whole program that may stand before a command's name or behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .log import current_log

__all__ = ["AnywhereCommand", "LogFile", "Quiet"]

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

    def invoke(self, ctx: Any) -> Any:
        """Take what these options say, and run the command with its own."""
        names = [one.name for one in self._anywhere.params]
        of_program = {name: ctx.params.pop(name) for name in names}
        _declared(**of_program)
        return super().invoke(ctx)
