"""A console on which text from elsewhere moves nothing: what is not shown stands as its escape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ...privacy.plain_text import plain_lines


class PlainConsole(Console):
    """A console of rich whose texts pass `plain_lines` where they are rendered.

    Brackets in them are no markup. What rich itself says to the terminal, of colours and of the
    cursor, is no text.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, highlight=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is printed."""
        for one in super().render(renderable, options):
            shown = one.text if one.control else plain_lines(one.text)
            yield one if shown is one.text else Segment(shown, one.style)
