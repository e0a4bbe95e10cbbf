"""[privacy]: targets of membership inference, and one person with records at several agents."""

import json

import pytest

from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.reports.document.collect import collect
from overhear.reports.document.html import render
from overhear.reports.document.markdown import report_markdown
from overhear.reports.judgement.facts import facts_of_plan
from overhear.runs.audit.audit import check_auditable
from overhear.runs.folder.resume import affordable_round
from overhear.runs.folder.run import plan_session, train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.plan.schema import Planned
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=4, privacy={"epsilon": 2, "delta": 1e-05},
    training={"rounds": 6, "sampling_rate": 0.1},
)  # fmt: skip
ADVANTAGE = ("privacy.advantage=0.1",)
RATES = ("privacy.tpr=0.2", "privacy.fpr=0.01")
HELD = ("privacy.holders=[0, 2]", "privacy.records_held=[2, 1]")


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(RUN, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("privacy.tpr=0.2",), "tpr=0.2 needs fpr beside it"),
        (("privacy.fpr=0.2",), "fpr=0.2 needs tpr beside it"),
        (("privacy.advantage=0",), "advantage=0 must lie in (0, 1)"),
        (("privacy.advantage=1.0",), "advantage=1.0 must lie in (0, 1)"),
        (("privacy.tpr=0.01", "privacy.fpr=0.2"), "tpr above fpr"),
        (("privacy.epsilon=1", "privacy.advantage=0.1"), "epsilon and advantage given"),
        (("privacy.noise_multiplier=1", "privacy.tpr=0.2"), "noise_multiplier and tpr given"),
        ((*ADVANTAGE, "privacy.accountant=rdp"), "is met by accountant='pld' alone"),
        ((*ADVANTAGE, "algorithm.name=dsgd"), "advantage=0.1 cannot be met: dsgd adds no noise"),
        (("privacy.holders=[]",), "holders=[] must name an agent"),
        (("privacy.holders=[1, 1]",), "must name each agent once"),
        (("privacy.holders=[4]",), "holders=4 must be at most 3"),
        (("privacy.holders=[-1]",), "holders[0]=-1 must be at least 0"),
        (("privacy.holders=2",), "holders=2 must be a list"),
        (("privacy.records_held=[2]",), "records_held has no effect without holders"),
        (("privacy.holders=[0]", "privacy.records_held=[1, 1]"), "must have one number for each"),
        (("privacy.holders=[0]", "privacy.records_held=[0]"), "records_held[0]=0 must be at"),
        (("privacy.holders=[0]", "privacy.records_held=[1001]"), "must sum to at most 1000"),
        ((*HELD, "privacy.victim=0"), "victim=0 is about the records of one agent"),
        ((*HELD, "privacy.records_per_person=2"), "records_per_person=2 is about the records of"),
        ((*HELD, "privacy.accountant=prv"), "are added up by accountant='pld' alone"),
    ],
    ids=str,
)
def test_what_cannot_be_met_or_stated_is_refused(path, overrides, said):
    with pytest.raises(InputError, match=r"run\.toml") as refused:
        load_run_file(path, overrides)
    assert said in str(refused.value)


def test_an_override_of_one_target_replaces_the_others(path):
    assert load_run_file(path, ADVANTAGE).privacy.goal.words == "advantage 0.1"
    rates = load_run_file(path, RATES)
    assert rates.privacy.goal.words == "TPR 0.2 at FPR 0.01"
    path.write_text(rates.to_toml(), encoding="utf-8")
    assert load_run_file(path) == rates
    assert load_run_file(path, ("privacy.fpr=0.05",)).privacy.goal.words == "TPR 0.2 at FPR 0.05"
    assert load_run_file(path, ("privacy.epsilon=3",)).privacy.goal.words == "epsilon 3"
    assert load_run_file(path, ("privacy.noise_multiplier=3",)).privacy.goal is None


def test_a_run_file_without_the_keys_is_written_as_before(path):
    text = load_run_file(path).to_toml()
    assert not any(key in text for key in ("holders", "records_held", "advantage", "tpr", "fpr"))


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "key"), [(ADVANTAGE, "advantage"), (RATES, "tpr")])
def test_a_plan_and_a_report_carry_the_target_and_what_it_comes_to(path, overrides, key, capsys):
    config = load_run_file(path, overrides)
    plan = make_plan(config)
    target = Planned.model_validate(plan.to_json(), by_alias=True, by_name=False).target
    goal = config.privacy.goal
    assert 0.999 * goal.figure < target.reached <= goal.figure == getattr(target, key)
    assert target.epsilon is None
    facts = facts_of_plan(config, plan)
    assert facts.limit == plan.guarantee("eavesdropper").epsilon
    out = path.parent / "out"
    train_run(config, out)
    report = collect(out)
    assert report.plan.target == target
    page = render(report)
    assert "allowed by the run file" in page
    assert f"(what {goal.words} comes to)" in report_markdown(report)
    assert report_markdown(report).startswith("# The target is met against the eavesdropper")
    sets = [part for one in overrides for part in ("--set", one)]
    assert cli.main(["plan", str(path), *sets, "--strict"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Target: {goal.words} of membership tests against eavesdropper" in said
    assert cli.main(["plan", str(path), *sets, "--sweep", "training.rounds=4,6", "--json"]) == 0
    swept = json.loads(capsys.readouterr().out)
    assert [one["target"][key] for one in swept] == [goal.figure] * 2


def test_releases_that_are_repeated_end_a_run_within_its_target(path):
    session = plan_session(load_run_file(path, ADVANTAGE), path.parent / "out")
    released = list(range(4))
    assert affordable_round(session, released, after=3) == 6
    assert affordable_round(session, released, after=1) == 4  # rounds 2 and 3 cost twice


def test_a_plan_and_a_report_say_whose_records_they_are_about(path, capsys):
    config = load_run_file(path, HELD)
    plan = make_plan(config)
    (row, *_) = plan.planned().adversaries
    assert [(one.agent, one.records) for one in row.holders] == [(0, 2), (2, 1)]
    assert 1.99 < row.epsilon <= 2.0
    out = path.parent / "out"
    train_run(config, out)
    report, whose = collect(out), "one person with 2 records at agent 0 and 1 record at agent 2"
    assert report.ledger.epsilon == {g.adversary: g.epsilon for g in plan.guarantees}
    assert whose in render(report)
    assert whose in report_markdown(report)
    sets = [part for one in HELD for part in ("--set", one)]
    assert cli.main(["plan", str(path), *sets]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the records of one person" in said
    assert "0 (2), 2" in said


def test_an_audit_of_single_records_is_refused_for_a_person(path):
    config = load_run_file(path, HELD)
    with pytest.raises(InputError, match="an audit plants single records"):
        check_auditable(config, build(config), multiplier=1.0)
