"""Runs of a run file in which agents are absent by a public list."""

import pytest

from overhear.interface.budget import budget
from overhear.interface.train import plan, train
from overhear.privacy.errors import InputError
from overhear.privacy.releases.ledger import read_ledger

RUN = {
    "data": {"name": "digits", "agents": 4},
    "model": {"name": "linear"},
    "algorithm": {"name": "dp-dpsgd"},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-5, "adversaries": ["eavesdropper"]},
    "training": {"rounds": 8, "sampling_rate": 0.05},
}


def _run(**table):
    return RUN | {"participation": table}


def test_a_plan_says_who_takes_part_and_counts_the_rounds_of_the_worst_agent():
    found = plan(_run(probability=0.5, seed=4))
    taking = found.participation
    assert taking is not None
    assert taking.rounds == 8
    assert found.planned().dump()["participation"]["by_agent"] == taking.by_agent
    alone = budget(
        noise_multiplier=2, delta=1e-5, rounds=max(taking.by_agent), sampling_rate=0.05
    ).epsilon
    assert found.guarantee("eavesdropper").epsilon == pytest.approx(alone, rel=1e-9)
    assert "(public list, seed 4)" in repr(found)
    assert "takes part in" in found.statement()
    assert plan(RUN).participation is None


def test_training_follows_the_list_and_its_ledger_costs_what_was_planned(tmp_path):
    listed = tmp_path / "who.csv"
    listed.write_text("1,1,0,1\n0,0,0,0\n1,0,1,1\n1,1,1,1\n" * 2)
    run = _run(path=str(listed))
    out = tmp_path / "run"
    train(run, out)
    spent = read_ledger(out / "ledger.jsonl")
    assert spent.header["participation"] == plan(run).participation.digest
    from overhear.interface.run import report

    told = report(out, format="json").to_json()
    planned = plan(run).guarantee("eavesdropper").epsilon
    assert told["ledger"]["epsilon"]["eavesdropper"] == pytest.approx(planned, rel=1e-9)
    assert told["run"]["participation"] == "4 to 6 of 8 rounds (public list of a file)"
    assert "participation" in {one["name"] for one in told["assumptions"]}
    # Another list of the same figures is another run.
    listed.write_text("1,1,1,1\n1,0,1,1\n0,0,0,0\n1,1,0,1\n" * 2)
    with pytest.raises(InputError, match="list of who takes part"):
        report(out, format="json")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "exactly one"),
        ({"probability": 0.5, "agents_per_round": 2}, "exactly one"),
        ({"probability": 0.0}, "probability"),
        ({"agents_per_round": 5}, "at most the 4 agents"),
        ({"path": "who.csv", "seed": 3}, "no effect"),
        ({"probability": 0.5, "active": 1}, "active"),
    ],
)
def test_tables_that_are_none_are_refused(table, said):
    with pytest.raises(InputError, match=said):
        plan(_run(**table))


def test_a_list_of_too_few_rounds_is_refused(tmp_path):
    listed = tmp_path / "who.csv"
    listed.write_text("1,1,0,1\n" * 7)
    with pytest.raises(InputError, match="7 rounds"):
        plan(_run(path=str(listed)))


@pytest.mark.parametrize(
    ("multiplier", "rate", "participation", "epsilon"),
    [
        (2, 0.02, 1, 1.3297), (2, 0.02, 0.5, 0.9223), (2, 0.02, 0.1, 0.4087),
        (20, 1, 0.5, 4.997), (20, 1, 0.1, 2.029), (20, 1, 0.01, 0.630),
    ],
)  # fmt: skip
def test_a_budget_counts_rounds_of_a_public_lottery(multiplier, rate, participation, epsilon):
    of = {"delta": 1e-5, "rounds": 1000, "sampling_rate": rate, "participation": participation}
    found = budget(noise_multiplier=multiplier, **of)
    assert found.epsilon == pytest.approx(epsilon, rel=2e-4 if epsilon != 0.630 else 2e-3)
    again = budget(epsilon=found.epsilon, **of).noise_multiplier
    assert again == pytest.approx(multiplier, rel=1e-3)


def test_a_lottery_of_a_budget_that_is_none_is_refused():
    of = {"delta": 1e-5, "sampling_rate": 0.02, "noise_multiplier": 2.0}
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="participation"):
            budget(rounds=10, participation=wrong, **of)
    with pytest.raises(InputError, match="give rounds and sampling_rate"):
        budget(epsilon=1.0, participation=0.5, **of)
