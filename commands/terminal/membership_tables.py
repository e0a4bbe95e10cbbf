"""The table of a membership attack for the terminal."""

from __future__ import annotations

from rich.table import Table

from ...runs.evidence.membership import MembershipPart, MembershipRate
from ...runs.numbers import bound, figure, lower_bound
from .terminal import make_table

__all__ = ["membership_table", "rate_words"]


def membership_table(part: MembershipPart, *, title: str) -> Table:
    """A row for each attack on each model.

    Args:
        part: of the run itself, or of games.
        title: what was attacked.
    """
    table = make_table(f"{title}: {part.members} members, {part.others} others")
    for name in ("model", "attack"):
        table.add_column(name, no_wrap=True)
    table.add_column("AUC", justify="right", no_wrap=True)
    rates = part.rows[0].rates
    for rate in rates:
        table.add_column(f"TPR at FPR {100 * rate.asked:g} %", justify="right")
    allowed = [
        f"{bound(rate.allowed, 2)} at {100 * rate.asked:g} %"
        for rate in rates
        if rate.allowed is not None
    ]
    if allowed:
        table.caption = f"The proof allows a TPR of at most {', '.join(allowed)}"
        table.caption_justify = "left"
    for row in part.rows:
        table.add_row(
            row.model,
            row.attack,
            f"{row.auc:.3f} ± {row.auc_error:.3f}",
            *(rate_words(rate) for rate in row.rates),
        )
    return table


def rate_words(rate: MembershipRate) -> str:
    """A rate with its interval, or how many non-members it would take.

    >>> rate_words(MembershipRate(asked=0.001, needed=1000, true_positive_rate=None, low=None,
    ...                           high=None, allowed=0.02))
    'needs 1000 non-members'
    """
    if rate.true_positive_rate is None or rate.low is None or rate.high is None:
        return f"needs {rate.needed} non-members"
    interval = f"[{lower_bound(rate.low, 2)}, {bound(rate.high, 2)}]"
    return f"{figure(rate.true_positive_rate, 2)} {interval}"
