"""Unit "user": all records of one user at one agent, each drawn on its own, are what is hidden."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.accounting.trade_off import trade_off
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import Statement, Unit
from overhear.privacy.participation import Event, group
from overhear.training.accounts.account import account
from overhear.training.accounts.summary import rounded_up
from overhear.training.exposure.guarantees import calibrated_multiplier, run_epsilon
from overhear.training.exposure.sensitivity import UnsupportedMechanism

RUN = {"graph": "ring:6", "rounds": 1000, "sampling_rate": 0.02, "delta": 1e-5}
WATCH = {"adversaries": ["eavesdropper"]}


def users(records, /, **asked):
    given = {"noise_multiplier": 2.0} | RUN | WATCH | asked
    if {"epsilon", "advantage", "tpr"} & set(asked):
        del given["noise_multiplier"]
    return account("dp-dpsgd", unit="user", records_per_person=records, **given)


@pytest.mark.parametrize(
    ("records", "expected"), [(1, 1.3297), (2, 2.8869), (3, 4.5969), (5, 8.4253), (10, 20.211)]
)
def test_the_figure_is_that_of_all_records_of_a_user(records, expected):
    found = users(records)
    assert found["eavesdropper"].epsilon == pytest.approx(expected, rel=1e-4)
    assert found["eavesdropper"].group is None


@pytest.mark.parametrize(("records", "expected"), [(1, 2.6031), (3, 9.352), (5, 17.713)])
def test_a_user_whose_records_are_replaced_loses_more(records, expected):
    found = users(records, adjacency="replace-one")
    assert found["eavesdropper"].epsilon == pytest.approx(expected, rel=1e-4)


def test_it_is_what_a_run_of_unit_record_states_beside_its_figure():
    of_record = account(
        "dpdl", noise_multiplier=2.5, records_per_person=3, **RUN | WATCH | {"rounds": 50}
    )
    (beside,) = (one.epsilon for one in of_record["eavesdropper"].group or ())
    of_user = account(
        "dpdl", noise_multiplier=2.5, records_per_person=3, unit="user",
        **RUN | WATCH | {"rounds": 50},
    )  # fmt: skip
    assert of_user.epsilon("eavesdropper") == pytest.approx(beside, rel=1e-9)


def smallest_epsilon(p, q, delta, step):
    """The least epsilon of densities p and q on a grid, both ways."""
    grid = np.linspace(0.0, 30.0, 3001)

    def least(one, other):
        deltas = [np.maximum(one - math.exp(e) * other, 0.0).sum() * step for e in grid]
        return float(grid[int(np.argmax(np.array(deltas) <= delta))])

    return max(least(p, q), least(q, p))


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_a_toy_whose_draws_are_all_enumerated_has_that_epsilon(adjacency):
    # One round, 3 records of a user at rate .3, gradients all at +1, replaced by -1, noise 2.
    q, noise, delta = 0.3, 2.0, 1e-3
    x = np.linspace(-25.0, 25.0, 20_001)
    there, other = np.zeros_like(x), np.zeros_like(x)
    for drawn in itertools.product((0, 1), repeat=3):
        chance = math.prod(q if one else 1.0 - q for one in drawn)
        there += chance * norm.pdf(x, sum(drawn), noise)
        other += chance * norm.pdf(x, -sum(drawn), noise)
    other = other if adjacency == "replace-one" else norm.pdf(x, 0.0, noise)
    exact = smallest_epsilon(there, other, delta, x[1] - x[0])
    asked = {"rounds": 1, "sampling_rate": q, "delta": delta, "adjacency": adjacency}
    assert users(3, **asked).epsilon("eavesdropper") == pytest.approx(exact, abs=0.011)


@pytest.mark.slow
def test_targets_are_met_for_all_records_of_a_user():
    found = users(3, epsilon=2.0)
    seen = {Event(found.noise_multiplier, group(3, 0.02)): 1000}
    assert composed_epsilon(seen, delta=1e-5) == pytest.approx(2.0, rel=1e-6)
    assert found.epsilon("eavesdropper") <= 2.0
    for goal in ({"advantage": 0.2}, {"tpr": 0.2, "fpr": 0.01}):
        dear, cheap = (users(k, rounds=20, **goal) for k in (3, 1))
        assert dear.noise_multiplier > 1.5 * cheap.noise_multiplier
        assert dear.reached is not None
        assert dear.reached <= next(iter(goal.values()))


def test_a_statement_of_users_is_never_answered_with_the_figure_of_a_record():
    of_record = account("dp-dpsgd", noise_multiplier=2.0, **RUN | WATCH)
    seen = of_record.joint_sensitivities["eavesdropper"]
    said = Statement(delta=1e-5, unit=Unit.USER, records_per_person=3)
    assert run_epsilon(seen, statement=said, noise_multiplier=2.0) == pytest.approx(
        4.5969, rel=1e-4
    )
    assert calibrated_multiplier(seen, statement=said, epsilon=4.5969) == pytest.approx(
        2.0, rel=1e-3
    )


def test_a_mean_that_is_clipped_moves_no_further_for_several_records():
    found = account(
        "whisper", noise_multiplier=20.0, clip="batch", unit="user", records_per_person=4,
        **RUN | WATCH | {"rounds": 20},
    )  # fmt: skip
    # Whether any of the four is drawn is one coin: 1 - (1 - q)^4; the ball has diameter 2.
    one = account(
        "whisper", noise_multiplier=20.0, clip="batch",
        **RUN | WATCH | {"rounds": 20, "sampling_rate": 1.0 - 0.98**4},
    )  # fmt: skip
    assert found.epsilon("eavesdropper") == pytest.approx(one.epsilon("eavesdropper"), rel=1e-6)


def test_shuffled_batches_move_as_many_times_as_far():
    asked = {
        "sampling": "shuffled", "batch_size": 20, "records": 1000, "adjacency": "zero-out",
        "rounds": 100,
    }  # fmt: skip
    found = users(3, noise_multiplier=6.0, **asked)["eavesdropper"]
    one = account("dp-dpsgd", noise_multiplier=2.0, **RUN | WATCH | asked)["eavesdropper"]
    assert found.epsilon == pytest.approx(one.epsilon, rel=1e-6)


def test_the_words_speak_of_users():
    found = users(3)
    said = found.statement()
    assert "adding or removing all records of one user (at most 3)" in said
    assert "% of users at 1 % false positives" in said
    assert "No user has more than 3 records, and each has them at one agent: that is" in said
    assert "one record" not in said
    assert "add-or-remove-one user with at most 3 records" in str(found)
    assert any("is assumed: nothing in the data says whose" in one for one in found.warnings)
    (row,) = found.to_json()["adversaries"]
    assert (row["unit"], row["records_per_person"]) == ("user", 3)
    assert "one record of a user" in str(found.explain("eavesdropper"))


def test_every_agent_s_figure_is_that_of_a_user():
    every = users(3).epsilon_by_agent()["eavesdropper"]
    assert every == [pytest.approx(4.5969, rel=1e-4)] * 6


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"records_per_person": None}, "unit='user' needs records_per_person"),
        ({"accountant": "rdp"}, "records_per_person=3 is added up by accountant='pld' alone"),
        ({"holders": [0, 1]}, "holders=.* are about records, and unit='user' is not"),
        ({"records_per_person": 0}, r"records_per_person=0 must lie in \[1, 1000\]"),
        (
            {"sampling": "fixed", "batch_size": 20, "records": 1000, "adjacency": "zero-out"},
            "records_per_person=3 has no bound with batches='fixed'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(asked, message):
    given = {"noise_multiplier": 2.0, "records_per_person": 3} | RUN | asked
    with pytest.raises((InputError, UnsupportedMechanism), match=message):
        account("dp-dpsgd", unit="user", **given)


def test_one_record_a_user_is_a_record_for_every_accountant():
    found = users(1, accountant="rdp", rounds=10)
    record = account("dp-dpsgd", noise_multiplier=2.0, accountant="rdp", **RUN | {"rounds": 10})
    assert found.epsilon("eavesdropper") == record.epsilon("eavesdropper")


def test_what_is_read_off_the_releases_alone_is_of_all_records_too():
    found = users(3)
    (release,) = found.joint_sensitivities["eavesdropper"].releases
    assert release.records == 3
    curve = trade_off({Event(2.0, group(3, 0.02)): 1000}, adjacency="add-or-remove-one")
    hits = 100.0 * (1.0 - float(curve.false_negative_rates(0.01)))
    assert f"names at most {rounded_up(hits)} % of users" in found.statement()
