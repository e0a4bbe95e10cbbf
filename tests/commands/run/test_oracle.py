"""`overhear audit-log`: a recorded system is compared with its log, with an exit code."""

import json

import numpy as np
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


@pytest.fixture
def scores(tmp_path):
    rng = np.random.default_rng(0)
    coins = rng.random(600) < 0.5
    values = 1.4 * (1.4 * coins - 0.7 + rng.normal(size=600))
    rows = [f"{value!r},{int(coin)}\n" for value, coin in zip(values.tolist(), coins, strict=True)]
    path = tmp_path / "s.csv"
    path.write_text("score,included\n" + "".join(rows))
    return path


@pytest.fixture
def log(tmp_path):
    header = {"schema": "releases-1", "agents": 1, "clip": 1.0, "rate": 1.0}
    release = {"from": 0, "to": "all", "kind": "model", "noise": 0.714}
    path = tmp_path / "log.jsonl"
    path.write_text(f"{json.dumps(header)}\n{json.dumps({'round': 1, 'releases': [release]})}\n")
    return path


def test_a_true_claim_is_consistent_and_ideal_is_told_first(scores, capsys):
    assert main(["audit-scores", str(scores), "--claim", "epsilon=6.5,delta=1e-5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("A perfect audit of 600 canaries shows about")
    assert said.rstrip().endswith("Verdict: consistent.")


def test_a_false_claim_ends_with_4(scores, capsys):
    assert main(["audit-scores", str(scores), "--claim", "epsilon=0.5"]) == 4
    shown = capsys.readouterr()
    assert "Verdict: contradicted." in shown.out
    assert "contradicts the claim of epsilon 0.5" in shown.err


def test_a_log_of_releases_says_what_the_mechanism_is(scores, log, capsys):
    order = ["audit-scores", str(scores), "--ratios", "--json"]
    assert main([*order, "--ledger", str(log), "--claim", "delta=1e-5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main([*order, "--claim", "noise=0.714,rate=1,rounds=1"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert found["measured_epsilon"] > 4.0
    assert found["verdict"] == "consistent"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "takes a claim"),
        (["--claim", "epsilom=1"], "did you mean epsilon"),
        (["--claim", "epsilon=1", "--confidence", "2"], "confidence=2.0"),
        (["--claim", "rate=0.1", "--ledger", "LOG"], "rate is claimed beside --ledger"),
    ],
)
def test_bad_input_ends_with_2_and_a_sentence(scores, log, extra, words, capsys):
    extra = [str(log) if word == "LOG" else word for word in extra]
    assert main(["audit-scores", str(scores), *extra]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
