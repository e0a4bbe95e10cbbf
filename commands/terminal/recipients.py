"""The table of what recipients by distance could learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .terminal import make_table, say

if TYPE_CHECKING:
    from rich.console import Console

    from ...runs.plan.schema import Recipient, Recipients


def show_recipients(found: Recipients, console: Console) -> None:
    """Print epsilon of every recipient: closed, an estimate, and where it is proven steered."""
    from rich.text import Text

    from ...runs.numbers import bound

    console.print()
    table = make_table(f"What each recipient could learn about a record of agent {found.victim}")
    table.add_column("recipient", style="bold")
    for head in ("hops", "closed", "estimate", "steered", "and final\nmodels"):
        table.add_column(head, justify="right")

    def shown(value: float | None) -> str:
        return "-" if value is None else bound(value)

    for names, row in _grouped(found.rows):
        hops = "-" if row.hops is None else str(row.hops)
        figures = (row.closed, row.estimate, row.steered, row.with_final_models)
        table.add_row(Text(names), hops, *map(shown, figures))
    console.print(table)
    for sentence in found.sentences():
        say(console, sentence)


def _grouped(rows: list[Recipient]) -> list[tuple[str, Recipient]]:
    """Rows with equal figures together, named by all of their agents."""
    grouped: dict[tuple[object, ...], list[Recipient]] = {}
    for row in rows:
        figures = (row.closed, row.estimate, row.steered, row.with_final_models)
        key = (row.hops, *(None if f is None else float(f"{f:.6g}") for f in figures))
        grouped.setdefault(key, []).append(row)
    said = []
    for same in grouped.values():
        agents = [row.name.removeprefix("agent:") for row in same]
        several = f"agents {', '.join(agents)}" if len(same) > 1 else same[0].name
        said.append((several, same[0]))
    return said
