"""The command `overhear sign`: a folder that a team's key stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import IsThere


def sign(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a run, or of logs of releases."),
        IsThere("{} does not exist; name the folder of a run, or of logs"),
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
