"""Sweeps: every combination is planned as if it were asked for alone, and none stops the others."""

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from overhear.commands import cli
from overhear.commands.terminal.tables import sweep_markdown, sweep_tables
from overhear.runs.plan import plan
from overhear.runs.plan.plan import make_plan
from overhear.runs.plan.sweep import Combination, plan_sweep, read_sweep
from overhear.runs.run_file.run_file import load_run_file

GRAPHS = "graph.name=full,erdos-renyi+graph.edge_probability=0.9"


@pytest.fixture
def quick(run_file):
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("rounds = 200", "rounds = 3"), encoding="utf-8")
    return run_file


def planned(
    swept: dict[str, str],
    *,
    joint: float = 1.0,
    multiplier: float = 2.5,
    name: str = "eavesdropper",
) -> dict[str, Any]:
    adversary = {
        "name": name, "joint_sensitivity": joint, "epsilon": 2.0714, "delta": 1e-5,
        "status": "proven",
    }  # fmt: skip
    return {
        "swept": swept,
        "refused": None,
        "noise_multiplier": multiplier,
        "adversaries": [adversary],
    }


def refused(swept: dict[str, str], reason: str) -> dict[str, Any]:
    return {"swept": swept, "refused": reason}


def in_terminal(combinations: list[dict[str, Any]], columns: int = 80) -> str:
    held = io.StringIO()
    Console(file=held, width=columns, highlight=False).print(*sweep_tables(combinations), sep="\n")
    return held.getvalue()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("graph.name=ring,full", ["ring", "full"]),
        ("graph.name = ring , full", ["ring", "full"]),
        ("privacy.epsilon=1", ["1"]),
        ('privacy.adversary="coalition:1,9",eavesdropper', ['"coalition:1,9"', "eavesdropper"]),
        ('privacy.adversaries=["a","b"],[]', ['["a","b"]', "[]"]),
        ("graph.path='a],b.json',c.json", ["'a],b.json'", "c.json"]),
    ],
)
def test_a_comma_separates_values_outside_quotes_and_brackets(text, values):
    assert read_sweep(text)[1] == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph.name", "must read table.key=a,b,c"),
        ("name=ring,full", "must read table.key=a,b,c"),
        ("=ring", "must read table.key=a,b,c"),
        ("graph.name=", "empty value"),
        ("graph.name=ring,,full", "empty value"),
        ("graph.name=ring,full,ring", "gives ring twice"),
    ],
)
def test_a_sweep_of_another_form_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_sweep(text)


def test_every_combination_costs_what_it_costs_alone(quick):
    found = plan_sweep(quick, [GRAPHS, "privacy.epsilon=1,8"], overrides=["data.agents=4"])
    asked = [
        ["graph.name=full", "privacy.epsilon=1"],
        ["graph.name=full", "privacy.epsilon=8"],
        ["graph.name=erdos-renyi", "graph.edge_probability=0.9", "privacy.epsilon=1"],
        ["graph.name=erdos-renyi", "graph.edge_probability=0.9", "privacy.epsilon=8"],
    ]
    assert [list(one.overrides) for one in found] == [["data.agents=4", *own] for own in asked]
    for one in found:
        alone = make_plan(load_run_file(quick, one.overrides)).to_json()
        assert {key: one.to_json()[key] for key in alone} == alone
    assert found[2].values["graph.name"] == "erdos-renyi, graph.edge_probability=0.9"


def test_the_sign_of_an_exponent_brings_no_companion(quick):
    (one,) = plan_sweep(quick, ["training.learning_rate=1e+1"])
    assert one.overrides == ("training.learning_rate=1e+1",)
    assert one.refused is None


def test_what_is_refused_keeps_its_reason_and_stops_nothing(quick):
    found = plan_sweep(quick, ["graph.name=rign,ring,erdos-renyi"])
    assert [one.plan is None for one in found] == [True, False, True]
    assert "did you mean ring?" in str(found[0].refused)
    assert "edge_probability is missing" in str(found[2].refused)
    for one in (found[0], found[2]):
        assert str(quick) not in str(one.refused)


def test_a_slip_of_ours_is_no_refusal(quick, monkeypatch):
    monkeypatch.setattr(plan, "make_plan", lambda _: {}["missing"])
    with pytest.raises(KeyError, match="missing"):
        plan_sweep(quick, ["graph.name=ring"])


@pytest.mark.parametrize(
    ("sweeps", "overrides"),
    [(["graph.name=ring", "graph.name=full"], []), (["graph.name=ring,full"], ["graph.name=star"])],
    ids=["two sweeps", "sweep and set"],
)
def test_a_key_that_is_given_twice_is_refused(quick, sweeps, overrides):
    with pytest.raises(ValueError, match=r"graph\.name is given twice"):
        plan_sweep(quick, sweeps, overrides=overrides)


def test_a_missing_run_file_is_not_a_row():
    with pytest.raises(FileNotFoundError, match=r"no run file at nothing\.toml"):
        plan_sweep("nothing.toml", ["graph.name=ring"])


def test_a_combination_has_a_plan_or_a_reason():
    with pytest.raises(ValueError, match="either a plan or a reason"):
        Combination(values={}, overrides=())


def test_a_markdown_row_has_a_cell_for_every_head():
    text = sweep_markdown(
        [
            planned({"graph.name": "ring"}),
            planned({"graph.name": "full"}, joint=math.inf, name="neighbour"),
            refused({"graph.name": "a|b"}, "no such graph"),
        ]
    )
    assert text.splitlines() == [
        "| graph.name | eavesdropper | neighbour | refused because |",
        "| --- | --- | --- | --- |",
        "| ring | 1.000, ε 2.08, proven | – |  |",
        "| full | – | ∞, ε 2.08, proven |  |",
        "| a\\|b | – | – | no such graph |",
    ]


def test_the_noise_multiplier_is_a_column_only_where_it_differs():
    one = planned({"privacy.epsilon": "1"}, multiplier=4.3501)
    other = planned({"privacy.epsilon": "4"}, multiplier=1.7109)
    assert "noise" not in sweep_markdown([one, {**other, "noise_multiplier": 4.3501}])
    rows = sweep_markdown([one, other]).splitlines()
    assert [row.split(" | ")[1] for row in rows] == ["noise multipl.", "---", "4.351", "1.711"]


def test_a_narrow_terminal_loses_no_adversary_and_no_reason():
    swept = {"graph.name": "erdos-renyi, graph.edge_probability=0.4", "training.rounds": "1000"}
    names = ("eavesdropper", "neighbour", "all-others", "final-models", "single-message")
    every = [planned(swept, name=name, joint=k + 1.5) for k, name in enumerate(names)]
    one = {**every[0], "adversaries": [row["adversaries"][0] for row in every]}
    shown = in_terminal([one, refused({"graph.name": "a"}, "[graph] is wrong")])
    assert all(f"{k + 1.5:.3f}" in shown for k in range(len(names)))
    assert shown.count("2.08") == shown.count("proven") == len(names)
    assert "[graph] is wrong" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_is_one_list_of_plans_with_their_overrides(quick, capsys):
    command = ["plan", str(quick), "--sweep", "graph.name=ring,rign", "--json"]
    assert cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["overrides"] for one in found] == [["graph.name=ring"], ["graph.name=rign"]]
    assert found[0]["refused"] is None
    assert found[0]["adversaries"][0]["status"] == "proven"
    assert "adversaries" not in found[1]


@pytest.mark.parametrize(
    "form", [[], ["--json"], ["--markdown"]], ids=["table", "json", "markdown"]
)
def test_if_all_are_refused_the_reasons_are_shown_and_the_exit_code_is_2(form, quick, capsys):
    assert cli.main(["plan", str(quick), "--sweep", "graph.name=rign,fulll", *form]) == 2
    shown = capsys.readouterr()
    assert shown.out.count("did you mean") == 2
    assert shown.err.startswith("error: none of the 2 combinations can be planned; the first: ")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--format=md"], "give --sweep"),
        (["--sweep", "graph.name=ring", "--format=xml"], "Invalid value for '--format'"),
        (["--sweep", "graph.name"], "must read table.key=a,b,c"),
    ],
)
def test_bad_options_exit_with_2_and_print_nothing(more, words, quick, capsys):
    assert cli.main(["plan", str(quick), *more]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""
