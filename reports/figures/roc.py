"""Members found, by how many others are taken for members: both on a log scale.

Only on such a scale is it seen whether an attack is sure of some records; a few that it is sure of
vanish in an area under the curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from ...runs.evidence.membership import Membership
from .chart import NARROW, WIDE, Frame, Line, draw_places, drawing

__all__ = ["roc_figure"]

_DECADES = 4
_TICKS = ("1 in 10,000", "1 in 1,000", "1 in 100", "1 in 10", "all")
_SHORT_TICKS = ("0.01 %", "0.1 %", "1 %", "10 %", "all")
_WIDE = replace(WIDE, left=WIDE.left + 30)  # labels in words
_LEGEND = 22  # a line of it


def roc_figure(found: Membership | None, *, narrow: bool = False) -> Markup | None:
    """The drawing: of the games, or of the run itself where none were played; None without one.

    Args:
        found: what was inferred.
        narrow: whether it is for a phone; the legend then stands below.
    """
    if found is None:
        return None
    part = found.played or found.run
    frame = NARROW if narrow else _WIDE
    parts = [_axes(frame), _line(frame, [(1e-4, 1e-4), (1.0, 1.0)], "grid")]
    # All curves end in one corner, so they are told apart by samples beside their names.
    samples = [(Markup('<path class="grid" d="M{} {}h30"/>'), "chance")]
    if found.limit:
        parts.append(_line(frame, found.limit, "limit"))
        samples.append((Markup('<path class="limit" d="M{} {}h30"/>'), "most that is proven"))
    for style, curve in enumerate(part.curves):
        points = [(_x(frame, a), _y(frame, t)) for a, t in curve.points if a > 0 and t > 0]
        if points:
            parts.append(draw_places(Line(points=points, style=style)))
            sample = Markup('<path class="line s{}" d="M{{}} {{}}h30"/>').format(style)
            samples.append((sample, f"{curve.model}, {curve.attack}"))
    left, top = (12, frame.height + 8) if narrow else (frame.edge + 16, frame.top + 20)
    for number, (sample, words) in enumerate(samples):
        y = top + _LEGEND * number
        parts.append(sample.format(left, y))
        parts.append(Markup('<text x="{}" y="{}">{}</text>').format(left + 38, y + 4, words))
    names = ", ".join(words for _, words in samples)
    about = f"False positives from left to right and members found upwards, in tens: {names}"
    height = frame.height + (_LEGEND * len(samples) if narrow else 0)
    return drawing(f"0 0 {frame.width} {height}", "Members found", about, Markup("").join(parts))


def _x(frame: Frame, rate: float) -> float:
    return frame.left + (frame.edge - frame.left) * _share(rate)


def _y(frame: Frame, rate: float) -> float:
    return frame.floor - (frame.floor - frame.top) * _share(rate)


def _share(rate: float) -> float:
    """Of the axis, 0 at 1 in 10,000 and below."""
    return max(0.0, 1.0 + math.log10(max(rate, 1e-300)) / _DECADES)


def _line(frame: Frame, points: Sequence[tuple[float, float]], kind: str) -> Markup:
    path = " ".join(f"{_x(frame, a):.1f},{_y(frame, t):.1f}" for a, t in points)
    return Markup('<polyline class="{}" fill="none" points="{}"/>').format(kind, path)


def _axes(frame: Frame) -> Markup:
    floor, parts = frame.floor, []
    for number, words in enumerate(_SHORT_TICKS if frame.is_narrow else _TICKS):
        rate = 10.0 ** (number - _DECADES)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
                '<text class="end" x="{}" y="{:.1f}">{words}</text>'
                '<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"/>'
                '<text class="mid" x="{x:.1f}" y="{}">{words}</text>'
            ).format(
                frame.left, frame.edge, frame.left - 8, _y(frame, rate) + 4, floor, floor + 5,
                floor + 18, x=_x(frame, rate), y=_y(frame, rate), words=words,
            )
        )  # fmt: skip
    parts.append(
        Markup(
            '<path class="axis" d="M{} {}V{}H{}"/>'
            '<text class="mid" x="{}" y="{}">others taken for members</text>'
            '<text class="mid" transform="translate(13 {}) rotate(-90)">members found</text>'
        ).format(
            frame.left, frame.top, floor, frame.edge, (frame.left + frame.edge) / 2,
            frame.height - 8, (frame.top + floor) / 2,
        )
    )  # fmt: skip
    return Markup("").join(parts)
