"""What a run's ledger, report and exit code say of the tests of its noise."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from overhear.commands.cli import main
from overhear.privacy.releases.ledger import read_ledger
from overhear.reports.document.collect import collect
from overhear.runs.audit.audit import folder_checks
from overhear.runs.errors import ContradictedProof
from overhear.runs.folder.records import LedgerHeader, header_of
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import TestedNoise, noise_test_rate, plan_session, train_run
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file
from tests.runs.folder.interrupted import NO_TARGET, cut_off, plan_once, write_run_file
from tests.training.noise_tests.test_noise_tests import FAULTS

NUMBERS = 3 * 650  # of a round: three agents, a linear model of digits


@pytest.fixture(autouse=True)
def _plan_once(monkeypatch):
    plan_once(monkeypatch)


def noise_tested(out: Path):
    return next(one for one in collect(out).assumptions if one.name == "noise-tested")


def transcript(out: Path):
    config = load_run_file(out / "run.toml")
    built = build(config)
    multiplier = header_of(read_ledger(out / "ledger.jsonl")).noise_multiplier
    (found,) = folder_checks(out, built, multiplier=multiplier, noise_seed=None)
    return found


def test_the_ledger_says_how_much_was_tested_and_no_figure_of_it(tmp_path):
    config = load_run_file(write_run_file(tmp_path), [NO_TARGET])
    train_run(config, tmp_path / "run")
    lines = (tmp_path / "run/ledger.jsonl").read_text(encoding="utf-8").splitlines()
    _, *rounds, last = map(json.loads, lines)
    assert last["noise_tested"] == {"rounds": 13, "numbers": 12 * NUMBERS}
    assert rounds[3]["noise_tested"] == {"rounds": 3, "numbers": 2 * NUMBERS}
    again = tmp_path / "again"
    train_run(config, again)
    told = [json.loads(line).get("noise_tested") for line in lines]
    other = (again / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    assert told == [json.loads(line).get("noise_tested") for line in other]  # of other noise
    found = noise_tested(tmp_path / "run")
    assert found.status == "verified"
    assert "13 of 13 announced rounds, the start among them, was tested" in found.how
    assert f"{12 * NUMBERS} numbers at false-alarm rate 1e-30" in found.how
    assert transcript(tmp_path / "run").passed


def test_a_resumed_run_counts_what_each_part_tested(tmp_path):
    config, out = cut_off(write_run_file(tmp_path), NO_TARGET)
    before = read_ledger(out / "ledger.jsonl")
    resume_run(config, out)
    spent = read_ledger(out / "ledger.jsonl")
    after = spent.resumed_after[0]
    assert spent.tested_rounds == before.tested_rounds + 12 - after
    assert spent.tested_numbers == NUMBERS * (spent.tested_rounds - 1)
    # The round that was cut off is not known to have passed.
    found = noise_tested(out)
    assert found.status == "assumed"
    assert f"of {spent.tested_rounds} of {len(spent.entries)} announced rounds" in found.how
    assert transcript(out).passed


def test_a_ledger_of_before_is_read_and_gone_on_with_and_says_not_tested(tmp_path, monkeypatch):
    from overhear.privacy.releases import ledger as module
    from overhear.runs.folder import run

    with monkeypatch.context() as then:
        then.setattr(module, "SCHEMA", 2)
        then.setattr(module.Ledger, "_tested", lambda *_: {})
        then.setattr(run, "LedgerHeader", lambda **k: LedgerHeader(**k | {"noise_test_rate": None}))
        config, out = cut_off(write_run_file(tmp_path), NO_TARGET)
    assert noise_tested(out).how == "the ledger does not say that noise was tested"
    resume_run(config, out)
    assert "noise_tested" not in (out / "ledger.jsonl").read_text(encoding="utf-8")
    assert noise_tested(out).status == "assumed"


@pytest.mark.parametrize("fault", ["all at sigma over the root of 2", "none at all"])
def test_a_run_with_other_noise_than_its_ledger_says_ends_before_a_message(fault, tmp_path, capsys):
    path, out = write_run_file(tmp_path), tmp_path / "run"
    with FAULTS[fault]():
        code = main(["train", str(path), "--out", str(out), "--set", NO_TARGET])
    said = capsys.readouterr().err
    assert code == 4
    assert "round 1 was stopped: its noise is not what the run is accounted for" in said
    assert "Traceback" not in said
    spent = read_ledger(out / "ledger.jsonl")
    assert (spent.numbers, spent.tested_numbers) == ([0, 1], 0)
    assert not (out / "transcript").exists()


def test_what_such_a_run_sent_shows_it_if_nothing_tested_it(tmp_path, monkeypatch):
    config = load_run_file(write_run_file(tmp_path), [NO_TARGET, "intercept.rounds=[3, 12]"])
    monkeypatch.setattr("overhear.training.noise_tests.noise_tests.NoiseTests.decide", _pass)
    with FAULTS["all at sigma over the root of 2"]():
        train_run(config, tmp_path / "run")
    found = transcript(tmp_path / "run")
    assert found.tests
    assert not found.passed, found.words


def _pass(*_):
    pass


def test_a_step_with_other_noise_than_the_plan_is_refused(tmp_path):
    config = load_run_file(write_run_file(tmp_path), [NO_TARGET])
    session = plan_session(config, tmp_path / "run")
    doubled = replace(session.plan, noise_multiplier=2 * session.plan.noise_multiplier)
    with pytest.raises(ValueError, match="noise_multiplier"):
        TestedNoise(_Frozen(session), doubled, ranks=1)


class _Frozen:
    """Objects of a run whose step is bound at one noise, whatever is asked for."""

    def __init__(self, session):
        self._session, self.setting = session, session.built.setting

    def bound(self, _):
        return self._session.built.bound(self._session.plan.noise_multiplier)


def test_the_rate_is_next_to_no_delta(tmp_path):
    plan = plan_session(load_run_file(write_run_file(tmp_path)), tmp_path / "run").plan
    largest = max(g.epsilon for g in plan.guarantees if math.isfinite(g.epsilon))
    rate = noise_test_rate(plan)
    assert 0 < rate <= 1e-30
    assert (1 + math.exp(largest)) * rate <= 1e-10 * plan.said_of.delta


def test_a_run_whose_noise_fails_the_tests_raises(tmp_path):
    config = load_run_file(write_run_file(tmp_path), [NO_TARGET])
    with FAULTS["one row without"](), pytest.raises(ContradictedProof, match="was stopped"):
        train_run(config, tmp_path / "run")
