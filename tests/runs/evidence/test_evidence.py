"""Evidence beside a proof."""

import json
import math
from typing import Any

import pytest

from overhear.runs.audit.evidence import measured, read_attack, read_audit
from overhear.runs.audit.evidence_schema import Audit
from tests.conftest import sample_audit

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
