"""How the items of a run were made of records, from the run file to the gate."""

import json
import sys
from pathlib import Path

import pytest

from overhear.commands.cli import main

MINE = """
import numpy as np

X = np.random.default_rng(0).gamma(2.0, size=(80, 9)).astype("float32")
Y = (X[:, 0] > 2).astype(int)


def raw(i):
    return (X, Y) if i is None else (np.delete(X, i, 0), np.delete(Y, i))


def silent():
    return X / 4, Y


def scaled():
    return (X - X.mean(0)) / X.std(0), Y


def shown(leave_out=None):
    x, y = raw(leave_out)
    return x / 4, y


def pretended(leave_out=None):
    x, y = raw(leave_out)
    return (x - X.mean(0)) / X.std(0), y


def refused(leave_out=None):
    x, y = raw(leave_out)
    return x / x.mean(0), y
"""
RUN = """
[data]
name = "mine:{name}"
classes = 2
agents = 2
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
epsilon = 3
delta = 1e-5
adversaries = []
[training]
rounds = 1
sampling_rate = 0.1
"""
POLICY = """
schema = 1
[[limits]]
adversary = "eavesdropper"
epsilon = 3
delta = 1e-5
"""
ALONE = "evidence: records alone"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "alone.toml").write_text(f"{POLICY}[evidence]\nrecords_alone = true\n")
    return tmp_path


def trained(folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> tuple[dict, str]:
    """The report of a run, and what was said on standard error."""
    (folder / "run.toml").write_text(text)
    assert main(["train", "run.toml", "--out", "run"]) == 0
    said = capsys.readouterr().err
    assert main(["report", "run", "--trust-code"]) == 0
    return json.loads((folder / "run/privacy.json").read_text()), said


@pytest.mark.parametrize(
    ("name", "code", "status", "how"),
    [
        ("silent", 5, "assumed", "the data function takes no leave_out"),
        pytest.param(
            *("scaled", 5, "gap", "9 of 9 columns have mean 0 and deviation 1 over the items"),
            marks=pytest.mark.slow,
        ),
        ("pretended", 5, "gap", "9 of 9 columns have mean 0 and deviation 1 over the items"),
        ("shown", 0, "assumed", "was called with 2"),
    ],
)
def test_what_is_not_shown_is_assumed_or_named_and_fails_the_policy_that_asks(
    folder, capsys, name, code, status, how
):
    report, warned = trained(folder, capsys, RUN.format(name=name))
    (alone,) = [one for one in report["assumptions"] if one["name"] == "alone"]
    assert (alone["status"], how in alone["how"]) == (status, True)
    assert ("Warning: 9 of 9 columns" in warned) == (status == "gap")
    capsys.readouterr()
    assert main(["check", "run", "--policy", "alone.toml", "--trust-code", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    (asked,) = [one for one in told["requirements"] if one["name"] == ALONE]
    assert how in asked["sentence"]
    assert any(how in note for note in told["notes"]) == (code == 5)
    assert main(["check", "run", "--policy", "policy.toml", "--trust-code"]) == 0
    # Verified is what was compared, and nothing more.
    (equal,) = [one for one in report["assumptions"] if one["name"] == "duplicates"]
    assert equal["text"] == "No two items, of one agent or of several, have equal inputs."


def test_what_changes_with_another_record_is_refused_before_the_folder_is_claimed(folder, capsys):
    (folder / "run.toml").write_text(RUN.format(name="refused"))
    for command in (["train", "run.toml", "--out", "run"], ["plan", "run.toml", "--check"]):
        assert main(command) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "left out 79 items differ in 9 of 9 numbers, by up to" in said
        assert "where 1 item may: an item must be made of one record alone" in said
    assert not (folder / "run").exists()


def test_a_plan_says_what_it_takes_for_granted_and_a_check_what_was_shown(folder, capsys):
    (folder / "run.toml").write_text(RUN.format(name="shown"))
    assert main(["plan", "run.toml"]) == 0
    plain = " ".join(capsys.readouterr().out.split())
    assert "every item of 'mine:shown' is taken to be made of one record alone" in plain
    assert main(["plan", "run.toml", "--check", "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["check"]["items"]
    assert (items["source"], items["tied"], items["left_out"] >= 10) == ("function", [], True)


@pytest.mark.slow
def test_records_that_are_read_row_by_row_pass_and_arrays_do_not(folder, capsys):
    import numpy as np

    draw = np.random.default_rng(1)
    np.savez(folder / "t.npz", X=draw.normal(1, 2, size=(60, 3)), y=np.arange(60) % 2)
    lines = [f"{i % 50},{i % 2}" for i in range(60)]
    (folder / "t.csv").write_text("\n".join(["age,y", *lines]))
    csv = 'columns = {age = [0, 120]}\ntarget = "y"\nclasses = 2'
    for name, more, code in (("npz", "classes = 2", 5), ("csv", csv, 0), ("digits", "", 0)):
        root = "" if name == "digits" else f'root = "t.{name}"\n'
        text = RUN.replace('name = "mine:{name}"\nclasses = 2', f'name = "{name}"\n{root}{more}')
        (folder / f"{name}.toml").write_text(text)
        assert main(["train", f"{name}.toml", "--out", name]) == 0
        assert main(["report", name]) == 0
        assert main(["check", name, "--policy", "alone.toml"]) == code
        assert ("is assumed, and every figure" in " ".join(capsys.readouterr().out.split())) == (
            code == 5
        )


def test_a_run_that_says_nothing_of_its_items_has_shown_nothing(folder, capsys):
    """A ledger of before this was written down, or one from which it was taken."""
    from overhear.runs.folder.records import Items, LedgerHeader

    assert LedgerHeader.model_fields["items"].default is None
    assert not Items(source="function").shown
    assert not Items(source="arrays").shown
    assert not Items(source="rows", tied=["x"]).shown
    assert Items(source="function", left_out=2).shown
