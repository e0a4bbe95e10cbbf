"""`overhear audit-log`: a recorded system is compared with its log, with an exit code."""

import json

import pytest

from overhear.commands.cli import main
from tests.runs.recorder.gossip import play

MODULE = "tests.runs.recorder.gossip"
GIVEN = ("--oracle", f"{MODULE}:gradients", "--points", f"{MODULE}:start_of")
PUBLIC = ("--public", f"{MODULE}:START")


def test_a_sound_system_is_checked(tmp_path, capsys):
    play(tmp_path, own_noise=False, own_batches=False)
    assert main(["audit-log", str(tmp_path), *GIVEN, *PUBLIC]) == 0
    assert "Verdict: declared; checked in rounds 1 to 8." in capsys.readouterr().out


def test_batches_of_ones_own_are_tested_where_it_is_said_how_many_records_there_are(
    tmp_path, capsys
):
    play(tmp_path, own_noise=False)
    assert main(["audit-log", str(tmp_path), *GIVEN, *PUBLIC]) == 0
    assert "or --holds 0:N" in " ".join(capsys.readouterr().out.split())
    held = ("--holds", "0:100", "--holds", "1:100")
    assert main(["audit-log", str(tmp_path), *GIVEN, *PUBLIC, *held]) == 0
    assert "Verdict: declared; checked in rounds 1 to 8." in capsys.readouterr().out


def test_a_fault_ends_in_exit_code_4(tmp_path, capsys):
    play(tmp_path, own_noise=False, own_batches=False, fault="noise halved")
    assert main(["audit-log", str(tmp_path), *GIVEN, *PUBLIC, "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "declared"
    verdicts = {one["name"]: one["verdict"] for one in found["checks"]}
    assert (verdicts["messages"], verdicts["sampler"]) == ("failed", "passed")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*GIVEN, "--draw", "9"), "rounds=9 must lie in [1, 2]"),
        ((*GIVEN, "--again"), "No such option: --again"),
        (("--draw", "2"), "Missing option '--oracle'"),
        ((*GIVEN, "--holds", "0"), "--holds '0' must be AGENT:N"),
        ((*GIVEN, "--holds", "0:9", "--holds", "0:8"), "names agent 0 twice"),
        (("--oracle", f"{MODULE}:gradient"), "did you mean 'gradients'?"),
        (("--oracle", f"{MODULE}:D"), "must be a function"),
        ((*GIVEN[:2], "--points", f"{MODULE}:D"), "must be a function"),
        ((*GIVEN, "--numbers", f"{MODULE}:D"), "must be a function (round, agent, released)"),
        ((*GIVEN, "--numbers", f"{MODULE}:start_of"), "it must give numbers by name, or None"),
        ((*GIVEN, "--public", f"{MODULE}:FAULTS"), "must be a tensor or array"),
        (("--oracle", f"{MODULE}:play"), "the function of gradients raised TypeError"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, capsys, arguments, words):
    play(tmp_path, own_noise=False, rounds=2)
    assert main(["audit-log", str(tmp_path), *arguments]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert words in said
    assert "Traceback" not in said
