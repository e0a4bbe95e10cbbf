"""What is known of a figure of a run: its status after what was released, its sign, its text."""

from __future__ import annotations

from collections.abc import Mapping

from ..privacy.guarantee import Status
from ..runs.numbers import bound, figure, is_infinite

HEURISTIC = "heuristic: at least this bad, no upper bound known"
STATUSES: Mapping[Status, str] = {
    Status.PROVEN: "proven",
    Status.DECLARED: "declared: an upper bound, if the list of releases is true",
    Status.CHECKED: "declared, checked: as declared, and what was kept of the releases agrees",
    Status.HEURISTIC: HEURISTIC,
    Status.NO_PROTECTION: "no protection: something is shown that no noise hides",
    Status.CANNOT_BE_EXPRESSED: "cannot be expressed: no finite bound is known here, one may exist",
}


def sign_of(epsilon: float | str, *, proven: bool) -> str:
    """How an epsilon stands to the truth: "≤" proven, "≥" heuristic, "=" infinite."""
    if is_infinite(epsilon):
        return "="
    return "≤" if proven else "≥"


def kind_of(*, proven: bool) -> str:
    """How an epsilon is written, one of `cited.KINDS`: only an upper bound is rounded up."""
    return "bound" if proven else "figure"


def epsilon_text(epsilon: float | str, *, proven: bool) -> str:
    """An epsilon with its sign, rounded to the side on which it is true.

    >>> epsilon_text(2.0714, proven=True), epsilon_text(2.0714, proven=False)
    ('≤ 2.08', '≥ 2.07')
    """
    if is_infinite(epsilon):
        return "∞"
    shown = bound(epsilon) if proven else figure(epsilon)
    return f"{sign_of(epsilon, proven=proven)} {shown}"
