"""Audits name the faults that are planted."""

import dataclasses
import itertools

import pytest

from overhear.runs.audit import game
from overhear.runs.audit.evidence_schema import Audit
from overhear.runs.run_file import build as building
from overhear.training.algorithms import ALGORITHMS
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.gradients.gradients import PairGradients
from overhear.training.tracing.traced_round import TracedRound
from tests.attacks.planted import (
    shown_batches,
    shown_gradients,
    shown_noise,
    shown_shapes,
    shown_values,
)
from tests.attacks.planted.audits import Caught, audited
from tests.attacks.planted.catalogue import CATALOGUE, GROUPS, of_origin
from tests.attacks.planted.planted import CONTRADICTED, NAMED_BY, Origin
from tests.benchmark_scripts import benchmark


# Every twelfth: all of them take ten minutes, and are what `benchmarks/audit_bugs.py` runs.
@pytest.mark.slow
@pytest.mark.parametrize("name", list(CATALOGUE)[::12])
def test_an_audit_names_the_fault(name):
    """One audit; a fault that is found by chance has a second one, as its checks may miss it."""
    fault = CATALOGUE[name]
    found = audited(fault)
    if fault.statistical and not found.is_caught:
        found = audited(fault)
    assert found.is_caught, (found.verdict, found.named, sorted(fault.named_by))


def _audit(**verdicts: bool) -> Audit:
    return Audit.model_construct(
        verdict="failed checks",
        adversaries=[],
        checks=[
            dataclasses.make_dataclass("Check", ["name", "passed", "p"])(name, passed, 1e-9)
            for name, passed in verdicts.items()
        ],
    )


def test_a_fault_is_caught_by_a_check_that_has_to_name_it_and_by_no_other():
    fault = CATALOGUE["shuffled batches"]
    by_another = Caught(audit=_audit(sampler=True, residuals=False), fault=fault, cpu_seconds=1.0)
    assert by_another.named == ["residuals"]
    assert not by_another.is_caught
    assert by_another.shown_by == "-"
    by_its_own = Caught(audit=_audit(sampler=False), fault=fault, cpu_seconds=1.0)
    assert by_its_own.is_caught
    assert by_its_own.shown_by == "p 1e-09"
    assert not dataclasses.replace(by_its_own, fault=None).is_caught


def test_training_that_ends_by_itself_names_a_fault_of_training():
    fault = CATALOGUE["less noise in training than the ledger says"]
    found = Caught(audit=None, stopped="round 1 has less noise", fault=fault, cpu_seconds=1.0)
    assert found.verdict == "not trained: round 1 has less noise"
    assert found.is_caught
    assert found.shown_by == "stopped"


def test_an_audit_that_breaks_names_nothing():
    found = Caught(audit=None, error="IndexError: 3", fault=CATALOGUE["no clipping"], cpu_seconds=1)
    assert found.verdict == "IndexError: 3"
    assert found.measured == (None, None)
    assert not found.is_caught
    assert CONTRADICTED not in found.named


# The catalogue is whole, and every fault changes values as its sentence says.

SHOWN = {
    **shown_noise.SHOWN,
    **shown_shapes.SHOWN,
    **shown_gradients.SHOWN,
    **shown_batches.SHOWN,
    **shown_values.SHOWN,
}


def test_there_are_16_first_ones_45_from_outside_and_at_least_15_that_nobody_named():
    assert len(of_origin(Origin.FIRST)) == 16
    assert len(of_origin(Origin.OUTSIDE)) == 45
    assert len(of_origin(Origin.HOLDOUT)) >= 15
    assert len(CATALOGUE) == sum(len(of) for of in GROUPS.values())  # names are told apart


def test_every_fault_is_shown():
    assert SHOWN.keys() == CATALOGUE.keys()


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_a_fault_does_what_it_says(name):
    SHOWN[name]()


def _seams() -> list[object]:
    """What faults patch, as it is now."""
    classes = (Engine, PairGradients, SecretRandomness, TensorRound, TracedRound)
    return [dict(vars(of)) for of in classes] + [vars(building).copy(), vars(game).copy()]


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda of: of.name)
def test_a_fault_patches_something_and_leaves_nothing_behind(fault):
    before = _seams()
    with fault.plant():
        assert _seams() != before
    assert _seams() == before


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda of: of.name)
def test_a_fault_says_what_names_it_and_how_often(fault):
    assert fault.sentence.endswith(".")
    assert fault.named_by == NAMED_BY[fault.kind] != frozenset()
    assert fault.enough(10) == (9 if fault.statistical else 10)


# The benchmarks of faults and of sound runs: what they take, count and exit with.


@pytest.fixture(scope="module")
def bugs():
    return benchmark("audit_bugs")


@pytest.fixture(scope="module")
def sound():
    return benchmark("audit_sound")


def _found(fault, *, overrides, is_caught=True):
    name = min(fault.named_by) if fault is not None and is_caught else "nothing that is asked"
    check = {"name": name, "passed": False, "p": 1e-9, "tests": 3, "words": "w"}
    audit = Audit.model_construct(
        verdict="failed checks", adversaries=[], checks=[type("Check", (), check)]
    )
    return Caught(audit=audit, fault=fault, cpu_seconds=1.0)


def test_a_group_is_asked_for_with_the_sound_engine_and_the_holdout_apart(bugs):
    (first, *found) = bugs.chosen(["noise"])
    assert first is None
    held = bugs.chosen(["noise"], holdout=True)[1:]
    assert {one.name for one in (*found, *held)} == {one.name for one in GROUPS["noise"]}
    assert {one.origin for one in held} == {Origin.HOLDOUT}
    assert len(bugs.chosen(list(GROUPS))) == 1 + 16 + 45
    assert bugs.chosen([], only=["none", "no clipping"]) == [None, CATALOGUE["no clipping"]]
    with pytest.raises(SystemExit, match="no fault is named no cliping"):
        bugs.chosen([], only=["no cliping"])


def test_the_table_has_a_row_for_every_fault_and_0_says_that_all_are_found(
    bugs, monkeypatch, capsys
):
    monkeypatch.setattr(bugs, "audited", _found)
    assert bugs.main([]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 1 + len(of_origin(Origin.FIRST, Origin.OUTSIDE))
    assert {row.count("|") for row in rows} == {9}
    assert bugs.main(["--holdout"]) == 0


@pytest.mark.parametrize(
    ("name", "of_20", "code"),
    [
        ("clip factor wrong between 20 C and 90 C", 18, 0),
        ("clip factor wrong between 20 C and 90 C", 17, 1),
        ("no clipping", 20, 0),
        ("no clipping", 19, 1),
    ],
)
def test_1_says_that_a_fault_is_not_found_often_enough(
    bugs, monkeypatch, capsys, name, of_20, code
):
    times = iter(range(20))
    monkeypatch.setattr(
        bugs, "audited", lambda *args, **how: _found(*args, **how, is_caught=next(times) < of_20)
    )
    assert bugs.main(["--only", name, "--audits", "20"]) == code
    said = capsys.readouterr()
    assert f"{name}: {of_20} of 20 found" in said.out
    assert (name in said.err) == bool(code)


def test_sound_cases_have_every_algorithm_graph_rate_and_adjacency(sound):
    found = list(itertools.islice(sound.cases(0), 100))
    assert {one.algorithm for one in found} == {n for n, of in ALGORITHMS.items() if of.private}
    assert {one.graph for one in found} == set(sound.GRAPHS)
    assert {one.rate for one in found} == set(sound.RATES)
    assert {one.adjacency for one in found} == set(sound.ADJACENCIES)
    assert {one.overrides for one in found} >= set(sound.VARIANTS.values())
    assert found == list(itertools.islice(sound.cases(0), 100))
    assert {one.algorithm for one in itertools.islice(sound.cases(0, only=["dpdl"]), 5)} == {"dpdl"}


@pytest.mark.slow
def test_a_sound_run_of_the_small_data_is_audited(sound, capsys):
    """One bound in twenty may be suspicious, and no more than one audit of few may be."""
    assert sound.main(["--audits", "1", "--only", "dp-dpsgd", "--seed", "4", "--verbose"]) == 0
    assert "1 audits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["consistent"] * 95 + ["suspicious"] * 5, 0),
        (["consistent"] * 94 + ["suspicious"] * 6, 1),
        (["consistent"] * 99 + ["contradicted"], 1),
        (["consistent"] * 99 + ["failed checks"], 1),
        (["consistent"] * 50 + ["cleared"] * 50, 0),
    ],
)
def test_false_alarms_are_counted_by_what_raised_them(sound, monkeypatch, capsys, verdicts, code):
    given = iter(verdicts)

    def audit_case(case, **_):
        verdict = next(given)
        failed = {"name": "sampler", "passed": verdict != "failed checks", "words": "w"}
        return Audit.model_construct(
            verdict=verdict, adversaries=[], checks=[type("Check", (), failed)]
        )

    monkeypatch.setattr(sound, "audit_case", audit_case)
    assert sound.main(["--audits", "100"]) == code
    said = capsys.readouterr().out
    assert ("check that failed: sampler: 1" in said) == ("failed checks" in verdicts)
