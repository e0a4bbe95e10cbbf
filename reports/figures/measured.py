"""Proven against measured: for each audited adversary what is proven, and what was found.

The truth lies between the two marks, if the proof and the audit are right: the measured lower bound
is a circle, the proven upper bound a bar, the most that this audit could find a diamond.
"""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from ...runs.evidence.schema import AuditedAdversary
from ...runs.numbers import is_infinite
from ..cited import Cited
from ..schema import Report
from .chart import Frame, drawing, ticks

__all__ = ["measured_figure"]

_WIDE = Frame(width=900, height=0, left=190, right=40, top=12)
_NARROW = Frame(width=360, height=0, left=14, right=18, top=12, is_narrow=True)
_ROW, _NAME = 56, 24  # of an adversary; a line of its own for its name where that is narrow
_LONGEST = 24  # name of an adversary

Scale = Callable[[float], float]


def measured_figure(report: Report, cited: Cited, *, narrow: bool = False) -> Markup | None:
    """The drawing; None where nothing finite was measured or proven.

    Args:
        narrow: whether it is for a phone.
    """
    frame = _NARROW if narrow else _WIDE
    row_height = _ROW + (_NAME if narrow else 0)
    audit = report.audit
    found = [
        (number, row, *_figures(report, row))
        for number, row in enumerate(audit.adversaries if audit else ())
    ]
    drawn = [entry for entry in found if any(value is not None for value in entry[2:])]
    if not drawn:
        return None
    every = [value for entry in drawn for value in entry[2:] if value is not None]
    scale = ticks(max(every) * 1.04)
    bottom = frame.top + row_height * len(drawn)

    def x(value: float) -> float:
        return frame.left + (frame.edge - frame.left) * min(value / scale[-1], 1.0)

    parts = [
        Markup(
            '<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{b}"/>'
            '<text class="mid" x="{x:.1f}" y="{t}">{v:g}</text>'
        ).format(x=x(value), y=frame.top, b=bottom, t=bottom + 18, v=value)
        for value in scale
    ]
    for place, (number, row, proven, low, ideal) in enumerate(drawn):
        y = frame.top + row_height * place + (row_height - _ROW) + 29
        name = row.name
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        kind, left, above = ("label over", frame.left, y - 33) if narrow else ("end", 178, y + 4)
        parts.append(
            Markup('<text class="{}" x="{}" y="{}">{}</text>').format(kind, left, above, short)
        )
        if proven is not None:
            at = cited.svg("bound", "audit", "adversaries", number, "proven_epsilon")
            parts.append(_proven(x, proven, low or 0.0, y=y, frame=frame, words=at))
        if ideal is not None:
            parts.append(
                Markup('<path class="mark s3" d="M{:.1f} {}l5 5-5 5-5-5z"/>').format(
                    x(ideal), y - 5
                )
            )
        if low is not None:
            at = cited.svg("given", "measured", name, "epsilon")
            parts.append(_measured(x, low, y=y, frame=frame, words=at))
    about = (
        "For each adversary a bar for the proven upper bound, a circle for the measured lower "
        "bound, and a diamond for the most that such an audit could find"
    )
    box = f"0 0 {frame.width} {bottom + 26}"
    return drawing(box, "Proven against measured epsilon", about, Markup("").join(parts))


def _figures(
    report: Report, row: AuditedAdversary
) -> tuple[float | None, float | None, float | None]:
    """Proven, measured and at best, where there is such a figure and it is finite."""
    of, epsilon = report.measured[row.name], row.proven_epsilon
    proven = row.status == "proven" and not is_infinite(epsilon)
    return (
        float(epsilon) if proven else None,
        None if of.epsilon is None else float(of.epsilon),
        None if of.ideal is None else float(of.ideal),
    )


def _proven(
    x: Scale, proven: float, low: float, *, y: float, frame: Frame, words: Markup
) -> Markup:
    at = x(proven)
    return Markup(
        '<path class="span" d="M{a:.1f} {y}H{b:.1f}"/><path class="wall" d="M{b:.1f} {u}V{d}"/>'
        '<text class="{side}" x="{b:.1f}" y="{v}">proven ≤ {words}</text>'
    ).format(
        a=min(x(low), at),
        b=at,
        y=y,
        u=y - 9,
        d=y + 9,
        v=y - 13,
        side="end" if at > frame.width / 2 else "start",
        words=words,
    )


def _measured(x: Scale, low: float, *, y: float, frame: Frame, words: Markup) -> Markup:
    at = x(low)
    return Markup(
        '<circle class="seen" cx="{a:.1f}" cy="{y}" r="5"/>'
        '<text class="{side}" x="{a:.1f}" y="{v}">measured ≥ {words}</text>'
    ).format(a=at, y=y, v=y + 18, side="start" if at < frame.width / 2 else "end", words=words)
