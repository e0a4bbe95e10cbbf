"""The drawing of the network."""

import itertools
import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from overhear.reports.figures import chart
from overhear.reports.figures.chart import Network, network_key
from tests.conftest import typed

Report = dict[str, Any]


def graph_figure(report: Report) -> str:
    return chart.graph_figure(typed(report))


def network(report: Report) -> Network:
    return chart.network(typed(report))


def joined(report: Report, agents: int, pairs: list[tuple[int, int]], name: str) -> Report:
    report["run"] |= {
        "graph": name,
        "agents": agents,
        "edges": [list(pair) for pair in pairs],
        "edges_in_all": len(pairs),
    }
    return report


def circles(drawing: str) -> list[tuple[float, float, float]]:
    found = re.findall(
        r'<circle class="(?:agent|watcher|victim)" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"',
        drawing,
    )
    return [(float(x), float(y), float(r)) for x, y, r in found]


def segments(drawing: str, kind: str) -> int:
    paths = re.findall(rf'<path class="{kind}[^"]*" d="([^"]*)"', drawing)
    return sum(path.count("L") for path in paths)


def test_the_drawing_is_well_formed_and_names_itself(report):
    root = ET.fromstring(graph_figure(report))  # noqa: S314 - our own drawing
    assert root.attrib["role"] == "img"
    assert root.findtext("title")
    words = root.findtext("desc")
    assert words is not None
    assert "agent 0 holds the record at risk; it is joined to 1, 9" in words


def test_every_agent_and_every_link_is_drawn(report):
    drawing = graph_figure(report)
    assert len(circles(drawing)) == 10
    assert (segments(drawing, "hot"), segments(drawing, "edge")) == (2, 8)


def test_the_victim_and_the_agents_set_against_it_are_marked(report):
    drawing = graph_figure(report)
    assert re.findall(r'class="mid victim"[^>]*>(\d)<', drawing) == ["0"]
    assert re.findall(r'class="mid watcher"[^>]*>(\d)<', drawing) == ["1", "9"]


def test_members_of_a_coalition_are_marked(report):
    rows = report["plan"]["adversaries"]
    rows[1] |= {"name": "coalition:4,7", "worst_adversary": None}
    assert network(report).watching == {4, 7}


def test_links_that_an_eavesdropper_reads_bear_a_mark_of_their_own(report):
    [tapped] = re.findall(r'class="tap" d="([^"]*)"', graph_figure(report))
    assert tapped.count("M") == 2
    report["run"]["links"] = "encrypted"
    drawing = graph_figure(report)
    assert 'class="tap"' not in drawing
    assert 'class="hot locked"' in drawing


def test_a_link_that_goes_one_way_has_an_arrow_at_its_receiver(report):
    assert 'class="way"' not in graph_figure(report)
    report["run"]["one_way"] = [[1, 0]]
    drawing = graph_figure(report)
    [(tip_x, tip_y)] = re.findall(r'class="way" d="M([\d.]+) ([\d.]+)L', drawing)
    places = circles(drawing)
    to = [math.dist((float(tip_x), float(tip_y)), (x, y)) for x, y, _ in places]
    assert to.index(min(to)) == 0


def test_a_server_that_takes_the_place_of_links_is_drawn(report):
    report["run"] |= {"server": True, "links_used": False}
    drawing = graph_figure(report)
    assert 'class="server"' in drawing
    assert segments(drawing, "edge spoke") == 9
    assert segments(drawing, "hot") == 1
    assert network(report).watching == {1}  # the worst one of section 3, joined or not


def test_the_hub_of_a_star_stands_in_the_middle(report):
    joined(report, 12, [(0, i) for i in range(1, 12)], "star")
    middle, *around = circles(graph_figure(report))
    assert middle[:2] == (150.0, 150.0)
    assert {round(math.dist(at[:2], (150, 150))) for at in around} == {124}


def test_the_halves_of_a_bipartite_graph_face_each_other(report):
    joined(report, 6, [(a, b) for a in range(4) for b in (4, 5)], "bipartite")
    columns = [x for x, _, _ in circles(graph_figure(report))]
    assert columns == [70.0] * 4 + [230.0] * 2


def test_agents_on_a_circle_go_clockwise_from_its_top(report):
    joined(report, 4, [(0, 1), (1, 2), (2, 3), (0, 3)], "ring")
    found = [(round(x), round(y)) for x, y, _ in circles(graph_figure(report))]
    assert found == [(150, 26), (274, 150), (150, 274), (26, 150)]


def test_a_bipartite_graph_by_name_alone_is_drawn_on_a_circle(report):
    joined(report, 4, [(0, 1), (1, 2), (0, 2), (2, 3)], "bipartite")
    assert {round(math.dist(at[:2], (150, 150))) for at in circles(graph_figure(report))} == {124}


def test_a_grid_is_drawn_in_its_rows(report):
    beside = [(i, i + 1) for i in range(6) if i % 3 != 2]
    joined(report, 6, [*beside, *((i, i + 3) for i in range(3))], "grid")
    places = circles(graph_figure(report))
    assert [len({y for _, y, _ in places}), len({x for x, _, _ in places})] == [2, 3]


@pytest.mark.parametrize("agents", [1, 2, 3, 10, 60, 120])
def test_agents_lie_inside_the_drawing_and_do_not_overlap(report, agents):
    pairs = [(i, (i + 1) % agents) for i in range(agents if agents > 2 else agents - 1)]
    places = circles(graph_figure(joined(report, agents, pairs, "ring")))
    assert len(places) == agents
    for x, y, r in places:
        assert r < x < 300 - r
        assert r < y < 300 - r
    for a, b in itertools.combinations(places, 2):
        assert math.dist(a[:2], b[:2]) >= a[2] + b[2]


def test_of_a_large_network_only_what_is_around_the_victim_is_drawn(report):
    joined(report, 1000, [(i, (i + 1) % 1000) for i in range(1000)], "ring")
    assert len(circles(graph_figure(report))) == 3
    assert network(report).left_out == 997


def test_a_large_network_stays_a_small_drawing(report):
    joined(report, 1000, [(0, i) for i in range(1, 1000)], "full")
    report["run"]["edges_in_all"] = 499_500
    drawing = graph_figure(report)
    assert len(drawing) < 20_000
    assert "agents are not drawn" in drawing


def test_a_hostile_graph_name_stays_text(report):
    report["run"]["graph"] = '"><script>alert(1)</script>'
    assert "<script" not in graph_figure(report)


@pytest.mark.parametrize("what", ["victim", "watcher", "tap", "hot", "lock", "way", "server"])
def test_each_mark_has_a_key(what):
    assert ET.fromstring(network_key(what)).attrib["aria-hidden"] == "true"  # noqa: S314
