"""The drawings of a report: who talks to whom, epsilon by round, utility by round.

Inline SVG without script. Lines differ in dash and mark, agents in outline and fill, so that a grey
print says the same; colours are those of Okabe and Ito. Every drawing names itself to a reader that
cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from .chart import HEIGHT, LEFT, MARKS, RIGHT, WIDTH, Area, Line, axes, draw_line, spread, ticks
from .cited import Cited
from .verdict import last_round_within

__all__ = ["Series", "epsilon_figure", "epsilon_series", "graph_figure", "utility_figure"]

_MOST_AGENTS = 60
_MOST_EDGES = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Adversaries whose epsilon is the same in every round, and the style of their line."""

    names: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    style: int
    proven: bool


def graph_figure(report: Mapping[str, Any]) -> Markup:
    """The agents on a circle: the victim filled, the adversary's agents outlined twice.

    Of a network of more than 60 agents only the victim and its neighbours are drawn.
    """
    run = report["run"]
    victim, watching = _victim_and_watchers(report)
    edges = [(int(a), int(b)) for a, b in run["edges"] if a != b]
    agents = list(range(int(run["agents"])))
    if len(agents) > _MOST_AGENTS:
        near = {b if a == victim else a for a, b in edges if victim in (a, b)}
        agents = [victim, *sorted(near)[: _MOST_AGENTS - 1]]
        edges = [edge for edge in edges if victim in edge and set(edge) <= set(agents)]
    radius = max(4.0, min(14.0, 300.0 / max(len(agents), 1)))
    turn = 2 * math.pi / max(len(agents), 1)
    place = {
        agent: (120 + 96 * math.sin(turn * i), 120 - 96 * math.cos(turn * i))
        for i, agent in enumerate(agents)
    }
    crowd = " thin" if len(edges) > _MOST_EDGES else ""
    parts = [
        Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
            ("hot" if victim in (a, b) else "edge") + crowd, *place[a], *place[b]
        )
        for a, b in sorted(edges, key=lambda edge: victim in edge)
    ]
    for agent, (x, y) in place.items():
        role = "victim" if agent == victim else "watcher" if agent in watching else "agent"
        parts.append(
            Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(
                role, x, y, radius
            )
        )
        if role == "watcher":
            parts.append(
                Markup('<circle class="ring" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(
                    x, y, radius + 3.5
                )
            )
        if radius >= 8:
            parts.append(
                Markup('<text class="mid {}" x="{:.1f}" y="{:.1f}">{}</text>').format(
                    role, x, y + 4, agent
                )
            )
    words = f"{run['graph']} of {run['agents']} agents; agent {victim} holds the record"
    return _svg("0 0 240 240", "Who talks to whom", words, Markup("").join(parts))


def epsilon_series(report: Mapping[str, Any]) -> list[Series]:
    """The lines of `epsilon_figure`; adversaries with equal figures share one."""
    status = {row["name"]: row["status"] for row in report["plan"]["adversaries"]}
    grouped: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, series in report["epsilon_by_round"].items():
        points = tuple((float(x), float(y)) for x, y in series if math.isfinite(float(y)))
        if points:
            grouped.setdefault(points, []).append(name)
    return [
        Series(
            names=tuple(names),
            points=points,
            style=number % MARKS,
            proven=all(status.get(name) == "proven" for name in names),
        )
        for number, (points, names) in enumerate(grouped.items())
    ]


def epsilon_figure(report: Mapping[str, Any]) -> Markup:
    """Epsilon spent by round for each adversary, against the target."""
    cited, lines, target = Cited(report), epsilon_series(report), report["plan"]["target"]
    limit = None if target["epsilon"] is None else float(target["epsilon"])
    top = max([y for line in lines for _, y in line.points] + ([limit] if limit else [0.0]))
    area = Area(x_max=max(float(report["run"]["rounds"]), 1.0), y_max=ticks(top * 1.04)[-1])
    parts = [axes(area, x_label="training round", y_label="ε spent so far, one record")]
    labels = []
    if limit is not None:
        y = area.y(limit)
        parts.append(
            Markup('<line class="limit" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, y, y
            )
        )
        parts.append(_crossing(report, cited, area, limit))
        labels.append((y, Markup("target ε = ") + cited.svg("bound", "plan", "target", "epsilon")))
    for line in lines:
        parts.append(draw_line(area, Line(points=line.points, style=line.style)))
        name = line.names[0]
        last = len(report["epsilon_by_round"][name]) - 1
        kind = "bound" if line.proven else "figure"
        figure = cited.svg(kind, "epsilon_by_round", name, last, 1)
        more = f" +{len(line.names) - 1}" if len(line.names) > 1 else ""
        words = Markup("{}{}: {}{}").format(_short(name), more, "" if line.proven else "≥ ", figure)
        labels.append((area.y(line.points[-1][1]), words))
    parts.append(_end_labels(labels))
    about = f"Lines for {', '.join(name for line in lines for name in line.names)}"
    return _svg(f"0 0 {WIDTH} {HEIGHT}", "Epsilon by round", about, Markup("").join(parts))


def utility_figure(report: Mapping[str, Any]) -> Markup:
    """Test accuracy of the mean model by round, with the range of the agents' own models."""
    cited, utility = Cited(report), report["utility"]
    rounds = [float(r) for r in utility["rounds"]]
    area = Area(x_max=max(*rounds, 1.0), y_max=1.0)
    parts = [
        axes(
            area,
            x_label="training round",
            y_label="test accuracy",
            y_text=lambda value: f"{value:.0%}".replace("%", " %"),
        )
    ]
    low, high = utility["agent_accuracy_min"], utility["agent_accuracy_max"]
    outline = [*zip(rounds, high, strict=True), *reversed(list(zip(rounds, low, strict=True)))]
    band = " ".join(f"{area.x(x):.1f},{area.y(float(y)):.1f}" for x, y in outline)
    parts.append(Markup('<polygon class="band" points="{}"/>').format(band))
    mean = [float(value) for value in utility["consensus_accuracy"]]
    parts.append(draw_line(area, Line(points=list(zip(rounds, mean, strict=True)), style=0)))
    last = len(rounds) - 1
    labels = [
        (
            area.y(mean[-1]),
            Markup("mean model: ") + cited.svg("percent", "utility", "consensus_accuracy", last),
        ),
        (
            area.y((float(low[-1]) + float(high[-1])) / 2) + 1,
            Markup("agents: {} to {}").format(
                cited.svg("percent", "utility", "agent_accuracy_min", last),
                cited.svg("percent", "utility", "agent_accuracy_max", last),
            ),
        ),
    ]
    parts.append(_end_labels(labels))
    about = "Line: mean model. Band: from the worst to the best agent's own model."
    return _svg(f"0 0 {WIDTH} {HEIGHT}", "Test accuracy by round", about, Markup("").join(parts))


def _victim_and_watchers(report: Mapping[str, Any]) -> tuple[int, set[int]]:
    rows, target = report["plan"]["adversaries"], report["plan"]["target"]["adversary"]
    row = next((r for r in rows if r["name"] == target), rows[0])
    victim = int(row["victim"])
    named = [r["worst_adversary"] or r["name"] for r in rows if r["victim"] == victim]
    members = (name.partition(":")[2] for name in named)
    watching = {int(m) for text in members for m in text.split(",") if m.strip().isdigit()}
    if any(r["name"] == "neighbour" for r in rows):  # any one of them is meant
        watching |= {int(a) for edge in report["run"]["edges"] if victim in edge for a in edge}
    return victim, watching - {victim}


def _crossing(report: Mapping[str, Any], cited: Cited, area: Area, limit: float) -> Markup:
    """The last round within the target, where the run goes beyond it."""
    name = report["plan"]["target"]["adversary"]
    series: Sequence[Sequence[Any]] = report["epsilon_by_round"].get(name, [])
    last = last_round_within(report, name, limit)
    if last is None or last == len(series) - 1:
        return Markup("")
    x = area.x(float(series[last][0]))
    right = x > (LEFT + WIDTH - RIGHT) / 2
    return Markup(
        '<line class="drop" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{floor}"/>'
        '<text class="{side}" x="{beside:.1f}" y="{low}">'
        "within the target up to round {round}</text>"
    ).format(
        x=x,
        top=area.y(limit),
        floor=area.y(0),
        side="end" if right else "start",
        beside=x - 6 if right else x + 6,
        low=area.y(0) - 8,
        round=cited.svg("whole", "epsilon_by_round", name, last, 0),
    )


def _end_labels(labels: Sequence[tuple[float, Markup]]) -> Markup:
    places = spread([y for y, _ in labels], gap=17)
    return Markup("").join(
        Markup('<text class="label" x="{}" y="{:.1f}">{}</text>').format(
            WIDTH - RIGHT + 10, y + 4, words
        )
        for y, (_, words) in zip(places, labels, strict=True)
    )


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"


def _svg(box: str, title: str, about: str, content: Markup) -> Markup:
    return Markup('<svg viewBox="{}" role="img"><title>{}</title><desc>{}</desc>{}</svg>').format(
        box, title, about, content
    )
