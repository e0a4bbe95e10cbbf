"""A line chart as inline SVG: axes, lines told apart without colour, labels that do not collide.

Each chart is drawn for two widths, since letters that shrink with a drawing cannot be read on a
phone; the style of the page shows one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

MARKS = 4
_MOST_MARKS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A drawing and its margins, in pixels of its full size.

    Attributes:
        width, height: of the whole drawing.
        left, right, top, bottom: margins around what is plotted.
        is_narrow: whether it is for a phone: labels then stand inside of what is plotted.
    """

    width: int
    height: int
    left: int
    right: int
    top: int = 16
    bottom: int = 48
    is_narrow: bool = False

    @property
    def edge(self) -> int:
        """Where what is plotted ends at the right."""
        return self.width - self.right

    @property
    def floor(self) -> int:
        """Where it ends below."""
        return self.height - self.bottom

    @property
    def box(self) -> str:
        """The viewBox."""
        return f"0 0 {self.width} {self.height}"


WIDE = Frame(width=900, height=320, left=74, right=230)
NARROW = Frame(width=360, height=320, left=62, right=12, is_narrow=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """The plotted range; both axes start at 0."""

    x_max: float
    y_max: float
    frame: Frame = WIDE

    def x(self, value: float) -> float:
        """Horizontal place of a value."""
        left = self.frame.left
        return left + (self.frame.edge - left) * value / self.x_max

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        floor = self.frame.floor
        return floor - (floor - self.frame.top) * value / self.y_max


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Points of one line, (x, y), and the style that sets it apart: 0..3."""

    points: Sequence[tuple[float, float]]
    style: int


def ticks(top: float, *, most: int = 6) -> list[float]:
    """Round numbers from 0 to at least `top`, at most `most` steps.

    >>> ticks(4.3)
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    if not 0 < top < math.inf:
        return [0.0, 1.0]
    size = 10.0 ** math.floor(math.log10(top / most))
    step = next(m * size for m in (1, 2, 5, 10, 20) if top / (m * size) <= most)
    return [round(step * i, 12) for i in range(math.ceil(top / step - 1e-9) + 1)]


def axes(
    area: Area,
    *,
    x_label: str,
    y_label: str,
    y_text: Callable[[float], str] = lambda value: f"{value:g}",
) -> Markup:
    """Grid, axes, tick labels and titles."""
    frame = area.frame
    left, top, right, floor = frame.left, frame.top, frame.edge, frame.floor
    parts = []
    # Horizontal lines and their numbers.
    for value in ticks(area.y_max):
        if value <= area.y_max * (1 + 1e-9):
            parts.append(
                Markup(
                    '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                    '<text class="end" x="{}" y="{:.1f}">{}</text>'
                ).format(
                    left, right, area.y(value), area.y(value), left - 8, area.y(value) + 4,
                    y_text(value),
                )
            )  # fmt: skip
    # Marks below and their numbers.
    for value in ticks(area.x_max):
        if value <= area.x_max * (1 + 1e-9):
            parts.append(
                Markup(
                    '<line class="axis" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>'
                    '<text class="mid" x="{:.1f}" y="{}">{:g}</text>'
                ).format(
                    area.x(value), area.x(value), floor, floor + 5, area.x(value), floor + 18, value
                )
            )
    # The frame and both titles.
    parts.append(
        Markup(
            '<path class="axis" d="M{left} {top}V{floor}H{right}"/>'
            '<text class="mid" x="{middle}" y="{below}">{x_label}</text>'
            '<text class="mid" transform="translate(13 {half}) rotate(-90)">{y_label}</text>'
        ).format(
            left=left, top=top, floor=floor, right=right, middle=(left + right) / 2,
            below=frame.height - 8, half=(top + floor) / 2, x_label=x_label, y_label=y_label,
        )
    )  # fmt: skip
    return Markup("").join(parts)


def draw_line(area: Area, line: Line) -> Markup:
    """A line with marks of its own shape, few enough to tell apart."""
    places = [(area.x(x), area.y(y)) for x, y in line.points]
    return draw_places(Line(points=places, style=line.style))


def draw_places(line: Line) -> Markup:
    """The same of a line whose points are places in the drawing."""
    places = line.points
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    every = max(1, math.ceil(len(places) / _MOST_MARKS))
    # Counted from the end, so that the last point, which the text speaks of, has its mark.
    marked = places[::-1][::every]
    return Markup('<polyline class="line s{}" points="{}"/>').format(line.style, path) + Markup(
        ""
    ).join(_mark(x, y, line.style) for x, y in marked)


def drawing(box: str, title: str, about: str, content: Markup) -> Markup:
    """A drawing that names itself to a reader who cannot see it."""
    return Markup(
        '<svg viewBox="{}" role="img" aria-label="{}. {}"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(box, title, about, title, about, content)


def both(wide: Markup, narrow: Markup) -> Markup:
    """Two drawings of the same, of which the style of the page shows the one that fits."""
    return Markup('<div class="on-wide">{}</div><div class="on-narrow">{}</div>').format(
        wide, narrow
    )


def key(style: int) -> Markup:
    """A small sample of a line style, for a legend."""
    return Markup(
        '<svg class="key" viewBox="0 0 44 14" width="44" height="14" aria-hidden="true">'
        '<path class="line s{}" d="M1 7H43"/>{}</svg>'
    ).format(style, _mark(22, 7, style))


def spread(wanted: Sequence[float], *, gap: float, limit: float) -> list[float]:
    """Vertical places near the wanted ones, at least `gap` apart, none below `limit`.

    >>> spread([100.0, 102.0, 40.0], gap=16, limit=272)
    [100.0, 116.0, 40.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    found = list(wanted)
    for before, after in itertools.pairwise(order):
        found[after] = max(found[after], found[before] + gap)
    for index in reversed(order):
        found[index] = min(found[index], limit)
        limit = found[index] - gap
    return found


def _mark(x: float, y: float, style: int) -> Markup:
    circle, square, triangle, diamond = (
        f"M{x - 3.6:.1f} {y:.1f}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
        f"M{x - 3.3:.1f} {y - 3.3:.1f}h6.6v6.6h-6.6z",
        f"M{x:.1f} {y - 4.4:.1f}l4.2 7.4h-8.4z",
        f"M{x:.1f} {y - 4.8:.1f}l4.8 4.8-4.8 4.8-4.8-4.8z",
    )
    shape = (circle, square, triangle, diamond)[style % MARKS]
    return Markup('<path class="mark s{}" d="{}"/>').format(style, shape)
