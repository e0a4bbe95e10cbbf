"""A comparison as Markdown and as one HTML page without a script."""

from __future__ import annotations

from ...privacy.plain_text import markdown_table, markdown_text, plain
from ..template import template
from .compare import Comparison, rows_of

__all__ = ["comparison_html", "comparison_markdown"]


def comparison_markdown(found: Comparison) -> str:
    """A comparison as a Markdown table, with what cannot be compared below it."""
    heads = ["run", *(markdown_text(one.run) for one in found.runs)]
    table = markdown_table(heads, [(head, *row) for head, row in rows_of(found.runs)])
    flags = "".join(f"- {markdown_text(flag)}\n" for flag in found.flags)
    return f"{table}\n{flags}" if flags else table


def comparison_html(found: Comparison) -> str:
    """A comparison as a page, complete in itself."""
    return template(__package__ or "overhear.reports", "compare.html").render(
        names=[plain(one.run) for one in found.runs],
        rows=rows_of(found.runs),
        flags=found.flags,
    )
