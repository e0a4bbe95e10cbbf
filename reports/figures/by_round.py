"""The charts of a report: epsilon by round, utility by round.

Inline SVG without script. Lines differ in dash and mark, so that a grey print says the same;
colours are those of Okabe and Ito. Every drawing names itself to a reader that cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...runs.numbers import percent
from ..cited import Cited
from ..schema import Report
from ..standing import kind_of
from .chart import (
    MARKS,
    NARROW,
    WIDE,
    Area,
    Frame,
    Line,
    axes,
    draw_line,
    drawing,
    spread,
    ticks,
)

__all__ = ["Series", "epsilon_figure", "epsilon_series", "utility_figure"]

_MOST_DOTS = 200  # agents whose own accuracy is a tick at the edge


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Adversaries whose epsilon is the same in every round, and the style of their line."""

    names: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    style: int
    proven: bool


def epsilon_series(report: Report) -> list[Series]:
    """The lines of `epsilon_figure`; adversaries with equal figures and status share one."""
    status = {row.adversary: row.proven for row in report.plan.adversaries}
    grouped: dict[tuple[tuple[tuple[float, float], ...], bool], list[str]] = {}
    for name, series in report.epsilon_by_round.items():
        points = tuple((float(x), float(y)) for x, y in series if math.isfinite(float(y)))
        if points:
            grouped.setdefault((points, status.get(name, False)), []).append(name)
    return [
        Series(
            names=tuple(names),
            points=points,
            style=number % MARKS,
            proven=proven,
        )
        for number, ((points, proven), names) in enumerate(grouped.items())
    ]


def epsilon_figure(report: Report, cited: Cited, *, narrow: bool = False) -> Markup:
    """Epsilon spent by round for each adversary, against the limit of the run file."""
    frame, lines, target = NARROW if narrow else WIDE, epsilon_series(report), report.plan.target
    limit = None if target.epsilon is None else float(target.epsilon)
    top = max([y for line in lines for _, y in line.points] + ([limit] if limit else [0.0]))
    last_round = max([x for line in lines for x, _ in line.points], default=1.0)
    x_max = max(float(report.run.rounds), last_round)  # rounds may have been repeated
    area = Area(x_max=x_max, y_max=ticks(top * 1.04)[-1], frame=frame)
    rows = report.plan.adversaries
    about = rows[0].unit.words_with(rows[0].records_per_person) if rows else "one record"
    parts = [axes(area, x_label="training round", y_label=f"ε spent so far, {about}")]
    labels = []
    if limit is not None:
        y = area.y(limit)
        parts.append(
            Markup('<line class="limit" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                frame.left, frame.edge, y, y
            )
        )
        parts.append(_crossing(report, cited, area, limit))
        labels.append((y, Markup("limit ε = ") + cited.svg("bound", "plan", "target", "epsilon")))
    for line in lines:
        parts.append(draw_line(area, Line(points=line.points, style=line.style)))
        name = line.names[0]
        last = len(report.epsilon_by_round[name]) - 1
        kind = kind_of(proven=line.proven)
        figure = cited.svg(kind, "epsilon_by_round", name, last, 1)
        more = f" +{len(line.names) - 1}" if len(line.names) > 1 else ""
        words = Markup("{}{}: {}{}").format(_short(name), more, "" if line.proven else "≥ ", figure)
        labels.append((area.y(line.points[-1][1]), words))
    parts.append(_end_labels(labels, frame))
    drawn = f"Lines for {', '.join(name for line in lines for name in line.names)}"
    if limit is not None:
        drawn += "; a dashed horizontal line for the limit"
    return drawing(frame.box, "Epsilon by round", drawn, Markup("").join(parts))


def utility_figure(report: Report, cited: Cited, *, narrow: bool = False) -> Markup:
    """Test accuracy of the mean model by round, with the range of the agents' own models."""
    frame, utility = NARROW if narrow else WIDE, report.utility
    rounds = [float(r) for r in utility.rounds]
    area = Area(x_max=max(*rounds, 1.0), y_max=1.0, frame=frame)
    parts = [
        axes(
            area,
            x_label="training round",
            y_label="test accuracy",
            y_text=lambda value: percent(value, 0),
        )
    ]
    low, high = utility.agent_accuracy_min, utility.agent_accuracy_max
    outline = [*zip(rounds, high, strict=True), *reversed(list(zip(rounds, low, strict=True)))]
    band = " ".join(f"{area.x(x):.1f},{area.y(y):.1f}" for x, y in outline)
    parts.append(Markup('<polygon class="band" points="{}"/>').format(band))
    mean = utility.consensus_accuracy
    parts.append(draw_line(area, Line(points=list(zip(rounds, mean, strict=True)), style=0)))
    last = len(rounds) - 1
    each = utility.agent_accuracy_last
    if len(each) <= _MOST_DOTS:
        path = "".join(f"M{area.x(rounds[-1]) + 1:.1f} {area.y(y):.1f}h7" for y in each)
        parts.append(Markup('<path class="tick" d="{}"/>').format(path) if path else Markup(""))
    labels = [
        (
            area.y(mean[-1]),
            Markup("mean model: ") + cited.svg("percent", "utility", "consensus_accuracy", last),
        ),
        (
            area.y((low[-1] + high[-1]) / 2) + 1,
            Markup("agents: {} to {}").format(
                cited.svg("percent", "utility", "agent_accuracy_min", last),
                cited.svg("percent", "utility", "agent_accuracy_max", last),
            ),
        ),
    ]
    parts.append(_end_labels(labels, frame))
    about = (
        "Line: mean model. Band: from the worst to the best agent's own model. Ticks at the right: "
        "every agent's own model at the end."
    )
    return drawing(frame.box, "Test accuracy by round", about, Markup("").join(parts))


def _crossing(report: Report, cited: Cited, area: Area, limit: float) -> Markup:
    """The last round within the limit, of the target adversary or else of one that passes it."""
    within, target = report.within_limit, report.plan.target.adversary
    name = target if target is not None and target in within else next(iter(within), None)
    if name is None:
        return Markup("")
    x = area.x(float(within[name].rounds))
    right = x > (area.frame.left + area.frame.edge) / 2
    return Markup(
        '<line class="drop" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{floor}"/>'
        '<path class="stop" d="M{x:.1f} {top:.1f}m-5 -5l10 10m0 -10l-10 10"/>'
        '<text class="{side}" x="{beside:.1f}" y="{low}">'
        "{words} up to round {round}</text>"
    ).format(
        x=x,
        top=area.y(limit),
        floor=area.y(0),
        side="end" if right else "start",
        beside=x - 8 if right else x + 8,
        low=area.y(0) - 8,
        words="within it" if area.frame.is_narrow else "within the limit",
        round=cited.svg("whole", "within_limit", name, "rounds"),
    )


def _end_labels(labels: Sequence[tuple[float, Markup]], frame: Frame) -> Markup:
    """What lines are called, beside their ends; in a narrow drawing above them."""
    inside = frame.is_narrow
    up = 10 if inside else 0
    places = spread([y - up for y, _ in labels], gap=19, limit=float(frame.floor - 4))
    return Markup("").join(
        Markup('<text class="label{}" x="{}" y="{:.1f}">{}</text>').format(
            " end over" if inside else "", frame.edge + (-4 if inside else 10), y + 4, words
        )
        for y, (_, words) in zip(places, labels, strict=True)
    )


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
