"""The command `overhear plan`: what it prints, in eighty columns, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overhear.commands import cli

RUN = """
data.name = "digits"
data.agents = 4
model.name = "linear"
algorithm = {name = "dpdl", form = "published"}
privacy = {noise_multiplier = 3.0, delta = 1e-5}
training = {rounds = 40, sampling_rate = 0.1}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return path


def test_what_leaks_stands_before_what_fixes_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", str(run)]) == 0
    shown = capsys.readouterr().out
    heads = ["Who could learn", "\nWhat leaks", "\nHow to fix it", "\nHow to set a target"]
    found = [shown.index(head) for head in heads]
    assert found == sorted(found)
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_reason_is_said_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("noise-free gradient into the momentum") == 1
    assert "single-message: one message alone" in shown


def test_json_has_the_advice_with_its_figures(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["warnings"]
    leak, repair, _ = found["advice"]
    assert [sorted(entry) for entry in found["advice"]] == [["epsilon", "what", "words"]] * 3
    assert (leak["what"], repair["what"]) == ("leak", "repair")
    assert leak["epsilon"] == found["adversaries"][0]["epsilon"]
    assert repair["epsilon"] < leak["epsilon"]


def test_a_sweep_has_no_advice(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(run), "--sweep", "graph.name=ring,full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all("advice" not in one for one in found)
