"""An account as a table of HTML, for a notebook."""

from __future__ import annotations

from html import escape

from .summary import Summary
from .text import HEADS, cells_of

__all__ = ["as_html"]

_LEFT = ' style="text-align:left"'


def as_html(summary: Summary) -> str:
    """What is accounted for, a row an adversary, then the warnings; nothing is loaded for it."""
    heads = "".join(f"<th{_LEFT}>{escape(head)}</th>" for head in HEADS)
    rows = "".join(
        "<tr>" + "".join(f"<td{_LEFT}>{escape(cell)}</td>" for cell in cells_of(stated)) + "</tr>"
        for stated in summary.guarantees
    )
    warnings = "".join(f"<p>{escape(one)}</p>" for one in summary.warnings)
    return (
        f"<p><b>{escape(summary.title)}</b><br>{escape(summary.noise)}<br>"
        f"{escape(summary.said_of)}</p><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{warnings}"
    )
