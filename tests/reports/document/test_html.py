"""The page: complete in itself, harmless, and equal to its data."""

import copy
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from overhear.reports.document import html
from overhear.reports.document.markdown import report_markdown
from overhear.reports.references import HEURISTIC, KINDS, References, look_up
from tests.conftest import measured_json, sample_images, sample_report, typed, with_audit

Report = dict[str, Any]
NOT_ALLOWED = {"script", "link", "iframe", "object", "embed", "form", "base", "audio", "video"}
NEVER_CLOSED = {"meta", "img", "br"}
VERDICTS = ("consistent", "suspicious", "contradicted", "failed checks")


def render(report: dict[str, Any], *, images: dict[str, bytes] | None = None) -> str:
    return html.render(typed(report), images=images)


class Page(HTMLParser):
    """Tags, cited figures and text of a page; a tag that is not closed in its turn fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.figures: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self.uncited: list[str] = []
        self.parents: list[tuple[str, tuple[str, ...]]] = []
        self.data = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        self.tags.append((tag, dict(attrs)))
        self.parents.append((tag, tuple(self._open)))
        if tag not in NEVER_CLOSED:
            self._open.append(tag)
        if "data-path" in dict(attrs):
            self.figures.append((dict(attrs), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self._open, tag  # only there does a slash close
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        cited = bool(self._open) and self._open[-1] in {"data", "tspan"}
        if cited:
            self.figures[-1] = (self.figures[-1][0], self.figures[-1][1] + text)
        if self._open and self._open[-1] == "pre" and self.tags[-1][1].get("id") == "report-data":
            self.data += text
        elif self._open and self._open[-1] != "style":
            self.words.append(text)
            if not cited and not {"svg", "q"} & {*self._open}:  # figures of others are quoted
                self.uncited.append(text)

    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def pointer(report: Report, path: str) -> Any:
    keys = [k.replace("~1", "/").replace("~0", "~") for k in path.split("/")[1:]]
    at: Any = report
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at[key]
    return at


@pytest.fixture
def page(report, images):
    return Page(render(report, images=images))


@pytest.fixture
def audited(report, images):
    return Page(render(with_audit(report), images=images))


def test_every_figure_equals_its_entry_in_the_report(report):
    report = with_audit(report)
    report["plan"]["target"]["epsilon"] = 1.8
    report["within_limit"] = {"eavesdropper": {"rounds": 144, "epsilon": 1.79}}
    report["fixes"] = [
        {
            "action": "noise",
            "noise_multiplier": 2.8123,
            "epsilon": 1.8,
            "status": "proven",
            "adversary": "eavesdropper",
        }
    ]
    page = Page(render(report, images=sample_images()))
    assert len(page.figures) > 150
    for attributes, text in page.figures:
        path, kind = attributes["data-path"], attributes["data-kind"]
        assert path is not None
        assert kind is not None
        value = pointer(report, path)
        assert str(value) == attributes.get("value", attributes.get("data-value"))
        assert text == KINDS[kind](value)


def test_no_decimal_number_stands_on_the_page_uncited(report):
    """Sentences of the attack and versions are quoted; every other number is looked up."""
    report["tool"]["version"], report["reproduce"]["environment"] = "", {}
    report["run"]["name"] = "a run"
    text = " ".join(Page(render(with_audit(report), images=sample_images())).uncited)
    assert re.findall(r"\d+\.\d+", text) == []


def test_the_embedded_data_is_the_report(page, report):
    assert json.loads(page.data) == report


def test_the_signed_digest_is_that_of_privacy_json(report, tmp_path):
    typed(report).write(tmp_path / "privacy.json")
    written = (tmp_path / "privacy.json").read_bytes()
    page = Page(render(report))
    assert hashlib.sha256(written).hexdigest() in page.words
    assert page.data.strip().encode() == written.strip()


def test_the_page_has_no_script_and_asks_for_nothing(audited):
    assert not NOT_ALLOWED & {tag for tag, _ in audited.tags}
    for tag, attributes in audited.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "srcset", "action", "data", "style"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("data:image/png;base64,", "#")), (tag, value)


def test_the_style_asks_for_nothing():
    style = render(sample_report()).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_of_the_page_allows_only_its_own_style_and_pictures(page):
    [policy] = [
        attributes["content"]
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "script-src" not in policy


def test_headings_go_down_one_level_at_a_time(audited):
    levels = [int(tag[1]) for tag, _ in audited.tags if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_links_within_the_page_and_labels_lead_somewhere(audited):
    ids = [of["id"] for _, of in audited.tags if "id" in of]
    assert len(ids) == len(set(ids))
    asked = [str(of["href"])[1:] for tag, of in audited.tags if tag == "a"]
    asked += [str(of["aria-labelledby"]) for _, of in audited.tags if "aria-labelledby" in of]
    assert set(asked) <= set(ids)


def test_tables_have_captions_and_heads_with_scope(audited):
    tags = [tag for tag, _ in audited.tags]
    assert tags.count("table") == tags.count("caption") > 8
    assert all(of.get("scope") in ("row", "col") for tag, of in audited.tags if tag == "th")


def test_drawings_and_pictures_have_words(audited):
    for tag, of in audited.tags:
        if tag == "svg":
            assert of.get("aria-hidden") == "true" or (of["role"] == "img" and of["aria-label"])
        if tag == "img":
            assert of["alt"]


def test_what_scrolls_can_be_reached_by_keyboard(audited):
    scrolls = [of for tag, of in audited.tags if of.get("class") == "scroll"]
    assert scrolls
    assert all(of.get("tabindex") == "0" and of.get("aria-label") for of in scrolls)


def test_there_are_lines_to_sign_on(page):
    text = page.text()
    for word in ("Prepared by", "Reviewed by", "Accepted by", "Name", "Role", "Date", "Signature"):
        assert word in text


@pytest.mark.parametrize(
    "place",
    [
        ("run", "name"),
        ("run", "graph"),
        ("run", "data"),
        ("run", "model"),
        ("made",),
        ("plan", "adversaries", 1, "because"),
        ("plan", "warnings", 0),
        ("attack", "scenarios", 0, "conclusion"),
        ("attack", "scenarios", 0, "bound", "sentence"),
        ("attack", "scenarios", 0, "rows", 0, "name"),
        ("attack", "scenarios", 0, "rows", 3, "unused", 0),
        ("attack", "scenarios", 0, "originals", 0),
        ("audit", "adversaries", 0, "words"),
        ("audit", "adversaries", 0, "estimators", 0, "name"),
        ("audit", "adversaries", 0, "estimators", 0, "assumptions"),
        ("audit", "checks", 0, "name"),
        ("audit", "checks", 0, "words"),
        ("assumptions", 0, "text"),
        ("assumptions", 0, "how"),
        ("reproduce", "commands", 0),
        ("reproduce", "environment", "python"),
    ],
)
def test_a_hostile_name_stays_text(report, images, place):
    hostile = "</pre><script>alert(1)</script><img src=x onerror='alert(1)'>\"'{{ 7*7 }}"
    changed = copy.deepcopy(with_audit(report, "failed checks"))
    changed["plan"]["warnings"] = [""]
    changed["attack"]["scenarios"][0]["rows"][3]["unused"] = [""]
    look_up(changed, place[:-1])[place[-1]] = hostile
    text = render(changed, images=images)
    assert "<script" not in text
    page = Page(text)
    assert "onerror" not in {name for _, attributes in page.tags for name in attributes}
    assert json.loads(page.data) == changed


def test_a_hostile_adversary_stays_text_in_figures_and_verdict(report):
    hostile = "<script>/~&\"'"
    text = json.dumps(with_audit(report)).replace('"eavesdropper"', json.dumps(hostile))
    changed = json.loads(text)
    page = Page(render(changed))
    assert "script" not in {tag for tag, _ in page.tags}
    for attributes, _ in page.figures:
        assert pointer(changed, str(attributes["data-path"])) is not None


def test_missing_evidence_is_said_to_be_missing(report):
    report["attack"] = None
    report["utility"] = {key: [] for key in report["utility"]}
    text = render(report)
    for what in ("no attack was run", "no audit was run", "no round was evaluated"):
        assert f"Missing: {what}" in text


def test_a_picture_that_is_not_given_is_not_shown(report):
    text = render(report)
    assert "<img" not in text
    assert "not shown" in text


def test_a_page_of_many_large_pictures_stays_under_400_kilobytes(report, images):
    [scenario] = report["attack"]["scenarios"]
    report["attack"]["scenarios"] = [scenario] * 12
    text = render(with_audit(report), images={path: bytes(60_000) for path in images})
    assert len(text.encode()) < 400_000
    assert "see the run folder" in text


def test_a_heuristic_row_is_marked_and_has_no_upper_bound(report):
    for row in report["plan"]["adversaries"]:
        row["status"] = "heuristic"
    text = render(report)
    assert text.count(HEURISTIC) >= len(report["plan"]["adversaries"])
    assert "No formal statement" in text
    assert "✔ proven" not in text
    assert "ε ≥" in text


@pytest.mark.parametrize(
    ("status", "source", "badge", "said"),
    [
        ("no protection", "nothing protects", "✘ no protection", "Nothing protects."),
        ("cannot be expressed", "no bound", "▲ cannot be expressed", "No bound can be expressed."),
    ],
)
def test_an_infinite_epsilon_is_shown_as_what_it_is(report, status, source, badge, said):
    report["ledger"]["epsilon"] = dict.fromkeys(report["ledger"]["epsilon"], float("inf"))
    report["epsilon_by_round"] = {"eavesdropper": [[1, float("inf")]]}
    for row in report["plan"]["adversaries"]:
        row |= {"status": status, "epsilon": float("inf")}
    for risk in report["risk"].values():
        risk["from"] = source
    text = render(report)
    assert badge in text
    assert said in text
    assert "No formal statement" in text
    assert "no curve to draw" in text
    assert "✔ proven" not in text
    assert ("every one" in text) == (status == "no protection")


def test_odds_of_the_adversary_stand_in_plain_words(page):
    text = page.text()
    assert "Of 100 that were, they then rightly name at most 14" in text
    assert "right at most 67 times in 100" in text


def test_odds_of_a_heuristic_row_are_no_upper_bound(report):
    report["plan"]["adversaries"][0]["status"] = "heuristic"
    report["risk"]["eavesdropper"]["relation"] = "at least"
    text = Page(render(report)).text()
    assert "they then rightly name at least 14" in text
    assert "No upper bound is known" in text


def test_the_round_at_which_a_limit_is_passed_is_named(report):
    report["plan"]["target"]["epsilon"] = 1.8
    report["within_limit"] = {"eavesdropper": {"rounds": 144, "epsilon": 1.79}}
    text = Page(render(report)).text()
    assert "holds up to round 144 , where ε = 1.79" in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_each_verdict_of_an_audit_makes_a_page(report, verdict):
    text = Page(render(with_audit(report, verdict))).text()
    assert f"This audit: {verdict}." in text
    assert "≥ 1.77" in text  # 1.7777, rounded down
    withheld = verdict in ("contradicted", "failed checks")
    assert ("No formal statement" in text) == withheld
    assert ("▲ proof in doubt" in text) == withheld
    assert ("✔ proven" in text) != withheld


def test_a_measured_figure_is_never_rounded_up(report):
    report = with_audit(report)
    for low in (1.2345678, 0.0999999, 7.4199, 3.0, 0.0):
        report["audit"]["adversaries"][0]["measured_epsilon"] = low
        report["measured"] = measured_json(report["audit"])
        shown = re.findall(r"measured ≥ <tspan[^>]*>([^<]*)<", render(report))
        assert 0.98 * low <= float(shown[0]) <= low


def test_without_an_audit_of_all_rounds_the_page_says_of_how_many(report):
    report = with_audit(report)
    report["audit"]["rounds"] = 20
    assert "in 20 of the 200 rounds" in Page(render(report)).text()


def test_words_that_promise_too_much_do_not_occur():
    for verdict in VERDICTS:
        words = Page(render(with_audit(sample_report(), verdict))).text().lower()
        assert "anonym" not in words
        assert "safe" not in words


def test_delta_and_unit_stand_beside_the_verdicts_epsilon(page):
    assert "One record of agent 0 is protected with ε ≤ 2.08 at δ = 1e-5" in page.text()


def test_a_report_without_a_cited_figure_is_refused(report):
    del report["run"]["parameters"]
    with pytest.raises(ValueError, match="run/parameters"):
        render(report)


def test_a_figure_that_the_report_does_not_have_cannot_be_cited(report):
    with pytest.raises(ValueError, match="run/nothing"):
        References(report)("figure", "run", "nothing")


def test_a_verdict_that_no_audit_has_is_refused(report):
    report = with_audit(report)
    report["audit"]["adversaries"][0]["verdict"] = "</pre><script>"
    with pytest.raises(ValueError, match="verdict"):
        render(report)


def test_code_of_a_remedy_is_marked_and_quoted_words_are_not(report):
    report["plan"]["target"]["epsilon"] = 1.8
    text = render(report)
    assert "<code>epsilon = <data" in text
    report = with_audit(report, "contradicted")
    report["audit"]["adversaries"][0]["words"] = "`code`"
    assert "(`code`)" in render(report)


def test_a_place_with_a_slash_is_escaped_in_its_pointer():
    report = {"a/b~c": {"x": 1.0}}
    assert 'data-path="/a~1b~0c/x"' in References(report)("figure", "a/b~c", "x")


def test_a_cleared_audit_its_seed_and_the_audits_of_the_run_file_are_shown(report):
    report = with_audit(report)
    fresh = {"epsilon": 2.0, "confidence": 0.95}
    report["audit"]["adversaries"][0] |= {"verdict": "cleared", "fresh": fresh}
    before = {"file": "audit-1.json", "canaries": 900, "rounds": 200, "verdict": "suspicious"}
    changes = {"verdict": "cleared", "seed": 987654321, "seed_given": False, "earlier": [before]}
    report["audit"] |= changes
    report["trail"] = {
        "audits": 3,
        "verdicts": {"consistent": 1, "suspicious": 2},
        "others": 0,
        "damaged": ["audits.jsonl line 2 is no audit: it was changed or cut off"],
    }
    text = " ".join(render(report).split())
    assert "This audit: cleared by the second look." in text
    assert "✔ cleared by the second look" in text
    assert "seed <code>987654321</code>, drawn from the entropy of the system" in text
    assert "Audits of this run before it: suspicious." in text
    assert "was audited" in text
    assert "Damaged: audits.jsonl line 2 is no audit" in text
    markdown = report_markdown(typed(report))
    assert "The run file was audited 3 times: 1 consistent, 2 suspicious" in markdown
    assert "seed of the assignment 987654321; audit 2 of this run" in markdown
