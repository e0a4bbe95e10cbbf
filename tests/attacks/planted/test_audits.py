"""Audits name the faults that are planted."""

import dataclasses

import pytest

from overhear.runs.audit.evidence_schema import Audit
from tests.attacks.planted.audits import Caught, audited
from tests.attacks.planted.catalogue import CATALOGUE
from tests.attacks.planted.planted import CONTRADICTED


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
