"""The scale of epsilon with a run's mark on it."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from overhear.reports.figures import plots as scale
from overhear.reports.references import References
from tests.conftest import typed

Report = dict[str, Any]


def drawn(report: Report, *, narrow: bool = False) -> str:
    return scale.scale_figure(typed(report), References(report), name="eavesdropper", narrow=narrow)


def place(text: str, mark: str) -> float:
    [found] = re.findall(rf'class="{mark}" d="M([\d.]+)', text)
    return float(found)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_mark_lies_left_of_the_limit_that_it_keeps(report, narrow):
    text = drawn(report, narrow=narrow)
    assert ET.fromstring(text).findtext("desc")  # noqa: S314 - our own drawing
    assert place(text, "stop") < place(text, "limit")


def test_under_1_3_and_8_stands_what_the_pair_alone_allows(report):
    assert re.findall(r">(\d+) in 100<", drawn(report)) == ["3", "21", "100"]


def test_an_infinite_epsilon_has_its_mark_at_the_end_and_no_bound(report):
    report["ledger"]["epsilon"]["eavesdropper"] = float("inf")
    text = drawn(report)
    assert re.search(r"this run: ε = <tspan[^>]*>∞<", text)
    assert place(text, "stop") == 900 - 16


def test_a_heuristic_mark_is_a_lower_bound(report):
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    assert "this run: ε ≥ " in drawn(report)
