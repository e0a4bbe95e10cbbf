"""The command `overhear reproduce`: a smoke run, going on, what it lists, and its refusals."""

import errno
import json
from pathlib import Path

import pytest

from overhear.commands.cli import main
from overhear.reports.reproduced import reproduce as reproducing
from overhear.reports.reproduced.paper_result import ENTRIES


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVERHEAR_DATA", raising=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a NAME, or --list"),
        (("dpdl-table-7", "--out", "d"), "no table or figure is called 'dpdl-table-7'; did you"),
        (("beauty", "--out", "d"), "called 'beauty'; `overhear reproduce --list` names them"),
        (("dpdl-table-1",), "give a folder for dpdl-table-1"),
        (("dpdl-table-1", "--scale", "huge", "--out", "d"), "scale='huge' must be one of smoke"),
        (("dpdl-table-1", "--out", "d"), "let OVERHEAR_DATA name the folder that holds it"),
        (("--list", "--out", "d"), "--list runs nothing"),
        (("dpdl-table-1", "--scale", "smoke", "--out", "d", "--figures", "f.csv"), "no file of"),
        (
            ("dpdl-table-1", "--scale", "smoke", "--out", "d", "--cell", "graph=rign"),
            "did you mean ring",
        ),
        (("dpdl-table-1", "--scale", "smoke", "--out", "d", "--seeds", "3"), "must lie in [1, 2]"),
        (("dpdl-table-1", "--scale", "smoke", "--out", "d", "--devices", "gpu"), "device='gpu'"),
        (
            ("dpdl-table-1", "--scale", "smoke", "--out", "d", "--address", "h:1"),
            "address='h:1' has",
        ),
        (("whisper-noise-p", "--out", "d", "--seeds", "3"), "a closed form, which takes seconds"),
        (("--list", "--seeds", "3"), "give the NAME of the table"),
        (("--list", "dpdl-table-1", "--backend", "ray"), "--list runs nothing"),
        (("whisper-noise-p", "--out", "held"), "held holds notes.txt"),
        (("whisper-noise-p", "--out", "held/notes.txt"), "is a file; name a folder"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence_and_leaves_nothing(arguments, words, capsys):
    Path("held").mkdir()
    Path("held/notes.txt").write_text("mine")
    assert main(["reproduce", *arguments]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: ")
    assert words in said
    assert not Path("d").exists()
    assert Path("held/notes.txt").read_text() == "mine"


def test_the_list_names_every_entry_with_its_runs(capsys):
    assert main(["reproduce", "--list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert all(any(row.startswith(f"| {name} |") for row in rows) for name in ENTRIES)
    [row] = [row for row in rows if row.startswith("| dpdl-table-1 |")]
    assert "8640 runs" in row
    assert " CPU" in row


def test_a_closed_form_is_held_against_figures_of_a_user(capsys):
    Path("f.csv").write_text(
        "graph.edge_probability,algorithm.name,figure\n0.2,CDP,3.2\n", encoding="utf-8"
    )
    asked = ["reproduce", "whisper-noise-p", "--scale", "smoke", "--out", "d"]
    assert main([*asked, "--figures", "f.csv", "--json"]) == 0
    [line] = [one for one in json.loads(capsys.readouterr().out)["lines"] if one["paper"]]
    assert line["place"] == {"graph.edge_probability": "0.2", "algorithm.name": "CDP"}
    assert line["paper"]["low"] == 3.2
    assert line["verdict"]["because"].startswith("n = 2, and a verdict takes 10 seeds")
    assert json.loads(Path("d/reproduction.json").read_text())["scale"] == "smoke"
    assert main(["reproduce", "whisper-noise-p", "--scale", "small", "--out", "d"]) == 2
    assert "d holds whisper-noise-p at scale smoke" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_smoke_run_goes_on_where_a_full_disk_stopped_it(monkeypatch, capsys):
    def full(path: Path, data: bytes, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    asked = ["reproduce", "dpdl-table-1", "--scale", "smoke", "--out", "d", "--jobs", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(reproducing, "write_durably", full)
        assert main(asked) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "error: d/reproduction.json: No space left on device" in said
    kept = {path: path.read_bytes() for path in Path("d/results").glob("*.json")}
    assert len(kept) == 12
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert {path: path.read_bytes() for path in Path("d/results").glob("*.json")} == kept
    assert Path("d/reproduction.md").read_text(encoding="utf-8") == text
    told = "verdict = not comparable: the setting is another one"
    assert f"; paper = none for this setting; {told}; ε " in text
    assert text.count(f"{told}; here = n = 2, and a verdict takes 10 seeds.") == 1
    assert main(["table", "d"]) == 0
    assert main(["reproduce", "dpdl-table-5", "--scale", "smoke", "--out", "d"]) == 2
    assert "d holds dpdl-table-1 at scale smoke" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_table_fills_up_over_calls_that_each_run_a_part_of_it(capsys):
    asked = ["reproduce", "dpdl-table-1", "--scale", "smoke", "--out", "d", "--jobs", "1"]
    assert main([*asked, "--cell", "algorithm=muffliato,graph=ring", "--seeds", "1"]) == 0
    assert "at scale smoke: 1 of 6 cells, 1 of 2 seeds." in capsys.readouterr().out
    kept = {path: path.read_bytes() for path in Path("d/results").glob("*.json")}
    assert len(kept) == 1
    # Another table finds no place beside it, and what is asked twice is not run twice.
    assert main(["reproduce", "dpdl-table-2", "--scale", "smoke", "--out", "d"]) == 2
    assert "d holds dpdl-table-1 at scale smoke" in " ".join(capsys.readouterr().err.split())
    assert main([*asked, "--cell", "algorithm=muffliato|dpdl", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["cells"], data["seeds"]) == ([3, 6], [2, 2, 2])
    assert [line["place"]["algorithm.name"] for line in data["lines"]] == [
        "DPDL, published", "DPDL, repaired", "MUFFLIATO",
    ]  # fmt: skip
    assert all(line["verdict"]["because"] for line in data["lines"])
    assert {path: path.read_bytes() for path in kept} == kept
    assert main(asked) == 0
    assert "at scale smoke: 6 of 6 cells, 2 seeds." in capsys.readouterr().out
    assert main(["table", "d"]) == 0
