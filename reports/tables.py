"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ..privacy.adversary import ALL_OTHERS
from .numbers import bound, figure, score, small

__all__ = [
    "HEURISTIC",
    "adversary_table",
    "adversary_words",
    "attack_table",
    "reasons",
    "status_words",
]

HEURISTIC = "heuristic: at least this bad, no upper bound known"


def status_words(adversary: Mapping[str, Any]) -> str:
    """The status of a row, in full where it is no guarantee."""
    return "proven" if adversary["status"] == "proven" else HEURISTIC


def adversary_words(adversary: Mapping[str, Any]) -> str:
    """The adversary that was asked for, and which one it is where the worst was searched.

    >>> adversary_words({"name": "neighbour", "worst_adversary": "neighbour:1"})
    'neighbour:1 (worst)'
    """
    worst = adversary.get("worst_adversary")
    if worst is None or adversary["name"] == ALL_OTHERS:
        return str(adversary["name"])
    return f"{worst} (worst)"


def adversary_table(adversaries: Iterable[Mapping[str, Any]]) -> Table:
    """Epsilon for every adversary of a plan; `reasons` says what stands behind each.

    Args:
        adversaries: as in the "adversaries" of `overhear plan --json`.
    """
    table = Table(
        title="Who could learn what about one record", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("adversary", style="bold")
    for head in ("victim", "joint\nsens.", "effective\nmultipl.", "epsilon", "delta"):
        table.add_column(head, justify="right")
    table.add_column("status", no_wrap=True)
    for row in adversaries:
        cells = (
            adversary_words(row),
            str(row["victim"]),
            figure(row["joint_sensitivity"], 4),
            figure(row["effective_noise_multiplier"]),
            bound(row["epsilon"]),
            small(row["delta"]),
            row["status"],
        )
        # Text, because a name of the run file must not be read as markup.
        table.add_row(*(Text(cell) for cell in cells))
        if row["status"] != "proven":
            table.caption, table.caption_justify = HEURISTIC, "left"
    return table


def reasons(adversaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why each figure is what it is: one line for each reason, with the adversaries it is for."""
    grouped: dict[str, list[str]] = {}
    for row in adversaries:
        grouped.setdefault(row["because"], []).append(row["name"])
    return [f"{', '.join(names)}: {because}" for because, names in grouped.items()]


def attack_table(rows: Sequence[Mapping[str, Any]], *, title: str = "Reconstruction") -> Table:
    """Mean scores of the four rows of one attack.

    Args:
        rows: as in the "rows" of a scenario of `overhear attack --json`.
        title: what stands above.
    """
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what is attacked", style="bold")
    for head in ("MSE", "PSNR (dB)", "SSIM"):
        table.add_column(head, justify="right")
    for row in rows:
        mean = row["mean"]
        cells = (row["name"], figure(mean["mse"]), figure(mean["psnr"]), score(mean["ssim"]))
        table.add_row(*(Text(cell) for cell in cells))
    return table
