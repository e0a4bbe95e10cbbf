"""What the figures rest on, and what speaks for it."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from overhear.privacy.batches.patterns import total_words
from overhear.runs.audit.assumptions import COUNTED, DECLARED, Facts, assumptions
from overhear.runs.audit.evidence import measured, read_attack, read_audit
from overhear.runs.audit.evidence_schema import Audit
from tests.conftest import sample_audit

FACTS = Facts(
    planned=200, released=200, repeated=0, torn=False, seed=None, duplicates=0, records=1438,
    clipped=True, encrypted=False, server=False, changing=False,
)  # fmt: skip


def status(facts: Facts = FACTS, audit: dict[str, object] | None = None) -> dict[str, str]:
    held = None if audit is None else Audit.model_validate(audit)
    return {entry.name: entry.status for entry in assumptions(facts, held)}


def test_each_assumption_has_a_name_of_its_own_and_says_how_it_is_known():
    everything = replace(FACTS, clipped=False, encrypted=True, server=True, changing=True)
    found = assumptions(everything, Audit.model_validate(sample_audit()))
    assert len({entry.name for entry in found}) == len(found)
    for entry in found:
        assert entry.status in ("verified", "assumed", "gap")
        assert entry.text
        assert entry.how


def test_the_number_of_all_records_is_assumed_to_be_public_where_it_shows():
    assert COUNTED not in status()
    said = total_words(["the sampling rate"]) + "."
    found = {entry.name: entry for entry in assumptions(replace(FACTS, counted=said), None)}
    assert (found[COUNTED].text, found[COUNTED].status) == (said, "assumed")
    assert "from the number of records in all, that number is public" in found["constants"].text


def test_without_an_audit_nothing_about_the_program_is_verified():
    found = status()
    assert {found[of.name] for of in DECLARED} == {"assumed"}
    assert found["canaries"] == "gap"


def test_each_check_that_passed_verifies_its_assumption():
    found = status(FACTS, sample_audit())
    assert {found[of.name] for of in DECLARED} == {"verified"}
    assert found["canaries"] == "verified"


@pytest.mark.parametrize("of", DECLARED, ids=lambda of: of.name)
def test_a_check_that_failed_makes_a_gap_of_its_assumption_alone(of):
    audit = sample_audit()
    for check in audit["checks"]:
        check["passed"] = check["name"] != of.check
    found = status(FACTS, audit)
    assert [name for name in (d.name for d in DECLARED) if found[name] == "gap"] == [of.name]


def test_a_check_that_the_audit_lacks_verifies_nothing():
    found = status(FACTS, sample_audit() | {"checks": []})
    assert {found[of.name] for of in DECLARED} == {"assumed"}


@pytest.mark.parametrize("verdict", ["suspicious", "contradicted", "failed checks"])
def test_an_audit_that_is_not_consistent_verifies_no_implementation(verdict):
    assert status(FACTS, sample_audit(verdict))["canaries"] == "gap"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"released": 201}, "rounds"),
        ({"torn": True}, "ledger"),
        ({"seed": 7}, "entropy"),
        ({"duplicates": 3}, "duplicates"),
        ({"clipped": False}, "clipping"),
    ],
)
def test_what_the_runs_own_files_refute_is_a_gap(change, name):
    assert status().get(name) != "gap"
    assert status(replace(FACTS, **change))[name] == "gap"


def test_what_is_trusted_only_here_is_named_only_here():
    assert not {"encryption", "server", "schedule"} & status().keys()
    found = status(replace(FACTS, encrypted=True, server=True, changing=True))
    assert [found[name] for name in ("encryption", "server", "schedule")] == ["assumed"] * 3


# Evidence beside a proof.

Report = dict[str, Any]


def test_a_run_without_evidence_has_none(tmp_path):
    assert read_audit(tmp_path) is None
    assert read_attack(tmp_path) is None


def test_an_audit_is_read_as_it_was_written(tmp_path):
    audit = sample_audit() | {"runs": 2}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    found = read_audit(tmp_path)
    assert found is not None
    assert found.dump() == audit


@pytest.mark.parametrize(
    "text",
    [
        *("", "\x00", "{", "[]", "{}", json.dumps(sample_audit() | {"verdict": "fine"})),
        json.dumps(sample_audit() | {"confidence": math.nan}),
    ],
)
def test_evidence_that_cannot_be_read_is_refused_and_not_left_out(tmp_path, text):
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(ValueError, match="overhear audit DIR"):
        read_audit(tmp_path)


def test_measured_figures_are_rounded_down():
    audit = sample_audit()
    audit["adversaries"][0] |= {"measured_epsilon": 7.4199, "ideal_epsilon": 7.6}
    found = measured(Audit.model_validate(audit))["eavesdropper"]
    assert (found.epsilon, found.ideal, found.messages) == (7.41, 7.6, [])


def test_an_audit_of_either_version_is_read_and_a_later_one_refused(tmp_path):
    path = tmp_path / "audit.json"
    for version in (1, 2):
        path.write_text(json.dumps(sample_audit() | {"schema": version}))
        found = read_audit(tmp_path)
        assert found is not None
        assert found.version == version
    path.write_text(json.dumps(sample_audit() | {"schema": 3}))
    with pytest.raises(ValueError, match="cannot be read at schema"):
        read_audit(tmp_path)
