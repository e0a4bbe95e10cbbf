"""The command `overhear plan`: what it prints, in eighty columns, and its JSON."""

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
training = {rounds = 10, sampling_rate = 0.1}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return path


def test_what_leaks_stands_before_what_fixes_it(run, capsys):
    assert cli.main(["plan", str(run)]) == 0
    shown = capsys.readouterr().out
    heads = ["Who could learn", "\nWhat leaks", "\nHow to fix it", "\nHow to set a target"]
    found = [shown.index(head) for head in heads]
    assert found == sorted(found)
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_reason_is_said_once(run, capsys):
    assert cli.main(["plan", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("noise-free gradient into the momentum") == 1
    assert "single-message: one message alone" in shown


def test_json_has_the_advice_with_its_figures(run, capsys):
    assert cli.main(["plan", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["warnings"]
    leak, repair, _ = found["advice"]
    assert [sorted(entry) for entry in found["advice"]] == [["epsilon", "what", "words"]] * 3
    assert (leak["what"], repair["what"]) == ("leak", "repair")
    assert leak["epsilon"] == found["adversaries"][0]["epsilon"]
    assert repair["epsilon"] < leak["epsilon"]


def test_a_sweep_has_no_advice(run, capsys):
    assert cli.main(["plan", str(run), "--sweep", "graph.name=ring,full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all("advice" not in one for one in found)


REPAIRED = "--set=algorithm.form=repaired"


def planned(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """The exit code, and what stands on standard output and on standard error."""
    capsys.readouterr()
    code = cli.main(["plan", *map(str, arguments)])
    found = capsys.readouterr()
    return code, " ".join(found.out.split()), " ".join(found.err.split())


def test_strict_passes_what_is_proven(run, capsys):
    code, shown, said = planned(capsys, run, REPAIRED, "--strict")
    assert (code, said) == (0, "")
    assert "single-message" in shown  # heuristic, and no adversary


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ([], "heuristic", "no limit to how well is proven"),
        ([REPAIRED, "--set=privacy.noise_multiplier=0.0"], "no protection", "multiplier is 0"),
        ([REPAIRED, "--set=training.evaluation_noise_seed=7"], "heuristic", "can subtract it"),
        (
            [REPAIRED, "--set=privacy.adversary=single-message", "--set=privacy.epsilon=1.0"],
            "heuristic",
            "target: single-message",
        ),
    ],
)
def test_strict_ends_with_three_and_says_which_and_why(run, capsys, given, status, said):
    assert planned(capsys, run, *given)[0] == 0
    code, shown, told = planned(capsys, run, *given, "--strict")
    assert code == 3
    assert status in shown
    assert "Not passed, " in told
    assert said in told
    code, text, _ = planned(capsys, run, *given, "--strict", "--json")
    found = json.loads(text)
    assert (code, found["strict"]["exit_code"]) == (3, 3)
    wrong = [one for one in found["strict"]["requirements"] if one["outcome"] != "passed"]
    assert wrong
    assert all(one["sentence"] for one in wrong)


def test_strict_holds_every_adversary_that_is_asked_about(run, capsys):
    whisper = [REPAIRED, "--set=algorithm.name=whisper"]
    code, _, told = planned(capsys, run, *whisper, "--strict")
    assert code == 3
    assert told.count("Not passed") == 1
    assert "figure: neighbour: Nothing keeps the worst single neighbour" in told
    assert "model of agent 1 to 0, 2 in round 1" in told
    alone = '--set=privacy.adversaries=["eavesdropper"]'
    assert planned(capsys, run, *whisper, alone, "--strict")[::2] == (0, "")


def test_strict_does_not_turn_bad_input_into_a_miss(run, capsys):
    code, _, told = planned(capsys, run, "--set=privacy.noise=1", "--strict")
    assert (code, told[:6]) == (2, "error:")
    code, _, told = planned(
        capsys, run, REPAIRED, "--set=algorithm.name=dsgd", "--set=privacy.epsilon=1", "--strict"
    )
    assert code == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--strict", "--sweep", "graph.name=ring,full"], "leave --sweep out"),
        (["--check", "--sweep", "graph.name=ring,full"], "leave --sweep out"),
        (["--out", "somewhere"], "give --check too"),
    ],
)
def test_options_that_do_not_fit_are_refused(run, capsys, given, said):
    code, _, told = planned(capsys, run, *given)
    assert code == 2
    assert said in told


def test_no_status_is_wider_than_a_terminal(run, capsys):
    shared = ["--set=algorithm.name=whisper", REPAIRED]
    assert cli.main(["plan", str(run), *shared]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "single-message" in shown
    assert "no protection: something is shown that no noise hides" in shown
    found = json.loads(planned(capsys, run, *shared, "--json")[1])
    row = next(row for row in found["adversaries"] if row["name"] == "neighbour")
    assert (row["epsilon"], row["status"]) == ("inf", "no protection")


def test_what_cannot_be_expressed_is_said_so(run, capsys, monkeypatch):
    monkeypatch.setattr("overhear.training.exposure.whole_run.MOST_WORK", 0.0)
    given = ["--set=algorithm.name=dpmixsgd", '--set=privacy.adversaries=["eavesdropper"]']
    code, shown, told = planned(capsys, run, *given, "--strict")
    assert code == 3
    assert "how well cannot be expressed: a finite epsilon may hold in truth" in told
    assert "too large for a view of all its rounds" in told
    assert "cannot be expressed: no finite bound is known here" in shown
    assert "Nothing protects" not in shown
    found = json.loads(planned(capsys, run, *given, "--json")[1])
    assert found["adversaries"][0]["status"] == "cannot be expressed"
    assert found["warnings"][0].startswith("No finite bound can be expressed for eavesdropper: ")


def test_a_paragraph_to_paste_is_all_that_is_printed(run, capsys):
    given = ["--set", 'algorithm.form="repaired"', "--set", "privacy.records_per_person=3"]
    assert cli.main(["plan", str(run), *given, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["adversaries"][0]
    assert cli.main(["plan", str(run), *given, "--statement"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("dpdl (alpha 0.1, momentum 0.9) runs for 10 rounds")
    assert "Not covered are" in said
    assert "of members at 1 % false positives" in said
    (group,) = first["group"]
    assert group["records"] == 3
    assert group["epsilon"] > 2 * first["epsilon"]
    shown = said.split("For 3 records of one person at one agent the figure is epsilon ")[1]
    assert float(shown.split()[0].rstrip(".")) == pytest.approx(group["epsilon"], rel=5e-3)
    assert cli.main(["plan", str(run), "--statement", "--json"]) == 2
    assert "leave --format and --sweep out" in " ".join(capsys.readouterr().err.split())
