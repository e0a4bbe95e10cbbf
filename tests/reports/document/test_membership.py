"""Who was trained on: the part of the page, of the Markdown, and the drawing."""

import re
from typing import Any

import pytest

from overhear.reports.document import html
from overhear.reports.document.markdown import report_markdown
from overhear.reports.figures.plots import roc_figure
from overhear.reports.schema import Report
from tests.conftest import typed
from tests.reports.document.test_html import Page
from tests.runs.evidence.membership import membership


@pytest.fixture
def plain(report):
    report["tool"]["version"], report["reproduce"]["environment"] = "", {}
    report["run"]["name"] = "a run"
    return typed(report | {"attack": None})


def with_membership(report: Report, **changes: Any) -> Report:
    return report.model_copy(update={"membership": membership(**changes)})


def test_without_it_the_page_says_so(plain):
    assert "no one tried to tell from the final models" in Page(html.render(plain)).text()
    assert "## Membership" not in report_markdown(plain)


def test_every_figure_of_it_is_cited(plain):
    page = Page(html.render(with_membership(plain)))
    assert re.findall(r"\d+\.\d+", " ".join(page.uncited)) == []
    cited = {words["data-path"] for words, _ in page.figures}
    assert "/membership/played/rows/1/rates/1/true_positive_rate" in cited
    assert "/membership/run/rows/0/auc" in cited
    assert "needs 1 000 non-members" in page.text().replace("\u202f", " ")
    assert "within the proof: Half of the guesses were right." in page.text()


def test_a_run_without_games_or_proof_has_a_part_too(plain):
    report = with_membership(
        plain, played=None, guessed=None, limit=[], proven_epsilon=None, verdict="nothing proven",
        games=0, status="no protection",
    )  # fmt: skip
    text = Page(html.render(report)).text()
    assert "The run itself. The diagonal is chance." in text
    assert "Games with random assignment" not in text
    assert "nothing proven" in report_markdown(report)


def test_hostile_words_stay_text(plain):
    report = with_membership(plain, words="<script>alert(1)</script>")
    assert "<script>" not in html.render(report)


def test_rates_of_zero_have_no_place_on_a_log_scale():
    drawn = str(roc_figure(membership()))
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert "most that is proven" in drawn
    assert roc_figure(None) is None


def test_the_markdown_has_a_row_for_each_attack(plain):
    text = report_markdown(with_membership(plain))
    assert "| average | loss threshold | 0.625 | needs 1000 non-members | 0.0200 |" in text
