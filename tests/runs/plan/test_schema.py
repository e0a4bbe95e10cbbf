"""A row of a plan: its status fits its epsilon, and the report that it stands in."""

import copy
import json
from typing import Any

import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.formats.codec import as_text, load
from overhear.privacy.guarantee import Guarantee, Status
from overhear.reports.schema import Report
from tests.conftest import sample_report

ROW: dict[str, Any] = {
    "name": "eavesdropper", "victim": 0, "worst_adversary": None, "joint_sensitivity": 1.0,
    "effective_noise_multiplier": 2.0, "mu_per_round": 0.5, "epsilon": 2.0, "delta": 1e-5,
    "unit": "record", "adjacency": "add-or-remove-one", "sampling": "poisson", "status": "proven",
    "bound": "closed form", "because": "a test",
}  # fmt: skip


def read(**changes: object) -> Guarantee:
    text = json.dumps(ROW | changes)
    return load(Guarantee, text, refusal=lambda at, what: f"{at} {what}")


OF_LISTS = (Status.DECLARED, Status.CHECKED)


@pytest.mark.parametrize("status", [s for s in Status if s not in OF_LISTS])
@pytest.mark.parametrize("epsilon", [2.0, "inf"])
def test_a_status_is_read_beside_an_epsilon_that_it_fits(status, epsilon):
    if status.is_finite == (epsilon != "inf"):
        assert read(status=status, epsilon=epsilon).status == status
        return
    with pytest.raises(InputError, match="does not fit epsilon"):
        read(status=status, epsilon=epsilon)


@pytest.mark.parametrize("status", OF_LISTS)
def test_no_run_has_the_status_of_a_list_and_no_list_that_of_a_proof(status):
    held: dict[str, Any] = sample_report()
    assert held["plan"]["adversaries"][0]["status"] == "proven"
    declared = {"status": "declared", "releases": 3, "depends_on": "public", "checks": None}
    for changed in ({"declared": declared}, {"plan": {**held["plan"]}}):
        other = copy.deepcopy(held | changed)
        if "declared" not in changed:
            other["plan"]["adversaries"][0]["status"] = str(status)
        with pytest.raises(InputError, match="status"):
            Report.parse(as_text(other), refusal="{}: {}".format)


def test_an_unknown_status_is_refused():
    with pytest.raises(InputError, match="status"):
        read(status="infinite")
