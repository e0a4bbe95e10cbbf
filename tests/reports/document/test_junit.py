"""A decision as JUnit XML."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from overhear.reports.document.markdown import unfinished, write_junit
from overhear.reports.judgement.findings import Outcome
from overhear.reports.judgement.gate import Decision, Requirement

HOSTILE = "<script>&\"']]> \x00\x1b[31m\ud800\ufffe\nfoo"


def finding(outcome: Outcome, sentence: str = "because") -> Requirement:
    return Requirement(name=f"limit: {outcome}", outcome=outcome, sentence=sentence)


def read(path: Path) -> ET.Element:
    return ET.fromstring(path.read_bytes())  # noqa: S314 - our own file


def test_a_test_case_a_requirement_with_failures_and_errors(tmp_path):
    decision = Decision(requirements=[finding(outcome) for outcome in Outcome], notes=["a note"])
    write_junit(decision, tmp_path / "f.xml", suite="DIR")
    root = read(tmp_path / "f.xml")
    (suite,) = root
    for of in (root, suite):
        assert of.attrib["tests"] == "5"
        assert [of.attrib[one] for one in ("failures", "errors", "skipped")] == ["2", "1", "1"]
    assert (root.tag, suite.tag, suite.attrib["name"]) == ("testsuites", "testsuite", "DIR")
    cases = suite.findall("testcase")
    assert [case.attrib["classname"] for case in cases] == ["overhear.check"] * 5
    assert [[child.tag for child in case] for case in cases] == [
        ["skipped"],
        ["system-out"],
        ["error"],
        ["failure"],
        ["failure"],
    ]
    failure = cases[3].find("failure")
    assert failure is not None
    assert failure.attrib == {"message": "because", "type": "over the limit"}
    assert failure.text == "because"
    assert suite.findtext("system-out") == "a note"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_everything_is_escaped(tmp_path, outcome):
    hostile = Requirement(name=HOSTILE, outcome=outcome, sentence=HOSTILE)
    write_junit(
        Decision(requirements=[hostile], notes=[HOSTILE]), tmp_path / "f.xml", suite=HOSTILE
    )
    root = read(tmp_path / "f.xml")
    assert {of.tag for of in root.iter()} <= {
        "testsuites",
        "testsuite",
        "testcase",
        "failure",
        "error",
        "skipped",
        "system-out",
    }
    name = root[0][0].attrib["name"]
    assert name == "<script>&\"']]> \\x00\\x1b[31m\\ud800\\ufffe\\nfoo"


def test_an_unfinished_check_is_an_error(tmp_path):
    path = tmp_path / "f.xml"
    write_junit(Decision(requirements=[finding(Outcome.PASSED)]), path, suite="DIR")
    unfinished(path, suite="DIR")
    assert read(path).attrib["errors"] == "1"
