import json

import numpy as np
import pytest

from overhear.commands.cli import main


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
