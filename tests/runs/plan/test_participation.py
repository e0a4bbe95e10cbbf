"""Runs of a run file in which agents are absent by a public list."""

import json
import math
from dataclasses import replace

import pytest

from overhear.commands import cli
from overhear.interface.budget import budget
from overhear.interface.run import report
from overhear.interface.train import audit, plan, train
from overhear.privacy import composed_epsilon, poisson
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, Reach
from overhear.privacy.releases.ledger import read_ledger
from overhear.runs.folder.records import LedgerHeader
from overhear.runs.folder.resume import check_exposures, epsilon_of_ledger, read_run, resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.accounts.account import account
from tests.runs.folder.interrupted import CutOffError, cut_off_at
from tests.small_run import run_text

RUN = {
    "data": {"name": "digits", "agents": 4},
    "model": {"name": "linear"},
    "algorithm": {"name": "dp-dpsgd"},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-5, "adversaries": ["eavesdropper"]},
    "training": {"rounds": 8, "sampling_rate": 0.05},
}


def _run(**table):
    return RUN | {"participation": table}


def test_a_plan_says_who_takes_part_and_counts_the_rounds_of_the_worst_agent():
    found = plan(_run(probability=0.5, seed=4))
    taking = found.participation
    assert taking is not None
    assert taking.rounds == 8
    assert found.planned().dump()["participation"]["by_agent"] == taking.by_agent
    alone = budget(
        noise_multiplier=2, delta=1e-5, rounds=max(taking.by_agent), sampling_rate=0.05
    ).epsilon
    assert found.guarantee("eavesdropper").epsilon == pytest.approx(alone, rel=1e-9)
    assert "(public list, seed 4)" in repr(found)
    assert "takes part in" in found.statement()
    assert plan(RUN).participation is None


def test_training_follows_the_list_and_its_ledger_costs_what_was_planned(tmp_path):
    listed = tmp_path / "who.csv"
    listed.write_text("1,1,0,1\n0,0,0,0\n1,0,1,1\n1,1,1,1\n" * 2)
    run = _run(path=str(listed))
    out = tmp_path / "run"
    train(run, out)
    spent = read_ledger(out / "ledger.jsonl")
    assert spent.header["participation"] == plan(run).participation.digest
    from overhear.interface.run import report

    told = report(out, format="json").to_json()
    planned = plan(run).guarantee("eavesdropper").epsilon
    assert told["ledger"]["epsilon"]["eavesdropper"] == pytest.approx(planned, rel=1e-9)
    assert told["run"]["participation"] == "4 to 6 of 8 rounds (public list of a file)"
    assert "participation" in {one["name"] for one in told["assumptions"]}
    # Another list of the same figures is another run.
    listed.write_text("1,1,1,1\n1,0,1,1\n0,0,0,0\n1,1,0,1\n" * 2)
    with pytest.raises(InputError, match="list of who takes part"):
        report(out, format="json")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "exactly one"),
        ({"probability": 0.5, "agents_per_round": 2}, "exactly one"),
        ({"probability": 0.0}, "probability"),
        ({"agents_per_round": 5}, "at most the 4 agents"),
        ({"path": "who.csv", "seed": 3}, "no effect"),
        ({"probability": 0.5, "active": 1}, "active"),
    ],
)
def test_tables_that_are_none_are_refused(table, said):
    with pytest.raises(InputError, match=said):
        plan(_run(**table))


def test_a_list_of_too_few_rounds_is_refused(tmp_path):
    listed = tmp_path / "who.csv"
    listed.write_text("1,1,0,1\n" * 7)
    with pytest.raises(InputError, match="7 rounds"):
        plan(_run(path=str(listed)))


@pytest.mark.parametrize(
    ("multiplier", "rate", "participation", "epsilon"),
    [
        (2, 0.02, 1, 1.3297), (2, 0.02, 0.5, 0.9223), (2, 0.02, 0.1, 0.4087),
        (20, 1, 0.5, 4.997), (20, 1, 0.1, 2.029), (20, 1, 0.01, 0.630),
    ],
)  # fmt: skip
def test_a_budget_counts_rounds_of_a_public_lottery(multiplier, rate, participation, epsilon):
    of = {"delta": 1e-5, "rounds": 1000, "sampling_rate": rate, "participation": participation}
    found = budget(noise_multiplier=multiplier, **of)
    assert found.epsilon == pytest.approx(epsilon, rel=2e-4 if epsilon != 0.630 else 2e-3)
    again = budget(epsilon=found.epsilon, **of).noise_multiplier
    assert again == pytest.approx(multiplier, rel=1e-3)


def test_a_lottery_of_a_budget_that_is_none_is_refused():
    of = {"delta": 1e-5, "sampling_rate": 0.02, "noise_multiplier": 2.0}
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="participation"):
            budget(rounds=10, participation=wrong, **of)
    with pytest.raises(InputError, match="give rounds and sampling_rate"):
        budget(epsilon=1.0, participation=0.5, **of)


# Runs of a run file from whose rounds agents may be missing that no list has.

MISSING_RUN = {
    "data": {"name": "digits", "agents": 4},
    "model": {"name": "linear"},
    "algorithm": {"name": "decor", "correlation": 2.0},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-5, "adversaries": ["eavesdropper"]},
    "training": {"rounds": 3, "sampling_rate": 0.05},
}
WORDS = "up to 2 of 4 agents may be missing in any round"


def _run_of_missing(**table):
    return MISSING_RUN | {"participation": table}


def test_a_plan_says_how_many_may_be_missing_and_costs_what_the_account_says():
    found = plan(_run_of_missing(missing=2))
    assert found.planned().dump()["missing"] == {"at_most": 2, "agents": 4, "words": WORDS}
    assert f"participation: {WORDS}" in repr(found)
    said = found.statement()
    assert "Up to 2 of 4 agents may be missing in any round." in said
    assert "depends on neither the data nor the noise" in said
    assert plan(MISSING_RUN).missing is None
    wanted = account(
        "decor", graph="ring:4", rounds=3, sampling_rate=0.05, delta=1e-5, noise_multiplier=2.0,
        correlation=2.0, missing=2, adversaries=["eavesdropper"],
    )  # fmt: skip
    assert found.guarantee("eavesdropper").epsilon == wanted.epsilon("eavesdropper")


def test_ledger_and_report_carry_it(tmp_path):
    run, out = _run_of_missing(missing=2), tmp_path / "run"
    train(run, out)
    assert read_ledger(out / "ledger.jsonl").header["missing"] == 2
    told = report(out, format="json").to_json()
    planned = plan(run).guarantee("eavesdropper").epsilon
    assert told["ledger"]["epsilon"]["eavesdropper"] == pytest.approx(planned, rel=1e-9)
    assert told["run"]["missing"] == WORDS
    (said,) = [one for one in told["assumptions"] if one["name"] == "missing"]
    assert "depends on neither the data nor the noise" in said["text"]
    assert "trained with everybody there" in said["how"]
    # Another number is another run, also where it costs the same.
    lines = (out / "ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["missing"] == 2
    written = (out / "run.toml").read_text()
    assert "missing = 2" in written
    assert "seed" not in written.partition("[participation]")[2].partition("[")[0]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"missing": 0}, "missing"),
        ({"missing": 4}, "less than the 4 agents"),
        ({"missing": 1.5}, "missing"),
        ({"missing": 1, "probability": 0.5}, "exactly one"),
        ({"missing": 1, "agents_per_round": 2}, "exactly one"),
        ({"missing": 1, "path": "who.csv"}, "exactly one"),
        ({"missing": 1, "seed": 3}, "no effect with missing"),
    ],
)
def test_tables_that_are_none_are_refused_of_missing(table, said):
    with pytest.raises(InputError, match=said):
        plan(_run_of_missing(**table))


def test_an_audit_of_rounds_with_everybody_there_is_refused():
    with pytest.raises(InputError, match="an audit plays rounds with everybody there"):
        audit(_run_of_missing(missing=1))


def test_the_run_file_writes_only_what_has_an_effect():
    table = RunFile.model_validate(_run_of_missing(missing=1)).participation
    assert table is not None
    assert table.entries() == {"missing": 1}


def test_a_run_goes_on_with_the_number_that_it_was_begun_with(tmp_path):
    run, out = _run_of_missing(missing=1), tmp_path / "run"
    train(run, out)
    header = LedgerHeader.model_validate(read_ledger(out / "ledger.jsonl").header, strict=False)
    made = plan(run)
    check_exposures(header, made)
    for other in (2, 1000):
        with pytest.raises(
            InputError, match=f"begun with \\[participation\\] missing={other}, not"
        ):
            check_exposures(header.model_copy(update={"missing": other}), made)
    with pytest.raises(InputError, match="missing=1, not 0"):
        check_exposures(header, replace(made, missing=None))


# A run file says how cohorts are drawn; plan, run, ledger, resumption and report say the same.

COHORTS_RUN = run_text(
    "dp-fedavg", agents=6, graph={"name": "server"},
    algorithm={"cohort": "SCHEME", "cohort_rate": 0.3333333333333333, "local_steps": 1},
    privacy={"unit": "UNIT", "noise_multiplier": 1.0, "delta": 1e-05},
    training={"rounds": 8, "sampling_rate": 0.1, "checkpoint_every": 2, "learning_rate": 0.5},
)  # fmt: skip


def config_of(folder, scheme, *changes, unit="agent"):
    path = folder / "run.toml"
    path.write_text(COHORTS_RUN.replace("SCHEME", scheme).replace("UNIT", unit), encoding="utf-8")
    return load_run_file(path, list(changes))


@pytest.mark.parametrize("scheme", ["fixed", "shuffled", "cyclic"])
def test_a_run_is_accounted_as_planned_and_goes_on_where_it_was(tmp_path, scheme):
    config = config_of(tmp_path, scheme)
    planned = make_plan(config)
    out = tmp_path / "out"
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(5))  # the newest checkpoint is of round 4
    resume_run(config, out)
    found = read_run(out)  # holds the ledger against the plan
    spent = epsilon_of_ledger(found.plan, found.spent)
    for g in planned.guarantees:
        assert spent[g.adversary] > g.epsilon  # round 5 was released twice
    if scheme != "fixed":  # once in each of three epochs, and once more with the same agents
        assert planned.guarantee("eavesdropper").epsilon == gaussian(3)
        assert spent["eavesdropper"] == gaussian(4)
    else:
        event = Event(1.0, poisson(1 / 3), Reach.PLACE)
        twice = composed_epsilon({event: 9}, delta=1e-5, adjacency="zero-out")
        assert spent["eavesdropper"] == pytest.approx(twice, rel=1e-9)
    exposure = found.header.exposures["eavesdropper"]
    assert [one for one in exposure.schemes if one] == [(scheme, 2, 6)]


def gaussian(squares):
    return pytest.approx(epsilon_from_mu(math.sqrt(squares), 1e-5), rel=1e-9)


def test_a_run_of_another_kind_of_cohort_does_not_go_on(tmp_path):
    config, out = config_of(tmp_path, "poisson"), tmp_path / "out"
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(3))
    with pytest.raises(InputError, match="a run is continued as it was begun"):
        resume_run(config_of(tmp_path, "fixed"), out)


def test_the_command_says_how_cohorts_are_drawn(tmp_path, capsys):
    config_of(tmp_path, "shuffled")
    path = str(tmp_path / "run.toml")
    assert cli.main(["plan", path, "--json"]) == 0
    (found, *_) = json.loads(capsys.readouterr().out)["adversaries"]
    assert found["sampling"] == "shuffled cohorts"
    assert found["epsilon"] == gaussian(3)
    assert 0 < found["at_least"] < found["epsilon"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.agents=7", "2.33333333333 members; with cohorts 'fixed' it must be a whole number"),
        ('algorithm.cohort="weighted"', "'poisson', 'fixed', 'shuffled' or 'cyclic'"),
        ("algorithm.cohort_rate=2", "cohort_rate=2"),
    ],
)
def test_the_command_refuses_what_cannot_be_drawn(tmp_path, capsys, change, words):
    config_of(tmp_path, "fixed")
    assert cli.main(["plan", str(tmp_path / "run.toml"), "--set", change]) == 2
    assert words in capsys.readouterr().err
