"""What a report says of a run that was cut off, resumed, or ended by its budget."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from overhear.commands import cli
from overhear.privacy.releases.ledger import Ledger, read_ledger
from overhear.reports.document.collect import collect, read_checked_run, report_run
from overhear.reports.document.markdown import report_markdown
from overhear.reports.document.summary import course
from overhear.reports.judgement.facts import facts_of_report
from overhear.reports.judgement.findings import Kind, Outcome, text_of
from overhear.reports.judgement.gate import Requirement, decide
from overhear.reports.judgement.policy import Policy
from overhear.reports.judgement.wording import Outcome as Verdict
from overhear.reports.judgement.wording import verdict
from overhear.reports.schema import report_schema
from overhear.runs.folder.folder import write_sums
from overhear.runs.folder.records import LedgerHeader, header_of
from overhear.runs.folder.resume import check_exposures, resume_run
from overhear.runs.folder.run import plan_session, train_run
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.exposure.sensitivity import Release
from overhear.training.models.metrics import Metrics
from tests.conftest import typed
from tests.reports.document.test_collect import reported
from tests.reports.document.test_html import Page
from tests.reports.test_schema import closed, found
from tests.runs.folder.interrupted import (
    NO_TARGET,
    CutOffError,
    cut_off,
    cut_off_at,
    everything,
    plan_once,
    write_run_file,
)

pytestmark = pytest.mark.slow  # runs and processes of their own; quick cases lie beside them

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    plan_once(monkeypatch)


@pytest.fixture
def run_file(tmp_path):
    return write_run_file(tmp_path)


def resumed(run_file: Path, *changes: str) -> Path:
    """Rounds 5 and 6 of 12 are released twice; with the target of the file it ends after 10."""
    config, out = cut_off(run_file, *changes)
    resume_run(config, out)
    return out


def told(page: Page) -> str:
    """The text of a page; figures stand in elements of their own."""
    return re.sub(r" (?=[.,;:)])", "", page.text())


def verdict_text(report: dict[str, Any]) -> list[str]:
    return [text_of(note) for note in verdict(facts_of_report(typed(report))).notes]


def complete(out: Path) -> Requirement:
    """What a policy that asks for a complete run finds."""
    limit = {"adversary": "eavesdropper", "epsilon": 9.0, "delta": 1e-4}
    policy = Policy.model_validate({"schema": 1, "limits": [limit]})
    requirements = decide(policy, read_checked_run(out).facts).requirements
    return next(one for one in requirements if one.name == "evidence: complete run")


def test_a_resumed_run_says_how_often_and_what_was_released_twice(run_file):
    out = resumed(run_file, NO_TARGET)
    report, page = reported(out)
    run, ledger = report["run"], report["ledger"]
    assert (run["rounds_done"], run["finished"], run["stopped"]) == (12, True, None)
    assert (ledger["rounds"], ledger["rounds_accounted"]) == (14, 14)
    assert (ledger["resumed_after"], ledger["repeated"]) == ([4], [[5, 2], [6, 2]])
    said = (
        "The run was resumed once. Released more than once: rounds 5 to 6. Each of the 14 releases "
        "of rounds is counted. They are more than the 12 planned, so the figures hold if what cut "
        "the run off did not depend on the data."
    )
    assert said in told(page)
    assert "Rounds 12 of 12 Releases 14 of rounds, resumed once" in told(page)
    assert "a round that was released again counted again" in told(page)
    assert said in report_markdown(typed(report))
    assert "12 of 12 rounds, 14 releases of rounds" in report_markdown(typed(report))
    assert found(report, closed(report_schema())) == []
    assert complete(out).outcome is Outcome.PASSED


def test_a_run_that_its_budget_ended_is_not_said_to_have_all_its_rounds(run_file):
    out = resumed(run_file)
    report, page = reported(out)
    run, ledger = report["run"], report["ledger"]
    assert (run["rounds_done"], run["rounds"], run["finished"]) == (10, 12, True)
    assert (ledger["rounds"], ledger["rounds_accounted"]) == (12, 12)
    assert run["stopped"] == json.loads((out / "stopped.json").read_text(encoding="utf-8"))
    assert run["stopped"]["because"].startswith("Stopped after round 10 of 12: ")
    assert "The budget ended the run after round 10 of 12: rounds that were" in told(page)
    assert "Rounds 10 of 12, where the budget ended it Releases 12 of rounds" in told(page)
    assert "10 of 12 rounds, 12 releases of rounds" in report_markdown(typed(report))
    assert "Each of the 12 releases of rounds is counted. " in told(page)
    assert "They are more than" not in told(page)
    assert "not finished" not in told(page)
    assert verdict(facts_of_report(typed(report))).outcome is Verdict.MET
    assert "stopped.json" in report["reproduce"]["files"]
    assert found(report, closed(report_schema())) == []


@pytest.mark.parametrize("target", ["advantage = 0.3", "tpr = 0.3\nfpr = 0.1"])
def test_a_run_whose_budget_is_of_a_membership_test_is_reported_when_it_ended_early(
    run_file, target
):
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("epsilon = 4", target), encoding="utf-8")
    report, page = reported(resumed(run_file))
    assert (report["run"]["rounds_done"], report["run"]["finished"]) == (10, True)
    assert "The budget ended the run after round 10 of 12: rounds that were" in told(page)


def test_a_run_that_its_budget_ended_is_not_complete_and_the_reason_is_named(run_file):
    finding = complete(resumed(run_file))
    assert finding.outcome is Outcome.MISSING
    assert [one.kind for one in finding.findings] == [Kind.STOPPED]
    assert "The budget ended the run after round 10 of 12" in finding.sentence
    assert "it cannot be continued. Train a new run, or set `complete_run" in finding.sentence


def test_an_unfinished_run_is_reported_at_the_cost_of_all_its_rounds(run_file):
    config, out = cut_off(run_file)
    planned = plan_session(config, out).plan.guarantee("eavesdropper").epsilon
    report, page = reported(out)
    assert (report["run"]["rounds_done"], report["run"]["finished"]) == (6, False)
    assert report["ledger"]["rounds_accounted"] == 12
    assert report["ledger"]["epsilon"]["eavesdropper"] == pytest.approx(planned, rel=1e-12)
    assert "The run is not finished: 6 of 12 rounds were released." in told(page)
    assert "--resume continues it." in told(page)
    assert "test accuracy of the mean model so far" in told(page)
    assert "Rounds 6 of 12, not finished" in told(page)
    finding = complete(out)
    assert finding.outcome is Outcome.MISSING
    assert f"`overhear train {out}/run.toml --out {out} --resume`" in finding.sentence


def test_a_report_changes_nothing_of_what_it_reports_about(run_file):
    config, out = cut_off(run_file, at=12)  # all is there but the sums, which closing it writes
    with pytest.raises(ValueError, match=r"SHA256SUMS is missing.*--resume` closes the run"):
        report_run(out)
    resume_run(config, out)
    first = reported(out)[0] | {"made": ""}
    assert reported(out)[0] | {"made": ""} == first


def test_a_run_that_was_cut_off_in_its_last_round_is_not_complete(run_file):
    config = load_run_file(run_file)
    out = run_file.parent / "out"
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(11))
    releases = read_ledger(out / "ledger.jsonl").entries[-1]["releases"]
    ledger = Ledger.reopen(out / "ledger.jsonl")
    ledger.append(12, releases)
    ledger.close()
    report = collect(out).dump()
    assert (report["run"]["rounds_done"], report["run"]["finished"]) == (12, False)
    assert "12 of 12 rounds were released" in "".join(verdict_text(report))
    assert "cut off in its last round. Continue it" in complete(out).sentence


def test_a_run_that_is_cut_off_again_on_its_last_budget_is_not_finished(run_file):
    config, out = cut_off(run_file)
    with pytest.raises(CutOffError):
        resume_run(config, out, progress=cut_off_at(8))
    report = collect(out).dump()
    run = report["run"]
    assert (run["rounds_done"], run["finished"], run["stopped"]["round"]) == (8, False, 10)
    assert "continues it, to round 10 at the most" in verdict_text(report)[0]
    assert "does not name 4 of 12 planned rounds" in complete(out).sentence


def test_a_run_that_died_before_its_first_evaluation_has_a_report(run_file):
    _, out = cut_off(run_file, at=0)
    (out / "metrics.jsonl").unlink()
    report, page = reported(out)
    assert report["utility"]["rounds"] == []
    assert report["ledger"]["rounds_accounted"] == 12
    assert "Missing: no round was evaluated." in told(page)


def test_where_nothing_was_released_there_is_nothing_to_report(run_file, capsys):
    out = run_file.parent / "out"
    out.mkdir()
    (out / "run.toml").write_text(load_run_file(run_file).to_toml(), encoding="utf-8")
    assert cli.main(["report", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing was released and there is nothing to report" in said
    assert "--resume` begins the run" in said


def test_a_stopped_json_that_does_not_fit_its_run_is_refused(run_file):
    out = resumed(run_file)
    held = json.loads((out / "stopped.json").read_text(encoding="utf-8"))
    changes: list[dict[str, Any]] = [
        {"round": 13}, {"rounds": 13}, {"adversary": "final-models"}, {"target": 5.0},
        {"delta": 1e-5}, {"epsilon": 3.0}, {"round": "10"},
    ]  # fmt: skip
    for change in changes:
        (out / "stopped.json").write_text(json.dumps(held | change), encoding="utf-8")
        write_sums(out)
        with pytest.raises(ValueError, match=r"stopped\.json (does not fit|cannot be read)"):
            collect(out)


def test_no_budget_ends_a_run_that_was_never_resumed(run_file):
    held = (resumed(run_file) / "stopped.json").read_bytes()
    whole = run_file.parent / "whole"
    train_run(load_run_file(run_file), whole)
    (whole / "stopped.json").write_bytes(held)
    write_sums(whole)
    with pytest.raises(ValueError, match=r"stopped\.json does not fit"):
        collect(whole)


def test_a_line_that_was_cut_off_before_a_resumption_is_a_gap(run_file):
    config, out = cut_off(run_file, NO_TARGET)
    with (out / "ledger.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 7, "rel')
    resume_run(config, out)
    report = collect(out).dump()
    assert not report["ledger"]["torn"]
    assert [tuple(one) for one in report["ledger"]["repeated"]] == [(5, 2), (6, 2), (7, 2)]
    entries = {entry["name"]: entry for entry in report["assumptions"]}
    assert entries["ledger"]["status"] == "gap"
    assert entries["ledger"]["how"].startswith("a line was cut off")
    assert entries["rounds"]["how"] == "the ledger names 15, 3 of them again"
    assert entries["rounds"]["status"] == "gap"


def of_example(name: str, *changes: str) -> RunFile:
    path = ROOT / "examples" / name
    if not path.is_file():
        pytest.skip("needs the examples")
    few = ["intercept.rounds=[]", "attack.rounds=[]", "privacy.noise_multiplier=2"]
    return load_run_file(path, [*few, *changes])


@pytest.mark.slow
def test_a_start_that_was_released_twice_costs_twice(run_file, monkeypatch):
    few = ("training.rounds=2", "intercept.rounds=[]", "attack.rounds=[]")
    mixing = ("algorithm.name=dpmixsgd", "algorithm.form=repaired", "model.task=class-weights")
    config, out = load_run_file(run_file, [*mixing, *few, NO_TARGET]), run_file.parent / "out"

    def fail(*_: object) -> None:
        raise CutOffError

    with monkeypatch.context() as patched:
        patched.setattr("overhear.runs.folder.run.save_checkpoint", fail)
        with pytest.raises(CutOffError):
            train_run(config, out)
    said: list[str] = []
    resume_run(config, out, notice=said.append)
    assert said == [
        f"The run in {out} begins anew: no round was released. Its start was released before; "
        "released again, it counts twice."
    ]
    assert read_ledger(out / "ledger.jsonl").numbers == [0, 0, 1, 2]
    planned = plan_session(config, out).plan.guarantee("eavesdropper").epsilon
    report = collect(out).dump()
    assert report["ledger"]["epsilon"]["eavesdropper"] > 1.05 * planned
    assert [tuple(one) for one in report["ledger"]["repeated"]] == [(0, 2)]
    assert "Released more than once: the start." in "".join(verdict_text(report))
    for name, line in report["epsilon_by_round"].items():
        assert line[-1][1] == pytest.approx(report["ledger"]["reading"][name], rel=1e-9)


@pytest.mark.slow
def test_where_rounds_differ_a_repeated_one_is_accounted_beside_all_planned(tmp_path):
    few = ("training.rounds=4", "training.checkpoint_every=2")
    config, out = of_example("dyn-d2p-digits.toml", *few), tmp_path / "out"
    for run in (train_run, resume_run):
        with pytest.raises(CutOffError):
            run(config, out, progress=cut_off_at(3))
    ledger = collect(out).dump()["ledger"]
    assert [tuple(one) for one in ledger["repeated"]] == [(3, 2)]
    assert (ledger["rounds"], ledger["rounds_accounted"]) == (4, 5)


def evaluated(round: int) -> Metrics:
    return Metrics(
        round=round, accuracy=(0.5,), consensus_accuracy=0.5, consensus_loss=1.0,
        consensus_distance=0.0,
    )  # fmt: skip


def test_rounds_past_the_end_of_a_budget_are_not_done(run_file):
    out = resumed(run_file)
    held = json.loads((out / "stopped.json").read_text(encoding="utf-8"))
    plan = plan_session(load_run_file(run_file), out).plan
    spent = read_ledger(out / "ledger.jsonl")
    for end, done, finished in ((10, 10, True), (4, 4, True), (11, 10, False)):
        (out / "stopped.json").write_text(json.dumps(held | {"round": end}), encoding="utf-8")
        came = course(out, plan, spent=spent, metrics=[evaluated(end)])
        assert (came.done, came.finished) == (done, finished)


@pytest.mark.parametrize(
    ("repeated", "words"),
    [
        ([(5, 2)], "round 5."),
        ([(5, 2), (7, 3), (8, 2)], "round 5 and rounds 7 to 8."),
        ([(0, 2), (1, 2), (2, 2)], "the start and rounds 1 to 2."),
        ([(n, 2) for n in (1, 3, 5, 7, 9)], "round 1, round 3, round 5, round 7 and others."),
    ],
)
def test_rounds_that_follow_each_other_are_named_as_one_stretch(report, repeated, words):
    report["ledger"] |= {"resumed_after": [4, 4], "repeated": repeated}
    [note] = verdict_text(report)
    assert note.startswith(f"The run was resumed 2 times. Released more than once: {words}")


def test_a_resumption_that_repeats_nothing_says_so(report):
    report["ledger"]["resumed_after"] = [4]
    assert verdict_text(report) == ["The run was resumed once, and no round was released again."]


@pytest.mark.slow
def test_a_graph_file_that_became_another_graph_is_refused(run_file, monkeypatch):
    for module in ("run", "resume"):  # each time from the file
        monkeypatch.setattr(f"overhear.runs.folder.{module}.plan_session", plan_session)
    path = run_file.parent / "graph.json"
    full = json.dumps({"agents": 4, "edges": [[i, j] for i in range(4) for j in range(i)]})
    path.write_text(full, encoding="utf-8")
    graph = ["graph.name=file", f'graph.path="{path}"', "data.agents=4", "algorithm.name=dpdl"]
    config, out = cut_off(run_file, *graph, NO_TARGET)
    whole = collect(out).dump()["ledger"]["epsilon"]["eavesdropper"]
    ring = {"agents": 4, "edges": [[i, (i + 1) % 4] for i in range(4)]}
    path.write_text(json.dumps(ring), encoding="utf-8")
    assert plan_session(config, out).plan.guarantee("eavesdropper").epsilon < 0.9 * whole
    before = everything(out)
    said = (
        r"for eavesdropper the run was begun with joint_sensitivity of release 1 2\.0, but .* "
        r"give 1\.73.*; put the graph, the data and the version \(in environment.json\) back"
    )
    with pytest.raises(ValueError, match=said):
        resume_run(config, out)
    with pytest.raises(ValueError, match=said):
        collect(out)
    assert everything(out) == before
    path.write_text(full, encoding="utf-8")
    resume_run(config, out)


def test_every_figure_of_an_exposure_is_that_of_the_ledger(run_file):
    config, out = cut_off(run_file, NO_TARGET)
    header, plan = header_of(read_ledger(out / "ledger.jsonl")), plan_session(config, out).plan
    exposures = header.exposures or {}
    held = exposures["eavesdropper"]
    [release] = held.releases

    def changed(**change: object) -> LedgerHeader:
        update = exposures | {"eavesdropper": held.model_copy(update=change)}
        return header.model_copy(update={"exposures": update})

    check_exposures(header, plan)
    nearly = (release[0] * (1 + 1e-12), *release[1:])
    check_exposures(changed(releases=[nearly]), plan)
    *figures, reach = release
    others: list[tuple[LedgerHeader, str]] = [
        (
            changed(
                releases=[[*(f * (1 + (k == at) * 1e-8) for k, f in enumerate(figures)), reach]]
            ),
            name,
        )
        for at, name in enumerate(Release._fields[: len(figures)])
    ]
    others += [(changed(releases=[[*figures, "ball"]]), "release 1 stays in a ball True")]
    twice, infinite = [release, release], [(math.inf, *release[1:])]
    others += [(changed(releases=twice), "number of releases 2, but .* give 1")]
    others += [(changed(releases=infinite), "joint_sensitivity of release 1 inf")]
    others += [(changed(whole_run=True), "whole_run True, but .* give False")]
    for other, said in others:
        with pytest.raises(ValueError, match=f"for eavesdropper the run was begun with {said}"):
            check_exposures(other, plan)
    both = exposures | {"coalition:0,1": held}
    for exposed, said in (
        (None, "lacks what each adversary is exposed to"),
        ({}, "whole_run None, but .* give False"),
        (both, "for coalition:0,1 the run was begun with whole_run False"),
    ):
        with pytest.raises(ValueError, match=said):
            check_exposures(header.model_copy(update={"exposures": exposed}), plan)


def test_an_infinite_exposure_is_the_same_when_a_run_goes_on(run_file):
    open_ = ("algorithm.name=dsgd", "privacy.noise_multiplier=0", "privacy.clip_norm=inf")
    out = resumed(run_file, *open_)
    header = read_ledger(out / "ledger.jsonl").header
    assert header["exposures"]["eavesdropper"]["releases"][0][0] == "inf"
    assert collect(out).ledger.epsilon["eavesdropper"] == math.inf
