"""The command `overhear new`: a commented file to start from."""

from __future__ import annotations

import enum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from .terminal.terminal import write


class What(enum.StrEnum):
    """What a file is for."""

    RUN = "run"
    ALGORITHM = "algorithm"
    POLICY = "policy"
    OPACUS_POLICY = "opacus-policy"
    FLOWER_POLICY = "flower-policy"
    SYSTEM = "system"
    CI = "ci"


_FILES = {
    What.RUN: "run.toml",
    What.ALGORITHM: "algorithm.py.txt",  # a template of a module is no module of ours
    What.POLICY: "policy.toml",
    What.OPACUS_POLICY: "opacus-policy.toml",
    What.FLOWER_POLICY: "flower-policy.toml",
    What.SYSTEM: "system.jsonl",
    What.CI: "ci.yml",
}


def new(
    what: Annotated[What, typer.Argument(metavar="what", help="What to start from.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to write it; without FILE it is printed."),
    ] = None,
) -> None:
    """Write a commented file to start from: run, algorithm, policy.

    It is a run file, a module with an algorithm, a policy of a run or of a system elsewhere, a log
    of what such a system releases, or a workflow of GitHub that holds a run file and a log to a
    policy at every change. Without FILE it is printed; a folder of FILE that is missing is made. A
    file that exists is never written over.
    """
    text = template(what, module=None if file is None else file.stem)
    if file is None:
        write(text, end="")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        from ..privacy.errors import InputError

        raise InputError(
            f"{file} is there already and is not written over; name another file"
        ) from None
    write(f"Written to {file}.")


def template(what: What, *, module: str | None = None) -> str:
    """The text of a template.

    Args:
        what: it is for.
        module: the name under which an algorithm will be imported; None where it is not known.

    >>> template(What.RUN).splitlines()[0]
    '# A run of decentralized training, and how much one record may cost.'
    """
    text = files("overhear.commands").joinpath("templates", _FILES[what])
    found = text.read_text(encoding="utf-8")
    if what is What.CI:
        from .. import __version__

        return found.replace("VERSION", __version__)
    if what is What.ALGORITHM:
        return found.replace("FILE", module or "mine")
    return found
