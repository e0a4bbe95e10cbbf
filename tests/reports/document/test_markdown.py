"""The figures of a report as Markdown."""

import copy
import math
import re

from overhear.reports.document.markdown import report_markdown
from tests.conftest import typed
from tests.runs.evidence.evidence import AUDIT

HOSTILE = "<img src=x>|`\x1b[2J\n# [x](y)"


def test_the_verdict_leads_and_epsilon_stands_with_its_delta(report):
    text = report_markdown(typed(report))
    assert text.startswith("# The target is met against the eavesdropper\n")
    row = next(line for line in text.splitlines() if line.startswith("| eavesdropper"))
    assert row.split(" | ")[2:4] == ["≤ 2.08", "1e-5"]
    assert "heuristic: at least this bad" in text


def test_odds_stand_beside_epsilon(report):
    hits = [{"false_positives": 1, "of": 100, "hit_rate": 0.138, "hits": 14.0}]
    report["risk"] = {"eavesdropper": report["risk"]["eavesdropper"] | {"hits": hits}}
    assert "| at most 14 in 100, at 1 in 100 | proven |" in report_markdown(typed(report))


def test_an_infinite_figure_is_shown_as_one(report):
    report["ledger"]["epsilon"]["eavesdropper"] = math.inf
    row = next(
        r for r in report_markdown(typed(report)).splitlines() if r.startswith("| eavesdropper")
    )
    assert row.split(" | ")[2] == "∞"


def test_missing_evidence_is_said_to_be_missing(report):
    text = report_markdown(typed({**report, "attack": None, "audit": None}))
    assert "Missing: the run was not attacked." in text
    assert "Missing: the run was not audited." in text


def test_an_audit_is_told_with_what_it_measured(report):
    audit = copy.deepcopy(AUDIT)
    audit["adversaries"][0]["measured_epsilon"] = 1.2399
    audit["adversaries"].append({**audit["adversaries"][0], "name": "x", "measured_epsilon": None})
    text = report_markdown(typed({**report, "audit": audit}))
    assert "| eavesdropper | ≥ 1.23 | ≤ 2.08 | 1000 | consistent |" in text
    assert "| x | not measured |" in text
    assert "- passed: residuals. as stated" in text


def test_hostile_names_stay_in_their_cells(report):
    report["run"] |= {"name": HOSTILE, "algorithm": HOSTILE, "graph": HOSTILE}
    report["plan"]["adversaries"][1] |= {"worst_adversary": HOSTILE, "because": HOSTILE}
    report["attack"]["scenarios"][0] |= {"preset": HOSTILE, "conclusion": HOSTILE}
    report["assumptions"][0]["text"] = HOSTILE
    text = report_markdown(typed(report))
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)<img", text)
    assert not re.search(r"(?<!\\)\[x", text)
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(heads) == 6
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
