"""`overhear check-account`: its table and exit codes, and what plan and check make of it."""

import json
from typing import Any

import pytest

from overhear.commands.cli import main
from overhear.privacy.view import view as first_view
from overhear.training.accounts import traced_twice
from tests.small_run import run_text

RUN = run_text(
    "dpdl",
    agents=4,
    privacy={
        "noise_multiplier": 2.0,
        "delta": 1e-05,
        "adversaries": ["eavesdropper", "neighbour", "single-message"],
    },
    training={"rounds": 2, "sampling_rate": 0.5},
)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return str(path)


@pytest.fixture
def fault(monkeypatch):
    """A first tracer whose joint sensitivities are nine tenths of what they are."""
    original = first_view.squared_joint_sensitivity
    smaller = lambda *given: 0.81 * original(*given)  # noqa: E731
    monkeypatch.setattr(first_view, "squared_joint_sensitivity", smaller)


@pytest.mark.slow
def test_it_agrees_adversary_by_adversary(run, capsys):
    assert main(["check-account", run]) == 0
    said = capsys.readouterr().out
    assert said.count("agrees") == 2  # a single message is nobody's view
    assert main(["check-account", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in found["figures"]] == ["agrees", "agrees"]
    for one in found["figures"]:
        assert one["second"] == pytest.approx(one["first"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("fault")
def test_a_contradiction_ends_with_exit_code_4(run, capsys):
    for command in (["check-account", run], ["check-account", run, "--json"]):
        assert main(command) == 4
        assert "a second tracer finds more against eavesdropper" in capsys.readouterr().err


def test_what_is_not_checked_ends_with_exit_code_5(run, capsys):
    assert main(["check-account", run, "--seconds", "1e-9"]) == 5
    assert "it would take more than 1e-09 seconds" in " ".join(capsys.readouterr().out.split())
    assert main(["check-account", run, "--seconds", "0"]) == 2
    assert "--seconds 0 must be a number above 0" in capsys.readouterr().err


@pytest.mark.slow
def test_plan_check_traces_twice(run, capsys, request):
    assert main(["plan", run, "--check"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "second tracer on eavesdropper, neighbour: agrees: 2.449 over all rounds" in said
    request.getfixturevalue("fault")
    assert main(["plan", run, "--check", "--json"]) == 4
    told = json.loads(capsys.readouterr().out)["check"]["traced"]
    assert told == {"eavesdropper": "contradicted", "neighbour": "contradicted"}


@pytest.mark.slow
def test_check_asks_it_where_the_policy_asks_for_a_second_opinion(
    run, tmp_path, capsys, monkeypatch
):
    out, policy = str(tmp_path / "run"), tmp_path / "policy.toml"
    limit = '[[limits]]\nadversary = "neighbour"\nepsilon = 30\ndelta = 1e-5\n'
    policy.write_text(f"schema = 1\n{limit}[evidence]\nsecond_opinion = true\n", encoding="utf-8")
    assert main(["train", run, "--out", out]) == 0
    assert main(["report", out]) == 0
    assert main(["check-account", out]) == 0
    assert main(["check-account", out, "--set", "training.rounds=3"]) == 2
    check = ["check", out, "--policy", str(policy), "--json"]
    capsys.readouterr()
    assert main(check) == 0
    named = [one["name"] for one in json.loads(capsys.readouterr().out)["requirements"]]
    assert "evidence: second trace of neighbour" in named
    original = traced_twice.check_account

    def hurried(*given: Any, **named: Any) -> Any:
        return original(*given, **{**named, "seconds": 1e-9})

    monkeypatch.setattr(traced_twice, "check_account", hurried)
    assert main(check) == 5  # what is not checked confirms nothing
    said = json.loads(capsys.readouterr().out)["requirements"]
    assert any("was not checked against a second tracer" in one["sentence"] for one in said)
