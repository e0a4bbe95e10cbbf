"""Members found, by how many others are taken for members: both on a log scale.

Only on such a scale is it seen whether an attack is sure of some records; a few that it is sure of
vanish in an area under the curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from ...runs.evidence.membership import Membership
from .chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, draw_places, drawing

__all__ = ["roc_figure"]

_DECADES = 4
_TICKS = ("1 in 10,000", "1 in 1,000", "1 in 100", "1 in 10", "all")
_LEFT = LEFT + 30  # labels in words


def roc_figure(found: Membership | None) -> Markup | None:
    """The drawing: of the games, or of the run itself where none were played; None without one."""
    if found is None:
        return None
    part = found.played or found.run
    parts = [_axes(), _line([(1e-4, 1e-4), (1.0, 1.0)], "grid")]
    # All curves end in one corner, so they are told apart by samples beside their names.
    samples = [(Markup('<path class="grid" d="M{} {}h30"/>'), "chance")]
    if found.limit:
        parts.append(_line(found.limit, "limit"))
        samples.append((Markup('<path class="limit" d="M{} {}h30"/>'), "most that is proven"))
    for style, curve in enumerate(part.curves):
        points = [(_x(a), _y(t)) for a, t in curve.points if a > 0 and t > 0]
        if points:
            parts.append(draw_places(Line(points=points, style=style)))
            sample = Markup('<path class="line s{}" d="M{{}} {{}}h30"/>').format(style)
            samples.append((sample, f"{curve.model}, {curve.attack}"))
    for number, (sample, words) in enumerate(samples):
        x, y = WIDTH - RIGHT + 16, TOP + 20 + 22 * number
        parts.append(sample.format(x, y))
        parts.append(Markup('<text x="{}" y="{}">{}</text>').format(x + 38, y + 4, words))
    names = ", ".join(words for _, words in samples)
    about = f"False positives from left to right and members found upwards, in tens: {names}"
    return drawing(f"0 0 {WIDTH} {HEIGHT}", "Members found", about, Markup("").join(parts))


def _x(rate: float) -> float:
    return _LEFT + (WIDTH - _LEFT - RIGHT) * _share(rate)


def _y(rate: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _share(rate)


def _share(rate: float) -> float:
    """Of the axis, 0 at 1 in 10,000 and below."""
    return max(0.0, 1.0 + math.log10(max(rate, 1e-300)) / _DECADES)


def _line(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    path = " ".join(f"{_x(a):.1f},{_y(t):.1f}" for a, t in points)
    return Markup('<polyline class="{}" fill="none" points="{}"/>').format(kind, path)


def _axes() -> Markup:
    floor, parts = HEIGHT - BOTTOM, []
    for number, words in enumerate(_TICKS):
        rate = 10.0 ** (number - _DECADES)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
                '<text class="end" x="{}" y="{:.1f}">{words}</text>'
                '<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"/>'
                '<text class="mid" x="{x:.1f}" y="{}">{words}</text>'
            ).format(
                _LEFT, WIDTH - RIGHT, _LEFT - 8, _y(rate) + 4, floor, floor + 5, floor + 18,
                x=_x(rate), y=_y(rate), words=words,
            )
        )  # fmt: skip
    parts.append(
        Markup(
            '<path class="axis" d="M{} {}V{}H{}"/>'
            '<text class="mid" x="{}" y="{}">others taken for members</text>'
            '<text class="mid" transform="translate(13 {}) rotate(-90)">members found</text>'
        ).format(
            _LEFT, TOP, floor, WIDTH - RIGHT, (_LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8,
            (TOP + floor) / 2,
        )
    )  # fmt: skip
    return Markup("").join(parts)
