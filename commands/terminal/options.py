"""Arguments and options that several commands take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .completion import overrides

if TYPE_CHECKING:
    from ...runs.own.tables import Call

__all__ = ["Device", "Folder", "Json", "Overrides", "RunPath", "TrustCode", "trust"]

RunPath = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, cuda, cuda:N or mps; by default what the run says.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="table.key=value",
        help="Override a key of the run file; may be repeated.",
        autocompletion=overrides,
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the code that DIR names; read its run.toml and sources before."
    ),
]


def trust(code: bool, *, pins: Mapping[str, str] | None = None, calls: Iterable[Call] = ()) -> None:
    """Run code that folders name, until the command ends.

    Args:
        code: any of it.
        pins: SHA-256 by path of what is run all the same.
        calls: what of it folders may name, with which options.
    """
    if code or pins:
        from ...runs.own.trust import vouch

        vouch(pins=None if code else pins, calls=calls)
