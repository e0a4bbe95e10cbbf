"""Runs of a run file from whose rounds agents may be missing that no list has."""

import json
from dataclasses import replace

import pytest

from overhear.interface.run import report
from overhear.interface.train import audit, plan, train
from overhear.privacy.errors import InputError
from overhear.privacy.releases.ledger import read_ledger
from overhear.runs.folder.records import LedgerHeader
from overhear.runs.folder.resume import check_exposures
from overhear.runs.run_file.run_file import RunFile
from overhear.training.accounts.account import account

RUN = {
    "data": {"name": "digits", "agents": 4},
    "model": {"name": "linear"},
    "algorithm": {"name": "decor", "correlation": 2.0},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-5, "adversaries": ["eavesdropper"]},
    "training": {"rounds": 3, "sampling_rate": 0.05},
}
WORDS = "up to 2 of 4 agents may be missing in any round"


def _run(**table):
    return RUN | {"participation": table}


def test_a_plan_says_how_many_may_be_missing_and_costs_what_the_account_says():
    found = plan(_run(missing=2))
    assert found.planned().dump()["missing"] == {"at_most": 2, "agents": 4, "words": WORDS}
    assert f"participation: {WORDS}" in repr(found)
    said = found.statement()
    assert "Up to 2 of 4 agents may be missing in any round." in said
    assert "depends on neither the data nor the noise" in said
    assert plan(RUN).missing is None
    wanted = account(
        "decor", graph="ring:4", rounds=3, sampling_rate=0.05, delta=1e-5, noise_multiplier=2.0,
        correlation=2.0, missing=2, adversaries=["eavesdropper"],
    )  # fmt: skip
    assert found.guarantee("eavesdropper").epsilon == wanted.epsilon("eavesdropper")


def test_ledger_and_report_carry_it(tmp_path):
    run, out = _run(missing=2), tmp_path / "run"
    train(run, out)
    assert read_ledger(out / "ledger.jsonl").header["missing"] == 2
    told = report(out, format="json").to_json()
    planned = plan(run).guarantee("eavesdropper").epsilon
    assert told["ledger"]["epsilon"]["eavesdropper"] == pytest.approx(planned, rel=1e-9)
    assert told["run"]["missing"] == WORDS
    (said,) = [one for one in told["assumptions"] if one["name"] == "missing"]
    assert "depends on neither the data nor the noise" in said["text"]
    assert "trained with everybody there" in said["how"]
    # Another number is another run, also where it costs the same.
    lines = (out / "ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["missing"] == 2
    written = (out / "run.toml").read_text()
    assert "missing = 2" in written
    assert "seed" not in written.partition("[participation]")[2].partition("[")[0]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"missing": 0}, "missing"),
        ({"missing": 4}, "less than the 4 agents"),
        ({"missing": 1.5}, "missing"),
        ({"missing": 1, "probability": 0.5}, "exactly one"),
        ({"missing": 1, "agents_per_round": 2}, "exactly one"),
        ({"missing": 1, "path": "who.csv"}, "exactly one"),
        ({"missing": 1, "seed": 3}, "no effect with missing"),
    ],
)
def test_tables_that_are_none_are_refused(table, said):
    with pytest.raises(InputError, match=said):
        plan(_run(**table))


def test_an_audit_of_rounds_with_everybody_there_is_refused():
    with pytest.raises(InputError, match="an audit plays rounds with everybody there"):
        audit(_run(missing=1))


def test_the_run_file_writes_only_what_has_an_effect():
    table = RunFile.model_validate(_run(missing=1)).participation
    assert table is not None
    assert table.entries() == {"missing": 1}


def test_a_run_goes_on_with_the_number_that_it_was_begun_with(tmp_path):
    run, out = _run(missing=1), tmp_path / "run"
    train(run, out)
    header = LedgerHeader.model_validate(read_ledger(out / "ledger.jsonl").header, strict=False)
    made = plan(run)
    check_exposures(header, made)
    for other in (2, 1000):
        with pytest.raises(
            InputError, match=f"begun with \\[participation\\] missing={other}, not"
        ):
            check_exposures(header.model_copy(update={"missing": other}), made)
    with pytest.raises(InputError, match="missing=1, not 0"):
        check_exposures(header, replace(made, missing=None))
