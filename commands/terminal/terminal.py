"""What commands print with: a console, plain text on it, and one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output, or on standard error.

    What is read by a program, or kept in a file, has no blanks at the ends of its lines.
    """
    from .console import PlainConsole

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return PlainConsole(stderr=stderr)
    # It hands on whatever it does not write itself.
    trimmed = cast("IO[str]", _Trimmed(stream))
    return PlainConsole(file=trimmed, stderr=stderr)


def make_table(title: object = "") -> Table:
    """An empty table in the one style of all commands: a rule below its heads, and no others.

    The title stands above it; a text of rich is taken as it is.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=title if isinstance(title, Text) else str(title) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )


class _Trimmed:
    """A stream whose lines end where their last letter does."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without blanks before its ends of lines."""
        *whole, last = text.split("\n")
        self._stream.write("".join(f"{line.rstrip(' ')}\n" for line in whole) + last)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(console: Console, text: str) -> None:
    """Print a text."""
    console.print(text)


def say_indented(console: Console, text: str, *, by: int = 2) -> None:
    """Print a text, each line of it further to the right."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text), (0, 0, 0, by), expand=False))


def write(text: object, *, end: str = "\n") -> None:
    """Print a text on standard output; what of it is not shown stands as its escape."""
    from ...privacy.plain_text import plain_lines  # a command starts without it

    print(plain_lines(str(text)), end=end)


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object, or a list of them, each with its version; infinite numbers as strings."""
    import json

    from ...privacy.formats.codec import finite

    # What has no version of its own, as a file has, is of the first that commands print.
    several = [value] if isinstance(value, Mapping) else value
    found: Any = finite([{"schema": 1, **one} for one in several])
    write(json.dumps(found if several is value else found[0], indent=2, allow_nan=False))
