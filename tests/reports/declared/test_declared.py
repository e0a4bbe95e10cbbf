"""The account, the page and the gate of declared releases, as commands give them."""

import hashlib
import html
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from overhear.attacks.foreign.claimed import claimed
from overhear.attacks.foreign.scores_audit import audit_scores
from overhear.commands.cli import app, main
from overhear.privacy.errors import InputError
from overhear.reports.document.html import render
from overhear.reports.schema import Report
from overhear.runs.recorder.outcome import keep_audit
from tests.privacy.releases.logs import one, write

LIMIT = '[[limits]]\nadversary = "eavesdropper"\nepsilon = {epsilon}\ndelta = 1e-5\n'


@pytest.fixture
def log(tmp_path):
    return write(tmp_path / "logs" / "a.jsonl", {t: [one()] for t in range(1, 101)}, system="mine")


@pytest.fixture
def policy(tmp_path):
    def made(text="", *, epsilon=3, evidence=""):
        path = tmp_path / "policy.toml"
        tables = f"[evidence]\n{evidence}\n" if evidence else ""
        path.write_text(f"schema = 1\n{LIMIT.format(epsilon=epsilon)}{text}{tables}")
        return path

    return made


def told(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, " ".join(said.err.split())


def test_the_account_says_what_it_rests_on(capsys, log):
    code, out, _ = told(capsys, "account", log)
    text = " ".join(out.split())
    assert code == 0
    assert "As declared, epsilon is at most 2.34 against the eavesdropper." in text
    assert "nothing here shows that the list is true: no one looked whether it is" in text
    assert [f"A{n} " in text for n in range(1, 7)] == [True] * 6
    assert "prove" not in text


def test_the_account_as_json(capsys, log):
    code, out, _ = told(capsys, "account", log.parent, "--format", "json", "--delta", "1e-6")
    found = json.loads(out)
    assert code == 0
    assert found["declared"] == {
        "status": "declared", "releases": 100, "depends_on": "released", "checks": None,
    }  # fmt: skip
    assert {(row["status"], row["delta"]) for row in found["plan"]["adversaries"]} == {
        ("declared", 1e-6)
    }
    assert {row["status"] for row in found["assumptions"]} == {"assumed"}


@pytest.mark.parametrize(
    ("evidence", "epsilon", "code", "said"),
    [
        ("", 3, 5, "nothing proves"),
        ('declared = "checked"', 3, 5, "no check of kept releases speaks for it"),
        ('declared = "trusted"', 3, 0, "if the list of releases is true"),
        ('declared = "trusted"', 2, 3, "Epsilon is 2.34, as declared, above 2"),
        ('declared = "trusted"\naudit_canaries = 10', 3, 5, "No audit of this training is kept"),
        ('declared = "trusted"\nsecond_opinion = true', 3, 5, "A log of releases holds none"),
    ],
)
def test_a_policy_passes_declared_figures_only_where_it_says_so(
    capsys, log, policy, evidence, epsilon, code, said
):
    path = policy(evidence=evidence, epsilon=epsilon)
    for command in (("account", log, "--policy", path), ("check", log.parent, "--policy", path)):
        found, out, _ = told(capsys, *command)
        assert found == code
        assert said in " ".join(out.split())


def test_a_policy_about_records_does_not_pass_clients(capsys, tmp_path, policy):
    write(tmp_path / "c" / "a.jsonl", {1: [one()]}, unit="client")
    path = policy(evidence='declared = "trusted"')
    code, out, _ = told(capsys, "check", tmp_path / "c", "--policy", path)
    assert code == 3
    assert "about one client, and the limit about one record" in " ".join(out.split())
    path.write_text(path.read_text().replace("delta = 1e-5", 'delta = 1e-5\nunit = "client"'))
    assert told(capsys, "check", tmp_path / "c", "--policy", path)[0] == 0


def test_a_log_that_is_cut_off_is_not_complete(capsys, tmp_path, policy):
    lines = [{"round": 1, "releases": [one()]}, '{"round": 2, "rel']
    write(tmp_path / "c" / "a.jsonl", lines, end="")
    path = policy(evidence='declared = "trusted"', epsilon=9)
    code, out, _ = told(capsys, "check", tmp_path / "c", "--policy", path)
    assert code == 5
    assert "cut off" in " ".join(out.split())


def test_a_log_with_rounds_that_no_line_is_about_is_not_complete(capsys, tmp_path, policy):
    write(tmp_path / "c" / "a.jsonl", {t: [one()] for t in (1, 10)})
    path = policy(evidence='declared = "trusted"', epsilon=9)
    code, out, _ = told(capsys, "check", tmp_path / "c", "--policy", path)
    assert code == 5
    assert "No line is about round 2" in " ".join(out.split())
    path = policy(evidence='declared = "trusted"\ncomplete_run = false', epsilon=9)
    assert told(capsys, "check", tmp_path / "c", "--policy", path)[0] == 0


def test_each_limit_is_held_at_its_own_delta_and_adjacency(capsys, log, policy):
    """Epsilon is 2.34 at delta 1e-5, 2.99 at 1e-7, and 4.37 where a record is replaced."""
    path = policy(evidence='declared = "trusted"', epsilon=2.4)
    limits = path.read_text()
    more = (3.1, 1e-7, "add-or-remove-one"), (4.5, 1e-5, "replace-one")
    for epsilon, delta, adjacency in more:
        limits += (
            f'[[limits]]\nadversary = "eavesdropper"\nepsilon = {epsilon}\ndelta = {delta}\n'
            f'adjacency = "{adjacency}"\n'
        )
        path.write_text(limits)
        code, out, _ = told(capsys, "check", log.parent, "--policy", path)
        assert (code, "Within the policy" in out) == (0, True)


def test_a_release_that_is_sampled_against_its_header_says_so_in_its_assumptions(capsys, tmp_path):
    path = write(tmp_path / "a.jsonl", {1: [one(sampler="poisson")]}, sampler="other")
    _, out, _ = told(capsys, "account", path, "--format", "json")
    assert "each record on its own" in json.loads(out)["assumptions"][3]["text"]


def test_a_server_has_a_limit_of_its_own(capsys, tmp_path, policy):
    sent = {t: [one(sender, to="server") for sender in (0, 1)] for t in range(1, 101)}
    write(tmp_path / "c" / "c.jsonl", sent, agents=2)
    server = '[[limits]]\nadversary = "server"\nepsilon = {}\ndelta = 1e-5\n'
    for epsilon, code in ((3, 0), (2, 3)):
        path = policy(server.format(epsilon), evidence='declared = "trusted"')
        found, out, _ = told(capsys, "check", tmp_path / "c", "--policy", path)
        assert found == code
        assert f"limit: server, epsilon {epsilon} at delta 1e-5" in " ".join(out.split())
    # A server that the log does not name has no figure that passes.
    write(tmp_path / "d" / "d.jsonl", {1: [one(0, to=[1], noise=9.0)]}, agents=2)
    path = policy(server.format(3), evidence='declared = "trusted"')
    found, out, _ = told(capsys, "check", tmp_path / "d", "--policy", path)
    assert (found, "names no server" in " ".join(out.split())) == (5, True), out


@pytest.mark.parametrize("who", ["neighbour", "all-others"])
def test_a_limit_of_other_agents_is_not_applicable_where_there_is_none(
    capsys, tmp_path, policy, who
):
    others = f'[[limits]]\nadversary = "{who}"\nepsilon = 3\ndelta = 1e-6\n'
    for agents, outcome in ((1, "NOT APPLICABLE"), (2, "PASSED")):
        folder = tmp_path / str(agents)
        write(folder / "a.jsonl", {1: [one(k, to="all") for k in range(agents)]}, agents=agents)
        path = policy(others, evidence='declared = "trusted"')
        for command in (("check", folder), ("account", folder, "--delta", "1e-6")):
            code, out, err = told(capsys, *command, "--policy", path)
            assert code == 0, err
            assert f"{outcome} limit: {who}, epsilon 3 at delta" in " ".join(out.split())
    assert "1 of 3 requirements" not in out
    path.write_text(f"schema = 1\n{others}")  # alone it decides nothing, and is not passed
    for command in ("check", "account"):
        code, _, err = told(capsys, command, tmp_path / "1", "--policy", path)
        assert (code, "limits other agents alone" in err) == (2, True), err


def test_no_protection_is_over_every_limit(capsys, tmp_path, policy):
    write(tmp_path / "c" / "a.jsonl", {1: [one(noise=[])]})
    path = policy(evidence='declared = "trusted"', epsilon=1e6)
    code, out, _ = told(capsys, "check", tmp_path / "c", "--policy", path)
    assert code == 3
    assert "Epsilon is infinite" in " ".join(out.split())


def words_of(page):
    """What a reader sees of a page: without its data, whose keys are those of every report."""
    text = re.sub(r"<pre id=.*?</pre>|<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def test_a_declared_system_gets_the_page_of_a_run_and_nothing_on_it_is_proven(capsys, log):
    code, out, _ = told(capsys, "report", log.parent)
    page = (log.parent / "report.html").read_text()
    text = words_of(page)
    assert (code, out.strip()) == (0, str(log.parent / "report.html"))
    assert "prove" not in text.lower()
    assert "proof" not in text.lower()
    assert "✔" not in page
    assert "<script" not in page
    for said in (
        "As declared, epsilon is at most 2.34 against the eavesdropper",
        "Formal statement, if the list of releases is true.",
        "Not covered Whatever left the system and has no line in its logs",
        "at most 3.8 in 100",
        "○ declared",
        "dp-accounting",
        "5 Epsilon by round",
        f"a.jsonl {hashlib.sha256(log.read_bytes()).hexdigest()}",
        "11 Signature",
        "Accepted by",
        "overhear 0.",
    ):
        assert said in text
    held = json.loads((log.parent / "privacy.json").read_text())
    assert held["declared"]["status"] == "declared"
    digest = hashlib.sha256((log.parent / "privacy.json").read_bytes()).hexdigest()
    assert digest in text  # what is signed
    assert [point[0] for point in held["epsilon_by_round"]["eavesdropper"]][-1] == 100
    report = Report.model_validate_json((log.parent / "privacy.json").read_text(), by_alias=True)
    assert render(report) == page


def test_a_page_shows_names_as_they_are(capsys, tmp_path):
    bad = "<img src=x onerror=alert(1)>"
    write(tmp_path / "c" / "a.jsonl", {1: [one(kind=bad, noise=[])]}, system=bad)
    assert told(capsys, "report", tmp_path / "c")[0] == 0
    page = (tmp_path / "c" / "report.html").read_text()
    assert "<img" not in page
    assert "&lt;img" in page
    assert "<span>as declared, against" in page
    assert "<span>if the list is true, members rightly named" in page


def test_the_report_of_logs_prints_too(capsys, log):
    code, out, _ = told(capsys, "report", log.parent, "--format", "md")
    assert code == 0
    assert out.startswith("# As declared, epsilon is at most 2.34")
    assert f"a.jsonl: SHA-256 {hashlib.sha256(log.read_bytes()).hexdigest()}" in out
    assert "at most 3.8 in 100" in out
    assert "prove" not in out
    assert not (log.parent / "report.html").exists()
    code, _, err = told(capsys, "report", log.parent, "--show-records")
    assert code == 2
    assert "holds no run: --show-records" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--delta", "2"], "delta=2.0 must lie strictly between 0 and 1"),
        (["--adversary", "final-models"], "does not say which of them is a final model"),
        (["--adversary", "neighbour:7"], "which must lie in 0..2"),
        (["--victim", "5"], "victim=5 must lie in 0..2"),
        (["--absent", "x"], "--absent 'x' must be AGENT:ROUNDS"),
        (["--absent", "0:1-999999999"], "at most 1000000 rounds"),
        (["--absent", "0:1"], "has no effect on"),
        (["--policy", "absent.toml"], "no policy at absent.toml"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(capsys, log, options, message):
    code, _, err = told(capsys, "account", log, *options)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_logs_of_agents_are_joined_and_the_absent_named(capsys, tmp_path):
    for agent, rounds in ((0, (1, 2)), (1, (1, 2)), (2, (1,))):
        write(tmp_path / f"{agent}.jsonl", {t: [one(agent)] for t in rounds}, agent=agent)
    code, _, err = told(capsys, "account", tmp_path)
    assert code == 2
    assert "--absent 2:2" in err
    assert told(capsys, "account", tmp_path, "--absent", "2:2")[0] == 0
    code, _, err = told(capsys, "account", tmp_path / "0.jsonl")
    assert code == 2
    assert "no log of agent 1 of 3 is given" in err


def test_the_help_names_the_adversaries():
    shown = CliRunner().invoke(app, ["account", "--help"]).output
    assert "all-others" in shown


def checked(
    log, *, failed=(), names=("messages", "residuals", "rows", "sampler", "numbers"), **changed
):
    """conformance.json of a log as it is."""
    digest = hashlib.sha256(log.read_bytes()).hexdigest()
    checks = [
        {"name": name, "verdict": "failed" if name in failed else "passed", "p": None, "tests": 1,
         "words": "A test."}
        for name in names
    ]  # fmt: skip
    said = "declared; contradicted by residuals" if failed else "declared; checked in rounds 1, 2"
    held = {
        "schema": 1, "system": "mine", "logs": {log.name: digest}, "rounds": [1, 2],
        "status": "declared" if failed else "declared, checked", "said": said,
        "false_alarm": 1e-6, "checks": checks, "assumed": [], **changed,
    }  # fmt: skip
    (log.parent / "conformance.json").write_text(json.dumps(held))


def test_a_checked_log_passes_a_policy_that_asks_for_it(capsys, log, policy):
    path = policy(evidence='declared = "checked"')
    checked(log)
    code, out, _ = told(capsys, "check", log.parent, "--policy", path)
    assert code == 0
    assert "checked in rounds 1, 2" in " ".join(out.split())
    assert told(capsys, "report", log.parent)[0] == 0
    page = (log.parent / "report.html").read_text()
    assert "declared; checked in rounds 1, 2" in page
    assert "○ declared, checked" in page
    assert "the checks of messages and residuals and rows passed in rounds 1, 2" in page
    found = json.loads((log.parent / "privacy.json").read_text())
    assert found["declared"]["status"] == "declared, checked"
    assert "conformance.json" in found["reproduce"]["files"]
    checks = ["passed" in row["how"] for row in found["assumptions"]]
    assert checks == [False, True, True, True, True, False]


def test_a_check_that_compared_no_rows_is_one_of_a_list_that_is_declared(capsys, log, policy):
    checked(log, names=("messages", "residuals", "sampler", "numbers"))
    path = policy(evidence='declared = "checked"')
    code, out, _ = told(capsys, "check", log.parent, "--policy", path)
    assert (code, "checked in rounds 1, 2 but for rows" in " ".join(out.split())) == (5, True)


def test_a_log_that_was_changed_after_the_check_is_declared_alone(capsys, log, policy):
    checked(log)
    with log.open("a") as file:
        file.write(json.dumps({"round": 101, "releases": [one()]}) + "\n")
    path = policy(evidence='declared = "checked"')
    code, out, _ = told(capsys, "check", log.parent, "--policy", path)
    assert code == 5
    assert "no check of kept releases speaks for it" in " ".join(out.split())
    assert told(capsys, "report", log.parent)[0] == 0
    assert (
        "conformance.json beside the logs is of other logs"
        in (log.parent / "report.html").read_text()
    )


def test_a_list_that_checks_contradict_is_contradicted_everywhere(capsys, log, policy):
    checked(log, failed=("residuals",))
    path = policy(evidence='declared = "trusted"')
    assert told(capsys, "check", log.parent, "--policy", path)[0] == 4
    assert told(capsys, "report", log.parent)[0] == 0
    page = (log.parent / "report.html").read_text()
    assert "Contradicted: what was kept of the releases contradicts the list" in page
    assert "○ declared" not in page
    held = json.loads((log.parent / "privacy.json").read_text())
    assert [row["status"] for row in held["assumptions"]].count("gap") == 2
    assert not any("passed" in row["how"] for row in held["assumptions"])  # nothing speaks for it


def audited(log, *, shift, noise=2.0, rate=0.1):
    """An audit of a training with this mechanism, of 400 canaries whose scores are so far apart."""
    claim = claimed(noise=noise, rate=rate, rounds=100)
    chance = np.random.default_rng(0)
    included = chance.random(400) < 0.5
    return audit_scores(chance.normal(size=400) + shift * included, included, claim=claim)


@pytest.mark.parametrize(
    ("shift", "code", "said"),
    [
        (0.5, 0, "list: not contradicted by the audit The audit measured no more than is declared"),
        (9.0, 4, "more than the 2.338 that is declared"),
    ],
)
def test_an_audit_of_the_training_is_kept_attached_and_counts(
    capsys, log, policy, shift, code, said
):
    assert keep_audit(audited(log, shift=shift), log.parent) == log.parent / "audit.json"
    path = policy(evidence='declared = "trusted"\naudit_canaries = 400\naudit_ideal = 0.05')
    found, out, _ = told(capsys, "check", log.parent, "--policy", path)
    assert (found, said in " ".join(out.split())) == (code, True)
    assert told(capsys, "report", log.parent)[0] == 0
    text = words_of((log.parent / "report.html").read_text())
    assert "6 Declared against measured" in text
    assert "400 canaries" in text
    assert ("Contradicted: the audit found more than is declared" in text) is (code == 4)
    assert "prove" not in text.lower()
    assert "proof" not in text.lower()
    with log.open("a") as file:  # the training went on
        file.write(json.dumps({"round": 101, "releases": [one()]}) + "\n")
    assert told(capsys, "report", log.parent)[0] == 0
    text = words_of((log.parent / "report.html").read_text())
    assert "Missing: no audit was run" in text
    assert "audit.json beside the logs is of other logs" in text
    assert told(capsys, "check", log.parent, "--policy", path)[0] == 5


def test_an_audit_of_another_training_is_not_kept(log):
    for other in ({"noise": 1.0}, {"rate": 0.2}):
        with pytest.raises(InputError, match=r"the audit is of epsilon .* declares epsilon 2\.337"):
            keep_audit(audited(log, shift=0.5, **other), log.parent)
    keep_audit(audited(log, shift=9.0), log)
    with pytest.raises(FileExistsError):  # nor is one that contradicts ever overwritten
        keep_audit(audited(log, shift=0.5), log)


@pytest.mark.parametrize(
    "changed",
    [
        {"status": "proven"},
        {"status": "declared, checked", "checks": []},
        {"status": "declared, checked", "rounds": []},
        {"schema": 2},
        {"more": 1},
        {"checks": [{"name": "messages", "verdict": "maybe"}]},
    ],
)
def test_what_no_check_writes_is_refused(capsys, log, changed):
    checked(log, **changed)
    code, _, err = told(capsys, "account", log)
    assert code == 2
    assert "conformance.json cannot be read" in err
