"""Proven against measured, drawn."""

import re
import xml.etree.ElementTree as ET
from typing import Any

from overhear.reports.figures import plots as drawn
from overhear.reports.references import References
from tests.conftest import measured_json, typed, with_audit

Report = dict[str, Any]


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
