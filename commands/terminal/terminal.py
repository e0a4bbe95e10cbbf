"""What commands print with: a console, plain text on it, and one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["make_console", "print_json", "say"]


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output, or on standard error."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def say(console: Console, text: str) -> None:
    """Print a text as it is: brackets in it are no markup."""
    console.print(text, markup=False)


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object, infinite numbers as strings."""
    import json

    from ...runs.described import finite

    print(json.dumps(finite(value), indent=2, allow_nan=False))
