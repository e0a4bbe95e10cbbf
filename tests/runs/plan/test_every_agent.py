"""Epsilon of every agent's records in a plan."""

import json

import pytest

from overhear.commands import cli
from overhear.privacy.accounting.accountant import epsilon
from tests.small_run import run_text

RUN = run_text(
    "dpdl",
    agents=7,
    model={"name": "mlp"},
    graph={"name": "star"},
    algorithm={"alpha": 1.0},
    privacy={
        "noise_multiplier": 2.512,
        "delta": 1e-05,
        "adversaries": [
            "eavesdropper",
            "neighbour",
            "final-models",
            "coalition:1,2",
            "single-message",
        ],
    },
    training={"rounds": 100, "sampling_rate": 0.02},
)


@pytest.fixture
def star_run(tmp_path):
    path = tmp_path / "star.toml"
    path.write_text(RUN)
    return path


def test_every_agent_has_an_epsilon_and_the_worst_is_the_adversary_s(star_run, capsys):
    assert cli.main(["plan", str(star_run), "--json", "--every-agent"]) == 0
    found = json.loads(capsys.readouterr().out)
    of = {a["name"]: a["epsilon"] for a in found["adversaries"]}
    assert set(found["victims"]) == set(of)
    for name, every in found["victims"].items():
        assert max(e for e in every if e is not None) == of[name]
    hub, leaf = (
        epsilon(noise_multiplier=2.512 / n**0.5, delta=1e-5, rounds=100, sampling_rate=0.02)
        for n in (7, 2)
    )
    assert found["victims"]["neighbour"] == pytest.approx([hub, *[leaf] * 6], rel=1e-9)
    assert found["victims"]["coalition:1,2"][1:3] == [None, None]


def test_the_plan_says_nothing_of_every_agent_unless_asked(star_run, capsys):
    assert cli.main(["plan", str(star_run), "--json"]) == 0
    assert "victims" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("more", [[], ["--json", "--sweep", "training.rounds=1,2"]], ids=str)
def test_every_agent_without_a_plan_in_json_is_refused(more, star_run, capsys):
    assert cli.main(["plan", str(star_run), "--every-agent", *more]) == 2
    assert "give --format json" in capsys.readouterr().err


def test_an_infinite_epsilon_is_a_string(star_run, capsys):
    arguments = ["plan", str(star_run), "--json", "--every-agent"]
    assert cli.main([*arguments, "--set", "privacy.noise_multiplier=0"]) == 0
    assert json.loads(capsys.readouterr().out)["victims"]["neighbour"] == ["inf"] * 7
