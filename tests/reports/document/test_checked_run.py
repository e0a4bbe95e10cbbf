"""What of a run folder is believed, and the gate's exit codes on real folders."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from overhear.commands import cli
from overhear.reports.document.collect import first_difference, read_checked_run, report_run
from overhear.runs.audit.evidence_schema import Audit
from overhear.runs.folder.folder import ATTACK, AUDIT, LEDGER, PRIVACY, SUMS, write_sums
from tests.runs.evidence.evidence import AUDIT as AUDITED
from tests.runs.evidence.evidence import attack, audited
from tests.small_run import run_text

RUN = run_text(
    "dpdl", agents=4, privacy={"epsilon": 4, "delta": 1e-05},
    training={"rounds": 3, "sampling_rate": 0.1},
)  # fmt: skip
POLICY = """
schema = 1
[[limits]]
adversary = "eavesdropper"
epsilon = {epsilon}
delta = 1e-5
"""
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def reported(trained):
    report_run(trained)
    return trained


@pytest.fixture
def folder(reported, tmp_path):
    """A run that was reported, to be changed."""
    shutil.copytree(reported, tmp_path / "run")
    return tmp_path / "run"


def policy(tmp_path: Path, text: str = "", *, epsilon: float = 4) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY.format(epsilon=epsilon) + text, encoding="utf-8")
    return path


def edit(folder: Path, change: Callable[[Any], None]) -> None:
    """Edit privacy.json by hand."""
    path = folder / PRIVACY
    held = json.loads(path.read_text(encoding="utf-8"))
    change(held)
    path.write_text(json.dumps(held), encoding="utf-8")


def put_audit(folder: Path, audit: Audit, *, close: bool = True) -> None:
    (folder / AUDIT).write_text(audit.model_dump_json(by_alias=True), encoding="utf-8")
    if close:
        report_run_anew(folder)


def report_run_anew(folder: Path) -> None:
    write_sums(folder)
    report_run(folder)


def test_four_folders_give_four_exit_codes(folder, tmp_path, capsys):
    junit = tmp_path / "f.xml"

    def code(path: Path) -> tuple[int, str]:
        left = cli.main(["check", str(folder), "--policy", str(path), "--junit", str(junit)])
        return left, capsys.readouterr().out

    assert code(policy(tmp_path)) == (0, _Holding("Within the policy (3 of 3 requirements"))
    assert code(policy(tmp_path, epsilon=1)) == (
        3,
        _Holding("over the limit of 1. Set `epsilon = 1`"),
    )
    (case, *_) = ET.fromstring(junit.read_bytes()).iter("failure")  # noqa: S314 - our own file
    assert case.attrib["type"] == "over the limit"
    asked = policy(tmp_path, "[evidence]\naudit_canaries = 10\n")
    assert code(asked) == (5, _Holding("The run was not audited; `overhear audit"))
    put_audit(folder, audited(verdict="contradicted", proven_epsilon=4.0, measured_epsilon=6.0))
    assert code(policy(tmp_path)) == (4, _Holding("Do not rely on any figure of this run"))


class _Holding:
    """Equal to every text that holds these words, however it is wrapped."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __eq__(self, other: object) -> bool:
        return self.words in " ".join(str(other).split())

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"...{self.words}..."


def test_one_json_object_is_printed(folder, tmp_path, capsys):
    path = policy(tmp_path, epsilon=1)
    assert cli.main(["check", str(folder), "--policy", str(path), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["exit_code"], found["outcome"]) == (1, 3, "over the limit")
    assert [one["outcome"] for one in found["requirements"]] == [
        "over the limit",
        "passed",
        "passed",
    ]


def _edit_epsilon(folder: Path) -> None:
    edit(folder, lambda held: held["ledger"]["epsilon"].update(eavesdropper=0.1))


def _forge_epsilon(folder: Path) -> None:
    _edit_epsilon(folder)
    write_sums(folder)


def _forge_status(folder: Path) -> None:
    edit(folder, lambda held: held["plan"]["adversaries"][-1].update(status="proven"))
    write_sums(folder)


def _forge_text(folder: Path) -> None:
    (folder / PRIVACY).write_text("{", encoding="utf-8")
    write_sums(folder)


def _version_1(folder: Path) -> None:
    edit(folder, lambda held: held.update(schema=1))
    write_sums(folder)


def _later_audit(folder: Path) -> None:
    put_audit(folder, audited(), close=False)


def _later_attack(folder: Path) -> None:
    (folder / ATTACK).parent.mkdir()
    (folder / ATTACK).write_text(attack().model_dump_json(by_alias=True), encoding="utf-8")


def _stale(folder: Path) -> None:
    put_audit(folder, audited(), close=False)
    write_sums(folder)


def _bad_audit(folder: Path) -> None:
    held = {key: value for key, value in AUDITED.items() if key != "adversaries"}
    (folder / AUDIT).write_text(json.dumps(held), encoding="utf-8")
    write_sums(folder)


def _spoil_audit(folder: Path) -> None:
    put_audit(folder, audited(), close=False)
    write_sums(folder)
    (folder / AUDIT).write_text("{", encoding="utf-8")


def _cut_ledger(folder: Path) -> None:
    text = (folder / LEDGER).read_text(encoding="utf-8")
    (folder / LEDGER).write_text(text[: text.index("\n") + 1], encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_edit_epsilon, "is not the file that SHA256SUMS names"),
        (_forge_epsilon, "from what the run's files give at /ledger/epsilon/eavesdropper"),
        (_forge_status, "/status; it is older than they are, or was edited"),
        (_forge_text, "as it was written, or write it with `overhear report"),
        (_version_1, "reads version 3; write it again with `overhear report"),
        (_later_audit, "audit.json is not in SHA256SUMS: it was put there after"),
        (_later_attack, "attack.json is not in SHA256SUMS"),
        (_stale, "differs from what the run's files give at /"),
        (_bad_audit, "audit.json cannot be read at adversaries: Field required; move it away"),
        (_spoil_audit, "is not the file that SHA256SUMS names"),
        (_cut_ledger, "is not the file that SHA256SUMS names"),
        (lambda folder: (folder / SUMS).unlink(), "SHA256SUMS is missing"),
        (lambda folder: (folder / LEDGER).unlink(), "it is missing: put it back"),
        (shutil.rmtree, "does not exist; is"),
    ],
)
def test_a_run_that_was_changed_is_bad_input(folder, tmp_path, change, words, capsys):
    change(folder)
    assert cli.main(["check", str(folder), "--policy", str(policy(tmp_path))]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert (shown.out, "Traceback" in shown.err) == ("", False)


def test_a_missing_report_is_missing_evidence(folder):
    (folder / PRIVACY).unlink()
    write_sums(folder)
    run = read_checked_run(folder)
    assert not run.reported
    assert float(run.report.ledger.epsilon["eavesdropper"]) == pytest.approx(4.0, rel=1e-3)


def test_a_comparison_reads_no_report_and_refuses_none(folder):
    _forge_epsilon(folder)
    run = read_checked_run(folder, hold_report=False)
    assert float(run.report.ledger.epsilon["eavesdropper"]) > 3


@pytest.mark.slow
def test_a_torn_ledger_is_missing_evidence_and_costs_more(folder, tmp_path, capsys):
    with (folder / LEDGER).open("a", encoding="utf-8") as lines:
        lines.write('{"round": 4')
    report_run_anew(folder)
    assert cli.main(["check", str(folder), "--policy", str(policy(tmp_path, epsilon=9))]) == 5
    assert "ledger is torn" in " ".join(capsys.readouterr().out.split())
    waived = policy(tmp_path, "[evidence]\ncomplete_run = false\n")
    assert cli.main(["check", str(folder), "--policy", str(waived)]) == 3


def test_a_check_leaves_the_run_as_it_is(folder, tmp_path):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    path = str(policy(tmp_path))
    assert cli.main(["check", str(folder), "--policy", path]) == 0
    assert cli.main(["check", str(folder), "--policy", path, "--junit", f"{folder}/f.xml"]) == 2
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_an_earlier_result_does_not_outlive_a_check_that_fails(folder, tmp_path):
    junit = tmp_path / "f.xml"
    junit.write_text("<testsuites/>", encoding="utf-8")
    arguments = ["check", str(folder), "--junit", str(junit), "--policy"]
    assert cli.main([*arguments, str(tmp_path / "none.toml")]) == 2
    root = ET.fromstring(junit.read_bytes())  # noqa: S314 - our own file
    assert root.attrib["errors"] == "1"


def test_a_hostile_folder_is_shown_harmless(reported, tmp_path, capsys):
    name = "<b>[red]\x1b[2J\n::error::&\"'|"
    shutil.copytree(reported, tmp_path / name)
    junit = tmp_path / "f.xml"
    arguments = ["check", str(tmp_path / name), "--policy", str(policy(tmp_path))]
    assert cli.main([*arguments, "--junit", str(junit)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "::" not in shown  # wherever a line is wrapped
    (suite,) = ET.fromstring(junit.read_bytes())  # noqa: S314 - our own file
    assert suite.attrib["name"].endswith("<b>[red]\\x1b[2J\\n::error::&\"'|")


@pytest.mark.parametrize(
    ("held", "fresh", "place"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, None),
        ({"a": 1.0}, {"a": 1.0 + 1e-5}, "/a"),
        ({"a": 1}, {"a": True}, "/a"),
        ({"a": True}, {"a": 1}, "/a"),
        ({"a": "1"}, {"a": 1}, "/a"),
        ({"a": None}, {"a": 0.0}, "/a"),
        ({"a": "inf"}, {"a": "inf"}, None),
        ({"a": [1]}, {"a": [1, 2]}, "/a"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "/a/0/b"),
        ({}, {"a": 1}, "/a"),
        ({"a": 1}, {}, "/a"),
        ({"made": "x"}, {"made": "y"}, None),
        ({"run": {"device": "cuda"}}, {"run": {"device": "cpu"}}, None),
        ({"tool": {"version": "1"}}, {"tool": {"version": "2"}}, None),
        ({"tool": {"name": "1"}}, {"tool": {"name": "2"}}, "/tool/name"),
    ],
)
def test_the_first_difference_of_two_reports(held, fresh, place):
    assert first_difference(held, fresh) == place
