"""An account as a table of HTML, for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...privacy.guarantee import Guarantee
from .summary import Summary
from .text import cells_of, heads_of

__all__ = ["as_html", "page_part"]

_LEFT = ' style="text-align:left"'


def as_html(summary: Summary) -> str:
    """What is accounted for, a row an adversary, then the warnings; nothing is loaded for it."""
    head = (summary.title, summary.noise, summary.said_of)
    return page_part(head, guarantees=summary.guarantees, warnings=summary.warnings)


def page_part(
    head: Sequence[str], *, guarantees: Sequence[Guarantee], warnings: Sequence[str]
) -> str:
    """The same of what is no account of an algorithm: its own head, rows and warnings."""
    heads = "".join(f"<th{_LEFT}>{escape(head)}</th>" for head in heads_of(guarantees))
    rows = "".join(
        "<tr>" + "".join(f"<td{_LEFT}>{escape(cell)}</td>" for cell in cells_of(stated)) + "</tr>"
        for stated in guarantees
    )
    first, *more = map(escape, head)
    said = "".join(f"<p>{escape(one)}</p>" for one in warnings)
    return (
        f"<p>{'<br>'.join((f'<b>{first}</b>', *more))}</p><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{said}"
    )
