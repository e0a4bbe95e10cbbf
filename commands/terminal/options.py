"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .completion import overrides

__all__ = ["Device", "Folder", "Json", "Overrides", "RunPath"]

RunPath = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps; else as the run says."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="table.key=value",
        help="Override a key; may be repeated.",
        autocompletion=overrides,
    ),
]
