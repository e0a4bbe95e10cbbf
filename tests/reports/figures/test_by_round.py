"""The drawings."""

import itertools
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhear.reports.figures import plots as by_round
from overhear.reports.figures import plots as drawn
from overhear.reports.figures import plots as odds
from overhear.reports.figures.chart import WIDE, key, spread, ticks
from overhear.reports.figures.plots import Series
from overhear.reports.references import References
from tests.conftest import measured_json, typed, with_audit

Report = dict[str, Any]


def epsilon_figure(report: Report) -> str:
    return by_round.epsilon_figure(typed(report), References(report))


def utility_figure(report: Report) -> str:
    return by_round.utility_figure(typed(report), References(report))


def epsilon_series(report: Report) -> list[Series]:
    return by_round.epsilon_series(typed(report))


@pytest.mark.parametrize("draw", [epsilon_figure, utility_figure])
def test_a_drawing_is_well_formed_and_names_itself(report, draw):
    root = ET.fromstring(draw(report))  # noqa: S314 - our own drawing
    assert root.attrib["role"] == "img"
    assert root.findtext("title")
    assert root.findtext("desc")


def test_adversaries_with_equal_epsilon_share_a_line(report):
    names = [series.names for series in epsilon_series(report)]
    assert names == [("eavesdropper", "neighbour", "final-models"), ("single-message",)]


def test_a_heuristic_line_is_not_shared_with_a_proven_one(report):
    report["epsilon_by_round"]["single-message"] = report["epsilon_by_round"]["eavesdropper"]
    lines = {series.names[0]: series.upper for series in epsilon_series(report)}
    assert lines == {"eavesdropper": True, "single-message": False}


def test_rounds_beyond_the_planned_ones_stay_in_the_chart(report):
    report["run"]["rounds"] = 100  # the lines go to 200
    [first, *_] = re.findall(r'<polyline class="line s0" points="([^"]*)"', epsilon_figure(report))
    assert max(float(point.split(",")[0]) for point in first.split()) <= WIDE.edge


def test_an_infinite_epsilon_is_not_drawn(report):
    report["epsilon_by_round"] = {"eavesdropper": [[1, "inf"], [2, "inf"]]}
    assert epsilon_series(report) == []


def test_the_crossing_is_drawn_only_where_the_limit_is_passed(report):
    assert "within the limit" not in epsilon_figure(report)
    report["plan"]["target"]["epsilon"] = 1.8
    report["within_limit"] = {"eavesdropper": {"rounds": 144, "epsilon": 1.79}}
    drawn = epsilon_figure(report)
    assert re.search(r"within the limit up to round <tspan[^>]*>144<", drawn)
    assert 'class="stop"' in drawn


def test_the_crossing_of_the_target_is_drawn_before_that_of_others(report):
    report["within_limit"] = {
        "neighbour": {"rounds": 7, "epsilon": 3.9},
        "eavesdropper": {"rounds": 9, "epsilon": 3.9},
    }
    assert re.search(r"up to round <tspan[^>]*>9<", epsilon_figure(report))


def test_every_agent_has_a_tick_beside_the_band(report):
    [ticks_] = re.findall(r'class="tick" d="([^"]*)"', utility_figure(report))
    assert ticks_.count("M") == 10


def test_one_evaluation_is_enough_for_the_utility_drawing(report):
    report["utility"] = {name: values[:1] for name, values in report["utility"].items()}
    assert "mean model" in utility_figure(report)


def test_lines_differ_in_more_than_colour():
    marks = {re.sub(r"s\d", "", str(key(style))) for style in range(4)}
    assert len(marks) == 4


@given(st.lists(st.floats(0, WIDE.floor), min_size=1, max_size=6))
def test_labels_do_not_collide_and_stay_in_the_chart(wanted):
    places = spread(wanted, gap=17, limit=WIDE.floor)
    assert all(b - a >= 17 - 1e-6 for a, b in itertools.pairwise(sorted(places)))
    assert max(places) <= WIDE.floor


@given(st.floats(1e-6, 1e6))
def test_ticks_reach_the_top_in_few_equal_steps(top):
    found = ticks(top)
    assert found[0] == 0
    assert top * (1 - 1e-6) <= found[-1] <= 2 * top
    assert len(found) <= 8


# Proven against measured, drawn.


def measured_figure(report: Report) -> str | None:
    return drawn.measured_figure(typed(report), References(report))


def test_without_an_audit_there_is_nothing_to_draw(report):
    assert measured_figure(report) is None


def test_without_a_finite_figure_there_is_nothing_to_draw(report):
    report = with_audit(report)
    for row in report["audit"]["adversaries"]:
        row |= {"proven_epsilon": "inf", "measured_epsilon": None, "ideal_epsilon": None}
    report["measured"] = measured_json(report["audit"])
    assert measured_figure(report) is None


def test_what_is_measured_lies_left_of_what_is_proven(report):
    drawing = measured_figure(with_audit(report))
    assert drawing is not None
    assert ET.fromstring(drawing).findtext("desc")  # noqa: S314 - our own drawing
    [wall] = re.findall(r'class="wall" d="M([\d.]+)', drawing)
    seen = re.findall(r'class="seen" cx="([\d.]+)"', drawing)
    assert float(seen[0]) < float(wall)


def test_a_heuristic_figure_is_no_bar(report):
    report = with_audit(report)
    report["audit"]["adversaries"][0]["status"] = "heuristic"
    assert 'class="wall"' not in str(measured_figure(report))


# Odds as dots.


def odds_figure(report: Report, name: str) -> str:
    return odds.odds_figure(typed(report), References(report), name=name)


def dots(drawing: str) -> list[int]:
    return [path.count("M") for path in re.findall(r'class="one hit" d="([^"]*)"', drawing)]


def test_as_many_dots_are_filled_as_the_odds_say(report):
    assert dots(odds_figure(report, "eavesdropper")) == [1, 14]


@pytest.mark.parametrize(("relation", "filled"), [("at most", 7), ("at least", 6)])
def test_a_part_of_a_dot_counts_against_the_one_who_signs(report, relation, filled):
    risk = report["risk"]["eavesdropper"]
    risk["relation"] = relation
    risk["hits"][1]["hits"] = 6.7
    assert dots(odds_figure(report, "eavesdropper")) == [1, filled]


def test_every_dot_is_filled_where_nothing_protects(report):
    report["risk"]["eavesdropper"]["hits"][1]["hits"] = 100.0
    assert dots(odds_figure(report, "eavesdropper")) == [1, 100]
