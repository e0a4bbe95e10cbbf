"""[data] user: a table whose rows are several a user is planned, trained, or refused."""

import json
import sys

import numpy as np
import pytest

from overhear.commands.cli import main
from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.accounting.request import Accountant, Adjacency
from overhear.privacy.participation import Event, group
from overhear.runs.run_file.build import data_of, parts_of
from overhear.runs.run_file.run_file import load_run_file

RUN = """\
[data]
name = "csv"
root = "{root}"
agents = 4
user = "who"
target = "ill"
columns = {{a = [0, 100], ill = ["no", "yes"]}}
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 2
delta = 1e-4
adversaries = ["eavesdropper"]
records_per_person = 3
[training]
rounds = 2
sampling_rate = 0.2
"""

OURS = """\
import torch
from overhear.training import Dataset


def data():
    inputs, targets = torch.rand(40, 3), torch.arange(40) % 2
    return Dataset(
        name="ours", inputs=inputs, targets=targets, test_inputs=inputs, test_targets=targets,
        classes=2, mean=(0.0,), std=(1.0,), image=False, users=torch.arange(40) // 2,
    )
"""


@pytest.fixture
def run_file(tmp_path):
    """A run of a table of 40 users with one to three records each."""
    users = [f"user {i}" for i in range(40) for _ in range(1 + i % 3)]
    rows = [f"{who},{i % 100},{('no', 'yes')[i % 2]}" for i, who in enumerate(users)]
    np.random.default_rng(0).shuffle(rows)
    table = tmp_path / "t.csv"
    table.write_text("who,a,ill\n" + "\n".join(rows) + "\n", encoding="utf-8")
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(root=table.as_posix()), encoding="utf-8")
    return path


def test_a_user_is_at_one_agent_and_the_name_is_no_input(run_file):
    config = load_run_file(run_file)
    data = data_of(config)
    assert data.users is not None
    assert data.input_shape == (1,)
    users = data.users.numpy()
    taken = [set(users[part].tolist()) for part in parts_of(config, data)]
    assert sum(map(len, taken)) == len(set.union(*taken)) == len(set(users.tolist()))


def test_a_run_of_users_states_what_all_records_of_one_cost(run_file, tmp_path, capsys):
    assert main(["plan", str(run_file), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["adversaries"]
    # 3 records of one person, each drawn on its own: z 2, q .2, 2 rounds.
    expected = composed_epsilon(
        {Event(2.0, group(3, 0.2)): 2}, delta=1e-4, adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        accountant=Accountant.PLD,
    )  # fmt: skip
    assert row["group"] == [{"records": 3, "epsilon": pytest.approx(expected, rel=1e-4)}]
    assert main(["train", str(run_file), "--out", str(tmp_path / "run")]) == 0
    assert 'user = "who"' in (tmp_path / "run/run.toml").read_text(encoding="utf-8")
    assert main(["report", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("command", ["train", "plan --check"])
def test_more_records_of_a_user_than_the_cap_are_refused_by_number_alone(
    run_file, tmp_path, capsys, command
):
    run_file.write_text(run_file.read_text().replace("person = 3", "person = 2"), "utf-8")
    name, *options = command.split()
    out = ["--out", str(tmp_path / "run")] if name == "train" else []
    assert main([name, str(run_file), *options, *out]) == 2
    said = capsys.readouterr().err
    assert "a user has more than 2 records; raise records_per_person" in said
    assert "user 2" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("records_per_person = 3\n", "", "records_per_person is missing: the data say whose"),
        ('user = "who"', 'user = "a"', "user='a' is declared as an input"),
        ('user = "who"', 'user = "ill"', "user='ill' is declared as an input"),
        ("agents = 4", 'agents = 4\npartition = "dirichlet"', "records of a user stay together"),
        ("records_per_person = 3", 'unit = "user"', "unit='user' needs records_per_person"),
    ],
)
def test_what_no_figure_of_a_user_could_rest_on_is_refused(run_file, capsys, before, after, said):
    run_file.write_text(run_file.read_text().replace(before, after), "utf-8")
    assert main(["plan", str(run_file)]) == 2
    assert said in capsys.readouterr().err


def test_data_of_ones_own_say_whose_a_record_is(run_file, tmp_path, capsys, monkeypatch):
    (tmp_path / "ours.py").write_text(OURS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ours", raising=False)
    head, tail = run_file.read_text().split("[model]")
    assert head
    for cap, code in ((3, 0), (1, 2)):
        rest = tail.replace("person = 3", f"person = {cap}")
        text = f'[data]\nname = "ours:data"\nagents = 4\n[model]{rest}'
        run_file.write_text(text, encoding="utf-8")
        assert main(["train", str(run_file), "--out", str(tmp_path / f"run{cap}")]) == code
    assert "a user has more than 1 record; raise" in capsys.readouterr().err


_OF_TABLES = ("root", "user", "target", "columns")
OF_USERS = ("records_per_person = 3", 'records_per_person = 3\nunit = "user"')
POLICY = """\
schema = 1
[[limits]]
adversary = "eavesdropper"
epsilon = 8
delta = 1e-4
unit = "user"
records_per_person = 3
"""


def test_a_run_of_unit_user_says_so_from_the_plan_to_the_report(run_file, tmp_path, capsys):
    run_file.write_text(run_file.read_text().replace(*OF_USERS), "utf-8")
    run, policy = tmp_path / "run", tmp_path / "policy.toml"
    assert main(["plan", str(run_file), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    (row,) = planned["adversaries"]
    expected = composed_epsilon({Event(2.0, group(3, 0.2)): 2}, delta=1e-4)
    assert row["epsilon"] == pytest.approx(expected, rel=1e-4)
    assert (row["unit"], row["records_per_person"], row.get("group")) == ("user", 3, None)
    (warned,) = planned["warnings"]  # and none of the cap: [data] user says whose a record is
    assert warned.startswith("The number of records in all counts as public")
    assert main(["plan", str(run_file), "--statement"]) == 0
    said = capsys.readouterr().out
    assert "all records of one user (at most 3)" in said
    assert "at one agent: training checks it" in said
    assert main(["train", str(run_file), "--out", str(run)]) == 0
    assert main(["report", str(run)]) == 0
    report = json.loads((run / "privacy.json").read_text(encoding="utf-8"))
    (held,) = (one for one in report["assumptions"] if one["name"] == "users")
    assert held["status"] == "verified"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "differ in one user with at most 3 records" in page
    assert "one record of agent" not in page.lower()
    for records, code in ((3, 0), (4, 3)):
        policy.write_text(POLICY.replace("person = 3", f"person = {records}"), "utf-8")
        assert main(["check", str(run), "--policy", str(policy)]) == code
    assert "one user with at most 4 records" in " ".join(capsys.readouterr().out.split())
    assert main(["person", str(tmp_path / "ann.jsonl"), "--add", str(run), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["runs"]
    assert line["whose"] == "one user with at most 3 records at the agent at highest risk"
    assert line["alone"] == pytest.approx(expected, rel=1e-4)
    assert main(["audit-last-model", str(run)]) == 2
    assert "what last models show of all records of a user" in capsys.readouterr().err


def test_without_a_column_the_cap_is_printed_as_an_assumption(run_file, capsys):
    text = run_file.read_text().replace(*OF_USERS).replace('user = "who"\n', "")
    run_file.write_text(text, "utf-8")
    assert main(["plan", str(run_file), "--json"]) == 0
    warned = json.loads(capsys.readouterr().out)["warnings"]
    start = "that no user has more than 3 records, and that all of them are at"
    assert sum(one.startswith(start) for one in warned) == 1
    assert main(["plan", str(run_file), "--statement"]) == 0
    assert "that is assumed, and nothing here checks it" in capsys.readouterr().out


def test_a_limit_of_a_user_says_of_how_many_records(run_file, tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    for text, said in (
        (POLICY.replace("records_per_person = 3\n", ""), "records_per_person is missing"),
        (POLICY.replace('unit = "user"\n', ""), "has no effect at unit='record'"),
    ):
        policy.write_text(text, "utf-8")
        assert main(["check", str(tmp_path), "--policy", str(policy)]) == 2
        assert said in capsys.readouterr().err


def test_what_a_paper_claims_of_a_record_does_not_stand_beside_a_figure_of_users(tmp_path, capsys):
    path = tmp_path / "run.toml"
    text = RUN.replace('name = "dp-dpsgd"', 'name = "dpdl"').replace(*OF_USERS)
    for before, after in (
        ('name = "csv"', 'name = "digits"'),
        ("_per_person = 3", "_per_person = 2"),
    ):
        text = text.replace(before, after)
    kept = [line for line in text.splitlines() if line.split(" ")[0] not in _OF_TABLES]
    path.write_text("\n".join(kept), "utf-8")
    assert main(["plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["published_bound"] is None
    assert main(["plan", str(path), "--json", "--set", "privacy.unit=record"]) == 0
    assert json.loads(capsys.readouterr().out)["published_bound"] is not None


BY_USER = ((*OF_USERS,), ('name = "dp-dpsgd"', 'name = "dp-dpsgd"\nclip_per = "user"'))


def test_a_run_that_clips_by_user_costs_a_user_what_a_record_does(run_file, tmp_path, capsys):
    text = run_file.read_text()
    for before, after in BY_USER:
        text = text.replace(before, after)
    run_file.write_text(text, "utf-8")
    run = tmp_path / "run"
    assert main(["plan", str(run_file), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["adversaries"]
    expected = composed_epsilon({Event(2.0, group(1, 0.2)): 2}, delta=1e-4)
    assert row["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert (row["status"], row["unit"], row["records_per_person"]) == ("proven", "user", 3)
    assert main(["plan", str(run_file), "--statement"]) == 0
    said = capsys.readouterr().out
    assert "clip_per user" in said
    assert "with Poisson batches of whole users at rate 0.2" in said
    assert main(["train", str(run_file), "--out", str(run)]) == 0
    assert main(["report", str(run)]) == 0
    report = json.loads((run / "privacy.json").read_text(encoding="utf-8"))
    assert report["ledger"]["epsilon"]["eavesdropper"] == pytest.approx(expected, rel=1e-6)
    # Without users, with too many records of one, or with other batches there is no run.
    for before, after, why in (
        ('user = "who"\n', "", "the step draws or clips by user, and nothing says whose a record"),
        ("person = 3", "person = 2", "a user has more than 2 records"),
        ("sampling_rate = 0.2", 'batch_size = 4\nbatches = "fixed"', "has no bound"),
        ('unit = "user"', 'unit = "agent"', "records_per_person=3 has no effect"),
    ):
        run_file.write_text(text.replace(before, after), "utf-8")
        assert main(["train", str(run_file), "--out", str(tmp_path / "none")]) == 2
        assert why in capsys.readouterr().err
        assert not (tmp_path / "none").exists()


def test_an_audit_checks_a_run_by_user_and_says_what_canaries_do_not_measure(run_file, capsys):
    text = run_file.read_text()
    for before, after in BY_USER:
        text = text.replace(before, after)
    run_file.write_text(text, "utf-8")
    assert main(["audit", str(run_file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(one["passed"] for one in found["checks"])
    (row,) = found["adversaries"]
    assert row["verdict"] == "not measured"
    assert "a user's clipped sum is not scored" in row["words"]
