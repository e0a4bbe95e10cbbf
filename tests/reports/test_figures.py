"""The drawings."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhear.reports.chart import HEIGHT, key, spread, ticks
from overhear.reports.figures import epsilon_figure, epsilon_series, graph_figure, utility_figure

Report = dict[str, Any]


@pytest.mark.parametrize("draw", [graph_figure, epsilon_figure, utility_figure])
def test_a_drawing_is_well_formed_and_names_itself(report: Report, draw) -> None:
    root = ET.fromstring(draw(report))  # noqa: S314 - our own drawing
    assert root.attrib["role"] == "img"
    assert root.findtext("title")
    assert root.findtext("desc")


def test_the_graph_has_every_agent_and_every_link(report: Report) -> None:
    drawing = graph_figure(report)
    assert len(re.findall(r'<circle class="(?:agent|watcher|victim)"', drawing)) == 10
    assert len(re.findall(r"<line ", drawing)) == 10
    assert len(re.findall(r'class="hot"', drawing)) == 2


def test_the_graph_marks_the_victim_and_the_agents_set_against_it(report: Report) -> None:
    drawing = graph_figure(report)
    assert re.findall(r'class="mid victim"[^>]*>(\d)<', drawing) == ["0"]
    assert re.findall(r'class="mid watcher"[^>]*>(\d)<', drawing) == ["1", "9"]


def test_the_graph_marks_the_members_of_a_coalition(report: Report) -> None:
    rows = report["plan"]["adversaries"]
    rows[1] |= {"name": "coalition:4,7", "worst_adversary": None}
    assert re.findall(r'class="mid watcher"[^>]*>(\d)<', graph_figure(report)) == ["4", "7"]


def test_of_a_large_network_only_the_victims_neighbourhood_is_drawn(report: Report) -> None:
    report["run"]["agents"] = 1000
    report["run"]["edges"] = [[i, (i + 1) % 1000] for i in range(1000)]
    assert len(re.findall(r'<circle class="(?:agent|watcher|victim)"', graph_figure(report))) == 3


def test_adversaries_with_equal_epsilon_share_a_line(report: Report) -> None:
    names = [series.names for series in epsilon_series(report)]
    assert names == [("eavesdropper", "neighbour", "final-models"), ("single-message",)]


def test_an_infinite_epsilon_is_not_drawn(report: Report) -> None:
    report["epsilon_by_round"] = {"eavesdropper": [[1, "inf"], [2, "inf"]]}
    assert epsilon_series(report) == []


def test_the_crossing_is_drawn_only_where_the_target_is_passed(report: Report) -> None:
    assert "within the target" not in epsilon_figure(report)
    report["plan"]["target"]["epsilon"] = 1.8
    assert re.search(r"within the target up to round <tspan[^>]*>125<", epsilon_figure(report))


def test_one_evaluation_is_enough_for_the_utility_drawing(report: Report) -> None:
    report["utility"] = {name: values[:1] for name, values in report["utility"].items()}
    assert "mean model" in utility_figure(report)


def test_lines_differ_in_more_than_colour() -> None:
    marks = {re.sub(r"s\d", "", str(key(style))) for style in range(4)}
    assert len(marks) == 4


@given(st.lists(st.floats(0, HEIGHT - 48), min_size=1, max_size=6))
def test_labels_do_not_collide_and_stay_in_the_chart(wanted: list[float]) -> None:
    places = spread(wanted, gap=17)
    assert all(b - a >= 17 - 1e-6 for a, b in itertools.pairwise(sorted(places)))
    assert max(places) <= HEIGHT - 48


@given(st.floats(1e-6, 1e6))
def test_ticks_reach_the_top_in_few_equal_steps(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0
    assert top * (1 - 1e-6) <= found[-1] <= 2 * top
    assert len(found) <= 8
