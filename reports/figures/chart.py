"""A line chart as inline SVG: axes, lines told apart without colour, labels that do not collide.

Each chart is drawn for two widths, since letters that shrink with a drawing cannot be read on a
phone; the style of the page shows one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...privacy.guarantee import Guarantee
from ..schema import Report, Run

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


# Who talks to whom: the agents and their links, the victim and the adversaries' agents marked.
#
# The victim is filled, the adversaries' agents have a second outline, and what an eavesdropper
# reads bears a diamond: shapes, not colours. Of a network too large to draw only what is around the
# victim is drawn, and the drawing says how much is missing.

_MOST_AGENTS, _MOST_LINKS = 120, 600
_MOST_AROUND = 40
_CROWDED = 80  # links, from where lines are thin
_SIZE = 300.0
_REACH = 124.0  # from the middle to the outermost agents
_COLUMN = 80.0 / _REACH  # of a bipartite graph, from the middle
_NAMED = 7.5  # least radius of an agent that bears its number

Place = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What is drawn.

    Attributes:
        agents: in the order in which they are placed; the victim is one of them.
        links: pairs of them.
        one_way: (sender, receiver) of links that go one way alone.
        victim: the agent whose record is at risk.
        watching: agents of the adversaries that are set against the victim.
        tapped: whether an eavesdropper reads the links.
        left_out: agents that are not drawn.
        links_in_all: how many links there are, drawn or not.
    """

    agents: tuple[int, ...]
    links: tuple[tuple[int, int], ...]
    one_way: frozenset[tuple[int, int]]
    victim: int
    watching: frozenset[int]
    tapped: bool
    encrypted: bool
    server: bool
    left_out: int
    links_in_all: int

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Agents that are joined to the victim."""
        return tuple(
            sorted({b if a == self.victim else a for a, b in self.links if self.victim in (a, b)})
        )

    @property
    def shown_watching(self) -> tuple[int, ...]:
        """Agents of the adversaries that are drawn."""
        return tuple(sorted(self.watching & set(self.agents)))


def network(report: Report) -> Network:
    """What of a report's network is drawn."""
    run, rows, target = report.run, report.plan.adversaries, report.plan.target.adversary
    victim = next((row for row in rows if row.adversary == target), rows[0]).victim
    count, in_all = run.agents, run.edges_in_all
    links = [(a, b) for a, b in run.edges if a != b]
    if not run.links_used:
        links, in_all = [], 0
    agents: Sequence[int] = range(count)
    if count > _MOST_AGENTS or in_all > _MOST_LINKS:
        near = sorted({b if a == victim else a for a, b in links if victim in (a, b)})
        agents = [victim, *near[:_MOST_AROUND]]
        links = [pair for pair in links if victim in pair and set(pair) <= set(agents)]
    return Network(
        agents=tuple(agents),
        links=tuple(links),
        one_way=frozenset(run.one_way),
        victim=victim,
        watching=_watching(rows, links, victim),
        tapped=run.links != "encrypted" and any(row.adversary == "eavesdropper" for row in rows),
        encrypted=run.links == "encrypted",
        server=run.server,
        left_out=count - len(agents),
        links_in_all=in_all,
    )


def graph_figure(report: Report) -> Markup:
    """The drawing of a report's network."""
    net, run = network(report), report.run
    place = _places(net, run.graph)
    radius = _radius(place)
    shown = [
        *_lines(net, place, radius),
        *_diamonds(net, place),
        *([_server()] if net.server else []),
        *(_agent(net, agent, at, radius) for agent, at in place.items()),
    ]
    box = f"0 0 {_SIZE:g} {_SIZE:g}"
    return drawing(box, "Who talks to whom", _words(net, run), Markup("").join(shown))


def network_key(what: str) -> Markup:
    """A small sample of a mark: "victim", "watcher", "tap", "hot", "lock", "way" or "server"."""
    shapes = {
        "victim": Markup('<circle class="victim" cx="22" cy="9" r="7"/>'),
        "watcher": Markup(
            '<circle class="watcher" cx="22" cy="9" r="5"/>'
            '<circle class="ring" cx="22" cy="9" r="8"/>'
        ),
        "tap": Markup('<path class="hot" d="M1 9H43"/><path class="tap" d="M22 3l6 6-6 6-6-6z"/>'),
        "hot": Markup('<path class="hot" d="M1 9H43"/>'),
        "lock": Markup('<path class="hot locked" d="M1 9H43"/>'),
        "way": Markup('<path class="edge" d="M1 9H43"/><path class="way" d="M32 9l-9 4.5v-9z"/>'),
        "server": Markup('<rect class="server" x="12" y="2" width="20" height="14" rx="2"/>'),
    }
    return Markup(
        '<svg class="key" viewBox="0 0 44 18" width="44" height="18" aria-hidden="true">{}</svg>'
    ).format(shapes[what])


def _watching(
    rows: Sequence[Guarantee], links: Sequence[tuple[int, int]], victim: int
) -> frozenset[int]:
    """The agents of the adversaries that are set against the victim."""
    named = [row.worst_adversary or row.adversary for row in rows if row.victim == victim]
    members = (name.partition(":")[2] for name in named)
    found = {int(m) for text in members for m in text.split(",") if m.strip().isdecimal()}
    if any(row.adversary == "neighbour" for row in rows):  # any one of them is meant
        found |= {agent for pair in links if victim in pair for agent in pair}
    return frozenset(found - {victim})


def _places(net: Network, name: str) -> dict[int, Place]:
    """Where each agent is drawn: in two columns, in rows, or on a circle clockwise from its top.

    On a circle agents keep clear of each other and so bear their numbers; layouts by forces put
    some so close that all would have to be drawn too small for one.
    """
    import networkx as nx

    # A grid has as many columns as the first agent is from the one below.
    graph = nx.Graph()
    graph.add_nodes_from(net.agents)
    graph.add_edges_from(net.links)
    whole = not net.left_out
    columns = max(graph[0], default=0) if name == "grid" and whole else 0
    if name == "bipartite" and whole and nx.is_connected(graph) and nx.is_bipartite(graph):
        half = nx.bipartite.color(graph)
        left = [agent for agent in graph if half[agent] == half[0]]
        right = [agent for agent in graph if half[agent] != half[0]]
        at = {
            agent: (x, 2 * (i + 0.5) / len(side) - 1)
            for x, side in ((-_COLUMN, left), (_COLUMN, right))
            for i, agent in enumerate(side)
        }
    elif columns > 1:  # agent 0 is joined to the one beside it and, `columns` on, to the one below
        rows = -(-len(graph) // columns)
        step = 2 / max(columns - 1, rows - 1)
        at = {
            agent: (
                step * (k % columns - (columns - 1) / 2),
                step * (k // columns - (rows - 1) / 2),
            )
            for k, agent in enumerate(graph)
        }
    else:
        hub = _hub(net)
        around = nx.circular_layout(graph.subgraph(agent for agent in graph if agent != hub))
        at = {} if hub is None else {hub: (0.0, 0.0)}
        at |= {agent: (y, -x) for agent, (x, y) in around.items()}  # clockwise from the top
    return {
        a: (_SIZE / 2 + _REACH * float(x), _SIZE / 2 + _REACH * float(y))
        for a, (x, y) in at.items()
    }


def _hub(net: Network) -> int | None:
    """The agent to which every link goes, for the middle; the server's place if there is one."""
    if net.server or len(net.agents) < 4:
        return None
    ends = [set(pair) for pair in net.links]
    common = set.intersection(*ends) if ends else set()
    return next(iter(common)) if len(common) == 1 else None


def _radius(place: Mapping[int, Place]) -> float:
    """As large as the nearest two agents allow."""
    at = list(place.values())
    nearest = min((math.dist(a, b) for i, a in enumerate(at) for b in at[i + 1 :]), default=_SIZE)
    return max(2.2, min(14.0, nearest / 3.0))


def _lines(net: Network, place: Mapping[int, Place], radius: float) -> list[Markup]:
    """Links as two paths, ordinary ones first, and an arrow on each that goes one way."""
    thin = " thin" if len(net.links) > _CROWDED else ""
    found = []
    # Links of the victim are drawn over all others.
    for hot in (False, True):
        ends = [(place[a], place[b]) for a, b in net.links if (net.victim in (a, b)) == hot]
        path = "".join(f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" for a, b in ends)
        locked = " locked" if hot and net.encrypted else ""
        kind = ("hot" if hot else "edge") + locked + thin
        if path:
            found.append(Markup('<path class="{}" d="{}"/>').format(kind, path))
    # A server stands in the middle.
    if net.server:
        middle = _SIZE / 2
        for hot in (False, True):
            path = "".join(
                f"M{x:.1f} {y:.1f}L{middle:g} {middle:g}"
                for agent, (x, y) in place.items()
                if (agent == net.victim) == hot
            )
            locked = " locked" if hot and net.encrypted else ""
            kind = f"hot{locked}" if hot else "edge spoke"
            found.append(Markup('<path class="{}" d="{}"/>').format(kind, path))
    arrows = [
        _arrow(place[j], place[i], radius)
        for j, i in sorted(net.one_way)
        if j in place and i in place and (min(i, j), max(i, j)) in set(net.links)
    ]
    if arrows:
        found.append(Markup('<path class="way" d="{}"/>').format("".join(arrows)))
    return found


def _arrow(start: Place, end: Place, radius: float) -> str:
    """A triangle that ends where the receiver's circle begins."""
    length = math.dist(start, end) or 1.0
    along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    tip = (end[0] - along[0] * (radius + 5), end[1] - along[1] * (radius + 5))
    back = (tip[0] - along[0] * 9, tip[1] - along[1] * 9)
    side = (-along[1] * 4, along[0] * 4)
    return (
        f"M{tip[0]:.1f} {tip[1]:.1f}L{back[0] + side[0]:.1f} {back[1] + side[1]:.1f}"
        f"L{back[0] - side[0]:.1f} {back[1] - side[1]:.1f}z"
    )


def _diamonds(net: Network, place: Mapping[int, Place]) -> list[Markup]:
    """On every link of the victim that an eavesdropper reads."""
    if not net.tapped:
        return []
    ends = [(place[a], place[b]) for a, b in net.links if net.victim in (a, b)]
    if net.server:
        ends.append((place[net.victim], (_SIZE / 2, _SIZE / 2)))
    found = ""
    for start, end in ends:
        x, y = ((start[k] + end[k]) / 2 for k in (0, 1))
        found += f"M{x:.1f} {y - 6:.1f}l6 6-6 6-6-6z"
    return [Markup('<path class="tap" d="{}"/>').format(found)] if found else []


def _server() -> Markup:
    middle = _SIZE / 2
    return Markup(
        '<rect class="server" x="{:g}" y="{:g}" width="68" height="30" rx="3"/>'
        '<text class="mid" x="{:g}" y="{:g}">server</text>'
    ).format(middle - 34, middle - 15, middle, middle + 4)


def _agent(net: Network, agent: int, at: Place, radius: float) -> Markup:
    x, y = at
    role = "victim" if agent == net.victim else "watcher" if agent in net.watching else "agent"
    size = max(radius, 4.2) if role == "victim" else radius
    found = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(
        role, x, y, size
    )
    if role == "watcher":
        ring = Markup('<circle class="ring" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>')
        found += ring.format(x, y, radius + max(1.8, radius / 4))
    if radius >= _NAMED:
        found += Markup('<text class="mid {}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            role, x, y + 4, agent
        )
    return found


def _words(net: Network, run: Run) -> str:
    """The drawing in sentences."""
    said = [
        f"Network {run.graph} of {run.agents} agent{'s' * (run.agents != 1)} "
        f"with {net.links_in_all} links",
        f"agent {net.victim} holds the record at risk",
    ]
    near = net.neighbours
    if near:
        some = ", ".join(map(str, near[:8])) + (" and others" if len(near) > 8 else "")
        said.append(f"it is joined to {some}")
    if net.tapped:
        said.append("an eavesdropper reads the links")
    if net.encrypted:
        said.append("links are encrypted")
    if net.server:
        said.append("all agents talk to a server")
    if net.left_out:
        said.append(f"{net.left_out} agents are not drawn")
    return "; ".join(said) + "."
