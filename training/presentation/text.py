"""An account in plain text, for a terminal of any width, and as a table of rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...privacy.guarantee import Guarantee, Status
from ...privacy.plain_text import aligned
from .summary import Summary, rounded_up

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["as_rich", "as_text", "cells_of", "heads_of", "lines_of"]

_STYLES = {Status.PROVEN: "green", Status.HEURISTIC: "yellow"}


def as_text(summary: Summary) -> str:
    """The lines of an account: what is accounted for, a row an adversary, then the warnings."""
    head = (summary.title, summary.noise, summary.said_of)
    return lines_of(head, guarantees=summary.guarantees, warnings=summary.warnings)


def lines_of(
    head: Sequence[str], *, guarantees: Sequence[Guarantee], warnings: Sequence[str]
) -> str:
    """The same of what is no account of an algorithm: its own head, rows and warnings."""
    rows = [heads_of(guarantees), *(cells_of(g) for g in guarantees)]
    return "\n".join([*head, "", *aligned(rows), *([""] if warnings else []), *warnings])


def as_rich(summary: Summary) -> Table:
    """The same rows for a console of rich."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=escape(summary.title),
        caption=escape("\n".join((summary.noise, summary.said_of, *summary.warnings))),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for head in heads_of(summary.guarantees):
        table.add_column(head)
    for stated in summary.guarantees:
        table.add_row(
            *(Text(cell) for cell in cells_of(stated)),
            style=_STYLES.get(Status(stated.status), "red"),
        )
    return table


def heads_of(guarantees: Sequence[Guarantee]) -> tuple[str, ...]:
    """Of the rows of statements; one more for each number of records of one person."""
    group = guarantees[0].group if guarantees else None
    several = tuple(f"of {one.records} records" for one in group or ())
    return ("adversary", "epsilon", *several, "status", "victim", "joint sensitivity", "because")


def cells_of(stated: Guarantee) -> tuple[str, ...]:
    """The row of a statement, in the order of `heads_of`."""
    name = stated.adversary
    if stated.worst_adversary is not None:
        name = f"{name} ({stated.worst_adversary})"
    return (
        name,
        rounded_up(stated.epsilon),
        *(rounded_up(one.epsilon) for one in stated.group or ()),
        str(stated.status),
        f"agent {stated.victim}",
        rounded_up(stated.joint_sensitivity),
        stated.because,
    )
