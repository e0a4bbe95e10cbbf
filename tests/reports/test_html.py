"""The page: complete in itself, harmless, and equal to its data."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from typing import Any

import pytest

from overhear.reports.cited import KINDS, Cited, look_up
from overhear.reports.html import render
from overhear.reports.tables import HEURISTIC

Report = dict[str, Any]
NOT_ALLOWED = {"script", "link", "iframe", "object", "embed", "form", "base", "audio", "video"}


class Page(HTMLParser):
    """Tags, cited figures and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.figures: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self.data = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br"}:
            self._open.append(tag)
        if "data-path" in dict(attrs):
            self.figures.append((dict(attrs), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self._open and self._open[-1] in {"data", "tspan"}:
            self.figures[-1] = (self.figures[-1][0], self.figures[-1][1] + text)
        if self._open and self._open[-1] == "pre" and self.tags[-1][1].get("id") == "report-data":
            self.data += text
        elif self._open and self._open[-1] != "style":
            self.words.append(text)


def pointer(report: Report, path: str) -> Any:
    keys = [k.replace("~1", "/").replace("~0", "~") for k in path.split("/")[1:]]
    at: Any = report
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at[key]
    return at


@pytest.fixture
def page(report: Report, images: dict[str, bytes]) -> Page:
    return Page(render(report, images=images))


def test_every_figure_equals_its_entry_in_the_report(page: Page, report: Report) -> None:
    assert len(page.figures) > 100
    for attributes, text in page.figures:
        path, kind = attributes["data-path"], attributes["data-kind"]
        assert path is not None
        assert kind is not None
        value = pointer(report, path)
        assert str(value) == attributes.get("value", attributes.get("data-value"))
        assert text == KINDS[kind](value)


def test_the_embedded_data_is_the_report(page: Page, report: Report) -> None:
    assert json.loads(page.data) == report


def test_the_page_has_no_script_and_asks_for_nothing(page: Page) -> None:
    assert not NOT_ALLOWED & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "srcset", "action", "data", "style"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("data:image/png;base64,", "#")), (tag, value)


def test_the_policy_of_the_page_allows_only_its_own_style_and_pictures(page: Page) -> None:
    [policy] = [
        attributes["content"]
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "script-src" not in policy


@pytest.mark.parametrize(
    "place",
    [
        ("run", "name"),
        ("run", "graph"),
        ("run", "data"),
        ("made",),
        ("plan", "adversaries", 1, "name"),
        ("plan", "adversaries", 0, "because"),
        ("attack", "scenarios", 0, "conclusion"),
        ("attack", "scenarios", 0, "bound", "sentence"),
        ("attack", "scenarios", 0, "rows", 0, "name"),
        ("attack", "scenarios", 0, "originals", 0),
        ("assumptions", 0, "text"),
        ("reproduce", "commands", 0),
    ],
)
def test_a_hostile_name_stays_text(
    report: Report, images: dict[str, bytes], place: tuple[str | int, ...]
) -> None:
    hostile = "</pre><script>alert(1)</script><img src=x onerror='alert(1)'>\"'{{ 7*7 }}"
    changed = copy.deepcopy(report)
    look_up(changed, place[:-1])[place[-1]] = hostile
    text = render(changed, images=images)
    assert "<script" not in text
    page = Page(text)
    assert "onerror" not in {name for _, attributes in page.tags for name in attributes}
    assert json.loads(page.data) == changed


def test_a_hostile_adversary_stays_text_in_figures_and_verdict(report: Report) -> None:
    hostile = "<script>/~&\"'"
    text = json.dumps(report).replace('"eavesdropper"', json.dumps(hostile))
    changed = json.loads(text)
    page = Page(render(changed))
    assert "script" not in {tag for tag, _ in page.tags}
    for attributes, _ in page.figures:
        assert pointer(changed, str(attributes["data-path"])) is not None


def test_missing_evidence_is_said_to_be_missing(report: Report) -> None:
    report["attack"] = None
    report["utility"] = {key: [] for key in report["utility"]}
    text = render(report)
    for what in ("no attack was run", "no audit was run", "no round was evaluated"):
        assert f"Missing: {what}" in text


def test_a_picture_that_is_not_given_is_not_shown(report: Report) -> None:
    text = render(report)
    assert "<img" not in text
    assert "not shown" in text


def test_a_heuristic_row_is_marked_and_has_no_upper_bound(report: Report) -> None:
    for row in report["plan"]["adversaries"]:
        row["status"] = "heuristic"
    text = render(report)
    assert text.count(HEURISTIC) >= len(report["plan"]["adversaries"])
    assert "No formal statement" in text
    assert "✔ proven" not in text
    assert "ε ≥" in text


def test_an_infinite_epsilon_is_shown_as_no_protection(report: Report) -> None:
    report["ledger"]["epsilon"] = dict.fromkeys(report["ledger"]["epsilon"], float("inf"))
    report["epsilon_by_round"] = {"eavesdropper": [[1, float("inf")]]}
    text = render(report)
    assert "✘ no protection" in text
    assert "No formal statement" in text
    assert "no curve to draw" in text


def test_words_that_promise_too_much_do_not_occur(page: Page) -> None:
    words = " ".join(page.words).lower()
    assert "anonym" not in words
    assert "safe" not in words


def test_delta_and_unit_stand_beside_the_verdicts_epsilon(page: Page) -> None:
    words = " ".join(" ".join(page.words).split())
    assert "One record of agent 0 is protected with ε ≤ 2.08 at δ = 1e-5" in words


def test_a_report_without_a_cited_figure_is_refused(report: Report) -> None:
    del report["run"]["parameters"]
    with pytest.raises(KeyError, match="run/parameters"):
        render(report)


def test_a_place_with_a_slash_is_escaped_in_its_pointer() -> None:
    report = {"a/b~c": {"x": 1.0}}
    assert 'data-path="/a~1b~0c/x"' in Cited(report)("figure", "a/b~c", "x")
