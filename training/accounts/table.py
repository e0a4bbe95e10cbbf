"""An account in plain text, for a notebook or a terminal of any width."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...privacy.guarantee import Guarantee, Statement

__all__ = ["table"]

_HEADS = ("adversary", "epsilon", "status", "victim", "joint sensitivity", "because")


def table(
    *,
    title: str,
    noise: str,
    statement: Statement,
    guarantees: Sequence[Guarantee],
    warnings: Sequence[str],
) -> str:
    """The lines of an account: what is accounted for, a row an adversary, then the warnings.

    Args:
        title: what runs.
        noise: with which noise.
        statement: what every epsilon is said of.
        guarantees: in the order of the rows.
        warnings: sentences.
    """
    said = (
        f"{statement.adjacency} {statement.unit}, delta {statement.delta:g}, "
        f"accountant {statement.accountant}"
    )
    rows = [_HEADS, *(_row(g) for g in guarantees)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([title, noise, said, "", *lines, *([""] if warnings else []), *warnings])


def _row(stated: Guarantee) -> tuple[str, ...]:
    name = stated.adversary
    if stated.worst_adversary is not None:
        name = f"{name} ({stated.worst_adversary})"
    return (
        name,
        _figure(stated.epsilon),
        str(stated.status),
        f"agent {stated.victim}",
        _figure(stated.joint_sensitivity),
        stated.because,
    )


def _figure(value: float) -> str:
    """Three digits, rounded up: no figure is printed smaller than it is."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    shown = math.ceil(value * scale * (1 - 1e-9)) / scale if math.isfinite(scale) else value
    return f"{shown:.3g}"
