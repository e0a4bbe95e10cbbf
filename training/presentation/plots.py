"""Charts of an account, drawn by matplotlib: epsilon by round, and trade-off curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...privacy.accounting.trade_off import trade_off
from ...privacy.adversary import SINGLE_MESSAGE
from ...privacy.errors import InputError
from ...privacy.guarantee import Guarantee, Status
from ...privacy.missing import needs
from ..exposure.events import counted, spent_releases
from ..exposure.sensitivity import JointSensitivity, Release
from .summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot"]

_KINDS = ("rounds", "trade-off")
_POINTS = 25  # of epsilon by round


def plot(
    summary: Summary,
    sensitivities: Mapping[str, JointSensitivity],
    *,
    kind: str,
    epsilon: Callable[[str, int], float],
    axes: Axes | None = None,
) -> Axes:
    """A line for each adversary that really exists, solid where it is proven.

    Args:
        sensitivities: by adversary.
        kind: "rounds", or "trade-off".
        epsilon: of an adversary after so many rounds.
        axes: to draw on; else new ones.

    Raises:
        ValueError: an unknown kind, or no adversary with anything to draw.
        ImportError: matplotlib is not installed.
    """
    if kind not in _KINDS:
        raise InputError(f"kind={kind!r} must be 'rounds' or 'trade-off'")
    drawn = [
        g for g in summary.guarantees if g.status.is_finite and g.adversary != SINGLE_MESSAGE.name
    ]
    if not drawn:
        raise InputError(
            "no adversary of this account has a finite epsilon, so there is nothing to draw; "
            "print the account for the reasons"
        )
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(needs("plot", "matplotlib")) from error
    if axes is None:
        _, axes = plt.subplots(layout="constrained")
    if kind == "rounds":
        _draw_rounds(axes, summary, drawn, sensitivities, epsilon=epsilon)
    else:
        _draw_curves(axes, summary, drawn, sensitivities)
    axes.set_title(summary.title, fontsize="medium")
    axes.legend(fontsize="small")
    return axes


def _draw_rounds(
    axes: Axes,
    summary: Summary,
    drawn: Sequence[Guarantee],
    sensitivities: Mapping[str, JointSensitivity],
    *,
    epsilon: Callable[[str, int], float],
) -> None:
    rounds = sorted({round(float(t)) for t in np.linspace(0, summary.rounds, _POINTS)})
    for names, stated in _alike(drawn, sensitivities):
        spent = [epsilon(stated.adversary, t) for t in rounds]
        axes.plot(rounds, spent, _style(stated), label=names)
    if summary.goal is not None and summary.goal.epsilon is not None:
        axes.axhline(summary.goal.epsilon, color="grey", linestyle=":", label="target")
    axes.set_xlabel("round")
    axes.set_ylabel(f"epsilon at delta {summary.statement.delta:g}")
    axes.set_ylim(bottom=0)


def _draw_curves(
    axes: Axes,
    summary: Summary,
    drawn: Sequence[Guarantee],
    sensitivities: Mapping[str, JointSensitivity],
) -> None:
    rates = np.linspace(0.0, 1.0, 201)
    adjacency = summary.statement.adjacency
    for names, stated in _alike(drawn, sensitivities):
        releases = spent_releases(sensitivities[stated.adversary].releases)
        missed = 1.0 - rates
        if releases:
            events = counted(releases, summary.noise_multiplier, adjacency)
            missed = trade_off(events, adjacency=adjacency).false_negative_rates(rates)
        axes.plot(rates, missed, _style(stated), label=names)
    axes.plot([0, 1], [1, 0], color="grey", linestyle=":", label="nothing is learnt")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("false negative rate, at least")


def _alike(
    drawn: Sequence[Guarantee], sensitivities: Mapping[str, JointSensitivity]
) -> list[tuple[str, Guarantee]]:
    """Adversaries whose lines are the same share one, under all their names."""
    grouped: dict[tuple[tuple[Release, ...], Status], list[Guarantee]] = {}
    for stated in drawn:
        key = sensitivities[stated.adversary].releases, Status(stated.status)
        grouped.setdefault(key, []).append(stated)
    return [
        (
            ", ".join(g.adversary for g in same)
            + ("" if same[0].status is Status.PROVEN else " (heuristic: at least)"),
            same[0],
        )
        for same in grouped.values()
    ]


def _style(stated: Guarantee) -> str:
    return "-" if stated.status is Status.PROVEN else "--"
