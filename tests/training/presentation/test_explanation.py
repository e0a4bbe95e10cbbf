"""What `Account.explain` names: the messages that add up to mu, and nothing else."""

import math
from typing import Any

import pytest

from overhear.privacy.errors import InputError
from overhear.training import account

RUN: dict[str, Any] = {"graph": "ring:6", "rounds": 40, "sampling_rate": 0.1, "delta": 1e-5}


@pytest.mark.parametrize("name", ["eavesdropper", "neighbour", "final-models"])
@pytest.mark.parametrize("algorithm", ["dp-dpsgd", "dpdl", "decor", "dp-netfleet", "dp-sgda"])
def test_the_combination_reaches_mu(algorithm, name):
    found = account(algorithm, noise_multiplier=2.0, **RUN)
    told = found.explain(name)
    assert told.mu == found[name].mu_per_round
    assert told.reached is not None
    # The rows are summed by another elimination than that of the account.
    assert told.reached == pytest.approx(told.mu, rel=1e-6)
    assert told.parts[0].weight in (1.0, -1.0)


def test_three_releases_with_noise_of_their_own_count_alike():
    told = account("dpdl", noise_multiplier=2.0, **RUN).explain("eavesdropper")
    assert [abs(part.weight) for part in told.parts] == pytest.approx([1.0] * 3)
    assert [part.alone for part in told.parts] == pytest.approx([0.5] * 3)
    assert math.hypot(*(part.alone for part in told.parts)) == pytest.approx(told.mu, rel=1e-6)
    assert sum("cross-gradient of agent 0" in part.message for part in told.parts) == 2
    assert str(told).count("in round 1\n") == 3


def test_messages_that_help_without_holding_the_record_are_named():
    told = account("decor", noise_multiplier=2.0, **RUN).explain("neighbour")
    assert any(part.alone == 0.0 for part in told.parts)
    assert max(part.alone for part in told.parts) < told.mu


def test_what_shows_a_record_without_noise_is_named():
    told = account("dsgd", noise_multiplier=1.0, **RUN).explain("eavesdropper")
    assert (told.mu, told.reached, told.parts) == (math.inf, None, ())
    assert "mu is infinite, no protection" in str(told)
    assert "model of agent 0" in str(told)


def test_all_rounds_as_one_release_have_no_round_to_take_apart():
    found = account(
        "dpmixsgd", noise_multiplier=2.0, form="published", records=90, **RUN | {"rounds": 3}
    )
    whole = [name for name in found if found.joint_sensitivities[name].whole_run]
    assert whole
    assert "for all rounds together" in str(found.explain(whole[0]))


def test_encrypted_links_leave_the_final_models():
    run = RUN | {"links": "encrypted"}
    told = account("dp-dpsgd", noise_multiplier=2.0, **run).explain("eavesdropper")
    assert all(" of agent " not in part.message for part in told.parts)


def test_an_adversary_that_was_not_asked_for_is_refused():
    with pytest.raises(InputError, match="'coalition:1,2' is not accounted for"):
        account("dp-dpsgd", noise_multiplier=2.0, **RUN).explain("coalition:1,2")
