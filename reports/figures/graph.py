"""Who talks to whom: the agents and their links, the victim and the adversaries' agents marked.

The victim is filled, the adversaries' agents have a second outline, and what an eavesdropper reads
bears a diamond: shapes, not colours. Of a network too large to draw only what is around the
victim is drawn, and the drawing says how much is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...privacy.guarantee import Guarantee
from ..schema import Report, Run
from .chart import drawing

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
