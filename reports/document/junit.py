"""A decision as JUnit XML, which continuous integration shows as tests.

One test case for each requirement. Over a limit and contradicted are failures, missing evidence is
an error: nothing was found to be wrong, but the requirement could not be tested.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from ...privacy.plain_text import plain
from ..judgement.findings import Outcome
from ..judgement.gate import Decision

_ELEMENTS = {
    Outcome.NOT_APPLICABLE: "skipped",
    Outcome.OVER: "failure",
    Outcome.CONTRADICTED: "failure",
    Outcome.MISSING: "error",
}


def write_junit(decision: Decision, path: Path, *, suite: str) -> None:
    """Write a decision.

    Args:
        decision: on one run.
        path: the file; it is replaced.
        suite: name of the suite, such as the folder of the run.

    Raises:
        OSError: the file cannot be written.
    """
    cases = [
        (
            requirement.name,
            requirement.outcome.value,
            _ELEMENTS.get(requirement.outcome),
            requirement.sentence,
        )
        for requirement in decision.requirements
    ]
    _write(path, suite, cases, notes=[plain(note) for note in decision.notes])


def unfinished(path: Path, *, suite: str) -> None:
    """Write that a check has begun: what an earlier one left must not pass for its result.

    Raises:
        OSError: the file cannot be written.
    """
    said = "The check did not come to a decision; its standard error says why."
    _write(path, suite, [("check", "unfinished", "error", said)])


def _write(
    path: Path,
    suite: str,
    cases: list[tuple[str, str, str | None, str]],
    *,
    notes: list[str] | None = None,
) -> None:
    kinds = [kind for _, _, kind, _ in cases]
    counts = {
        "tests": str(len(cases)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
    }
    root = ET.Element("testsuites", {"name": "overhear check", **counts})
    of = ET.SubElement(root, "testsuite", {"name": plain(suite), **counts})
    for name, outcome, kind, sentence in cases:
        case = ET.SubElement(of, "testcase", {"classname": "overhear.check", "name": plain(name)})
        said = plain(sentence, most=None)
        if kind is None:
            ET.SubElement(case, "system-out").text = said
        else:
            ET.SubElement(case, kind, {"message": said, "type": outcome}).text = said
    if notes:
        ET.SubElement(of, "system-out").text = "\n".join(notes)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=False)
    path.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n', encoding="utf-8")
