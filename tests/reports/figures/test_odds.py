"""Odds as dots."""

import re
from typing import Any

import pytest

from overhear.reports.figures import plots as odds
from overhear.reports.references import References
from tests.conftest import typed

Report = dict[str, Any]


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
