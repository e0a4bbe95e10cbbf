"""What code of the user raised, in words, and where."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_LONGEST = 300  # characters
_OURS = Path(__file__).resolve().parents[1] / "training"  # a checkout may be where users work


def describe(error: BaseException) -> str:
    """An error by its type and words.

    >>> describe(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    try:
        words = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - an error of the user that cannot say itself
        words = ""
    return " ".join(f"{type(error).__name__}: {words}".split()).rstrip(": ")[:_LONGEST]


def line_of(error: BaseException) -> str:
    """Where in code of the user an error arose, in words; nothing where that is not known."""
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno} of {Path(error.filename or '').name}"
    library = Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        installed = {"site-packages", "dist-packages"} & set(path.parts)
        ours = path.is_relative_to(_OURS) or path.is_relative_to(library)
        if path.is_file() and not installed and not ours:
            return f" in line {frame.lineno} of {path.name}"
    return ""
