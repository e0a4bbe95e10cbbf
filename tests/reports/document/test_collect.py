"""privacy.json and the page of real runs: every algorithm, and runs that are out of the way."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhear.privacy.errors import InputError
from overhear.reports.document.collect import _recipients, collect, read_checked_run, report_run
from overhear.reports.document.markdown import report_markdown
from overhear.reports.judgement.gate import decide
from overhear.reports.judgement.policy import Policy
from overhear.runs.attack.scenario import PLANTED
from overhear.runs.errors import ContradictedProof
from overhear.runs.folder.folder import write_sums
from overhear.runs.folder.resume import read_run
from overhear.runs.folder.run import train_run
from overhear.runs.numbers import bound
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.algorithms import ALGORITHMS, Form
from tests.conftest import sample_audit, sample_images, sample_report
from tests.reports.document.test_html import KINDS, Page, pointer

RUN = """\
data.name = "digits"
data.agents = 4
model.name = "linear"
algorithm.name = "dp-dpsgd"
privacy = {noise_multiplier = 2, delta = 1e-5}
training = {rounds = 3, sampling_rate = 0.05, learning_rate = 0.1}
intercept.rounds = [1]
"""
QUICK = ("dpdl", "dp-dpsgd", "whisper", "cdp-dsgd", "dsgd", "dpmixsgd")
MATRIX = [
    pytest.param(
        name,
        form,
        marks=[] if name in QUICK and form is Form.REPAIRED else [pytest.mark.slow],
        id=f"{name}-{form}",
    )
    for name, of in ALGORITHMS.items()
    for form in (Form if name == "dp-dpsgd" else of.forms)  # of one form, either name is read
]


def trained(tmp_path: Path, *changes: str, text: str = RUN) -> Path:
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    train_run(load_run_file(tmp_path / "run.toml", list(changes)), tmp_path / "out")
    return tmp_path / "out"


def reported(folder: Path, *, recipients: int | None = None) -> tuple[dict[str, Any], Page]:
    page = Page(report_run(folder, recipients=recipients).read_text(encoding="utf-8"))
    report = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    for attributes, text in page.figures:
        value = pointer(report, str(attributes["data-path"]))
        assert text == KINDS[str(attributes["data-kind"])](value)
    return report, page


@pytest.mark.some_quick(3)
@pytest.mark.some_cases(12)
@pytest.mark.parametrize(("name", "form"), MATRIX)
def test_every_algorithm_has_a_report(name, form, tmp_path):
    changes = [f"algorithm.name={name}", f"algorithm.form={form}"]
    text = RUN
    if not ALGORITHMS[name].private:
        changes += ["privacy.noise_multiplier=0", "privacy.clip_norm=inf"]
    report, page = reported(trained(tmp_path, *changes, text=text))
    assert report["risk"].keys() == report["ledger"]["epsilon"].keys()
    assert len(page.figures) > 60
    size = (tmp_path / "out" / "report.html").stat().st_size
    assert size < 150_000


def test_a_run_of_one_agent_has_a_report(tmp_path):
    report, page = reported(trained(tmp_path, "data.agents=1"))
    assert report["run"]["edges"] == []
    assert "Network ring of 1 agent with 0 links" in page.text()
    assert "1 agents" not in page.text()


def test_encrypted_links_are_drawn_and_assumed(tmp_path):
    report, page = reported(trained(tmp_path, "graph.links=encrypted"))
    assert "Links that carry its messages, encrypted" in page.text()
    assert "encryption" in {entry["name"] for entry in report["assumptions"]}


def test_repeatable_noise_is_a_gap_and_never_met(tmp_path):
    report, page = reported(trained(tmp_path, "training.evaluation_noise_seed=7"))
    assert {row["status"] for row in report["plan"]["adversaries"]} == {"heuristic"}
    assert "No formal statement" in page.text()
    gaps = {entry["name"] for entry in report["assumptions"] if entry["status"] == "gap"}
    assert "entropy" in gaps


def test_a_server_in_place_of_links_is_found_in_what_is_sent(tmp_path):
    run = collect(trained(tmp_path, "algorithm.name=cdp-dsgd")).run
    assert (run.server, run.links_used) == (True, False)


def test_agents_that_send_to_each_other_use_no_server(tmp_path):
    run = collect(trained(tmp_path)).run
    assert (run.server, run.links_used) == (False, True)


def test_links_of_a_directed_graph_keep_their_direction(tmp_path):
    changes = ("graph.name=directed-ring", "algorithm.name=dyn-d2p")
    run = collect(trained(tmp_path, *changes)).run
    assert [tuple(arc) for arc in run.one_way] == [(0, 1), (3, 0), (1, 2), (2, 3)]


def test_a_graph_that_changes_is_said_to(tmp_path):
    changes = ("graph.name=directed-exponential", "algorithm.name=dyn-d2p")
    report, page = reported(trained(tmp_path, *changes))
    assert report["run"]["graphs_in_turn"] == 2
    assert "graphs that take turns" in page.text()


def test_hostile_names_of_a_run_file_stay_text(tmp_path):
    hostile = "<img src=x onerror=alert(1)>&\"'{{7*7}}.json"
    edges = [[i, (i + 1) % 4] for i in range(4)]
    (tmp_path / hostile).write_text(json.dumps({"agents": 4, "edges": edges}), encoding="utf-8")
    path = json.dumps(str(tmp_path / hostile))
    text = RUN + f'graph = {{name = "file", path = {path}}}\n'
    _, page = reported(trained(tmp_path, text=text))
    assert "onerror" not in {name for _, attributes in page.tags for name in attributes}


def test_hostile_words_of_an_audit_stay_text(tmp_path):
    folder = trained(tmp_path)
    audit = sample_audit()
    audit["adversaries"][0]["name"] = "</pre><script>alert(1)</script>"
    audit["checks"][0]["words"] = "<script>"
    (folder / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    write_sums(folder)
    _, page = reported(folder)
    assert "script" not in {tag for tag, _ in page.tags}


def test_an_audit_in_the_folder_is_in_the_report(tmp_path):
    folder = trained(tmp_path)
    (folder / "audit.json").write_text(json.dumps(sample_audit()), encoding="utf-8")
    write_sums(folder)
    report, page = reported(folder)
    assert report["audit"] == sample_audit()
    assert "audit.json" in report["reproduce"]["files"]
    assert "overhear audit DIR" in report["reproduce"]["commands"]
    assert "This audit: consistent." in page.text()


@pytest.mark.parametrize(
    ("records", "asked", "shown"),
    [(PLANTED, False, True), ("training records", False, False), ("training records", True, True)],
)
def test_pictures_of_other_than_planted_records_are_shown_only_if_asked_for(
    tmp_path, records, asked, shown
):
    folder = trained(tmp_path)
    attack = sample_report()["attack"]
    attack["scenarios"][0]["records"] = records
    (folder / "attacks").mkdir(exist_ok=True)
    (folder / "attacks" / "attack.json").write_text(json.dumps(attack), encoding="utf-8")
    write_sums(folder)
    for path, held in sample_images().items():
        (folder / path).write_bytes(held)
    text = report_run(folder, show_records=asked).read_text(encoding="utf-8")
    assert ("<img" in text) == shown
    assert ("not shown" in text) != shown


def test_the_signed_digest_is_that_of_the_file_beside_the_page(tmp_path):
    folder = trained(tmp_path)
    _, page = reported(folder)
    digest = hashlib.sha256((folder / "privacy.json").read_bytes()).hexdigest()
    assert digest in page.words
    sums = (folder / "SHA256SUMS").read_text(encoding="utf-8")
    assert f"{digest}  privacy.json" in sums


def test_of_a_large_network_the_links_of_one_agent_are_kept(tmp_path):
    changes = ("data.agents=60", "graph.name=full", "training.rounds=1")
    run = collect(trained(tmp_path, *changes)).run
    assert run.edges_in_all == 60 * 59 // 2
    assert len(run.edges) == 59


def test_a_report_holds_a_second_opinion_and_ends_where_it_contradicts(tmp_path, monkeypatch):
    folder = trained(tmp_path)
    report, _ = reported(folder)
    assert report["second_opinion"].keys() == report["ledger"]["epsilon"].keys()
    for name, one in report["second_opinion"].items():
        assert one["epsilon"] == report["ledger"]["epsilon"][name]
        assert one["verdict"] == "confirmed"
    assert "What another library says of ε for the same releases" in (
        folder / "report.html"
    ).read_text(encoding="utf-8")
    # A figure that is too small: written all the same, so that the page says so too.
    from overhear.runs.folder import resume as module

    monkeypatch.setattr(module, "epsilon_of", lambda *_, **__: 1e-3)
    with pytest.raises(ContradictedProof, match=r"more than the 0\.001 that is stated"):
        report_run(folder)
    held = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    assert held["second_opinion"]["eavesdropper"]["verdict"] == "contradicted"
    assert "Contradicted: another library" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """A run of two classes on a ring of five, of which agent 2 is two hops from agent 0."""
    place = tmp_path_factory.mktemp("far")
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(120, 4)).astype("float32")
    labels = (inputs[:, 0] > 0).astype("int64")
    tests = {"X_test": inputs[:20], "y_test": labels[:20]}
    np.savez(place / "two.npz", X=inputs, y=labels, **tests)
    changes = [
        "data.name=npz", f'data.root="{place / "two.npz"}"', "data.classes=2", "data.agents=5",
        "data.feature_norm=1.0", "data.most_records=24", "algorithm.name=ldp-dsgd",
        'privacy.adversaries=["eavesdropper", "agent:2"]', "privacy.victim=0",
    ]  # fmt: skip
    return trained(place, *changes)


@pytest.mark.slow
def test_recipients_stand_in_the_report_by_what_is_known_of_their_figures(far):
    report, _page = reported(far, recipients=0)
    agent = {row["name"]: row for row in report["recipients"]["rows"]}["agent:2"]
    assert 0 < agent["estimate"] < agent["steered"] < agent["closed"]
    assert agent["closed"] == report["ledger"]["epsilon"]["agent:2"]
    text = (far / "report.html").read_text(encoding="utf-8")
    assert "Estimate, heuristic" in text
    assert "other agents&#39; data can be such that it learns up to the closed figure" in text
    said = report_markdown(collect(far, recipients=0))
    assert f"| agent:2 | 2 | {bound(agent['closed'])} |" in said
    assert report["recipients"] == read_checked_run(far).report.dump()["recipients"]
    with pytest.raises(InputError, match=r"agent 5 must lie in 0\.\.4"):
        collect(far, recipients=5)


@pytest.mark.slow
def test_no_policy_passes_on_what_stands_by_distance(far):
    """A limit above the estimate and the steered figure, and below the closed one, is exceeded."""
    report_run(far, recipients=0)
    run = read_checked_run(far)
    rows = run.report.recipients.rows
    for row in rows:
        low = max(v for v in (row.estimate, row.steered) if v is not None)
        if row.name.startswith("agent") and row.hops >= 2:
            limit = {"adversary": row.name, "epsilon": 0.5 * (low + row.closed), "delta": 1e-5}
            decision = decide(Policy.model_validate({"schema": 1, "limits": [limit]}), run.facts)
            assert decision.exit_code == (3 if row.name == "agent:2" else 5)


@pytest.mark.slow
def test_recipients_of_a_run_that_repeated_a_round_are_refused(far):
    found = collect(far)
    again = found.ledger.model_copy(
        update={"repeated": [(2, 2)], "rounds": found.ledger.rounds + 1}
    )
    run = read_run(far)
    with pytest.raises(InputError, match="some of them more than once"):
        _recipients(run.config, run.plan, again, 0)
